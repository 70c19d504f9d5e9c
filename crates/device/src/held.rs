//! The stream behind its handle: the list of what its work still uses.
//!
//! What an operation uses is added *before* the runtime is called, and leaves only when an event
//! recorded after the operation has fired. Must not know: what operations do.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::device::{Inner, count, lock};
use crate::driver::{Driver, DriverResult, Raw};
use crate::fault::Fault;
use crate::owned::{Held, Leftover, Mark, release};

/// Operations after which the stream marks what they use with an event.
const BATCH: usize = 64;

/// What a stream keeps alive.
#[derive(Debug)]
struct Keep<R: Driver> {
    /// Used by operations after the last mark.
    open: Vec<Held>,
    /// Used by operations before a mark, oldest first.
    marked: VecDeque<(Arc<Mark<R>>, Vec<Held>)>,
    /// Used by the graph being captured, and its operations.
    capture: Option<(Vec<Held>, usize)>,
    /// Whether the newest operation is a kernel behind which the next may start early. Nothing else may be behind
    /// one: copies, fills, events and graphs stand in full order before and after.
    ahead: bool,
}

/// The stream behind its handle.
#[derive(Debug)]
pub(crate) struct Core<R: Driver> {
    pub(crate) device: Arc<Inner<R>>,
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
                ahead: false,
            }),
        }))
    }

    /// Puts one operation that is no kernel into the stream, or into the graph being captured.
    pub(crate) fn submit(
        &self,
        uses: impl IntoIterator<Item = Held>,
        call: impl FnOnce(&R, Raw, Raw) -> DriverResult<()>,
    ) -> Result<(), Fault> {
        self.submit_kernel(uses, false, |driver, d, stream, _| call(driver, d, stream))
    }

    /// Puts one operation into the stream, or into the graph being captured. `call` is told whether it may start
    /// before the operation ahead has ended: if it `waits` for that one, as that one did for its own.
    pub(crate) fn submit_kernel(
        &self,
        uses: impl IntoIterator<Item = Held>,
        waits: bool,
        call: impl FnOnce(&R, Raw, Raw, bool) -> DriverResult<()>,
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
        let early = std::mem::take(&mut keep.ahead) && waits;
        let result = call(&self.device.driver, self.device.handle, self.raw, early);
        self.device.check(result)?;
        keep.ahead = waits;
        if early {
            count(&self.device.tally.early_launches);
        }
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
        keep.ahead = false;
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
        keep.ahead = false;
        let (open, marked) = (
            std::mem::take(&mut keep.open),
            std::mem::take(&mut keep.marked),
        );
        drop(keep);
        drop((open, marked));
        Ok(())
    }

    /// Marks the point reached now.
    pub(crate) fn record(&self, timed: bool) -> Result<Arc<Mark<R>>, Fault> {
        let _gate = self.device.enter()?;
        let mut keep = lock(&self.keep);
        if keep.capture.is_some() {
            return Err(self.capturing("recording an event"));
        }
        self.mark(&mut keep, timed)
    }

    pub(crate) fn capture_begin(&self) -> Result<(), Fault> {
        let d = &self.device;
        let _gate = d.enter()?;
        let mut keep = lock(&self.keep);
        if keep.capture.is_some() {
            return Err(self.capturing("another capture"));
        }
        // SAFETY: the stream is live and not captured.
        d.check(unsafe { d.driver.capture_begin(d.handle, self.raw) })?;
        keep.capture = Some((Vec::new(), 0));
        keep.ahead = false;
        Ok(())
    }

    pub(crate) fn capture_end(&self) -> (Result<Raw, Fault>, usize, Vec<Held>) {
        let d = &self.device;
        let mut keep = lock(&self.keep);
        keep.ahead = false;
        let end = || {
            // SAFETY: the stream is live and captured.
            unsafe { d.driver.capture_end(d.handle, self.raw) }
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

    fn capturing(&self, what: &'static str) -> Fault {
        Fault::Capturing {
            device: self.device.id,
            what,
        }
    }

    pub(crate) fn refuse_capture(&self, what: &'static str) -> Result<(), Fault> {
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
