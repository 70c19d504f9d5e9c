//! The real `device::hip` on the fake library: the conformance suite on two devices, twice in one process,
//! with every call of the library failing once; what belongs to another device is refused.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "one story of handles made and ended"
)]

mod common;

use std::ffi::c_char;
use std::sync::{Mutex, MutexGuard, PoisonError};

use device::driver::{Code, Driver, Geometry, RawArg};
use device::hip::{self, Hip};
use device::watch::Watched;
use device::{Fault, Place, Runtime, conformance};
use libloading::os::unix::Library;

use common::settings;

/// The machine is one for the process; tests take turns.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The library's symbols for tests.
struct Control(Library);

impl Control {
    fn open() -> Self {
        Self(common::library())
    }

    fn number(&self, name: &str) -> u64 {
        // SAFETY: the type is that of `control.rs`.
        unsafe {
            self.0
                .get::<unsafe extern "C" fn() -> u64>(name.as_bytes())
                .unwrap()()
        }
    }

    fn fail(&self, n: u64, code: i32) {
        // SAFETY: as above.
        unsafe {
            self.0
                .get::<unsafe extern "C" fn(u64, i32)>(b"fs_fake_hip_fail")
                .unwrap()(n, code)
        };
    }

    fn is_pending(&self) -> bool {
        // SAFETY: as above.
        unsafe {
            self.0
                .get::<unsafe extern "C" fn() -> i32>(b"fs_fake_hip_pending")
                .unwrap()()
                != 0
        }
    }

    fn violations(&self) -> (u64, String) {
        let mut text = [0u8; 512];
        // SAFETY: as above, with room for what is written.
        let n = unsafe {
            let f = self
                .0
                .get::<unsafe extern "C" fn(*mut c_char, usize) -> u64>(b"fs_fake_hip_violations");
            f.unwrap()(text.as_mut_ptr().cast(), text.len())
        };
        let end = text.iter().position(|b| *b == 0).unwrap();
        (n, String::from_utf8_lossy(&text[..end]).into_owned())
    }
}

fn none(_: &Hip) -> Vec<String> {
    Vec::new()
}

#[test]
fn the_suite_passes_on_both_devices_and_twice_in_one_process() {
    let _turn = turn();
    let control = Control::open();
    for _ in 0..2 {
        let runtime = Runtime::new(Watched::new(hip::driver(&settings()).unwrap()));
        assert_eq!(runtime.count().unwrap(), 2);
        for ordinal in 0..2 {
            let report = conformance::run(&runtime, ordinal, none).unwrap();
            let failed = report.failed();
            assert_eq!(failed, [""; 0], "{report:#?}");
            // The sizes of a kernel's parameters: HIP does not tell them.
            assert_eq!(report.passed(), report.checks.len() - 1, "{report:#?}");
            assert_eq!(report.device, format!("hip:{ordinal}"));
            assert_eq!(report.facts.arch, "gfx1151");
            assert_eq!(report.compiler, "hipRTC 6.3");
        }
    }
    assert_eq!(control.violations(), (0, String::new()));
    assert_eq!(control.number("fs_fake_hip_alive"), 0);
}

/// A little of everything, with its result.
fn work(runtime: &Runtime<Hip>) -> Result<Vec<u8>, Fault> {
    let device = runtime.open(1)?;
    let (a, b) = (
        device.alloc(Place::Device, 4096)?,
        device.alloc(Place::Device, 4096)?,
    );
    let stream = device.stream()?;
    let data: Vec<u8> = (0..4096).map(|i| (i % 251) as u8).collect();
    stream.write_now(&data, &a.view())?;
    let graph = stream.capture(|s| s.copy(&a.view(), &b.view()))?;
    stream.launch_graph(&graph)?;
    let mut out = vec![0; 4096];
    stream.read_now(&b.view(), &mut out)?;
    Ok(out)
}

