//! Pinned slots for copies between host and device. A slot that a copy uses is given out again only
//! when that copy's own event, recorded on the stream of the device it goes to, has fired.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use crate::buffer::{Buffer, View, inside};
use crate::device::{Device, Inner, count, lock};
use crate::driver::{Driver, Place};
use crate::event::Event;
use crate::fault::Fault;
use crate::owned::Allocation;
use crate::stream::Stream;

#[derive(Debug)]
struct Ring<R: Driver> {
    device: Arc<Inner<R>>,
    slots: usize,
    bytes: u64,
    state: Mutex<State<R>>,
}

#[derive(Debug)]
struct State<R: Driver> {
    free: Vec<Arc<Allocation<R>>>,
    /// Used by copies, oldest first.
    flying: VecDeque<(Event<R>, Arc<Allocation<R>>)>,
    /// Slots in somebody's hands.
    out: usize,
}

/// A ring of pinned slots.
#[derive(Debug)]
pub struct Staging<R: Driver>(Arc<Ring<R>>);

impl<R: Driver> Staging<R> {
    /// `slots` slots of `bytes` bytes each.
    ///
    /// # Errors
    /// `OutOfMemory`, `Call`, `Lost`; `NoSlot` if none was asked for.
    pub fn new(device: &Device<R>, slots: usize, bytes: u64) -> Result<Self, Fault> {
        let make = |_| Allocation::new(&device.0, Place::Pinned, bytes).map(Arc::new);
        let free = (0..slots).map(make).collect::<Result<Vec<_>, _>>()?;
        if free.is_empty() {
            return Err(Fault::NoSlot {
                device: device.id(),
                slots,
            });
        }
        Ok(Self(Arc::new(Ring {
            device: Arc::clone(&device.0),
            slots,
            bytes,
            state: Mutex::new(State {
                free,
                flying: VecDeque::new(),
                out: 0,
            }),
        })))
    }

    /// Bytes of a slot.
    #[must_use]
    pub fn slot_bytes(&self) -> u64 {
        self.0.bytes
    }

    /// A slot, after waiting for the oldest copy if none is free (counted). `None` if every slot is in
    /// somebody's hands: waiting for them here would not end.
    ///
    /// # Errors
    /// `NoSlot` if all were given up after failures, `Call`, `Lost`.
    pub fn take(&self) -> Result<Option<Slot<R>>, Fault> {
        let mut state = lock(&self.0.state);
        state.collect()?;
        if state.free.is_empty() {
            if let Some((event, _)) = state.flying.front() {
                count(&self.0.device.tally.staging_waits);
                event.wait()?;
                let landed = state.flying.pop_front();
                state.free.extend(landed.map(|(_, memory)| memory));
            } else if state.out == 0 {
                return Err(Fault::NoSlot {
                    device: self.0.device.id,
                    slots: self.0.slots,
                });
            }
        }
        let memory = state.free.pop();
        state.out += usize::from(memory.is_some());
        Ok(memory.map(|memory| Slot {
            ring: Arc::clone(&self.0),
            memory: Some(memory),
        }))
    }
}

impl<R: Driver> State<R> {
    /// Takes back what has landed.
    fn collect(&mut self) -> Result<(), Fault> {
        while let Some((event, _)) = self.flying.front() {
            if !event.is_done()? {
                break;
            }
            let landed = self.flying.pop_front();
            self.free.extend(landed.map(|(_, memory)| memory));
        }
        Ok(())
    }
}

/// A slot in the caller's hands: nobody else touches its bytes. Dropping it gives it back.
#[derive(Debug)]
pub struct Slot<R: Driver> {
    ring: Arc<Ring<R>>,
    memory: Option<Arc<Allocation<R>>>,
}

