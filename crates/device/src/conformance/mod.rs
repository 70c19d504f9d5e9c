//! What every runtime must do: one suite, run on the CPU and the fake device in CI, and on CUDA and HIP
//! wherever a device is found. Each check is also run on a device that is wrong in the way it looks
//! for, and must object there (`tests/suite.rs`).
//!
//! Must not know: which runtime it runs on, except for how images are made.

mod bench;
mod failures;
mod graphs;
mod kernels;
mod memory;
mod order;
mod reach;
mod refusals;

use serde::Serialize;

use crate::driver::{Driver, Facts};
use crate::fault::Fault;
use crate::runtime::Runtime;
use crate::watch::Watched;
pub use bench::Bench;

/// How a check ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "result", content = "reason")]
pub enum Outcome {
    /// As it should be.
    Passed,
    /// Not so, and how.
    Failed(String),
    /// Cannot be seen on this runtime, and why.
    Skipped(String),
}

/// One check with its outcome.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name.
    pub check: &'static str,
    /// What it asserts.
    pub asserts: &'static str,
    /// How it ended.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// A run on one device.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The device: `cuda:0`.
    pub device: String,
    /// What is known of it.
    pub facts: Facts,
    /// Its compiler, or why there is none.
    pub compiler: String,
    /// The checks.
    pub checks: Vec<Row>,
}

impl Report {
    /// Names of the checks that failed.
    #[must_use]
    pub fn failed(&self) -> Vec<&'static str> {
        let failed = |row: &&Row| matches!(row.outcome, Outcome::Failed(_));
        self.checks.iter().filter(failed).map(|r| r.check).collect()
    }

    /// How many passed.
    #[must_use]
    pub fn passed(&self) -> usize {
        let passed = |row: &&Row| row.outcome == Outcome::Passed;
        self.checks.iter().filter(passed).count()
    }
}

/// Why a check objects.
pub(crate) enum Why {
    Wrong(String),
    NotHere(String),
}

impl From<Fault> for Why {
    fn from(fault: Fault) -> Self {
        Self::Wrong(format!("unexpected fault: {fault}"))
    }
}

/// Result of a check.
pub(crate) type Checked = Result<(), Why>;

/// Objects unless the condition holds.
pub(crate) fn ensure(holds: bool, what: impl FnOnce() -> String) -> Checked {
    if holds {
        Ok(())
    } else {
        Err(Why::Wrong(what()))
    }
}

/// A check: name, what it asserts, how.
type Check<D> = (&'static str, &'static str, fn(&Bench<D>) -> Checked);

fn work<D: Driver>() -> [Check<D>; 8] {
    [
        (
            "copies",
            "bytes of 0 to 1 MiB at odd offsets go up, across and down unchanged; fills reach their range only",
            memory::copies,
        ),
        (
            "completion",
            "after an event or a wait, the work before it is visible to the host",
            order::completion,
        ),
        (
            "order",
            "a stream that waited for another's event sees its results, over many rounds",
            order::streams,
        ),
        (
            "staging",
            "a slot overwritten as soon as it is given out again never changes an earlier copy",
            order::staging,
        ),
        (
            "ownership",
            "buffers dropped right after their submission are used unharmed, and then freed",
            order::ownership,
        ),
        (
            "graphs",
            "a captured graph runs nothing by itself; replays equal direct launches",
            graphs::equal,
        ),
        (
            "arguments",
            "every kind of argument arrives as it was given",
            graphs::arguments,
        ),
        (
            "clock",
            "timed events give a finite time that is not negative; others refuse",
            graphs::clock,
        ),
    ]
}

fn abilities<D: Driver>() -> [Check<D>; 3] {
    [
        (
            "registered",
            "memory of the host, pinned: copies see what it held until their event, and it is held until then",
            reach::registered,
        ),
        (
            "shared",
            "memory for other processes has a handle, which this process does not open",
            reach::shared,
        ),
        (
            "peers",
            "two devices that reach each other get each other's bytes, until the way is closed",
            reach::peers,
        ),
    ]
}

fn refusals<D: Driver>() -> [Check<D>; 8] {
    [
        (
            "quiesce",
            "held still, a device refuses work; buffers are freed only after the graphs that hold them",
            refusals::quiesce,
        ),
        (
            "places",
            "pinned and unified memory is read and written by the host of an idle device; device memory is not",
            memory::places,
        ),
        (
            "exhaustion",
            "too much memory is refused with the figures, and the device goes on",
            memory::exhaustion,
        ),
        (
            "strangers",
            "handles of another device are refused by name",
            refusals::strangers,
        ),
        (
            "launches",
            "grids, blocks, shared memory, argument counts, kinds and byte counts are checked",
            refusals::launches,
        ),
        (
            "signatures",
            "a signature that is not the kernel's is refused",
            refusals::signatures,
        ),
        (
            "compiler",
            "a source with an error is refused with the compiler's words",
            refusals::compiler,
        ),
        (
            "failures",
            "whichever call fails, the fault names device, call and code, and nothing stays alive",
            failures::every_call,
        ),
    ]
}

/// The suite's kernels as functions of this process: for whoever stands in for a runtime.
#[must_use]
pub fn host_kernels() -> crate::driver::Code {
    kernels::host()
}

/// Runs the suite on a device. `health` asks the driver for what it noticed on its own.
///
/// # Errors
/// The device cannot be opened, or the suite's kernels cannot be made for it.
pub fn run<D: Driver>(
    runtime: &Runtime<Watched<D>>,
    ordinal: u32,
    health: fn(&D) -> Vec<String>,
) -> Result<Report, Fault> {
    // A real driver makes and ends a context with the first and the last opening: held here, so that
    // the checks, which open the device many times, do not pay for it each time.
    let inner = runtime.driver().inner();
    let held = inner
        .open(ordinal)
        .map_err(|e| Fault::of(runtime.id(ordinal), e))?;
    let report = checked(runtime, ordinal, health);
    // SAFETY: opened above, and every check has dropped its own.
    let closed = unsafe { inner.close(held) };
    closed.map_err(|e| Fault::of(runtime.id(ordinal), e))?;
    report
}

fn checked<D: Driver>(
    runtime: &Runtime<Watched<D>>,
    ordinal: u32,
    health: fn(&D) -> Vec<String>,
) -> Result<Report, Fault> {
    let bench = Bench::new(runtime, ordinal)?;
    let mut rows = Vec::new();
    let checks = work().into_iter().chain(abilities()).chain(refusals());
    for (check, asserts, body) in checks {
        let outcome = match body(&bench) {
            Ok(()) => match health(runtime.driver().inner()).as_slice() {
                [] => Outcome::Passed,
                noticed => Outcome::Failed(noticed.join("; ")),
            },
            Err(Why::Wrong(what)) => Outcome::Failed(what),
            Err(Why::NotHere(why)) => Outcome::Skipped(why),
        };
        rows.push(Row {
            check,
            asserts,
            outcome,
        });
    }
    let device = bench.device()?;
    let compiler = device
        .compiler()
        .unwrap_or_else(|why| format!("none: {why}"));
    Ok(Report {
        device: device.id().to_string(),
        facts: device.facts().clone(),
        compiler,
        checks: rows,
    })
}
