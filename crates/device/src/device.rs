//! An opened device: the gate that submissions pass, what failed releases left behind, and the ways
//! to memory, streams and images.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, Weak};

use serde::Serialize;

use crate::ability::Lack;
use crate::buffer::Buffer;
use crate::driver::{Class, Code, Driver, DriverError, DriverResult, Facts, Memory, Place, Raw};
use crate::driver::{EarlyLaunch, Kind, Source};
use crate::fault::{DeviceId, Fault};
use crate::held::Core;
use crate::image::Image;
use crate::owned::{Allocation, Leftover, Module, close, memory, release};
use crate::quiesced::Quiesced;
use crate::stream::Stream;

/// Locks; a panic elsewhere does not make the state unusable, as every change is one step.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What went differently than planned, since the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Releases (free, destroy, unload) that failed at first.
    pub failed_releases: u64,
    /// Things given up because nobody can tell whether the device still uses them.
    pub abandoned: u64,
    /// Times a staging ring had no free slot and waited for a copy.
    pub staging_waits: u64,
    /// Staging slots given up after a failure.
    pub staging_retired: u64,
    /// Kernels that were asked to start early; those of a graph once, when collected.
    pub early_launches: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) failed_releases: AtomicU64,
    pub(crate) abandoned: AtomicU64,
    pub(crate) staging_waits: AtomicU64,
    pub(crate) staging_retired: AtomicU64,
    pub(crate) early_launches: AtomicU64,
}

pub(crate) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The device behind all its handles; closed when the last of them is gone.
#[derive(Debug)]
pub(crate) struct Inner<R: Driver> {
    pub(crate) driver: Arc<R>,
    pub(crate) id: DeviceId,
    pub(crate) facts: Facts,
    pub(crate) handle: Raw,
    pub(crate) tally: Tally,
    pub(crate) leftovers: Mutex<Vec<Leftover>>,
    /// Whether somebody turned early launches off.
    never_early: AtomicBool,
    /// Whether submissions are refused.
    still: RwLock<bool>,
    streams: Mutex<Vec<Weak<Core<R>>>>,
    lost: OnceLock<DriverError>,
}

impl<R: Driver> Inner<R> {
    /// Turns a driver's result into ours, and remembers a loss.
    pub(crate) fn check<T>(&self, result: DriverResult<T>) -> Result<T, Fault> {
        result.map_err(|e| {
            if e.class == Class::Lost {
                let _ = self.lost.set(e.clone());
            }
            Fault::of(self.id, e)
        })
    }

    /// Whether kernels start early.
    pub(crate) fn early(&self) -> bool {
        self.facts.early_launch == EarlyLaunch::On && !self.never_early.load(Ordering::Relaxed)
    }

    /// Lets a submission pass, or says why not. The gate stays open as long as the guard lives.
    pub(crate) fn enter(&self) -> Result<RwLockReadGuard<'_, bool>, Fault> {
        self.alive()?;
        let guard = self.still.read().unwrap_or_else(PoisonError::into_inner);
        if *guard {
            return Err(Fault::Quiesced { device: self.id });
        }
        Ok(guard)
    }

    /// The loss, if there was one.
    pub(crate) fn alive(&self) -> Result<(), Fault> {
        match self.lost.get() {
            Some(e) => Err(Fault::of(self.id, e.clone())),
            None => Ok(()),
        }
    }

    pub(crate) fn set_still(&self, still: bool) -> bool {
        let mut gate = self.still.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *gate, still)
    }

    pub(crate) fn streams(&self) -> Vec<Arc<Core<R>>> {
        let mut streams = lock(&self.streams);
        streams.retain(|s| s.strong_count() > 0);
        streams.iter().filter_map(Weak::upgrade).collect()
    }

    pub(crate) fn same(&self, what: &'static str, other: DeviceId) -> Result<(), Fault> {
        if self.id == other {
            return Ok(());
        }
        Err(Fault::WrongDevice {
            what,
            expected: self.id,
            got: other,
        })
    }
}

impl<R: Driver> Drop for Inner<R> {
    fn drop(&mut self) {
        release(self, None);
        // A second try, for a runtime that failed once for no lasting reason.
        let _ = close(self).or_else(|_| close(self));
    }
}

/// An opened device. Clones are the same device; it is closed when the last handle of anything on
/// it is gone.
#[derive(Debug)]
pub struct Device<R: Driver>(pub(crate) Arc<Inner<R>>);