impl<R: Driver> Slot<R> {
    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        match &self.memory {
            // SAFETY: pinned memory of a slot that no copy uses: it left the ring after its last
            // copy's event, and goes back when `self` is gone.
            Some(memory) => unsafe { memory.host() },
            None => &[],
        }
    }

    /// Its bytes, to be written.
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match &self.memory {
            // SAFETY: as in `bytes`, and `self` is borrowed for writing.
            Some(memory) => unsafe { memory.host_mut() },
            None => &mut [],
        }
    }

    /// Copies the first bytes of the slot over `to`. The slot is free again when that copy is done;
    /// the event says when.
    ///
    /// # Errors
    /// `Range` if `to` is longer than the slot; as [`Stream::copy`] and [`Stream::record`].
    pub fn upload(mut self, stream: &Stream<R>, to: &View<R>) -> Result<Event<R>, Fault> {
        let near = self.near(to.len())?;
        let result = stream.copy(&near, to).and_then(|()| stream.record());
        self.fly(stream, result)
    }

    /// Copies `from` over the first bytes of the slot.
    ///
    /// # Errors
    /// As [`Slot::upload`].
    pub fn download(mut self, stream: &Stream<R>, from: &View<R>) -> Result<Download<R>, Fault> {
        let near = self.near(from.len())?;
        let result = stream.copy(from, &near).and_then(|()| stream.record());
        match result {
            // The download holds the slot, not the ring: it is not free before it was read.
            Ok(event) => Ok(Download {
                event,
                slot: Some(self),
            }),
            failed => self
                .fly(stream, failed)
                .map(|event| Download { event, slot: None }),
        }
    }

    fn near(&self, len: u64) -> Result<View<R>, Fault> {
        inside("staging slot", 0, len, self.ring.bytes)?;
        match &self.memory {
            Some(memory) => Buffer(Arc::clone(memory)).part(0, len),
            None => Err(Fault::NoSlot {
                device: self.ring.device.id,
                slots: self.ring.slots,
            }),
        }
    }

    /// Hands the slot to its copy, or settles what a failure left.
    fn fly(
        &mut self,
        stream: &Stream<R>,
        result: Result<Event<R>, Fault>,
    ) -> Result<Event<R>, Fault> {
        let Some(memory) = self.memory.take() else {
            return result;
        };
        let mut state = lock(&self.ring.state);
        state.out -= 1;
        match result {
            Ok(event) => {
                state.flying.push_back((event.clone(), memory));
                Ok(event)
            }
            // The copy may run although a call failed: only an idle stream proves that it does not.
            Err(fault) => {
                if stream.sync().is_ok() {
                    state.free.push(memory);
                } else {
                    count(&self.ring.device.tally.staging_retired);
                }
                Err(fault)
            }
        }
    }
}

impl<R: Driver> Drop for Slot<R> {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            let mut state = lock(&self.ring.state);
            state.out -= 1;
            state.free.push(memory);
        }
    }
}

/// A copy towards the host, on its way. Dropping it gives the slot back when the copy is done.
#[derive(Debug)]
pub struct Download<R: Driver> {
    event: Event<R>,
    slot: Option<Slot<R>>,
}

impl<R: Driver> Download<R> {
    /// The event after the copy.
    #[must_use]
    pub fn event(&self) -> &Event<R> {
        &self.event
    }

    /// Waits for the copy and gives the slot with the bytes.
    ///
    /// # Errors
    /// `Call`, `Lost`; the slot stays with its copy.
    pub fn wait(mut self) -> Result<Slot<R>, Fault> {
        self.event.wait()?;
        self.slot.take().ok_or(Fault::NoSlot {
            device: self.event.device(),
            slots: 0,
        })
    }
}

impl<R: Driver> Drop for Download<R> {
    fn drop(&mut self) {
        let Some(mut slot) = self.slot.take() else {
            return;
        };
        if let Some(memory) = slot.memory.take() {
            let mut state = lock(&slot.ring.state);
            state.out -= 1;
            state.flying.push_back((self.event.clone(), memory));
        }
    }
}