#[test]
fn whichever_call_of_the_library_fails_the_fault_has_its_name_and_nothing_stays() {
    let _turn = turn();
    let control = Control::open();
    let runtime = hip::runtime(&settings()).unwrap();
    let want = work(&runtime).unwrap();
    let before = control.number("fs_fake_hip_calls");
    work(&runtime).unwrap();
    let calls = control.number("fs_fake_hip_calls") - before;
    assert!(calls > 30, "{calls}");
    let mut faults = 0;
    for n in 1..=calls {
        control.fail(n, 1);
        match work(&runtime) {
            // A release that failed is tried again: the work is done.
            Ok(out) => assert_eq!(out, want, "call {n}"),
            Err(fault) => {
                faults += 1;
                let said = fault.to_string();
                assert!(said.contains("hip:1") && said.contains("hip"), "{said}");
                assert!(said.contains("hipErrorInvalidValue"), "call {n}: {said}");
            }
        }
        control.fail(0, 0);
        let device = runtime.open(1).unwrap();
        drop(device.quiesce().unwrap());
        drop(device);
        assert_eq!(control.number("fs_fake_hip_alive"), 0, "call {n}");
    }
    assert!(faults > calls / 2, "{faults} of {calls}");
    assert!(!control.is_pending());
    assert_eq!(control.violations(), (0, String::new()));
}

#[test]
fn handles_and_memory_of_another_device_are_refused() {
    let _turn = turn();
    let driver = hip::driver(&settings()).unwrap();
    // SAFETY: handles are made and ended here, each once.
    unsafe {
        let (zero, one) = (driver.open(0).unwrap(), driver.open(1).unwrap());
        let code = |e: Result<(), device::driver::DriverError>| e.unwrap_err().code;
        let stream = driver.stream_create(zero).unwrap();
        let theirs = driver.alloc(one, Place::Device, 256).unwrap();
        assert_eq!(code(driver.stream_sync(one, stream)), 400);
        let source = "extern \"C\" __global__ void put(unsigned* y, unsigned v, unsigned n) {}";
        let image = driver.compile(&device::driver::Source {
            name: "put",
            text: source,
            options: &[],
            arch: "gfx1151",
        });
        let module = driver.load(zero, &image.unwrap()).unwrap();
        let put = driver.function(zero, module, "put").unwrap();
        let line = Geometry {
            grid: [1; 3],
            threads: [32, 1, 1],
            shared: 0,
        };
        let args = [
            RawArg::Address(theirs, 256),
            RawArg::Word(1),
            RawArg::Word(8),
        ];
        assert_eq!(code(driver.launch(zero, stream, put, &line, &args)), 700);
        let other = driver.stream_create(one).unwrap();
        assert_eq!(code(driver.launch(one, other, put, &line, &args)), 98);
        assert_eq!(
            code(driver.load(one, &Code::Hsaco(vec![0; 64])).map(drop)),
            200
        );
        driver.unload(zero, module).unwrap();
        driver.free(one, Place::Device, theirs).unwrap();
        driver.stream_destroy(zero, stream).unwrap();
        driver.stream_destroy(one, other).unwrap();
    }
}

/// In a process of its own: it is to be ended.
#[test]
fn a_free_in_flight_ends_the_process() {
    const ME: &str = "a_free_in_flight_ends_the_process";
    const CHILD: &str = "--skip=child-of-this-test";
    if std::env::args().any(|a| a == CHILD) {
        let driver = hip::driver(&settings()).unwrap();
        // SAFETY: live handles; the free is wrong on purpose.
        unsafe {
            let d = driver.open(0).unwrap();
            let stream = driver.stream_create(d).unwrap();
            let block = driver.alloc(d, Place::Device, 64).unwrap();
            driver.fill(d, stream, block, 1, 64).unwrap();
            let _ = driver.free(d, Place::Device, block);
        }
        return;
    }
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([ME, "--exact", "--nocapture", CHILD])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stderr);
    assert!(!child.status.success(), "{said}");
    assert!(said.contains("freed before fill 64"), "{said}");
}

#[test]
fn a_library_that_is_not_hip_is_absent_with_its_reason() {
    let absent = hip::driver(&hip::Settings {
        hip: Some("libc.so.6".into()),
        hiprtc: None,
    });
    let said = absent.unwrap_err().to_string();
    assert!(said.contains("has no hipInit"), "{said}");
}
