//! The conformance suite on every runtime present, and on devices that are wrong on purpose, where it
//! must object.

use device::conformance::{self, Report};
use device::driver::Driver;
use device::fake::{Defect, Fake, Settings};
use device::watch::Watched;
use device::{Runtime, cpu, cuda, fake, hip};

fn assert_passed(report: &Report, skips: &[&str]) {
    assert_eq!(report.failed(), [] as [&str; 0], "{:#?}", report.checks);
    let skipped = report.checks.len() - report.passed();
    assert_eq!(skipped, skips.len(), "{:#?}", report.checks);
}

fn none<D: Driver>(_: &D) -> Vec<String> {
    Vec::new()
}

#[test]
fn the_cpu_conforms() {
    let driver = cpu::driver(256 << 20);
    let runtime = Runtime::new(Watched::new(driver));
    let report = conformance::run(&runtime, 0, cpu::Cpu::violations).unwrap();
    assert_eq!(report.device, "cpu:0");
    // There is no compiler to object to a broken source, and its memory is the host's.
    assert_passed(&report, &["compiler", "registered", "shared", "peers"]);
    assert_eq!(runtime.driver().inner().alive(), 0);
}

#[test]
fn the_fake_conforms_in_every_order() {
    for seed in 1..=6 {
        let settings = Settings {
            seed,
            devices: 2,
            able: true,
            ..Settings::default()
        };
        let runtime = fake::runtime(&settings);
        let report = conformance::run(&runtime, 1, Fake::violations).unwrap();
        assert_eq!(report.device, "fake:1");
        // It lives in one process.
        assert_passed(&report, &["compiler", "shared"]);
        assert_eq!(runtime.driver().inner().alive(), 0);
    }
}

/// A device that cannot says why, and is not held to it.
#[test]
fn what_the_fake_was_not_asked_for_is_skipped_with_its_reason() {
    let settings = Settings {
        devices: 2,
        ..Settings::default()
    };
    let report = conformance::run(&fake::runtime(&settings), 0, Fake::violations).unwrap();
    assert_passed(&report, &["compiler", "registered", "shared", "peers"]);
    let why = |check: &str| {
        let row = report.checks.iter().find(|r| r.check == check).unwrap();
        serde_json::to_value(&row.outcome).unwrap()["reason"].clone()
    };
    assert_eq!(why("registered"), "not asked for in its settings");
    assert_eq!(why("peers"), "not asked for in its settings");
    assert_eq!(why("shared"), "it lives in one process");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let calls = |seed| {
        let settings = Settings {
            seed,
            ..Settings::default()
        };
        let runtime = fake::runtime(&settings);
        conformance::run(&runtime, 0, Fake::violations).unwrap();
        runtime.driver().calls()
    };
    assert_eq!(calls(5), calls(5));
    assert_ne!(calls(5), calls(6), "the seed has no effect");
}

/// Each defect with the check that looks for it.
const DEFECTS: [(Defect, &str); 11] = [
    (Defect::EventsFireEarly, "staging"),
    (Defect::EventsFireEarly, "completion"),
    (Defect::EventsFireEarly, "registered"),
    (Defect::PinnedShort, "registered"),
    (Defect::PeersMangle, "peers"),
    (Defect::WaitsIgnored, "order"),
    (Defect::CopiesShort, "copies"),
    (Defect::GraphsShort, "graphs"),
    (Defect::SyncIgnored, "completion"),
    (Defect::MemoryEndless, "exhaustion"),
    (Defect::ArgumentsUnchecked, "signatures"),
];

#[test]
fn a_wrong_device_is_caught() {
    for (defect, check) in DEFECTS {
        let settings = Settings {
            seed: 3,
            delay: 8,
            devices: 2,
            able: true,
            defect: Some(defect),
            ..Settings::default()
        };
        let runtime = fake::runtime(&settings);
        let report = conformance::run(&runtime, 0, none).unwrap();
        let failed = report.failed();
        assert!(
            failed.contains(&check),
            "{defect:?}: only {failed:?} object"
        );
    }
}

#[test]
fn memory_that_is_never_given_back_is_caught() {
    let settings = Settings {
        defect: Some(Defect::FreesLeak),
        ..Settings::default()
    };
    let report = conformance::run(&fake::runtime(&settings), 0, none).unwrap();
    assert!(
        report.failed().contains(&"exhaustion"),
        "{:?}",
        report.failed()
    );
}

#[test]
fn cuda_conforms() {
    let driver = cuda::driver(&cuda::Settings::default());
    let absent = driver.as_ref().err().map(ToString::to_string);
    testkit::require!(driver.is_ok(), "no CUDA: {}", absent.unwrap_or_default());
    let runtime = Runtime::new(Watched::new(driver.unwrap()));
    let report = conformance::run(&runtime, 0, none).unwrap();
    assert_eq!(report.failed(), [] as [&str; 0], "{:#?}", report.checks);
}

#[test]
fn hip_conforms() {
    let driver = hip::driver(&hip::Settings::default());
    let absent = driver.as_ref().err().map(ToString::to_string);
    testkit::require!(driver.is_ok(), "no HIP: {}", absent.unwrap_or_default());
    let runtime = Runtime::new(Watched::new(driver.unwrap()));
    let report = conformance::run(&runtime, 0, none).unwrap();
    assert_eq!(report.failed(), [] as [&str; 0], "{:#?}", report.checks);
}
