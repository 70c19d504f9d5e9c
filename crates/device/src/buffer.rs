//! Memory of a device, and parts of it.

use std::sync::Arc;

use crate::driver::{Driver, Place};
use crate::fault::{DeviceId, Fault};
use crate::owned::Allocation;

/// Memory of a device of runtime `R`. Dropping it frees it once no stream uses it any more.
///
/// Work of several streams on the same bytes needs events between them, as on any GPU.
#[derive(Debug)]
pub struct Buffer<R: Driver>(pub(crate) Arc<Allocation<R>>);

impl<R: Driver> Buffer<R> {
    pub(crate) fn new(allocation: Allocation<R>) -> Self {
        Self(Arc::new(allocation))
    }

    /// Bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // nobody asks whether memory is empty
    pub fn len(&self) -> u64 {
        self.0.bytes
    }

    /// Where it lies.
    #[must_use]
    pub fn place(&self) -> Place {
        self.0.place
    }

    /// Its device.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.0.device.id
    }

    /// All of it.
    #[must_use]
    pub fn view(&self) -> View<R> {
        View {
            memory: Arc::clone(&self.0),
            offset: 0,
            len: self.0.bytes,
        }
    }

    /// Bytes `start..start + len` of it.
    ///
    /// # Errors
    /// `Range`.
    pub fn part(&self, start: u64, len: u64) -> Result<View<R>, Fault> {
        self.view().part(start, len)
    }
}

/// A range of a buffer. Holds the buffer.
#[derive(Debug)]
pub struct View<R: Driver> {
    pub(crate) memory: Arc<Allocation<R>>,
    offset: u64,
    len: u64,
}

impl<R: Driver> Clone for View<R> {
    fn clone(&self) -> Self {
        Self {
            memory: Arc::clone(&self.memory),
            offset: self.offset,
            len: self.len,
        }
    }
}

impl<R: Driver> View<R> {
    /// Bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // nobody asks whether memory is empty
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Where it lies.
    #[must_use]
    pub fn place(&self) -> Place {
        self.memory.place
    }

    /// Bytes `start..start + len` of it.
    ///
    /// # Errors
    /// `Range`.
    pub fn part(&self, start: u64, len: u64) -> Result<Self, Fault> {
        inside("part of a buffer", start, len, self.len)?;
        Ok(Self {
            memory: Arc::clone(&self.memory),
            offset: self.offset + start,
            len,
        })
    }

    pub(crate) fn address(&self) -> u64 {
        self.memory.address + self.offset
    }
}

/// Refuses `start..start + len` if it does not lie in `0..size`.
pub(crate) fn inside(what: &'static str, start: u64, len: u64, size: u64) -> Result<(), Fault> {
    match start.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        end => Err(Fault::Range {
            what,
            start,
            end: end.unwrap_or(u64::MAX),
            len: size,
        }),
    }
}
