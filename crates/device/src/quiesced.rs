//! The proof that a device is idle. While it exists, submissions to the device are refused, so that
//! graphs can be retired and memory freed, or read by the host, at once.

use std::sync::Arc;

use crate::buffer::Buffer;
use crate::device::Inner;
use crate::driver::{Driver, Place};
use crate::fault::{DeviceId, Fault};
use crate::graph::Graph;

/// A device on which nothing runs and nothing can be submitted.
#[derive(Debug)]
#[must_use = "the device takes no work as long as this lives, and again when it is dropped"]
pub struct Quiesced<R: Driver>(Arc<Inner<R>>);

impl<R: Driver> Quiesced<R> {
    pub(crate) fn new(device: &Arc<Inner<R>>) -> Result<Self, Fault> {
        device.alive()?;
        if device.set_still(true) {
            return Err(Fault::Quiesced { device: device.id });
        }
        // From here on a failure opens the gate again, in `drop`.
        let this = Self(Arc::clone(device));
        for stream in device.streams() {
            stream.settle()?;
        }
        Ok(this)
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.0.id
    }

    /// Destroys a graph now.
    ///
    /// # Errors
    /// `WrongDevice`; `StillUsed` if a stream could not let go of it. The graph comes back.
    pub fn retire(&self, graph: Graph<R>) -> Result<(), (Graph<R>, Fault)> {
        if let Err(fault) = self.0.same("a graph", graph.device()) {
            return Err((graph, fault));
        }
        Arc::try_unwrap(graph.0).map(drop).map_err(|arc| {
            let fault = used("a graph", &arc);
            (Graph(arc), fault)
        })
    }

    /// Frees a buffer now.
    ///
    /// # Errors
    /// `WrongDevice`; `StillUsed` if a graph or a view holds it. The buffer comes back.
    pub fn free(&self, buffer: Buffer<R>) -> Result<(), (Buffer<R>, Fault)> {
        if let Err(fault) = self.0.same("a buffer", buffer.device()) {
            return Err((buffer, fault));
        }
        Arc::try_unwrap(buffer.0).map(drop).map_err(|arc| {
            let fault = used("a buffer", &arc);
            (Buffer(arc), fault)
        })
    }

    /// The bytes of a pinned or unified buffer.
    ///
    /// # Errors
    /// `WrongDevice`; `NotHost` for device memory.
    pub fn bytes<'a>(&'a self, buffer: &'a Buffer<R>) -> Result<&'a [u8], Fault> {
        self.0.same("a buffer", buffer.device())?;
        if buffer.place() == Place::Device {
            return Err(Fault::NotHost {
                place: Place::Device,
            });
        }
        // SAFETY: not device memory; nothing runs on the device while `self` lives, and the host
        // writes only through `bytes_mut`, which needs the buffer for itself.
        Ok(unsafe { buffer.0.host() })
    }

    /// The bytes of a pinned or unified buffer, to be written.
    ///
    /// # Errors
    /// `WrongDevice`, `NotHost`; `StillUsed` if a graph or a view holds it.
    pub fn bytes_mut<'a>(&'a self, buffer: &'a mut Buffer<R>) -> Result<&'a mut [u8], Fault> {
        self.bytes(buffer)?;
        if Arc::strong_count(&buffer.0) > 1 {
            return Err(used("a buffer", &buffer.0));
        }
        // SAFETY: as in `bytes`; the buffer is borrowed for writing and nobody else holds it.
        Ok(unsafe { buffer.0.host_mut() })
    }
}

/// `arc` is one holder, the caller's.
fn used<T>(what: &'static str, arc: &Arc<T>) -> Fault {
    let holders = Arc::strong_count(arc).saturating_sub(1);
    Fault::StillUsed { what, holders }
}

impl<R: Driver> Drop for Quiesced<R> {
    fn drop(&mut self) {
        self.0.set_still(false);
    }
}
