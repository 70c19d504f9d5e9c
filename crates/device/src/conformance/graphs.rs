//! Graphs against direct launches; arguments; clocks.

use super::bench::{Bench, W, read, words};
use super::{Checked, Why, ensure};
use crate::driver::{Driver, Geometry};
use crate::fault::Fault;
use crate::launch::Arg;
use crate::stream::Stream;

/// Replays equal direct launches, and capturing runs nothing.
pub(super) fn equal<D: Driver>(bench: &Bench<D>) -> Checked {
    let device = bench.device()?;
    let (k, stream) = (bench.kernels(&device)?, device.stream()?);
    let (a, b, y) = (
        words(&device, 300)?,
        words(&device, 300)?,
        words(&device, 300)?,
    );
    let work = |s: &Stream<W<D>>| {
        k.churn(s, &a.view(), 3)?;
        s.copy(&a.view(), &b.view())?;
        s.fill(&b.part(0, 40)?, 1)?;
        k.add(s, &a.view(), &b.view(), &y.view())
    };
    let reset = || {
        k.put(&stream, &a.view(), 5)?;
        stream.fill(&b.view(), 0)?;
        stream.fill(&y.view(), 0)
    };
    reset()?;
    let mut direct = Vec::new();
    for _ in 0..3 {
        work(&stream)?;
        direct.push(read(&stream, &y.view())?);
    }
    reset()?;
    let graph = stream.capture(work)?;
    ensure(graph.operations() == 4, || {
        format!("{} operations", graph.operations())
    })?;
    ensure(read(&stream, &y.view())? == vec![0; 300], || {
        "capturing ran something".into()
    })?;
    for (replay, want) in direct.iter().enumerate() {
        stream.launch_graph(&graph)?;
        ensure(read(&stream, &y.view())? == *want, || {
            format!("replay {replay} differs from the direct launches")
        })?;
    }
    let inside = stream.capture(|s| s.sync());
    let refused = matches!(inside, Err(Fault::Capturing { .. }));
    ensure(refused, || format!("waiting while captured: {inside:?}"))?;
    // The stream takes work again after a capture that failed.
    k.put(&stream, &y.view(), 7)?;
    ensure(read(&stream, &y.view())?[..2] == [7, 8], || {
        "the stream stayed in capture".into()
    })
}

/// Arguments of 4 and 8 bytes and a float.
pub(super) fn arguments<D: Driver>(bench: &Bench<D>) -> Checked {
    let device = bench.device()?;
    let (k, stream) = (bench.kernels(&device)?, device.stream()?);
    let y = words(&device, 4)?;
    let view = y.view();
    let args = [
        Arg::Write(&view, 16),
        Arg::U64(0x0123_4567_89ab_cdef),
        Arg::I32(-2),
        Arg::F32(0.5),
    ];
    stream.launch(&k.echo, &Geometry::line(1, 32), &args)?;
    let got = read(&stream, &view)?;
    let want = [0x89ab_cdef, 0x0123_4567, 0xffff_fffe, 1];
    ensure(got == want, || format!("{got:x?} instead of {want:x?}"))
}

/// Clocks of events.
pub(super) fn clock<D: Driver>(bench: &Bench<D>) -> Checked {
    let device = bench.device()?;
    let (k, stream) = (bench.kernels(&device)?, device.stream()?);
    let y = words(&device, 64)?;
    let start = stream.record_timed()?;
    k.churn(&stream, &y.view(), 1000)?;
    let end = stream.record_timed()?;
    let untimed = stream.record()?;
    stream.sync()?;
    let millis = end.millis_since(&start)?;
    ensure(millis.is_finite() && millis >= 0.0, || {
        format!("{millis} ms")
    })?;
    match untimed.millis_since(&start) {
        Err(Fault::Argument { index: 1, .. }) => Ok(()),
        other => Err(Why::Wrong(format!("an event without a clock: {other:?}"))),
    }
}
