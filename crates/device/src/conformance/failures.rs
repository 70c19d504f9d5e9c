//! Whichever call fails, nothing stays alive and the fault says what it was.

use super::bench::{Bench, pattern, read, words};
use super::{Checked, ensure};
use crate::driver::Driver;
use crate::fault::Fault;
use crate::staging::Staging;
use crate::watch::{Fail, INJECTED};

/// No scenario here makes as many calls: an end to the search.
const MOST: u64 = 2000;

/// A bit of everything, from opening to closing.
fn everything<D: Driver>(bench: &Bench<D>) -> Result<(), Fault> {
    let device = bench.device()?;
    let (k, stream, other) = (bench.kernels(&device)?, device.stream()?, device.stream()?);
    let (a, y) = (words(&device, 64)?, words(&device, 64)?);
    let ring = Staging::new(&device, 1, 256)?;
    for seed in 0..2 {
        let Some(mut slot) = ring.take()? else {
            continue;
        };
        slot.bytes_mut().copy_from_slice(&pattern(seed, 256));
        slot.upload(&stream, &a.view())?;
    }
    // A device that cannot has nothing to fail at.
    if device.facts().register.check().is_ok() {
        super::reach::a_little(&device, &stream, &a.view())?;
    }
    let event = stream.record()?;
    other.wait(&event)?;
    let graph = other.capture(|s| k.add(s, &a.view(), &a.view(), &y.view()))?;
    other.launch_graph(&graph)?;
    if let Some(slot) = ring.take()? {
        drop(slot.download(&other, &y.view())?.wait()?);
    }
    other.sync()?;
    read(&other, &y.view())?;
    let still = device.quiesce()?;
    still.retire(graph).map_err(|(_, fault)| fault)?;
    still.free(y).map_err(|(_, fault)| fault)
}

/// Runs the scenario once for each of its calls, that call failing.
pub(super) fn every_call<D: Driver>(bench: &Bench<D>) -> Checked {
    let watch = bench.runtime.driver();
    let alive = watch.alive();
    ensure(alive.is_empty(), || {
        format!("alive before the check: {alive:?}")
    })?;
    for after in 0..MOST {
        watch.fail(Some(Fail { call: None, after }));
        let result = everything(bench);
        let reached = !watch.pending();
        watch.fail(None);
        let alive = watch.alive();
        ensure(alive.is_empty(), || {
            format!("call {after} failed; alive: {alive:?}")
        })?;
        check::<D>(after, &result, reached, bench)?;
        if !reached {
            return Ok(());
        }
    }
    ensure(false, || format!("more than {MOST} calls"))
}

/// A failure is reported with its call and code; one in a release may be absorbed.
fn check<D: Driver>(
    after: u64,
    result: &Result<(), Fault>,
    reached: bool,
    bench: &Bench<D>,
) -> Checked {
    match result {
        Ok(()) => Ok(()),
        Err(Fault::Call {
            device, call, code, ..
        }) => ensure(
            reached
                && device.ordinal == bench.ordinal
                && device.kind == bench.runtime.kind()
                && *code == INJECTED
                && !call.is_empty(),
            || format!("call {after}: {device} {call} {code}"),
        ),
        Err(other) => ensure(false, || format!("call {after}: {other}")),
    }
}
