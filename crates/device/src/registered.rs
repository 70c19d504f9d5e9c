//! Memory of the host that somebody else owns, pinned for a device: copies go from it and to it without a detour.
//!
//! Streams hold it as they hold buffers: it is unregistered, and its owner let go of, only when no work uses it any
//! more. The host sees no bytes of it through here: other processes may write them. Must not know: whose memory it is.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::buffer::{Buffer, View};
use crate::device::Device;
use crate::driver::{Driver, Place};
use crate::fault::{DeviceId, Fault};
use crate::owned::{Allocation, Origin};

/// Memory of the host that stays where it is.
///
/// # Safety
/// As long as the value lives, `bytes()` bytes from `start()` on are mapped for reads and writes, both answers stay the
/// same, and nobody makes a reference to those bytes: a device's copy may write them at any time.
pub unsafe trait HostMemory: fmt::Debug + Send + Sync + 'static {
    /// Its first byte, at the start of a page.
    fn start(&self) -> NonNull<u8>;

    /// Its size: whole pages.
    fn bytes(&self) -> usize;
}

/// Host memory that a device has pinned. Dropping it ends that once no stream uses it any more.
#[derive(Debug)]
pub struct Registered<R: Driver>(Arc<Allocation<R>>);

impl<R: Driver> Device<R> {
    /// Pins memory of the host.
    ///
    /// # Errors
    /// `Unable` where [`crate::Facts::register`] says why; `Call` for memory that is registered already, that the
    /// system does not let be pinned, or that is empty; `Lost`.
    pub fn register(&self, memory: Arc<dyn HostMemory>) -> Result<Registered<R>, Fault> {
        let able = self.facts().register.check();
        able.map_err(|why| self.unable("pin memory of the host", why))?;
        let device = &self.0;
        device.alive()?;
        let (start, bytes) = (memory.start(), memory.bytes() as u64);
        let address = start.as_ptr().expose_provenance() as u64;
        // SAFETY: the device is open; the bytes are mapped as long as `memory` lives, which the allocation holds until
        // the registration has ended.
        let registered = unsafe { device.driver.register(device.handle, address, bytes) };
        device.check(registered)?;
        Ok(Registered(Arc::new(Allocation {
            device: Arc::clone(device),
            place: Place::Pinned,
            address,
            bytes,
            origin: Origin::Registered(memory),
        })))
    }
}

impl<R: Driver> Registered<R> {
    /// Its device.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.0.device.id
    }

    /// Bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // nobody asks whether memory is empty
    pub fn len(&self) -> u64 {
        self.0.bytes
    }

    /// Bytes `start..start + len` of it, for copies.
    ///
    /// # Errors
    /// `Range`.
    pub fn part(&self, start: u64, len: u64) -> Result<View<R>, Fault> {
        Buffer(Arc::clone(&self.0)).part(start, len)
    }
}
