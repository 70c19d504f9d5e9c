//! Two devices of one runtime that reach each other's memory: opened when somebody asks, and believed only after
//! bytes went both ways.
//!
//! Order between the two is the host's matter, as everywhere: wait there, then submit. Must not know: who asks.

use std::sync::Arc;

use crate::ability::{Ability, Lack};
use crate::buffer::View;
use crate::device::{Device, Inner};
use crate::driver::{Driver, Place, Way};
use crate::fault::Fault;
use crate::owned::{Held, Leftover, release};
use crate::runtime::Runtime;
use crate::stream::Stream;

/// Bytes of the probe.
const SEEN: usize = 64 << 10;

impl<R: Driver> Runtime<R> {
    /// Whether the device `from` says that it can reach the memory of `to`. Opens neither.
    ///
    /// # Errors
    /// `NoDevice`, `Call`.
    pub fn peer(&self, from: u32, to: u32) -> Result<Ability, Fault> {
        self.exists(from)?;
        self.exists(to)?;
        if from == to {
            return Ok(Ability::No(Lack::Kind("it is the same device")));
        }
        let asked = self.driver().reaches(from, to);
        asked.map_err(|e| Fault::of(self.id(from), e))
    }
}

/// One direction of access; ends when it is dropped.
#[derive(Debug)]
struct Reach<R: Driver> {
    from: Arc<Inner<R>>,
    to: Arc<Inner<R>>,
}

impl<R: Driver> Reach<R> {
    fn new(from: &Device<R>, to: &Device<R>) -> Result<Self, Fault> {
        let (from, to) = (&from.0, &to.0);
        let asked = from.driver.reaches(from.id.ordinal, to.id.ordinal);
        if let Ability::No(why) = from.check(asked)? {
            return Err(Fault::Unable {
                device: from.id,
                what: "reach another device's memory",
                why,
            });
        }
        // SAFETY: both devices are open.
        from.check(unsafe { from.driver.reach(from.handle, to.handle) })?;
        Ok(Self {
            from: Arc::clone(from),
            to: Arc::clone(to),
        })
    }
}

impl<R: Driver> Drop for Reach<R> {
    fn drop(&mut self) {
        release(
            &self.from,
            Some(Leftover::Peer(Arc::clone(&self.to) as _, self.to.handle)),
        );
    }
}

/// Two devices that reach each other's memory. Dropping it ends that once no stream copies between them any more.
#[derive(Debug)]
pub struct Peers<R: Driver>(Arc<[Reach<R>; 2]>);

impl<R: Driver> Peers<R> {
    /// Lets two devices of one runtime reach each other, and sees that bytes arrive both ways.
    ///
    /// # Errors
    /// `WrongDevice` for devices of two runtimes, or one device twice; `Unable` where one says that it cannot;
    /// `Call`, also where somebody else opened the way before; `Mangled` if other bytes arrive.
    pub fn open(a: &Device<R>, b: &Device<R>) -> Result<Self, Fault> {
        let (one, two) = (a.id(), b.id());
        if one.instance != two.instance || one.ordinal == two.ordinal {
            return Err(Fault::WrongDevice {
                what: "a peer",
                expected: one,
                got: two,
            });
        }
        let peers = Self(Arc::new([Reach::new(a, b)?, Reach::new(b, a)?]));
        peers.probe(a, b)?;
        peers.probe(b, a)?;
        Ok(peers)
    }

    /// Copies `from` over `to`, memory of the two devices, on a stream of either.
    ///
    /// # Errors
    /// `WrongDevice`, `Range` for different lengths, `Quiesced`, `Call`, `Lost`.
    pub fn copy(&self, stream: &Stream<R>, from: &View<R>, to: &View<R>) -> Result<(), Fault> {
        let [there, back] = &*self.0;
        let ours = [there.from.id, back.from.id];
        for (what, id) in [
            ("a stream", stream.device()),
            ("a buffer", from.memory.device.id),
            ("a buffer", to.memory.device.id),
        ] {
            if !ours.contains(&id) {
                return Err(Fault::WrongDevice {
                    what,
                    expected: ours[0],
                    got: id,
                });
            }
        }
        if from.len() != to.len() {
            return Err(Fault::Range {
                what: "copy of different lengths",
                start: 0,
                end: from.len(),
                len: to.len(),
            });
        }
        let (source, destination, bytes) = (from.address(), to.address(), from.len());
        if bytes == 0 {
            return stream.0.device.enter().map(drop);
        }
        let uses = [
            Arc::clone(&self.0) as Held,
            Arc::clone(&from.memory) as Held,
            Arc::clone(&to.memory) as Held,
        ];
        stream.0.submit(uses, |driver, d, stream| {
            // SAFETY: both ranges lie in live allocations of two devices that reach each other; the stream holds the
            // ranges and the way between them.
            unsafe { driver.copy(d, stream, Way::Within, destination, source, bytes) }
        })
    }

    /// Sends bytes from one device's memory to the other's and looks at what arrived.
    fn probe(&self, from: &Device<R>, to: &Device<R>) -> Result<(), Fault> {
        let salt = from.id().ordinal.wrapping_mul(31).wrapping_add(7);
        let want: Vec<u8> = (0..SEEN as u32)
            .map(|i| (i.wrapping_mul(0x9e37_79b9).wrapping_add(salt) >> 24) as u8)
            .collect();
        let (near, far) = (
            from.alloc(Place::Device, SEEN as u64)?,
            to.alloc(Place::Device, SEEN as u64)?,
        );
        let (ours, theirs) = (from.stream()?, to.stream()?);
        ours.write_now(&want, &near.view())?;
        theirs.fill(&far.view(), 0xa5)?;
        theirs.sync()?;
        self.copy(&ours, &near.view(), &far.view())?;
        ours.sync()?;
        let mut got = vec![0; SEEN];
        theirs.read_now(&far.view(), &mut got)?;
        match got.iter().zip(&want).position(|(a, b)| a != b) {
            None => Ok(()),
            Some(at) => Err(Fault::Mangled {
                from: from.id(),
                to: to.id(),
                at: at as u64,
                expected: want[at],
                got: got[at],
            }),
        }
    }
}
