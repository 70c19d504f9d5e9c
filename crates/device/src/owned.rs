//! Handles with an owner: memory, events, graphs and modules, each released once and only through
//! here. A release that fails is kept and tried again; nothing is forgotten silently.
//!
//! Must not know: which stream uses what; an owner here may be dropped only when nothing does, and
//! `stream` sees to that.

use std::any::Any;
use std::sync::Arc;

use crate::device::{Inner, count, lock};
use crate::driver::{Class, Code, Driver, DriverResult, Memory, Place, Raw};
use crate::fault::Fault;
use crate::registered::HostMemory;

/// Something a stream or a graph keeps alive.
pub(crate) type Held = Arc<dyn Any + Send + Sync>;

/// What still has to be released.
#[derive(Debug)]
pub(crate) enum Leftover {
    Memory(Place, Raw),
    Stream(Raw),
    Event(Raw),
    Graph(Raw),
    Module(Raw),
    /// Host memory that was pinned, and its owner, which is let go of after it.
    Registered(
        Raw,
        #[expect(dead_code, reason = "held, not used")] Arc<dyn HostMemory>,
    ),
    /// Another process's memory.
    Shared(Raw),
    /// A way to another device, which stays open until then.
    Peer(#[expect(dead_code, reason = "held, not used")] Held, Raw),
}

/// Releases, after whatever was left from before. What fails stays for the next time.
pub(crate) fn release<R: Driver>(device: &Inner<R>, more: Option<Leftover>) {
    let mut todo = std::mem::take(&mut *lock(&device.leftovers));
    todo.extend(more);
    let failed: Vec<Leftover> = todo
        .into_iter()
        .filter(|what| {
            let failed = release_one(device, what).is_err();
            if failed {
                count(&device.tally.failed_releases);
            }
            failed
        })
        .collect();
    lock(&device.leftovers).extend(failed);
}

fn release_one<R: Driver>(device: &Inner<R>, what: &Leftover) -> DriverResult<()> {
    let (driver, d) = (&device.driver, device.handle);
    // SAFETY (all): the handle was made by this driver for this device, its only owner is being
    // dropped, and streams hold owners until their work is done, so nothing uses it. A handle whose
    // release succeeded is not in the list any more.
    match *what {
        // SAFETY: above.
        Leftover::Memory(place, address) => unsafe { driver.free(d, place, address) },
        // SAFETY: above; the stream was waited for.
        Leftover::Stream(stream) => unsafe { driver.stream_destroy(d, stream) },
        // SAFETY: above.
        Leftover::Event(event) => unsafe { driver.event_destroy(d, event) },
        // SAFETY: above.
        Leftover::Graph(graph) => unsafe { driver.graph_destroy(d, graph) },
        // SAFETY: above.
        Leftover::Module(module) => unsafe { driver.unload(d, module) },
        // SAFETY: above; the memory is mapped as long as its owner is in the list.
        Leftover::Registered(address, _) => unsafe { driver.unregister(d, address) },
        // SAFETY: above.
        Leftover::Shared(address) => unsafe { driver.close_shared(d, address) },
        // SAFETY: above; the other device is open as long as it is in the list.
        Leftover::Peer(_, other) => unsafe { driver.unreach(d, other) },
    }
}

/// Closes the device.
pub(crate) fn close<R: Driver>(device: &Inner<R>) -> DriverResult<()> {
    // SAFETY: called when the last owner of anything on the device is gone, and again only if it failed.
    unsafe { device.driver.close(device.handle) }
}

/// Free and total memory.
pub(crate) fn memory<R: Driver>(device: &Inner<R>) -> Result<Memory, Fault> {
    // SAFETY: the device is open as long as `device` lives.
    device.check(unsafe { device.driver.memory(device.handle) })
}

/// Memory of a device.
#[derive(Debug)]
pub(crate) struct Allocation<R: Driver> {
    pub(crate) device: Arc<Inner<R>>,
    pub(crate) place: Place,
    pub(crate) address: Raw,
    pub(crate) bytes: u64,
    pub(crate) origin: Origin,
}

/// Where memory is from, which says how it ends.
#[derive(Debug)]
pub(crate) enum Origin {
    /// The device's runtime gave it.
    Own,
    /// It is the host's and was pinned.
    Registered(Arc<dyn HostMemory>),
    /// It is another process's.
    Shared,
}

impl<R: Driver> Allocation<R> {
    pub(crate) fn new(device: &Arc<Inner<R>>, place: Place, bytes: u64) -> Result<Self, Fault> {
        device.alive()?;
        // Runtimes differ in what an empty allocation is; ours has an address.
        let wanted = bytes.max(1);
        // SAFETY: the device is open.
        let result = unsafe { device.driver.alloc(device.handle, place, wanted) };
        let address = match result {
            Err(e) if e.class == Class::Memory => return Err(exhausted(device, place, wanted)),
            other => device.check(other)?,
        };
        Ok(Self {
            device: Arc::clone(device),
            place,
            address,
            bytes,
            origin: Origin::Own,
        })
    }

    /// The bytes, for the host.
    ///
    /// # Safety
    /// The place is not `Device`; nobody writes the bytes while the slice lives.
    pub(crate) unsafe fn host(&self) -> &[u8] {
        let start = std::ptr::with_exposed_provenance(self.address as usize);
        // SAFETY: the runtime gave the host `bytes` bytes at this address until `free`.
        unsafe { std::slice::from_raw_parts(start, self.bytes as usize) }
    }

