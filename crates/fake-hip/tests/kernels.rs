//! The engine's kernels through the real HIP module: compiled by name, launched on both devices in turn, in
//! a hostile order, with the matrix fragments of gfx11, and equal to the Rust definitions.
#![cfg(feature = "host-exec")]
#![allow(clippy::unwrap_used, reason = "tests")]

use device::hip::{self, Hip};
use ds4_kernels::cases::{self, Depth, List};
use ds4_kernels::run::{Kernels, Runner};

fn settings() -> hip::Settings {
    let tests = std::env::current_exe().unwrap();
    let file = tests.parent().unwrap().join("libfake_hip.so");
    hip::Settings {
        hip: Some(file.clone()),
        hiprtc: Some(file),
    }
}

#[test]
fn case_lists_are_equal_on_both_devices() {
    let runtime = hip::runtime(&settings()).unwrap();
    let lists: [(&str, List<Runner<Hip>>); 5] = [
        ("a8", cases::a8::run),
        ("fp4f", cases::fp4f::run),
        ("norm", cases::norm::run),
        ("rows", cases::rows::run),
        ("route", cases::route::run),
    ];
    let mut runners = [0, 1].map(|ordinal| {
        let device = runtime.open(ordinal).unwrap();
        Runner::new(Kernels::new(&device, None)).unwrap()
    });
    for (at, (name, list)) in lists.iter().enumerate() {
        let outcomes = list(&mut runners[at % 2], Depth::Quick).unwrap();
        let wrong: Vec<_> = outcomes.iter().filter(|o| !o.equal()).collect();
        assert!(
            !outcomes.is_empty() && wrong.is_empty(),
            "{name}: {wrong:#?}"
        );
    }
}

/// What a user runs: every family on `hip:1`, and the device layer's suite.
#[test]
fn the_selftest_finds_the_second_device_sound() {
    use fourspark::selftest::{Libraries, selftest};
    let libraries = Libraries {
        hip: settings(),
        ..Libraries::default()
    };
    let report = selftest("hip:1", true, &libraries).unwrap();
    assert!(report.is_sound(), "{report:#?}");
    assert_eq!(report.device.device, "hip:1");
    assert_eq!(report.families.len(), 13);
    let said = selftest("hip:7", true, &libraries).unwrap_err().to_string();
    assert!(said.contains("hip:7"), "{said}");
}
