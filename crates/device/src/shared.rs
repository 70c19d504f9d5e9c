//! Device memory across processes: an allocation of its own that another process of the same runtime opens, and the
//! probe that shows whether both see the same bytes.
//!
//! A handle covers a whole allocation, so that one is made for the purpose. Who opened it closes it before the other
//! frees it: with handles that cross a channel that is a matter of what is said there. Must not know: channels.

use std::fmt;
use std::sync::Arc;

use crate::buffer::{Buffer, View};
use crate::device::Device;
use crate::driver::{Driver, Place, SHARE_BYTES};
use crate::fault::Fault;
use crate::owned::{Allocation, Origin};

/// What names device memory in another process; opaque, of the vendor's making.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Handle(pub [u8; SHARE_BYTES]);

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handle")
    }
}

/// Memory that others may open. Dropping it frees it.
#[derive(Debug)]
pub struct Lent<R: Driver> {
    buffer: Buffer<R>,
    handle: Handle,
}

/// Another process's memory, opened here. Dropping it closes it once no stream uses it any more.
#[derive(Debug)]
pub struct Borrowed<R: Driver>(Arc<Allocation<R>>);

const WHAT: &str = "share memory with other processes";

impl<R: Driver> Device<R> {
    /// Allocates memory that another process can open by its handle.
    ///
    /// # Errors
    /// `Unable` where [`crate::Facts::share`] says why, `OutOfMemory`, `Call`, `Lost`.
    pub fn lend(&self, bytes: u64) -> Result<Lent<R>, Fault> {
        let able = self.facts().share.check();
        able.map_err(|why| self.unable(WHAT, why))?;
        let buffer = self.alloc(Place::Device, bytes)?;
        let device = &self.0;
        // SAFETY: the start of a live allocation of this device.
        let handle = unsafe { device.driver.share(device.handle, buffer.0.address) };
        let handle = Handle(device.check(handle)?);
        Ok(Lent { buffer, handle })
    }

    /// Opens another process's memory, `bytes` bytes of it.
    ///
    /// # Errors
    /// As [`Device::lend`]; `Call` for a handle that is none, or of this process.
    pub fn borrow(&self, handle: &Handle, bytes: u64) -> Result<Borrowed<R>, Fault> {
        let able = self.facts().share.check();
        able.map_err(|why| self.unable(WHAT, why))?;
        let device = &self.0;
        device.alive()?;
        // SAFETY: the device is open; a handle that is none is refused by the runtime.
        let address = unsafe { device.driver.open_shared(device.handle, &handle.0, bytes) };
        let address = device.check(address)?;
        Ok(Borrowed(Arc::new(Allocation {
            device: Arc::clone(device),
            place: Place::Device,
            address,
            bytes,
            origin: Origin::Shared,
        })))
    }
}

impl<R: Driver> Lent<R> {
    /// What another process opens it by.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// The memory.
    #[must_use]
    pub fn view(&self) -> View<R> {
        self.buffer.view()
    }
}

impl<R: Driver> Borrowed<R> {
    /// The memory.
    #[must_use]
    pub fn view(&self) -> View<R> {
        Buffer(Arc::clone(&self.0)).view()
    }
}

/// Bytes of a probe's allocation: CUDA cuts smaller ones from blocks of so many (CUDA driver API,
/// `cuIpcGetMemHandle`), which a handle would open as a whole.
pub const PROBE_BYTES: u64 = 2 << 20;
/// Bytes of it that are written and compared.
const SEEN: usize = 64 << 10;

/// Which side wrote a pattern.
#[derive(Clone, Copy)]
enum From {
    Lender = 1,
    Borrower = 2,
}

/// Bytes that only who knows the seed can have written (splitmix64 by S. Vigna).
fn pattern(seed: u64, from: From) -> Vec<u8> {
    let mut state = seed ^ ((from as u64) << 62);
    let word = |_| {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)).to_le_bytes()
    };
    (0..SEEN / 8).flat_map(word).collect()
}

fn write<R: Driver>(device: &Device<R>, to: &View<R>, bytes: &[u8]) -> Result<(), Fault> {
    let stream = device.stream()?;
    stream.write_now(bytes, &to.part(0, bytes.len() as u64)?)
}

/// Compares the memory with what was written, byte for byte.
fn compare<R: Driver>(device: &Device<R>, from: &View<R>, want: &[u8]) -> Result<(), String> {
    let mut got = vec![0; want.len()];
    let mut read = || {
        let stream = device.stream()?;
        stream.read_now(&from.part(0, want.len() as u64)?, &mut got)
    };
    read().map_err(|fault: Fault| fault.to_string())?;
    match got.iter().zip(want).position(|(a, b)| a != b) {
        None => Ok(()),
        Some(at) => Err(format!(
            "byte {at} of the memory: expected {:#04x}, got {:#04x}",
            want[at], got[at]
        )),
    }
}

/// The lender's half of a probe: memory with a pattern, and a look at what the borrower made of it.
#[derive(Debug)]
pub struct Probe<R: Driver> {
    device: Device<R>,
    lent: Lent<R>,
    seed: u64,
}

impl<R: Driver> Probe<R> {
    /// Makes the memory and writes the lender's pattern.
    ///
    /// # Errors
    /// As [`Device::lend`].
    pub fn new(device: &Device<R>, seed: u64) -> Result<Self, Fault> {
        let lent = device.lend(PROBE_BYTES)?;
        write(device, &lent.view(), &pattern(seed, From::Lender))?;
        Ok(Self {
            device: device.clone(),
            lent,
            seed,
        })
    }

    /// The handle for the borrower.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.lent.handle()
    }

    /// Whether the borrower's pattern is there.
    ///
    /// # Errors
    /// The first byte that differs, or the fault.
    pub fn check(&self) -> Result<(), String> {
        let want = pattern(self.seed, From::Borrower);
        compare(&self.device, &self.lent.view(), &want)
    }
}

/// The borrower's half: compares the lender's pattern, writes its own, and closes the memory.
///
/// # Errors
/// Why not, for people.
pub fn answer<R: Driver>(device: &Device<R>, handle: &Handle, seed: u64) -> Result<(), String> {
    let there = device.borrow(handle, PROBE_BYTES);
    let there = there.map_err(|fault| fault.to_string())?;
    compare(device, &there.view(), &pattern(seed, From::Lender))?;
    let written = write(device, &there.view(), &pattern(seed, From::Borrower));
    written.map_err(|fault| fault.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_differ_by_seed_and_side() {
        let (a, b) = (pattern(7, From::Lender), pattern(7, From::Borrower));
        assert_eq!((a.len(), b.len()), (SEEN, SEEN));
        assert!(a != b && a != pattern(8, From::Lender));
        assert_eq!(a, pattern(7, From::Lender));
    }
}
