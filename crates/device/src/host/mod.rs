//! Host memory as a device: the state and the operations behind `cpu` and `fake`.
//!
//! The two differ in who performs queued work: one worker thread, in the order of submission; or
//! whoever waits, one operation at a time, in an order drawn from a seed. Addresses of every
//! operation are looked up when it runs: what was freed or never allocated is reported, not touched.
//!
//! Must not know: who owns what; kernels' names.

mod driver;
mod memory;
mod ops;
mod state;

use std::marker::PhantomData;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use crate::ability::{Ability, Lack};
use crate::device::lock;
use crate::driver::{Class, DriverError, DriverResult, Facts, Kind, Place, Raw};
pub use memory::BlockInfo;
pub(crate) use state::Chaos;
pub use state::Defect;
use state::{Ready, State};

/// Who performs queued work.
pub trait Mode: std::fmt::Debug + Send + Sync + 'static {
    /// The runtime's kind.
    const KIND: Kind;
}

/// One worker thread, in the order of submission.
#[derive(Clone, Copy, Debug)]
pub struct Worker;

/// Whoever waits, in an order drawn from a seed.
#[derive(Clone, Copy, Debug)]
pub struct Seeded;

impl Mode for Worker {
    const KIND: Kind = Kind::Cpu;
}

impl Mode for Seeded {
    const KIND: Kind = Kind::Fake;
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// Host memory as a device.
#[derive(Debug)]
pub struct Host<M: Mode> {
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
    facts: Facts,
    devices: u32,
    /// A stand-in for a compiler, by name and version.
    compiler: Option<String>,
    /// Whether its devices reach each other.
    peers: Ability,
    mode: PhantomData<M>,
}

/// A failure in this module's words.
fn failed(call: &'static str, code: i64, name: impl Into<String>, class: Class) -> DriverError {
    DriverError {
        call,
        code,
        name: name.into(),
        class,
    }
}

/// A handle nobody made.
fn unknown(call: &'static str) -> DriverError {
    // The number is HIP's hipErrorInvalidHandle, as are all of this module.
    failed(call, 400, "invalid handle", Class::Call)
}

impl<M: Mode> Host<M> {
    pub(crate) fn new(facts: Facts, devices: u32, capacity: u64, chaos: Option<Chaos>) -> Self {
        let threaded = chaos.is_none();
        let shared = Arc::new(Shared {
            state: Mutex::new(State::new(capacity, chaos)),
            changed: Condvar::new(),
        });
        let worker = threaded.then(|| {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.work())
        });
        Self {
            shared,
            worker,
            facts,
            devices,
            compiler: None,
            peers: Ability::No(Lack::Kind("devices of the host have one memory")),
            mode: PhantomData,
        }
    }

    /// Gives the device a stand-in for a compiler: it copies what it was given into an image that no
    /// device runs, and refuses sources with an `#error`.
    pub(crate) fn with_compiler(mut self, name: Option<String>) -> Self {
        self.compiler = name;
        self
    }

    /// Whether its devices reach each other, or why they say that they do not.
    pub(crate) fn with_peers(mut self, peers: Ability) -> Self {
        self.peers = peers;
        self
    }

    /// Takes memory of the caller's among the device's: for whoever stands in for a runtime whose memory is shared
    /// with other processes. `Driver::free` lets go of it.
    ///
    /// # Errors
    /// The device is lost, or there is no room.
    ///
    /// # Safety
    /// The bytes are mapped for reads and writes until they are freed, and nobody holds a reference to them.
    pub unsafe fn adopt(&self, place: Place, address: Raw, bytes: u64) -> DriverResult<()> {
        let mut state = lock(&self.shared.state);
        state.sticky("adopt")?;
        let room = state.capacity.saturating_sub(state.memory.used);
        if bytes > room {
            return Err(failed("adopt", 2, "out of memory", Class::Memory));
        }
        state.memory.adopt(place, address, bytes, true);
        Ok(())
    }

    /// Lets somebody else hold so many bytes of a device's memory from now on.
    pub fn occupy(&self, ordinal: u32, bytes: u64) {
        let mut state = lock(&self.shared.state);
        state.occupied.insert(Raw::from(ordinal) + 1, bytes);
    }

    /// What was done wrong so far: use after free, frees of memory in use. Empty if all is well.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        lock(&self.shared.state).violations.clone()
    }

    /// Launches that were asked to be early.
    #[must_use]
    pub fn early_launches(&self) -> u64 {
        lock(&self.shared.state).early
    }

    /// The live allocation that holds an address.
    #[must_use]
    pub fn block(&self, address: Raw) -> Option<BlockInfo> {
        lock(&self.shared.state).memory.block(address)
    }

    /// How many allocations, streams, events, graphs and modules are alive.
    #[must_use]
    pub fn alive(&self) -> usize {
        lock(&self.shared.state).alive()
    }

    /// Waits, or works, until `holds`.
    fn until(
        &self,
        call: &'static str,
        mut holds: impl FnMut(&State) -> DriverResult<bool>,
    ) -> DriverResult<()> {
        let mut state = lock(&self.shared.state);
        loop {
            state.sticky(call)?;
            if holds(&state)? {
                return Ok(());
            }
            if self.worker.is_some() {
                let woken = self.shared.changed.wait(state);
                state = woken.unwrap_or_else(std::sync::PoisonError::into_inner);
            } else if !state.step() {
                return Err(failed(call, 700, "nothing is left to run", Class::Lost));
            }
        }
    }
}

impl Shared {
    /// The worker's life.
    fn work(&self) {
        let mut state = lock(&self.state);
        loop {
            match state.next() {
                Ready::Run(stream, op) => {
                    drop(state);
                    let result = ops::run(&op);
                    state = lock(&self.state);
                    state.finished(stream, &op, result);
                    self.changed.notify_all();
                }
                Ready::Stopped => return,
                Ready::Nothing => {
                    let woken = self.changed.wait(state);
                    state = woken.unwrap_or_else(std::sync::PoisonError::into_inner);
                }
            }
        }
    }
}

impl<M: Mode> Drop for Host<M> {
    fn drop(&mut self) {
        lock(&self.shared.state).stopped = true;
        self.shared.changed.notify_all();
        if let Some(worker) = self.worker.take() {
            // A panic of the worker was a panic of a kernel, and was reported as the device's loss.
            let _ = worker.join();
        }
    }
}
