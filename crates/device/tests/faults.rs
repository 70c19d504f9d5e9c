//! Faults, one at a time: kernels that fail, releases that fail, waits that are too long.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use device::driver::{Class, Driver};
use device::fake::{Fake, Settings};
use device::watch::{Fail, INJECTED, Watched};
use device::{
    Arg, ArgKind, Code, Device, Fault, Geometry, HostModule, Kernel, Place, RawArg, Runtime,
    Staging, cpu, fake,
};

/// `broken` fails, `panics` panics, `waits` waits until told.
#[derive(Debug, Default)]
struct Odd {
    open: Mutex<bool>,
    told: Condvar,
}

impl HostModule for Odd {
    fn has(&self, kernel: &str) -> bool {
        ["broken", "panics", "waits"].contains(&kernel)
    }

    unsafe fn launch(&self, kernel: &str, _: &Geometry, _: &[RawArg]) -> Result<(), String> {
        match kernel {
            "broken" => Err("divergent barrier".into()),
            "panics" => panic!("a kernel's panic"),
            _ => {
                let open = self.open.lock().unwrap();
                drop(self.told.wait_while(open, |open| !*open).unwrap());
                Ok(())
            }
        }
    }
}

fn kernel<R: Driver>(device: &Device<R>, odd: &Arc<Odd>, name: &str) -> Kernel<R> {
    let code = Code::Host(Arc::clone(odd) as Arc<dyn HostModule>);
    let image = device.load("odd", &code).unwrap();
    // SAFETY: the three kernels take one address and touch nothing.
    unsafe { image.kernel(name, &[ArgKind::Address]) }.unwrap()
}

fn watched() -> Runtime<Watched<Fake>> {
    fake::runtime(&Settings::default())
}

#[test]
fn a_failing_kernel_loses_the_device_for_good() {
    for name in ["broken", "panics"] {
        let runtime = watched();
        let device = runtime.open(0).unwrap();
        let k = kernel(&device, &Arc::default(), name);
        let (stream, y) = (
            device.stream().unwrap(),
            device.alloc(Place::Device, 64).unwrap(),
        );
        stream
            .launch(&k, &Geometry::line(1, 1), &[Arg::Write(&y.view(), 64)])
            .unwrap();
        let Err(Fault::Lost {
            device: said,
            name: words,
            ..
        }) = stream.sync()
        else {
            panic!("{name} was not noticed");
        };
        assert_eq!(said, device.id());
        assert!(words.contains(name), "{words}");
        // Everything says so from now on, and nothing panics or hangs.
        let lost = |fault: Option<Fault>| matches!(fault, Some(Fault::Lost { .. }));
        assert!(lost(stream.fill(&y.view(), 1).err()));
        assert!(lost(device.alloc(Place::Device, 1).err()));
        assert!(lost(device.stream().err()));
        assert!(lost(device.quiesce().err()));
        drop(stream);
        assert_eq!(
            device.counters().abandoned,
            1,
            "nobody knows what still runs"
        );
    }
}

#[test]
fn the_nth_call_of_a_kind_fails_with_its_code() {
    let runtime = watched();
    let device = runtime.open(0).unwrap();
    let fail = Fail {
        call: Some("alloc"),
        after: 1,
    };
    runtime.driver().fail(Some(fail));
    let first = device.alloc(Place::Device, 16).unwrap();
    let second = device.alloc(Place::Device, 16).unwrap_err();
    assert_eq!(
        second.to_string(),
        format!("fake:0: alloc: a failure that was asked for ({INJECTED})")
    );
    device.alloc(Place::Device, 16).unwrap();
    drop(first);
}

#[test]
fn a_release_that_fails_is_tried_again_and_counted() {
    let runtime = watched();
    let device = runtime.open(0).unwrap();
    let (a, b) = (
        device.alloc(Place::Device, 16).unwrap(),
        device.alloc(Place::Device, 16).unwrap(),
    );
    let fail = Fail {
        call: Some("free"),
        after: 0,
    };
    runtime.driver().fail(Some(fail));
    drop(a);
    assert_eq!(runtime.driver().alive()["memory"], 2);
    assert_eq!(device.counters().failed_releases, 1);
    drop(b);
    assert_eq!(runtime.driver().alive().get("memory"), None);
    assert_eq!(runtime.driver().inner().violations(), [] as [&str; 0]);
}

#[test]
fn a_wait_with_a_limit_gives_up_and_the_work_goes_on() {
    let device = cpu::runtime(1 << 20).open(0).unwrap();
    let odd: Arc<Odd> = Arc::default();
    let k = kernel(&device, &odd, "waits");
    let (stream, y) = (
        device.stream().unwrap(),
        device.alloc(Place::Device, 64).unwrap(),
    );
    stream
        .launch(&k, &Geometry::line(1, 1), &[Arg::Write(&y.view(), 64)])
        .unwrap();
    let event = stream.record().unwrap();
    let late = event.wait_for(Duration::from_millis(2)).unwrap_err();
    let device_id = device.id();
    assert_eq!(
        late,
        Fault::Deadline {
            device: device_id,
            millis: 2
        }
    );
    assert_eq!(event.is_done(), Ok(false));
    *odd.open.lock().unwrap() = true;
    odd.told.notify_all();
    event.wait_for(Duration::from_secs(60)).unwrap();
    assert_eq!(event.is_done(), Ok(true));
}

