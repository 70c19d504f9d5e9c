//! Streams: work in order, checked before the runtime sees it. What the work uses is held by `held`.
//!
//! Must not know: what kernels do.

use std::sync::Arc;

use crate::buffer::View;
use crate::driver::{Driver, Geometry, Place, Way};
use crate::event::Event;
use crate::fault::{DeviceId, Fault};
use crate::graph::Graph;
use crate::held::Core;
use crate::image::Kernel;
use crate::launch::{Arg, check as check_launch};
use crate::owned::{Allocation, Held, Recorded};

/// Bytes of one blocking copy's bounce buffer.
const BOUNCE: u64 = 8 << 20;

/// Work in order on a device. Dropping it waits for the work.
#[derive(Debug)]
pub struct Stream<R: Driver>(pub(crate) Arc<Core<R>>);

impl<R: Driver> Stream<R> {
    /// Its device.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.0.device.id
    }

    /// Marks the point reached now.
    ///
    /// # Errors
    /// `Capturing`, `Quiesced`, `Call`, `Lost`.
    pub fn record(&self) -> Result<Event<R>, Fault> {
        self.0.record(false).map(Event)
    }

    /// Marks the point reached now, with a clock, for [`Event::millis_since`].
    ///
    /// # Errors
    /// As [`Stream::record`].
    pub fn record_timed(&self) -> Result<Event<R>, Fault> {
        self.0.record(true).map(Event)
    }

    /// Makes later work wait for an event of a stream of the same device.
    ///
    /// Between devices, and between vendors, the edge is the host: wait there, then submit.
    ///
    /// # Errors
    /// `WrongDevice`, `Capturing`, `Quiesced`, `Call`, `Lost`.
    pub fn wait(&self, event: &Event<R>) -> Result<(), Fault> {
        self.0.device.same("an event", event.device())?;
        self.0.refuse_capture("waiting for an event")?;
        let held = Arc::clone(&event.0) as Held;
        let raw = event.0.raw;
        self.0.submit([held], |driver, d, stream| {
            // SAFETY: stream and event are live; the stream holds the event from now on.
            unsafe { driver.stream_wait(d, stream, raw) }
        })
    }

    /// Waits until everything submitted is done.
    ///
    /// # Errors
    /// `Capturing`; `Call`; `Lost`, also for a failure of the work itself.
    pub fn sync(&self) -> Result<(), Fault> {
        self.0.device.alive()?;
        self.0.settle()
    }

    /// Copies `from` over `to`, both of the same length, neither reaching into the other.
    ///
    /// # Errors
    /// `WrongDevice`, `Range` for different lengths or an overlap, `Quiesced`, `Call`, `Lost`.
    pub fn copy(&self, from: &View<R>, to: &View<R>) -> Result<(), Fault> {
        self.ours(from)?;
        self.ours(to)?;
        if from.len() != to.len() {
            return Err(Fault::Range {
                what: "copy of different lengths",
                start: 0,
                end: from.len(),
                len: to.len(),
            });
        }
        let way = match (from.place(), to.place()) {
            (Place::Pinned, Place::Device | Place::Unified) => Way::Up,
            (Place::Device | Place::Unified, Place::Pinned) => Way::Down,
            _ => Way::Within,
        };
        let (source, destination, bytes) = (from.address(), to.address(), from.len());
        // Undefined on CUDA and HIP. Different allocations cannot overlap.
        if source.abs_diff(destination) < bytes {
            return Err(Fault::Range {
                what: "copy onto itself",
                start: source.abs_diff(destination),
                end: bytes,
                len: bytes,
            });
        }
        if bytes == 0 {
            // Runtimes differ in whether that is an error.
            return self.0.device.enter().map(drop);
        }
        self.0.submit([held(from), held(to)], |driver, d, stream| {
            // SAFETY: both ranges lie in live allocations of this device, which the stream holds.
            unsafe { driver.copy(d, stream, way, destination, source, bytes) }
        })
    }

    /// Fills `to` with a byte.
    ///
    /// # Errors
    /// `WrongDevice`, `Quiesced`, `Call`, `Lost`.
    pub fn fill(&self, to: &View<R>, byte: u8) -> Result<(), Fault> {
        self.ours(to)?;
        let (address, bytes) = (to.address(), to.len());
        if bytes == 0 {
            return self.0.device.enter().map(drop);
        }
        self.0.submit([held(to)], |driver, d, stream| {
            // SAFETY: the range lies in a live allocation of this device, which the stream holds.
            unsafe { driver.fill(d, stream, address, byte, bytes) }
        })
    }

    /// Starts a kernel.
    ///
    /// # Errors
    /// `Launch` for a geometry the device does not take, `Argument`, `WrongDevice`, `Quiesced`, `Call`,
    /// `Lost`.
    pub fn launch(
        &self,
        kernel: &Kernel<R>,
        geometry: &Geometry,
        args: &[Arg<'_, R>],
    ) -> Result<(), Fault> {
        let device = &self.0.device;
        device.same("a kernel", kernel.device())?;
        check_launch(device, kernel, geometry)?;
        let raw = kernel.arguments(device, args)?;
        kernel.prepare(geometry)?;
        let uses = args.iter().filter_map(Arg::view).map(held);
        let uses: Vec<Held> = uses.chain([kernel.held()]).collect();
        let function = kernel.raw();
        let early = kernel.early() && device.early();
        self.0
            .submit_kernel(uses, early, |driver, d, stream, early| {
                if early {
                    // SAFETY: as below; whoever made the kernel promised that it waits, and the one ahead does too.
                    return unsafe { driver.launch_early(d, stream, function, geometry, &raw) };
                }
                // SAFETY: geometry and arguments were compared with the device and the signature; whoever
                // made the kernel promised that it touches those bytes only, and the stream holds them.
                unsafe { driver.launch(d, stream, function, geometry, &raw) }
            })
    }

    /// Collects what `work` submits to this stream into a graph instead of running it.
    ///
    /// # Errors
    /// `Capturing` if the stream is captured already, `Quiesced`, `Call`, `Lost`; whatever `work`
    /// fails with, and then the capture is thrown away.
    pub fn capture(
        &self,
        work: impl FnOnce(&Self) -> Result<(), Fault>,
    ) -> Result<Graph<R>, Fault> {
        self.0.capture_begin()?;
        let worked = work(self);
        let (ended, operations, held) = self.0.capture_end();
        let graph = ended.map(|raw| Recorded {
            device: Arc::clone(&self.0.device),
            raw,
            operations,
            _held: held,
        });
        worked?;
        graph.map(|g| Graph(Arc::new(g)))
    }

    /// Runs a graph.
    ///
    /// # Errors
    /// `WrongDevice`, `Capturing`, `Quiesced`, `Call`, `Lost`.
    pub fn launch_graph(&self, graph: &Graph<R>) -> Result<(), Fault> {
        self.0.device.same("a graph", graph.device())?;
        self.0.refuse_capture("launching a graph")?;
        let held = Arc::clone(&graph.0) as Held;
        let raw = graph.0.raw;
        self.0.submit([held], |driver, d, stream| {
            // SAFETY: the graph is live and holds what it uses; the stream holds the graph.
            unsafe { driver.graph_launch(d, raw, stream) }
        })
    }

    /// Writes host bytes to `to` and waits: the slow, simple way, for small things and as a control.
    ///
    /// # Errors
    /// `WrongDevice`, `Range` for different lengths, `Capturing`, `OutOfMemory` for the bounce buffer,
    /// `Quiesced`, `Call`, `Lost`.
    pub fn write_now(&self, data: &[u8], to: &View<R>) -> Result<(), Fault> {
        self.bounce(to, data.len() as u64, |stream, pinned, start, len| {
            let source = &data[start as usize..(start + len) as usize];
            // SAFETY: the bounce buffer is pinned, and no work uses it: the loop waits each time.
            let bytes = unsafe { pinned.memory.host_mut() };
            bytes[..len as usize].copy_from_slice(source);
            stream.copy(&pinned.part(0, len)?, &to.part(start, len)?)?;
            stream.sync()
        })
    }

    /// Reads `from` into host bytes and waits.
    ///
    /// # Errors
    /// As [`Stream::write_now`].
    pub fn read_now(&self, from: &View<R>, data: &mut [u8]) -> Result<(), Fault> {
        self.bounce(from, data.len() as u64, |stream, pinned, start, len| {
            stream.copy(&from.part(start, len)?, &pinned.part(0, len)?)?;
            stream.sync()?;
            // SAFETY: the bounce buffer is pinned, and the copy into it is done.
            let bytes = unsafe { pinned.memory.host() };
            data[start as usize..(start + len) as usize].copy_from_slice(&bytes[..len as usize]);
            Ok(())
        })
    }

    fn bounce(
        &self,
        far: &View<R>,
        len: u64,
        mut step: impl FnMut(&Self, &View<R>, u64, u64) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        self.ours(far)?;
        self.0.refuse_capture("a blocking copy")?;
        if far.len() != len {
            return Err(Fault::Range {
                what: "blocking copy",
                start: 0,
                end: len,
                len: far.len(),
            });
        }
        let size = len.min(BOUNCE);
        let pinned = Allocation::new(&self.0.device, Place::Pinned, size)?;
        let pinned = crate::buffer::Buffer::new(pinned).view();
        let mut start = 0;
        while start < len {
            let step_len = (len - start).min(BOUNCE);
            step(self, &pinned, start, step_len)?;
            start += step_len;
        }
        Ok(())
    }

    fn ours(&self, view: &View<R>) -> Result<(), Fault> {
        self.0.device.same("a buffer", view.memory.device.id)
    }
}

fn held<R: Driver>(view: &View<R>) -> Held {
    Arc::clone(&view.memory) as Held
}
