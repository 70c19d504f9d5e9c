//! What devices add to memory that both sides map: each side pins it for its own device, and a probe tells whether the
//! worker's device sees memory of the model's.
//!
//! Nothing here is needed: where it cannot be, rows are copied once more, which is said and counted. What the sides
//! tell each other about it stands behind the bodies of the handshake, so that a side that knows nothing of it still
//! understands the rest. Must not know: vendors, rows.

use std::sync::Arc;

use device::shared::Handle;
use device::{AnyDevice, Lack, Lending, Pin};

use crate::error::LinkError;
use crate::region::{Nonce, Pages, Region};
use crate::report::Standing;
use crate::wire::{Reader, Writer};

/// The longest reason that is sent.
const WHY_MAX: usize = 400;
/// The longest name of a device.
const NAME_MAX: usize = 64;
const STREAM: &str = "rows travel by a stream";

/// What came of pinning: how it stands, and whether a device that should be able to could not.
pub(crate) fn outcome<T>(pinned: Result<T, device::Fault>) -> (Standing, bool, Option<T>) {
    match pinned {
        Ok(pin) => (Standing::Yes, false, Some(pin)),
        Err(why) => {
            let senseless = matches!(
                why,
                device::Fault::Unable {
                    why: Lack::Kind(_),
                    ..
                }
            );
            (Standing::no(why), !senseless, None)
        }
    }
}

/// Pins a region's payload for the parent's device.
pub(crate) fn pin(
    device: Option<&dyn AnyDevice>,
    region: Option<&Arc<Region>>,
) -> (Standing, bool, Option<Box<dyn Pin>>) {
    match (device, pages(region)) {
        (None, _) => (Standing::no(HERE), false, None),
        (_, Err(why)) => (Standing::No(why), region.is_some(), None),
        (Some(device), Ok(pages)) => outcome(device.pin(pages)),
    }
}

/// A region's payload for a device to pin.
///
/// # Errors
/// Why there is none.
pub(crate) fn pages(region: Option<&Arc<Region>>) -> Result<Arc<Pages>, String> {
    region.map_or_else(|| Err(STREAM.to_owned()), Pages::of)
}

/// The number that both halves of a probe make their patterns from.
pub(crate) fn seed(nonce: &Nonce) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&nonce[..8]);
    u64::from_le_bytes(word)
}

/// Memory that the parent lends for a probe, as the worker is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lent {
    /// The device it is of, by its name there.
    pub device: String,
    /// Its handle.
    pub handle: Handle,
}

impl Lent {
    /// Begins a probe; or why none is possible.
    pub(crate) fn begin(
        device: Option<&dyn AnyDevice>,
        nonce: &Nonce,
    ) -> Result<(Self, Box<dyn Lending>), Standing> {
        let device = device.ok_or_else(|| Standing::no(HERE))?;
        let lending = device.lend(seed(nonce)).map_err(Standing::no)?;
        let lent = Self {
            device: device.name(),
            handle: lending.handle(),
        };
        Ok((lent, lending))
    }

    /// Behind the body of `Configure`.
    pub fn put(lent: Option<&Self>, body: &mut Vec<u8>) {
        let Some(lent) = lent else { return };
        let mut w = Writer(std::mem::take(body));
        w.text(lent.device.as_bytes(), NAME_MAX).raw(&lent.handle.0);
        *body = w.0;
    }

    /// From what stands behind the body of `Configure`.
    ///
    /// # Errors
    /// `Corrupt`.
    pub(crate) fn take(rest: &[u8]) -> Result<Option<Self>, LinkError> {
        if rest.is_empty() {
            return Ok(None);
        }
        let mut r = Reader(rest);
        let device = r.text("lending device", NAME_MAX)?;
        let device = String::from_utf8_lossy(device).into_owned();
        let handle = Handle(r.array("memory handle")?);
        Ok(Some(Self { device, handle }))
    }

    /// The worker's half of the probe.
    pub(crate) fn answer(lent: Option<&Self>, device: &dyn AnyDevice, nonce: &Nonce) -> Standing {
        let Some(lent) = lent else {
            return Standing::no("none was lent");
        };
        let kind = |name: &str| name.split(':').next().map(str::to_owned);
        let name = device.name();
        if kind(&name) != kind(&lent.device) {
            let why = format!("memory of {} cannot be opened on {name}", lent.device);
            return Standing::No(why);
        }
        match device.answer(&lent.handle, seed(nonce)) {
            Ok(()) => Standing::Yes,
            Err(why) => Standing::No(why),
        }
    }
}

/// Why a side without a device pins nothing and lends nothing.
pub(crate) const HERE: &str = "the model runs on the processor";
/// The same of the worker.
pub(crate) const THERE: &str = "the drafter's layers run on the processor";

/// What the worker tells of itself, behind the body of `Ready`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Whether it has pinned the region.
    pub pinned: Standing,
    /// Whether its device could not although it should be able to: rows are copied once more.
    pub copies: bool,
    /// What it made of the memory that was lent.
    pub memory: Standing,
}

impl Told {
    /// Of a worker without a device.
    #[must_use]
    pub fn processor() -> Self {
        Self {
            pinned: Standing::no(THERE),
            copies: false,
            memory: Standing::no(THERE),
        }
    }

    /// Appends it to a body.
    pub fn put(&self, body: &mut Vec<u8>) {
        let mut w = Writer(std::mem::take(body));
        w.u32(u32::from(self.copies));
        for standing in [&self.pinned, &self.memory] {
            let why = match standing {
                Standing::Yes => "",
                Standing::No(why) => why,
            };
            w.u32(u32::from(standing.is_yes()))
                .text(why.as_bytes(), WHY_MAX);
        }
        *body = w.0;
    }

    /// From what stands behind the body of `Ready`.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn take(rest: &[u8]) -> Result<Self, LinkError> {
        if rest.is_empty() {
            let silent = || Standing::no("the worker does not say");
            return Ok(Self {
                pinned: silent(),
                copies: false,
                memory: silent(),
            });
        }
        let mut r = Reader(rest);
        let copies = r.u32("copies")? == 1;
        let mut standing = |field| {
            let yes = r.u32(field)? == 1;
            let why = String::from_utf8_lossy(r.text(field, WHY_MAX)?).into_owned();
            Ok::<_, LinkError>(if yes {
                Standing::Yes
            } else {
                Standing::No(why)
            })
        };
        Ok(Self {
            copies,
            pinned: standing("pinned")?,
            memory: standing("memory")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_read_back() {
        for told in [
            Told::processor(),
            Told {
                pinned: Standing::Yes,
                copies: true,
                memory: Standing::no("byte 3"),
            },
        ] {
            let mut body = Vec::new();
            told.put(&mut body);
            assert_eq!(Told::take(&body).unwrap(), told);
            assert!(Told::take(&body[..body.len() - 1]).is_err());
        }
        let silent = Told::take(&[]).unwrap();
        assert_eq!(silent.pinned.to_string(), "no, the worker does not say");
        let lent = Lent {
            device: "cuda:0".to_owned(),
            handle: Handle([7; 64]),
        };
        let mut body = Vec::new();
        Lent::put(Some(&lent), &mut body);
        assert_eq!(Lent::take(&body).unwrap(), Some(lent));
        assert!(Lent::take(&body[..40]).is_err());
        Lent::put(None, &mut body);
        assert_eq!(Lent::take(&[]).unwrap(), None);
    }
}
