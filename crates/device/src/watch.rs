//! A driver around a driver: counts calls, knows what is alive, and lets the n-th call fail. Works on
//! every runtime, real ones included, so that "nothing leaks, whichever call fails" is a test and not
//! a hope.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use crate::ability::Ability;
use crate::device::lock;
use crate::driver::{
    Class, Code, Driver, DriverError, DriverResult, Facts, FunctionFacts, Geometry, Kind, Memory,
    Place, Raw, RawArg, SHARE_BYTES, Source, Way,
};

/// Code of a failure that was asked for.
pub const INJECTED: i64 = 0xfa11;

/// Which call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fail {
    /// Only calls of this name count; all if `None`.
    pub call: Option<&'static str>,
    /// How many of them succeed before.
    pub after: u64,
}

#[derive(Debug, Default)]
struct Log {
    calls: u64,
    fail: Option<Fail>,
    alive: BTreeSet<(&'static str, Raw)>,
}

/// A driver with a watch.
#[derive(Debug)]
pub struct Watched<D: Driver> {
    inner: D,
    log: Mutex<Log>,
}

impl<D: Driver> Watched<D> {
    /// Watches a driver.
    pub fn new(inner: D) -> Self {
        Self {
            inner,
            log: Mutex::default(),
        }
    }

    /// The driver itself.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Calls so far.
    pub fn calls(&self) -> u64 {
        lock(&self.log).calls
    }

    /// Lets one call fail, once; `None` lets none fail.
    pub fn fail(&self, fail: Option<Fail>) {
        lock(&self.log).fail = fail;
    }

    /// Whether a failure is still to come.
    pub fn pending(&self) -> bool {
        lock(&self.log).fail.is_some()
    }

    /// What is alive, by kind.
    pub fn alive(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for (kind, _) in &lock(&self.log).alive {
            *counts.entry(*kind).or_default() += 1;
        }
        counts
    }

    /// Counts a call, or lets it fail.
    fn call(&self, name: &'static str) -> DriverResult<()> {
        let mut log = lock(&self.log);
        log.calls += 1;
        let Some(fail) = &mut log.fail else {
            return Ok(());
        };
        if fail.call.is_some_and(|only| only != name) {
            return Ok(());
        }
        if fail.after > 0 {
            fail.after -= 1;
            return Ok(());
        }
        log.fail = None;
        Err(DriverError {
            call: name,
            code: INJECTED,
            name: "a failure that was asked for".into(),
            class: Class::Call,
        })
    }

    fn born(&self, kind: &'static str, made: DriverResult<Raw>) -> DriverResult<Raw> {
        let raw = made?;
        lock(&self.log).alive.insert((kind, raw));
        Ok(raw)
    }

    fn died(&self, kind: &'static str, raw: Raw, end: DriverResult<()>) -> DriverResult<()> {
        end?;
        lock(&self.log).alive.remove(&(kind, raw));
        Ok(())
    }
}

/// Forwards methods after counting them.
macro_rules! forward {
    ($( fn $name:ident(&self $(, $arg:ident: $type:ty)*) -> $out:ty; )*) => {$(
        unsafe fn $name(&self $(, $arg: $type)*) -> DriverResult<$out> {
            self.call(stringify!($name))?;
            // SAFETY: the caller's promise is the inner driver's.
            unsafe { self.inner.$name($($arg),*) }
        }
    )*};
    ($( make $kind:literal fn $name:ident(&self $(, $arg:ident: $type:ty)*); )*) => {$(
        unsafe fn $name(&self $(, $arg: $type)*) -> DriverResult<Raw> {
            self.call(stringify!($name))?;
            // SAFETY: the caller's promise is the inner driver's.
            self.born($kind, unsafe { self.inner.$name($($arg),*) })
        }
    )*};
    ($( end $kind:literal fn $name:ident(&self $(, $arg:ident: $type:ty)*) of $raw:ident; )*) => {$(
        unsafe fn $name(&self $(, $arg: $type)*) -> DriverResult<()> {
            self.call(stringify!($name))?;
            // SAFETY: the caller's promise is the inner driver's.
            self.died($kind, $raw, unsafe { self.inner.$name($($arg),*) })
        }
    )*};
}

#[allow(clippy::missing_safety_doc)] // the trait's contract
impl<D: Driver> Driver for Watched<D> {
    fn kind(&self) -> Kind {
        self.inner.kind()
    }

    fn count(&self) -> DriverResult<u32> {
        self.call("count")?;
        self.inner.count()
    }

