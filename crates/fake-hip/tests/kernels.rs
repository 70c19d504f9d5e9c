//! The engine's kernels through the real HIP module: compiled by name, launched on both devices in turn, in
//! a hostile order, with the matrix fragments of gfx11, and equal to the Rust definitions.
#![cfg(feature = "host-exec")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::Once;

use device::hip::{self, Hip};
use ds4_kernels::cases::{self, Depth, List};
use ds4_kernels::run::{Kernels, Runner};
use fourspark::DeviceChoice;
use fourspark::selftest::selftest;

/// One machine for both tests, in another order than that of `hip.rs`.
fn machine() -> hip::Settings {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| common::configure(9, 7));
    common::settings()
}

#[test]
fn case_lists_are_equal_on_both_devices() {
    let runtime = hip::runtime(&machine()).unwrap();
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
    let libraries = device::survey::Settings {
        hip: machine(),
        ..device::survey::Settings::default()
    };
    let report = selftest(DeviceChoice::Hip(1), true, &libraries).unwrap();
    assert!(report.is_sound(), "{report:#?}");
    assert_eq!(report.device.device, "hip:1");
    assert_eq!(report.families.len(), 15);
    let absent = selftest(DeviceChoice::Hip(7), true, &libraries);
    let said = absent.unwrap_err().to_string();
    assert!(said.contains("hip:7"), "{said}");
}
