//! The machine behind the symbols: one fake driver, its devices, and what belongs to which of them.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use device::driver::{Driver, DriverError, Place, Raw};
use device::fake::{self, Fake, Settings};

use crate::reach;

/// `hipError_t`, as `hip_runtime_api.h` numbers them.
pub(crate) mod code {
    pub(crate) const SUCCESS: i32 = 0;
    pub(crate) const INVALID_VALUE: i32 = 1;
    pub(crate) const OUT_OF_MEMORY: i32 = 2;
    pub(crate) const NOT_INITIALIZED: i32 = 3;
    pub(crate) const INVALID_DEVICE_FUNCTION: i32 = 98;
    pub(crate) const INVALID_DEVICE: i32 = 101;
    pub(crate) const INVALID_IMAGE: i32 = 200;
    pub(crate) const INVALID_HANDLE: i32 = 400;
    pub(crate) const NOT_READY: i32 = 600;
    pub(crate) const ILLEGAL_ADDRESS: i32 = 700;
    pub(crate) const LAUNCH_FAILURE: i32 = 719;
}

/// A call's result in the vendor's way.
pub(crate) type Called<T> = Result<T, i32>;

thread_local! {
    /// The calling thread's device.
    static CURRENT: Cell<u32> = const { Cell::new(0) };
}

/// How the next machine is to be.
pub(crate) static WANTED: Mutex<Option<Settings>> = Mutex::new(None);
static WORLD: Mutex<Option<World>> = Mutex::new(None);

/// A lock whose holder may have panicked: the tests go on.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The machine.
pub(crate) struct World {
    pub(crate) driver: Fake,
    pub(crate) devices: u32,
    /// Which device a handle or a block belongs to; pinned and managed memory belongs to all.
    owners: BTreeMap<Raw, u32>,
    /// Kernels by handle: their name in the host build.
    pub(crate) functions: BTreeMap<Raw, crate::modules::Function>,
    pub(crate) modules: BTreeMap<Raw, crate::modules::Loaded>,
    /// Device memory by its start.
    pub(crate) mapped: BTreeMap<Raw, crate::reach::Mapped>,
    /// Devices that reach another one's memory.
    pub(crate) peers: BTreeSet<(u32, u32)>,
    /// What it can, bits of `reach`.
    pub(crate) able: u32,
    pub(crate) calls: u64,
    /// The call that fails, counted as `calls` is, and its code.
    pub(crate) fails: Option<(u64, i32)>,
}

impl World {
    fn new(settings: &Settings) -> Self {
        Self {
            driver: fake::driver(settings),
            devices: settings.devices,
            owners: BTreeMap::new(),
            functions: BTreeMap::new(),
            modules: BTreeMap::new(),
            mapped: BTreeMap::new(),
            peers: BTreeSet::new(),
            able: reach::REGISTERS | reach::SHARES | reach::PEERS,
            calls: 0,
            fails: None,
        }
    }

    /// The calling thread's device as the driver counts them.
    pub(crate) fn d() -> Raw {
        Raw::from(CURRENT.get()) + 1
    }

    /// Notes that a new handle is the current device's.
    pub(crate) fn own(&mut self, handle: Raw) -> Raw {
        self.owners.insert(handle, CURRENT.get());
        handle
    }

    pub(crate) fn disown(&mut self, handle: Raw) {
        self.owners.remove(&handle);
    }

    /// Refuses a handle of another device, or of none.
    pub(crate) fn is_own(&self, handle: Raw) -> Called<()> {
        match self.owners.get(&handle) {
            Some(owner) if *owner == CURRENT.get() => Ok(()),
            _ => Err(code::INVALID_HANDLE),
        }
    }

    /// Refuses what the machine cannot.
    pub(crate) fn can(&self, what: u32, code: i32) -> Called<()> {
        (self.able & what != 0).then_some(()).ok_or(code)
    }

    /// Ends the process if rules were broken since: on hardware it would corrupt memory now and then.
    pub(crate) fn stop_at_violations(&self, before: usize) {
        if let Some(what) = self.driver.violations().get(before) {
            eprintln!("fake HIP: {what}");
            std::process::abort();
        }
    }

    /// Frees a block. What a queued operation still uses must not be freed.
    pub(crate) fn free(&mut self, start: Raw) -> Called<()> {
        let before = self.driver.violations().len();
        // SAFETY: the driver looks every address up.
        let freed = coded(unsafe { self.driver.free(Self::d(), Place::Device, start) });
        self.stop_at_violations(before);
        if freed.is_ok() {
            reach::freed(self, start);
        }
        self.disown(start);
        freed
    }

    /// Bytes that a kernel of the current device may touch from an address on; none if it is no memory.
    pub(crate) fn reach(&self, address: Raw) -> Called<Option<u64>> {
        let Some(block) = self.driver.block(address) else {
            return Ok(None);
        };
        let shared = block.place != Place::Device;
        let owner = self.owners.get(&block.start).copied();
        let current = CURRENT.get();
        let reached =
            owner.is_some_and(|owner| owner == current || self.peers.contains(&(current, owner)));
        if shared || reached {
            return Ok(Some(block.start + block.bytes - address));
        }
        // Another device's memory, without peer access.
        Err(code::ILLEGAL_ADDRESS)
    }
}

/// Makes the thread's current device.
pub(crate) fn set_device(device: i32) -> Called<()> {
    with(|w| {
        let ordinal = u32::try_from(device).ok().filter(|d| *d < w.devices);
        CURRENT.set(ordinal.ok_or(code::INVALID_DEVICE)?);
        Ok(())
    })
}

/// Starts the machine unless it runs.
pub(crate) fn start() {
    let mut world = lock(&WORLD);
    if world.is_none() {
        let settings = lock(&WANTED).take().unwrap_or(Settings {
            devices: 2,
            memory: 1 << 30,
            ..Settings::default()
        });
        *world = Some(World::new(&settings));
    }
}

/// Whether the machine runs.
pub(crate) fn is_running() -> bool {
    lock(&WORLD).is_some()
}

/// The machine, without counting a call.
pub(crate) fn look<T>(f: impl FnOnce(&mut World) -> T) -> Option<T> {
    lock(&WORLD).as_mut().map(f)
}

/// A call on the machine: counted, and failed if it is the one that is to fail.
pub(crate) fn with<T>(f: impl FnOnce(&mut World) -> Called<T>) -> Called<T> {
    let mut guard = lock(&WORLD);
    let world = guard.as_mut().ok_or(code::NOT_INITIALIZED)?;
    world.calls += 1;
    match world.fails {
        Some((at, code)) if at == world.calls => {
            world.fails = None;
            Err(code)
        }
        _ => f(world),
    }
}

/// The driver's error as the vendor's code. The fake driver's codes are HIP's.
pub(crate) fn code_of(error: &DriverError) -> i32 {
    i32::try_from(error.code).unwrap_or(code::LAUNCH_FAILURE)
}

/// As [`code_of`], for results.
pub(crate) fn coded<T>(result: Result<T, DriverError>) -> Called<T> {
    result.map_err(|e| code_of(&e))
}

/// The number a C function returns.
pub(crate) fn returned(result: Called<()>) -> i32 {
    result.err().unwrap_or(code::SUCCESS)
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "World({:?}, {} calls)", self.driver.kind(), self.calls)
    }
}