    fn facts(&self, ordinal: u32) -> DriverResult<Facts> {
        self.call("facts")?;
        self.inner.facts(ordinal)
    }

    fn compiler(&self) -> Result<String, String> {
        self.inner.compiler()
    }

    fn compile(&self, source: &Source<'_>) -> Result<Code, String> {
        self.inner.compile(source)
    }

    fn open(&self, ordinal: u32) -> DriverResult<Raw> {
        self.call("open")?;
        self.born("device", self.inner.open(ordinal))
    }

    forward! {
        make "memory" fn alloc(&self, d: Raw, place: Place, bytes: u64);
        make "stream" fn stream_create(&self, d: Raw);
        make "event" fn event_create(&self, d: Raw, timed: bool);
        make "module" fn load(&self, d: Raw, code: &Code);
        make "graph" fn capture_end(&self, d: Raw, stream: Raw);
    }

    forward! {
        end "device" fn close(&self, d: Raw) of d;
        end "memory" fn free(&self, d: Raw, place: Place, address: Raw) of address;
        end "stream" fn stream_destroy(&self, d: Raw, stream: Raw) of stream;
        end "event" fn event_destroy(&self, d: Raw, event: Raw) of event;
        end "module" fn unload(&self, d: Raw, module: Raw) of module;
        end "graph" fn graph_destroy(&self, d: Raw, graph: Raw) of graph;
    }

    unsafe fn register(&self, d: Raw, address: Raw, bytes: u64) -> DriverResult<()> {
        self.call("register")?;
        // SAFETY: the caller's promise is the inner driver's.
        let made = unsafe { self.inner.register(d, address, bytes) };
        self.born("registration", made.map(|()| address)).map(drop)
    }

    fn reaches(&self, from: u32, to: u32) -> DriverResult<Ability> {
        self.call("reaches")?;
        self.inner.reaches(from, to)
    }

    unsafe fn reach(&self, d: Raw, other: Raw) -> DriverResult<()> {
        self.call("reach")?;
        // SAFETY: the caller's promise is the inner driver's.
        let made = unsafe { self.inner.reach(d, other) };
        self.born("peer", made.map(|()| d ^ other.rotate_left(32)))
            .map(drop)
    }

    unsafe fn unreach(&self, d: Raw, other: Raw) -> DriverResult<()> {
        self.call("unreach")?;
        // SAFETY: the caller's promise is the inner driver's.
        let end = unsafe { self.inner.unreach(d, other) };
        self.died("peer", d ^ other.rotate_left(32), end)
    }

    forward! {
        make "shared" fn open_shared(&self, d: Raw, handle: &[u8; SHARE_BYTES], bytes: u64);
    }

    forward! {
        end "registration" fn unregister(&self, d: Raw, address: Raw) of address;
        end "shared" fn close_shared(&self, d: Raw, address: Raw) of address;
    }

    forward! {
        fn share(&self, d: Raw, address: Raw) -> [u8; SHARE_BYTES];
        fn memory(&self, d: Raw) -> Memory;
        fn stream_sync(&self, d: Raw, stream: Raw) -> ();
        fn stream_wait(&self, d: Raw, stream: Raw, event: Raw) -> ();
        fn event_record(&self, d: Raw, event: Raw, stream: Raw) -> ();
        fn event_done(&self, d: Raw, event: Raw) -> bool;
        fn event_sync(&self, d: Raw, event: Raw) -> ();
        fn event_ms(&self, d: Raw, start: Raw, end: Raw) -> f32;
        fn copy(&self, d: Raw, stream: Raw, way: Way, to: Raw, from: Raw, bytes: u64) -> ();
        fn fill(&self, d: Raw, stream: Raw, to: Raw, byte: u8, bytes: u64) -> ();
        fn function(&self, d: Raw, module: Raw, name: &str) -> Raw;
        fn argument_sizes(&self, d: Raw, function: Raw) -> Option<Vec<u32>>;
        fn function_facts(&self, d: Raw, function: Raw) -> FunctionFacts;
        fn allow_shared(&self, d: Raw, function: Raw, bytes: u32) -> ();
        fn launch(
            &self,
            d: Raw,
            stream: Raw,
            function: Raw,
            geometry: &Geometry,
            args: &[RawArg]
        ) -> ();
        fn launch_early(
            &self,
            d: Raw,
            stream: Raw,
            function: Raw,
            geometry: &Geometry,
            args: &[RawArg]
        ) -> ();
        fn capture_begin(&self, d: Raw, stream: Raw) -> ();
        fn graph_launch(&self, d: Raw, graph: Raw, stream: Raw) -> ();
    }
}