impl<R: Driver> Clone for Device<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<R: Driver> Device<R> {
    pub(crate) fn new(driver: Arc<R>, id: DeviceId, facts: Facts, handle: Raw) -> Self {
        Self(Arc::new(Inner {
            driver,
            id,
            facts,
            handle,
            tally: Tally::default(),
            leftovers: Mutex::default(),
            never_early: AtomicBool::new(false),
            still: RwLock::new(false),
            streams: Mutex::default(),
            lost: OnceLock::new(),
        }))
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> DeviceId {
        self.0.id
    }

    /// What is known of it.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.0.facts
    }

    /// Whether kernels that allow it start before the one ahead of them has ended: what the device can, unless it
    /// was turned off.
    #[must_use]
    pub fn early_launch(&self) -> EarlyLaunch {
        match &self.0.facts.early_launch {
            EarlyLaunch::On if !self.0.early() => EarlyLaunch::Off("turned off".into()),
            early => early.clone(),
        }
    }

    /// Starts no kernel early from now on, on any handle of the device: for comparison. Graphs that were collected
    /// before stay as they are.
    pub fn turn_early_launch_off(&self) {
        self.0.never_early.store(true, Ordering::Relaxed);
    }

    /// Free and total bytes of its memory.
    ///
    /// # Errors
    /// `Call`, `Lost`.
    pub fn memory(&self) -> Result<Memory, Fault> {
        memory(&self.0)
    }

    /// What went differently than planned.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        let tally = &self.0.tally;
        Counters {
            failed_releases: get(&tally.failed_releases),
            abandoned: get(&tally.abandoned),
            staging_waits: get(&tally.staging_waits),
            staging_retired: get(&tally.staging_retired),
            early_launches: get(&tally.early_launches),
        }
    }

    /// Releases that the runtime refused and that have not succeeded since; each is tried again with the next one.
    #[must_use]
    pub fn unreleased(&self) -> usize {
        lock(&self.0.leftovers).len()
    }

    /// Allocates `bytes` bytes whose contents do not matter yet.
    ///
    /// # Errors
    /// `OutOfMemory`, `Call`, `Lost`.
    pub fn alloc(&self, place: Place, bytes: u64) -> Result<Buffer<R>, Fault> {
        Allocation::new(&self.0, place, bytes).map(Buffer::new)
    }

    /// Makes a stream.
    ///
    /// # Errors
    /// `Call`, `Lost`.
    pub fn stream(&self) -> Result<Stream<R>, Fault> {
        let core = Core::new(&self.0)?;
        lock(&self.0.streams).push(Arc::downgrade(&core));
        Ok(Stream(core))
    }

    /// Loads an image under a name that messages use.
    ///
    /// # Errors
    /// `Form` if this device takes no images of that form, `Call`, `Lost`.
    pub fn load(&self, name: &str, code: &Code) -> Result<Image<R>, Fault> {
        let fits = match (code, self.0.id.kind) {
            (Code::Ptx(_) | Code::Cubin(_), kind) => kind == Kind::Cuda,
            (Code::Hsaco(_), kind) => kind == Kind::Hip,
            (Code::Host(_), kind) => matches!(kind, Kind::Cpu | Kind::Fake),
        };
        if !fits {
            return Err(Fault::Form {
                device: self.0.id,
                got: code.form(),
            });
        }
        Module::new(&self.0, code).map(|module| Image::new(name, module))
    }

    /// Compiles a source for this device's architecture with the runtime's compiler.
    ///
    /// # Errors
    /// `Compile` with the log, also if there is no compiler.
    pub fn compile(&self, name: &str, text: &str, options: &[&str]) -> Result<Code, Fault> {
        let arch = &self.0.facts.arch;
        let source = Source {
            name,
            text,
            options,
            arch,
        };
        self.0
            .driver
            .compile(&source)
            .map_err(|log| Fault::Compile {
                device: self.0.id,
                source_name: name.into(),
                arch: arch.clone(),
                log,
            })
    }

    /// Name and version of the runtime's compiler, or why there is none.
    ///
    /// # Errors
    /// The reason.
    pub fn compiler(&self) -> Result<String, String> {
        self.0.driver.compiler()
    }

    pub(crate) fn unable(&self, what: &'static str, why: Lack) -> Fault {
        Fault::Unable {
            device: self.0.id,
            what,
            why,
        }
    }

    /// Stops submissions, waits for every stream, and proves that nothing runs.
    ///
    /// # Errors
    /// `Quiesced` if it is held still already, `Capturing` while a stream of it is captured, `Call`,
    /// `Lost`.
    pub fn quiesce(&self) -> Result<Quiesced<R>, Fault> {
        Quiesced::new(&self.0)
    }
}