    /// The bytes, for the host to write.
    ///
    /// # Safety
    /// The place is not `Device`; nobody else touches the bytes while the slice lives.
    #[allow(clippy::mut_from_ref)] // the caller is the only user: see the contract
    pub(crate) unsafe fn host_mut(&self) -> &mut [u8] {
        let start = std::ptr::with_exposed_provenance_mut(self.address as usize);
        // SAFETY: as in `host`, and nobody else has them.
        unsafe { std::slice::from_raw_parts_mut(start, self.bytes as usize) }
    }
}

fn exhausted<R: Driver>(device: &Inner<R>, place: Place, bytes: u64) -> Fault {
    let Memory { free, total } = memory(device).unwrap_or(Memory { free: 0, total: 0 });
    Fault::OutOfMemory {
        device: device.id,
        place,
        bytes,
        free,
        total,
    }
}

impl<R: Driver> Drop for Allocation<R> {
    fn drop(&mut self) {
        let what = match std::mem::replace(&mut self.origin, Origin::Own) {
            Origin::Own => Leftover::Memory(self.place, self.address),
            Origin::Registered(owner) => Leftover::Registered(self.address, owner),
            Origin::Shared => Leftover::Shared(self.address),
        };
        release(&self.device, Some(what));
    }
}

/// An event.
#[derive(Debug)]
pub(crate) struct Mark<R: Driver> {
    pub(crate) device: Arc<Inner<R>>,
    pub(crate) raw: Raw,
    pub(crate) timed: bool,
}

impl<R: Driver> Mark<R> {
    pub(crate) fn new(device: &Arc<Inner<R>>, timed: bool) -> Result<Self, Fault> {
        // SAFETY: the device is open.
        let raw = device.check(unsafe { device.driver.event_create(device.handle, timed) })?;
        let device = Arc::clone(device);
        Ok(Self { device, raw, timed })
    }

    pub(crate) fn done(&self) -> Result<bool, Fault> {
        let d = &self.device;
        // SAFETY: the event lives as long as `self`.
        d.check(unsafe { d.driver.event_done(d.handle, self.raw) })
    }

    pub(crate) fn sync(&self) -> Result<(), Fault> {
        let d = &self.device;
        // SAFETY: as above.
        d.check(unsafe { d.driver.event_sync(d.handle, self.raw) })
    }

    pub(crate) fn millis_since(&self, start: &Self) -> Result<f32, Fault> {
        let d = &self.device;
        // SAFETY: as above, for both; they are events of one device.
        d.check(unsafe { d.driver.event_ms(d.handle, start.raw, self.raw) })
    }
}

impl<R: Driver> Drop for Mark<R> {
    fn drop(&mut self) {
        release(&self.device, Some(Leftover::Event(self.raw)));
    }
}

/// A loaded image.
#[derive(Debug)]
pub(crate) struct Module<R: Driver> {
    pub(crate) device: Arc<Inner<R>>,
    pub(crate) raw: Raw,
}

impl<R: Driver> Module<R> {
    pub(crate) fn new(device: &Arc<Inner<R>>, code: &Code) -> Result<Self, Fault> {
        // SAFETY: the device is open; the caller compared the image's form with the device.
        let raw = device.check(unsafe { device.driver.load(device.handle, code) })?;
        let device = Arc::clone(device);
        Ok(Self { device, raw })
    }

    pub(crate) fn function(&self, name: &str) -> Result<Raw, Fault> {
        let d = &self.device;
        // SAFETY: the module is loaded as long as `self` lives.
        d.check(unsafe { d.driver.function(d.handle, self.raw, name) })
    }

    pub(crate) fn argument_sizes(&self, function: Raw) -> Result<Option<Vec<u32>>, Fault> {
        let d = &self.device;
        // SAFETY: the function is of this module, which is loaded.
        d.check(unsafe { d.driver.argument_sizes(d.handle, function) })
    }

    pub(crate) fn facts(&self, function: Raw) -> Result<crate::driver::FunctionFacts, Fault> {
        let d = &self.device;
        // SAFETY: as above.
        d.check(unsafe { d.driver.function_facts(d.handle, function) })
    }

    pub(crate) fn allow_shared(&self, function: Raw, bytes: u32) -> Result<(), Fault> {
        let d = &self.device;
        // SAFETY: as above.
        d.check(unsafe { d.driver.allow_shared(d.handle, function, bytes) })
    }
}

impl<R: Driver> Drop for Module<R> {
    fn drop(&mut self) {
        release(&self.device, Some(Leftover::Module(self.raw)));
    }
}

/// A captured graph with everything its operations use.
#[derive(Debug)]
pub(crate) struct Recorded<R: Driver> {
    pub(crate) device: Arc<Inner<R>>,
    pub(crate) raw: Raw,
    pub(crate) operations: usize,
    /// Dropped after the graph itself.
    pub(crate) _held: Vec<Held>,
}

impl<R: Driver> Drop for Recorded<R> {
    fn drop(&mut self) {
        release(&self.device, Some(Leftover::Graph(self.raw)));
    }
}
