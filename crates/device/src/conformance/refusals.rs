//! What must be refused, and how.

use super::bench::{Bench, words};
use super::kernels::SIGNATURES;
use super::{Checked, Why, ensure};
use crate::driver::{Driver, Geometry, Kind};
use crate::fault::Fault;
use crate::image::ArgKind;
use crate::launch::Arg;

/// Quiesce, retire, free; no other order.
pub(super) fn quiesce<D: Driver>(bench: &Bench<D>) -> Checked {
    let device = bench.device()?;
    let (k, stream) = (bench.kernels(&device)?, device.stream()?);
    let y = words(&device, 256)?;
    let graph = stream.capture(|s| k.churn(s, &y.view(), 10))?;
    stream.launch_graph(&graph)?;
    let still = device.quiesce()?;
    let want = Fault::Quiesced {
        device: device.id(),
    };
    let view = y.view();
    for refused in [
        stream.fill(&view, 1).err(),
        stream.launch_graph(&graph).err(),
        stream.record().err(),
        k.put(&stream, &view, 1).err(),
        stream.capture(|_| Ok(())).err(),
        device.quiesce().err(),
    ] {
        ensure(refused.as_ref() == Some(&want), || {
            format!("held still, yet {refused:?}")
        })?;
    }
    drop(view);
    let Err((y, Fault::StillUsed { holders: 1, .. })) = still.free(y) else {
        return Err(Why::Wrong(
            "a buffer was freed while a graph holds it".into(),
        ));
    };
    still.retire(graph).map_err(|(_, fault)| fault)?;
    still.free(y).map_err(|(_, fault)| fault)?;
    drop(still);
    let again = words(&device, 4)?;
    k.put(&stream, &again.view(), 3)?;
    Ok(stream.sync()?)
}

/// Handles of another device.
pub(super) fn strangers<D: Driver>(bench: &Bench<D>) -> Checked {
    let device = bench.device()?;
    let (k, stream) = (bench.kernels(&device)?, device.stream()?);
    let twin = bench.runtime.twin().open(bench.ordinal)?;
    let (theirs, other) = (words(&twin, 16)?, twin.stream()?);
    let ours = words(&device, 16)?;
    let event = other.record()?;
    let graph = other.capture(|s| s.fill(&theirs.view(), 1))?;
    let (view, strange) = (ours.view(), theirs.view());
    let still = twin.quiesce()?;
    let refusals = [
        ("a buffer", stream.copy(&strange, &view).err()),
        ("a buffer", stream.copy(&view, &strange).err()),
        ("a buffer", stream.fill(&strange, 0).err()),
        ("a buffer", k.put(&stream, &strange, 0).err()),
        ("a buffer", stream.write_now(&[0; 64], &strange).err()),
        ("an event", stream.wait(&event).err()),
        ("a graph", stream.launch_graph(&graph).err()),
        ("a kernel", k.put(&other, &strange, 0).err()),
        ("a buffer", still.bytes(&ours).err()),
    ];
    for (kind, refused) in refusals {
        match refused {
            Some(Fault::WrongDevice {
                what,
                expected,
                got,
            }) => {
                let ids = [device.id(), twin.id()];
                let fine = what == kind && ids.contains(&expected) && ids.contains(&got);
                ensure(fine && expected != got, || {
                    format!("{what}: {expected}, {got}")
                })?;
            }
            other => return Err(Why::Wrong(format!("{kind} of another device: {other:?}"))),
        }
    }
    Ok(())
}

/// Geometries and arguments no launch may have.
pub(super) fn launches<D: Driver>(bench: &Bench<D>) -> Checked {
    let device = bench.device()?;
    let (k, stream) = (bench.kernels(&device)?, device.stream()?);
    let y = words(&device, 16)?;
    let view = y.view();
    let limits = device.facts().limits;
    let good = || [Arg::Write(&view, 64), Arg::U32(1), Arg::U32(16)];
    let line = Geometry::line(1, 32);
    let mut grids = vec![
        Geometry::line(0, 32),
        Geometry::line(1, 0),
        Geometry::line(1, limits.threads + 1),
        Geometry {
            threads: [limits.threads, 2, 1],
            ..line
        },
        Geometry {
            grid: [1, limits.grid[1].saturating_add(1), 1],
            ..line
        },
    ];
    if limits.shared < u32::MAX {
        let shared = limits.shared + 1;
        grids.push(Geometry { shared, ..line });
    }
    if limits.grid[0] < u32::MAX {
        grids.push(Geometry::line(limits.grid[0] + 1, 1));
    }
    for geometry in grids {
        let refused = stream.launch(&k.put, &geometry, &good());
        ensure(matches!(refused, Err(Fault::Launch { .. })), || {
            format!("{geometry:?}: {refused:?}")
        })?;
    }
    let short = y.part(0, 60)?;
    let wrong: [Vec<Arg<'_, _>>; 4] = [
        vec![Arg::Write(&view, 64), Arg::U32(1)],
        vec![Arg::Write(&view, 64), Arg::U64(1), Arg::U32(16)],
        vec![Arg::U64(1), Arg::U32(1), Arg::U32(16)],
        vec![Arg::Write(&short, 64), Arg::U32(1), Arg::U32(16)],
    ];
    for (index, args) in [2, 1, 0, 0].into_iter().zip(wrong) {
        match stream.launch(&k.put, &line, &args) {
            Err(Fault::Argument { index: at, .. }) if at == index => {}
            other => return Err(Why::Wrong(format!("{args:?}: {other:?}"))),
        }
    }
    stream.launch(&k.put, &line, &good())?;
    Ok(stream.sync()?)
}

/// Signatures against what the runtime knows.
pub(super) fn signatures<D: Driver>(bench: &Bench<D>) -> Checked {
    let device = bench.device()?;
    let image = device.load("conformance", &bench.code)?;
    // SAFETY: never launched.
    let unknown = unsafe { image.kernel("no_such_kernel", &[]) };
    match unknown {
        Err(Fault::Call { device: said, .. }) if said == device.id() => {}
        other => return Err(Why::Wrong(format!("an unknown kernel: {other:?}"))),
    }
    let (name, signature) = SIGNATURES[0];
    let wide = [ArgKind::Address, ArgKind::Long, ArgKind::Word];
    let few = &signature[..2];
    let mut silent = false;
    for wrong in [&wide[..], few] {
        // SAFETY: never launched.
        match unsafe { image.kernel(name, wrong) } {
            Err(Fault::Argument { .. }) => {}
            Ok(_) => silent = true,
            Err(other) => return Err(other.into()),
        }
    }
    match (silent, bench.runtime.kind()) {
        (false, _) => Ok(()),
        (true, Kind::Cuda | Kind::Hip) => Err(Why::NotHere(
            "this driver does not tell the sizes of a kernel's parameters".into(),
        )),
        (true, _) => Err(Why::Wrong("a wrong signature was taken".into())),
    }
}

/// The compiler's words reach the caller.
pub(super) fn compiler<D: Driver>(bench: &Bench<D>) -> Checked {
    let device = bench.device()?;
    if let Err(why) = device.compiler() {
        return Err(Why::NotHere(why));
    }
    let source = "extern \"C\" __global__ void f(int* y) { y[0] = no_such_name; }";
    match device.compile("broken", source, &[]) {
        Err(Fault::Compile { log, .. }) => ensure(log.contains("no_such_name"), || {
            format!("the log does not say why: {log}")
        }),
        other => Err(Why::Wrong(format!("a broken source: {other:?}"))),
    }
}