#[test]
fn images_of_another_form_are_refused() {
    let device = watched().open(0).unwrap();
    for (code, form) in [
        (Code::Ptx(vec![1]), "PTX"),
        (Code::Cubin(vec![1]), "cubin"),
        (Code::Hsaco(vec![1]), "code object"),
    ] {
        let refused = device.load("x", &code).unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!("fake:0 does not take an image as {form}")
        );
    }
}

#[test]
fn copies_that_overlap_or_differ_in_length_are_refused() {
    let device = watched().open(0).unwrap();
    let (stream, y) = (
        device.stream().unwrap(),
        device.alloc(Place::Device, 64).unwrap(),
    );
    let part = |start, len| y.part(start, len).unwrap();
    let copy = |from, to| stream.copy(&from, &to).map_err(|f| f.to_string());
    assert_eq!(copy(part(0, 32), part(32, 32)), Ok(()));
    assert_eq!(copy(part(32, 32), part(0, 32)), Ok(()));
    assert_eq!(copy(part(5, 0), part(5, 0)), Ok(()));
    for (from, to) in [(0, 31), (31, 0), (8, 8)] {
        let refused = copy(part(from, 32), part(to, 32)).unwrap_err();
        assert!(refused.starts_with("copy onto itself: "), "{refused}");
    }
    let refused = copy(part(0, 8), part(32, 9)).unwrap_err();
    assert_eq!(refused, "copy of different lengths: bytes 0..8 of 9");
    assert!(y.part(60, 5).is_err() && y.part(u64::MAX, 2).is_err());
}

#[test]
fn devices_that_are_not_there_are_refused() {
    let refused = watched().open(7).unwrap_err();
    assert_eq!(refused.to_string(), "fake:7: there are 1 devices");
}

#[test]
fn a_download_nobody_waits_for_gives_its_slot_back() {
    let runtime = watched();
    let device = runtime.open(0).unwrap();
    let (stream, y) = (
        device.stream().unwrap(),
        device.alloc(Place::Device, 64).unwrap(),
    );
    let ring = Staging::new(&device, 1, 64).unwrap();
    for round in 0..4 {
        stream.fill(&y.view(), round).unwrap();
        let slot = ring.take().unwrap().expect("the slot came back");
        drop(slot.download(&stream, &y.view()).unwrap());
    }
    let slot = ring.take().unwrap().unwrap();
    assert_eq!(slot.bytes(), [3; 64]);
    assert!(ring.take().unwrap().is_none(), "in somebody's hands");
    // A copy too long for its slot takes nothing away.
    drop(slot);
    let long = device.alloc(Place::Device, 65).unwrap();
    let slot = ring.take().unwrap().unwrap();
    let refused = slot.upload(&stream, &long.view()).unwrap_err();
    assert_eq!(refused.to_string(), "staging slot: bytes 0..65 of 64");
    assert!(ring.take().unwrap().is_some());
    assert!(matches!(
        Staging::new(&device, 0, 64),
        Err(Fault::NoSlot { .. })
    ));
}

#[test]
fn the_fake_reports_what_the_types_above_cannot_do() {
    let driver = fake::driver(&Settings::default());
    let d = driver.open(0).unwrap();
    // SAFETY (all of this test): host memory that the fake checks at every use: misuse is what is
    // tested.
    let alloc = || {
        // SAFETY: above.
        unsafe { driver.alloc(d, Place::Device, 64) }.unwrap()
    };
    let (a, b) = (alloc(), alloc());
    // SAFETY: above.
    let stream = unsafe { driver.stream_create(d) }.unwrap();
    let way = device::driver::Way::Within;
    // SAFETY: above.
    unsafe { driver.copy(d, stream, way, b, a, 64) }.unwrap();
    // SAFETY: above.
    unsafe { driver.free(d, Place::Device, a) }.unwrap();
    // SAFETY: above.
    let lost = unsafe { driver.stream_sync(d, stream) }.unwrap_err();
    assert_eq!((lost.class, lost.call), (Class::Lost, "stream_sync"));
    let noticed = driver.violations();
    assert_eq!(noticed.len(), 2, "{noticed:?}");
    assert!(noticed[0].contains("freed before copy 64"), "{noticed:?}");
    assert!(noticed[1].contains("use after free"), "{noticed:?}");
    // SAFETY: above.
    let twice = unsafe { driver.free(d, Place::Device, a) };
    assert!(twice.is_err() && driver.violations().len() == 3);
    assert_eq!(driver.alive(), 2, "a stream and a buffer");
}
