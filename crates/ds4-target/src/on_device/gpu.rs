//! A device with its arenas: launches and copies on slots, in the order of one stream.
//!
//! Must not know: the model.

use std::collections::BTreeSet;
use std::sync::Arc;

use device::driver::Driver;
use device::{Buffer, Device, Download, Place, Staging, Stream, View};
use ds4_kernels::KernelError;
use ds4_kernels::launch::Call;
use ds4_kernels::run::Kernels;

use super::arena::{Arena, Layout, Slot};
use super::clock::{Clock, Clocked};

/// Pinned slots of a ring.
pub(super) const SLOTS: usize = 4;

/// The device.
#[derive(Debug)]
pub(crate) struct Gpu<R: Driver> {
    pub(crate) kernels: Kernels<R>,
    /// Shared, so that work can be captured that uses the device.
    pub(crate) stream: Arc<Stream<R>>,
    /// Weights, state, scratch; none yet while shapes are only tried.
    pub(super) arenas: Option<[Buffer<R>; 3]>,
    /// Pinned memory of passes: inputs up, logits and features down.
    pub(super) staging: Option<Staging<R>>,
    /// Bytes of matrices that products read since the arenas were made, without those of stacks of which a list says
    /// which are read.
    pub(crate) read: u64,
    /// Sources of the launches that were checked.
    sources: BTreeSet<&'static str>,
    /// Times launches while there is one.
    pub(crate) clock: Option<Clock<R>>,
}

impl<R: Driver> Gpu<R> {
    /// A device on which launches are checked and not made, until [`Self::allocate`].
    pub(crate) fn new(kernels: Kernels<R>) -> Result<Self, KernelError> {
        Ok(Self {
            stream: Arc::new(kernels.device().stream()?),
            kernels,
            arenas: None,
            staging: None,
            read: 0,
            sources: BTreeSet::new(),
            clock: None,
        })
    }

    pub(crate) fn device(&self) -> &Device<R> {
        self.kernels.device()
    }

    /// Makes the arenas (in the order of [`Arena`]) and the staging ring.
    pub(crate) fn allocate(
        &mut self,
        layouts: [&Layout; 3],
        staging: u64,
    ) -> Result<(), KernelError> {
        let device = self.device();
        let make = |l: &Layout| device.alloc(Place::Device, l.bytes());
        let [weights, state, scratch] = layouts;
        let arenas = [make(weights)?, make(state)?, make(scratch)?];
        let ring = Staging::new(device, SLOTS, staging)?;
        self.arenas = Some(arenas);
        self.staging = Some(ring);
        self.read = 0;
        Ok(())
    }

    fn arenas(&self) -> Result<&[Buffer<R>; 3], KernelError> {
        self.arenas.as_ref().ok_or(KernelError::Runtime {
            runtime: "device",
            message: "no arenas".into(),
        })
    }

    /// The memory of a slot.
    pub(crate) fn view(&self, slot: Slot) -> Result<View<R>, KernelError> {
        let arena = &self.arenas()?[slot.arena as usize];
        Ok(arena.part(slot.start, slot.len)?)
    }

    /// Compiles the sources of all launches that were checked, side by side.
    pub(crate) fn compile(&mut self) -> Result<(), KernelError> {
        let sources: Vec<&'static str> = std::mem::take(&mut self.sources).into_iter().collect();
        self.kernels.compile(&sources)
    }

    /// Puts a launch on the stream; without arenas only checks it.
    pub(crate) fn put(&mut self, call: &Call, slots: &[Slot]) -> Result<(), KernelError> {
        if self.arenas.is_none() {
            self.sources.insert(call.source);
            return call.check(slots.iter().map(|s| s.len));
        }
        let views = slots.iter().map(|s| self.view(*s));
        let views = views.collect::<Result<Vec<_>, _>>()?;
        let views: Vec<&View<R>> = views.iter().collect();
        self.kernels.put(&self.stream, call, &views)?;
        match &mut self.clock {
            Some(clock) => clock.after(call, &self.stream),
            None => Ok(()),
        }
    }

    /// Copies a slot over another of the same length; without arenas nothing is copied.
    pub(crate) fn copy(&self, from: Slot, to: Slot) -> Result<(), KernelError> {
        if self.arenas.is_none() {
            return Ok(());
        }
        Ok(self.stream.copy(&self.view(from)?, &self.view(to)?)?)
    }

    /// Fills an arena with a byte.
    pub(crate) fn fill(&self, arena: Arena, byte: u8) -> Result<(), KernelError> {
        let view = self.arenas()?[arena as usize].view();
        Ok(self.stream.fill(&view, byte)?)
    }

    /// Fills what is not weights with NaN patterns; for tests.
    pub(crate) fn poison(&self) -> Result<(), KernelError> {
        self.fill(Arena::State, 0xff)?;
        self.fill(Arena::Scratch, 0xff)
    }

    /// Times launches from now on.
    pub(crate) fn start_clock(&mut self) -> Result<(), KernelError> {
        self.clock = Some(Clock::new(&self.stream)?);
        Ok(())
    }

