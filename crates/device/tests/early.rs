//! Kernels that may start before the one ahead of them has ended: when a device is asked for that, and when it is not.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::sync::Arc;

use device::fake::{Fake, Settings};
use device::watch::{Fail, Watched};
use device::{
    Arg, ArgKind, Buffer, Code, Device, EarlyLaunch, Geometry, HostModule, Kernel, Place, RawArg,
    Runtime, Stream, fake,
};

type Watch = Watched<Fake>;

/// Kernels that do nothing.
#[derive(Debug)]
struct Idle;

impl HostModule for Idle {
    fn has(&self, _: &str) -> bool {
        true
    }

    unsafe fn launch(&self, _: &str, _: &Geometry, _: &[RawArg]) -> Result<(), String> {
        Ok(())
    }
}

struct Rig {
    runtime: Runtime<Watch>,
    device: Device<Watch>,
    stream: Stream<Watch>,
    memory: Buffer<Watch>,
}

impl Rig {
    fn new(early_launch: EarlyLaunch) -> Self {
        let runtime = fake::runtime(&Settings {
            early_launch,
            ..Settings::default()
        });
        let device = runtime.open(0).unwrap();
        let (stream, memory) = (
            device.stream().unwrap(),
            device.alloc(Place::Device, 64).unwrap(),
        );
        Self {
            runtime,
            device,
            stream,
            memory,
        }
    }

    fn kernel(&self, waits: bool) -> Kernel<Watch> {
        let image = self.device.load("idle", &Code::Host(Arc::new(Idle)));
        // SAFETY: it takes one address and touches nothing.
        let kernel = unsafe { image.unwrap().kernel("k", &[ArgKind::Address]) }.unwrap();
        if waits {
            // SAFETY: it touches nothing.
            return unsafe { kernel.waiting() }.unwrap();
        }
        kernel
    }

    fn launch(&self, kernel: &Kernel<Watch>) {
        let view = self.memory.view();
        let args = [Arg::Write(&view, 64)];
        self.stream
            .launch(kernel, &Geometry::line(1, 32), &args)
            .unwrap();
    }

    /// What the driver was asked for, which the device's own count must say too.
    fn early(&self) -> u64 {
        let asked = self.runtime.driver().inner().early_launches();
        assert_eq!(self.device.counters().early_launches, asked);
        asked
    }
}

#[test]
fn a_kernel_starts_early_behind_one_that_waits() {
    let rig = Rig::new(EarlyLaunch::On);
    let (waits, plain) = (rig.kernel(true), rig.kernel(false));
    assert_eq!(rig.device.early_launch(), EarlyLaunch::On);
    assert_eq!((waits.early(), plain.early()), (true, false));
    for (kernel, early) in [
        (&waits, 0), // the first of its stream
        (&waits, 1),
        (&waits, 2),
        (&plain, 2), // nothing promises that it waits
        (&waits, 2), // and so nothing may start before it has ended
        (&waits, 3),
    ] {
        rig.launch(kernel);
        assert_eq!(rig.early(), early);
    }
}

#[test]
fn everything_else_stands_in_full_order() {
    let rig = Rig::new(EarlyLaunch::On);
    let (kernel, stream) = (rig.kernel(true), &rig.stream);
    let (view, other) = (
        rig.memory.view(),
        rig.device.alloc(Place::Device, 64).unwrap(),
    );
    let graph = stream.capture(|s| s.fill(&view, 1)).unwrap();
    let between: [(&str, &dyn Fn()); 6] = [
        ("copy", &|| stream.copy(&view, &other.view()).unwrap()),
        ("fill", &|| stream.fill(&view, 0).unwrap()),
        ("record", &|| drop(stream.record().unwrap())),
        ("wait", &|| {
            let event = rig.device.stream().unwrap().record().unwrap();
            stream.wait(&event).unwrap();
        }),
        ("graph", &|| stream.launch_graph(&graph).unwrap()),
        ("sync", &|| stream.sync().unwrap()),
    ];
    for (what, act) in between {
        rig.launch(&kernel);
        let before = rig.early();
        act();
        rig.launch(&kernel);
        assert_eq!(rig.early(), before, "{what}");
        rig.launch(&kernel);
        assert_eq!(rig.early(), before + 1, "{what}");
        stream.sync().unwrap();
    }
}

#[test]
fn a_graph_begins_and_ends_in_full_order() {
    let rig = Rig::new(EarlyLaunch::On);
    let kernel = rig.kernel(true);
    rig.launch(&kernel);
    let graph = rig.stream.capture(|_| {
        (0..3).for_each(|_| rig.launch(&kernel));
        Ok(())
    });
    assert_eq!(graph.unwrap().operations(), 3);
    assert_eq!(rig.early(), 2, "the second and the third");
    rig.launch(&kernel);
    assert_eq!(rig.early(), 2, "behind the capture");
}

#[test]
fn a_launch_that_failed_is_nothing_to_start_behind() {
    let rig = Rig::new(EarlyLaunch::On);
    let kernel = rig.kernel(true);
    rig.launch(&kernel);
    rig.runtime.driver().fail(Some(Fail {
        call: Some("launch_early"),
        after: 0,
    }));
    let view = rig.memory.view();
    let args = [Arg::Write(&view, 64)];
    let launched = rig.stream.launch(&kernel, &Geometry::line(1, 32), &args);
    assert!(launched.unwrap_err().to_string().contains("launch_early"));
    rig.launch(&kernel);
    assert_eq!(rig.early(), 0);
}

#[test]
fn off_has_a_reason_and_changes_the_launch_only() {
    let off = EarlyLaunch::Off("an old card".into());
    let rig = Rig::new(off.clone());
    let kernel = rig.kernel(true);
    assert!(!kernel.early());
    assert_eq!(rig.device.early_launch(), off);
    assert_eq!(off.to_string(), "off: an old card");

    let rig = Rig::new(EarlyLaunch::On);
    let kernel = rig.kernel(true);
    rig.launch(&kernel);
    rig.launch(&kernel);
    rig.device.turn_early_launch_off();
    let why = rig.device.early_launch().to_string();
    assert_eq!(why, "off: turned off");
    rig.launch(&kernel);
    assert_eq!(rig.early(), 1);
}
