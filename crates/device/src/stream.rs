//! Streams: work in order, and the ownership of everything that work still uses.
//!
//! An operation's buffers, kernels and events are added to the stream's list *before* the runtime is
//! called, and leave it only when an event recorded after the operation has fired. Must not know:
//! what kernels do.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::buffer::View;
use crate::device::{Inner, count, lock};
use crate::driver::{Driver, DriverResult, Geometry, Place, Raw, Way};
use crate::event::Event;
use crate::fault::{DeviceId, Fault};
use crate::graph::Graph;
use crate::image::Kernel;
use crate::launch::{Arg, check as check_launch};
use crate::owned::{Allocation, Held, Leftover, Mark, Recorded, release};

/// Operations after which the stream marks what they use with an event.
const BATCH: usize = 64;
/// Bytes of one blocking copy's bounce buffer.
const BOUNCE: u64 = 8 << 20;

/// What a stream keeps alive.
#[derive(Debug)]
struct Keep<R: Driver> {
    /// Used by operations after the last mark.
    open: Vec<Held>,
    /// Used by operations before a mark, oldest first.
    marked: VecDeque<(Arc<Mark<R>>, Vec<Held>)>,
    /// Used by the graph being captured, and its operations.
    capture: Option<(Vec<Held>, usize)>,
}

/// The stream behind its handle.
#[derive(Debug)]
pub(crate) struct Core<R: Driver> {
    device: Arc<Inner<R>>,
    raw: Raw,
    keep: Mutex<Keep<R>>,
}

impl<R: Driver> Core<R> {
    pub(crate) fn new(device: &Arc<Inner<R>>) -> Result<Arc<Self>, Fault> {
        device.alive()?;
        // SAFETY: the device is open.
        let raw = device.check(unsafe { device.driver.stream_create(device.handle) })?;
        Ok(Arc::new(Self {
            device: Arc::clone(device),
            raw,
            keep: Mutex::new(Keep {
                open: Vec::new(),
                marked: VecDeque::new(),
                capture: None,
            }),
        }))
    }

    /// Puts one operation into the stream, or into the graph being captured.
    fn submit(
        &self,
        uses: impl IntoIterator<Item = Held>,
        call: impl FnOnce(&R, Raw, Raw) -> DriverResult<()>,
    ) -> Result<(), Fault> {
        let _gate = self.device.enter()?;
        let mut keep = lock(&self.keep);
        match &mut keep.capture {
            Some((held, operations)) => {
                held.extend(uses);
                *operations += 1;
            }
            None => keep.open.extend(uses),
        }
        let result = call(&self.device.driver, self.device.handle, self.raw);
        self.device.check(result)?;
        if keep.capture.is_none() && keep.open.len() >= BATCH {
            self.mark(&mut keep, false)?;
        }
        Ok(())
    }

    /// Records an event behind everything so far, hands the open list to it, and lets go of what is
    /// done by now.
    fn mark(&self, keep: &mut MutexGuard<'_, Keep<R>>, timed: bool) -> Result<Arc<Mark<R>>, Fault> {
        let d = &self.device;
        let mark = Arc::new(Mark::new(d, timed)?);
        // The stream uses the event until it has fired.
        keep.open.push(Arc::clone(&mark) as Held);
        // SAFETY: event and stream are live and of this device.
        d.check(unsafe { d.driver.event_record(d.handle, mark.raw, self.raw) })?;
        let used = std::mem::take(&mut keep.open);
        keep.marked.push_back((Arc::clone(&mark), used));
        while let Some((oldest, _)) = keep.marked.front() {
            if !oldest.done()? {
                break;
            }
            keep.marked.pop_front();
        }
        Ok(mark)
    }

    /// Waits for everything and lets go of all of it.
    pub(crate) fn settle(&self) -> Result<(), Fault> {
        let d = &self.device;
        let mut keep = lock(&self.keep);
        if keep.capture.is_some() {
            return Err(self.capturing("waiting"));
        }
        // SAFETY: the stream is live and of this device.
        d.check(unsafe { d.driver.stream_sync(d.handle, self.raw) })?;
        let (open, marked) = (
            std::mem::take(&mut keep.open),
            std::mem::take(&mut keep.marked),
        );
        drop(keep);
        drop((open, marked));
        Ok(())
    }

    fn capturing(&self, what: &'static str) -> Fault {
        Fault::Capturing {
            device: self.device.id,
            what,
        }
    }

    fn refuse_capture(&self, what: &'static str) -> Result<(), Fault> {
        match lock(&self.keep).capture {
            Some(_) => Err(self.capturing(what)),
            None => Ok(()),
        }
    }
}

impl<R: Driver> Drop for Core<R> {
    fn drop(&mut self) {
        // A second try, for a runtime that failed once for no lasting reason.
        if self.settle().is_err() && self.settle().is_err() {
            let mut keep = lock(&self.keep);
            let open = std::mem::take(&mut keep.open);
            let marked = std::mem::take(&mut keep.marked);
            let capture = keep.capture.take();
            // Nobody knows whether the device still uses these: they are never released.
            std::mem::forget((open, marked, capture));
            count(&self.device.tally.abandoned);
        }
        release(&self.device, Some(Leftover::Stream(self.raw)));
    }
}

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
        self.recorded(false)
    }

    /// Marks the point reached now, with a clock, for [`Event::millis_since`].
    ///
    /// # Errors
    /// As [`Stream::record`].
    pub fn record_timed(&self) -> Result<Event<R>, Fault> {
        self.recorded(true)
    }

    fn recorded(&self, timed: bool) -> Result<Event<R>, Fault> {
        let _gate = self.0.device.enter()?;
        let mut keep = lock(&self.0.keep);
        if keep.capture.is_some() {
            return Err(self.0.capturing("recording an event"));
        }
        self.0.mark(&mut keep, timed).map(Event)
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

    /// Copies `from` over `to`, both of the same length.
    ///
    /// # Errors
    /// `WrongDevice`, `Range` for different lengths, `Quiesced`, `Call`, `Lost`.
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
        self.0.submit(uses, |driver, d, stream| {
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
        self.capture_begin()?;
        let worked = work(self);
        let (ended, operations, held) = self.capture_end();
        let graph = ended.map(|raw| Recorded {
            device: Arc::clone(&self.0.device),
            raw,
            operations,
            _held: held,
        });
        worked?;
        graph.map(|g| Graph(Arc::new(g)))
    }

    fn capture_begin(&self) -> Result<(), Fault> {
        let d = &self.0.device;
        let _gate = d.enter()?;
        let mut keep = lock(&self.0.keep);
        if keep.capture.is_some() {
            return Err(self.0.capturing("another capture"));
        }
        // SAFETY: the stream is live and not captured.
        d.check(unsafe { d.driver.capture_begin(d.handle, self.0.raw) })?;
        keep.capture = Some((Vec::new(), 0));
        Ok(())
    }

    fn capture_end(&self) -> (Result<Raw, Fault>, usize, Vec<Held>) {
        let d = &self.0.device;
        let mut keep = lock(&self.0.keep);
        let end = || {
            // SAFETY: the stream is live and captured.
            unsafe { d.driver.capture_end(d.handle, self.0.raw) }
        };
        // A stream that stays in capture takes no work: worth a second try.
        let first = end();
        let ended = match first {
            Err(e) => match end() {
                Ok(graph) => {
                    release(d, Some(Leftover::Graph(graph)));
                    Err(e)
                }
                Err(_) => Err(e),
            },
            ok => ok,
        };
        let (held, operations) = keep.capture.take().unwrap_or_default();
        (d.check(ended), operations, held)
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