    /// Ends the timing: what launches took, by kernel and grid, the longest first; nothing if it was not begun.
    pub(crate) fn read_clock(&mut self) -> Result<Vec<Clocked>, KernelError> {
        self.clock.take().map_or(Ok(Vec::new()), Clock::read)
    }

    /// Fills a slot with a byte.
    pub(crate) fn fill_slot(&self, slot: Slot, byte: u8) -> Result<(), KernelError> {
        Ok(self.stream.fill(&self.view(slot)?, byte)?)
    }

    /// Fetches a slot's bytes and hands them to `take`, after everything before on the stream; in parts of at
    /// most a staging slot, a multiple of 64 bytes.
    pub(crate) fn fetch(&self, from: Slot, take: impl FnMut(&[u8])) -> Result<(), KernelError> {
        if self.staging.is_none() {
            return Ok(());
        }
        self.fetch_view(&self.view(from)?, take)
    }

    /// [`Self::fetch`] for memory outside of the arenas.
    pub(crate) fn fetch_view(
        &self,
        from: &View<R>,
        mut take: impl FnMut(&[u8]),
    ) -> Result<(), KernelError> {
        let Some(ring) = &self.staging else {
            return Ok(());
        };
        let each = ring.slot_bytes() / 64 * 64;
        let mut at = 0;
        while at < from.len() {
            let len = each.min(from.len() - at);
            let pinned = self.pinned(ring)?;
            let part = from.part(at, len)?;
            let landed = pinned.download(&self.stream, &part)?.wait()?;
            take(&landed.bytes()[..len as usize]);
            at += len;
        }
        Ok(())
    }

    /// Begins to fetch a slot of at most a staging slot.
    pub(crate) fn begin_fetch(&self, from: Slot) -> Result<Download<R>, KernelError> {
        self.begin_fetch_view(&self.view(from)?)
    }

    /// [`Self::begin_fetch`] for any memory.
    pub(crate) fn begin_fetch_view(&self, from: &View<R>) -> Result<Download<R>, KernelError> {
        let pinned = self.pinned(self.ring()?)?;
        Ok(pinned.download(&self.stream, from)?)
    }

    /// Bytes that are copied at once through pinned memory.
    pub(crate) fn piece(&self) -> Result<u64, KernelError> {
        Ok((self.ring()?.slot_bytes() / 64 * 64).max(64))
    }

    fn ring(&self) -> Result<&Staging<R>, KernelError> {
        self.staging.as_ref().ok_or(KernelError::Runtime {
            runtime: "device",
            message: "no staging".into(),
        })
    }

    /// A slot's bytes.
    pub(crate) fn read(&self, from: Slot) -> Result<Vec<u8>, KernelError> {
        let mut out = Vec::with_capacity(from.len as usize);
        self.fetch(from, |bytes| out.extend_from_slice(bytes))?;
        Ok(out)
    }

    /// Writes bytes over a slot of their length, through pinned memory. Later work of the stream sees them.
    pub(crate) fn write(&self, bytes: &[u8], to: Slot) -> Result<(), KernelError> {
        self.write_view(bytes, &self.view(to)?)
    }

    /// [`Self::write`] for memory outside of the arenas.
    pub(crate) fn write_view(&self, bytes: &[u8], to: &View<R>) -> Result<(), KernelError> {
        let Some(ring) = &self.staging else {
            return Ok(());
        };
        let each = (ring.slot_bytes() / 64 * 64).max(64) as usize;
        for (i, part) in bytes.chunks(each).enumerate() {
            let mut pinned = self.pinned(ring)?;
            let Some(room) = pinned.bytes_mut().get_mut(..part.len()) else {
                return Err(too_long(part.len(), ring));
            };
            copy(part, room);
            let to = to.part((i * each) as u64, part.len() as u64)?;
            pinned.upload(&self.stream, &to)?;
        }
        Ok(())
    }

    fn pinned(&self, ring: &Staging<R>) -> Result<device::Slot<R>, KernelError> {
        ring.take()?.ok_or_else(|| KernelError::Runtime {
            runtime: "device",
            message: "every staging slot is in use".into(),
        })
    }
}

/// Bytes from which a copy is shared among threads: one thread fills pinned memory slower than a device empties it.
const SHARED: usize = 4 << 20;
/// Threads of a shared copy.
const COPIERS: usize = 4;

/// Copies into room of the same length.
fn copy(from: &[u8], to: &mut [u8]) {
    if from.len() < SHARED {
        return to.copy_from_slice(from);
    }
    let each = from.len().div_ceil(COPIERS);
    std::thread::scope(|scope| {
        for (from, to) in from.chunks(each).zip(to.chunks_mut(each)) {
            scope.spawn(move || to.copy_from_slice(from));
        }
    });
}

fn too_long<R: Driver>(got: usize, ring: &Staging<R>) -> KernelError {
    KernelError::Bytes {
        kernel: "staging slot",
        index: 0,
        expected: got as u64,
        got: ring.slot_bytes(),
    }
}
