//! Runs the conformance suite on every device of this machine and prints one JSON record: what was
//! found, what each check asserts and how it ended, and why a runtime is absent. Ends with 1 if a check
//! failed.
//!
//! `conformance [--only cuda|hip|cpu|fake] [--nvrtc FILE] [--hip FILE] [--hiprtc FILE]`

use std::io::Write;
use std::process::ExitCode;

use device::conformance::{self, Report};
use device::driver::Driver;
use device::watch::Watched;
use device::{Absent, Kind, Runtime, cpu, cuda, fake, hip, survey};
use serde_json::{Value, json};

/// Memory of the CPU and the fake device.
const HOST_BYTES: u64 = 256 << 20;

#[derive(Default)]
struct Options {
    only: Option<String>,
    settings: survey::Settings,
}

fn options() -> Result<Options, String> {
    let mut options = Options::default();
    let mut args = std::env::args().skip(1);
    while let Some(flag) = args.next() {
        let value = args.next().ok_or(format!("{flag} needs a value"))?;
        match flag.as_str() {
            "--only" => options.only = Some(value),
            "--nvrtc" => options.settings.cuda.nvrtc = Some(value.into()),
            "--hip" => options.settings.hip.hip = Some(value.into()),
            "--hiprtc" => options.settings.hip.hiprtc = Some(value.into()),
            other => return Err(format!("unknown option {other}")),
        }
    }
    Ok(options)
}

/// The suite on every device of a runtime.
fn runs<D: Driver>(
    kind: Kind,
    driver: Result<D, Absent>,
    health: fn(&D) -> Vec<String>,
    failed: &mut bool,
) -> Value {
    let driver = match driver {
        Ok(driver) => driver,
        Err(absent) => return json!({ "kind": kind, "absent": absent }),
    };
    let runtime = Runtime::new(Watched::new(driver));
    let run = |ordinal| conformance::run(&runtime, ordinal, health);
    let reports: Vec<Value> = (0..runtime.count().unwrap_or(0))
        .map(|ordinal| match run(ordinal) {
            Ok(report) => {
                *failed |= !report.failed().is_empty();
                shown(&report)
            }
            Err(fault) => {
                *failed = true;
                json!({ "device": format!("{kind}:{ordinal}"), "fault": fault.to_string() })
            }
        })
        .collect();
    json!({ "kind": kind, "devices": reports })
}

fn shown(report: &Report) -> Value {
    json!({
        "passed": report.passed(),
        "failed": report.failed(),
        "report": report,
    })
}

fn none<D: Driver>(_: &D) -> Vec<String> {
    Vec::new()
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "error: {why}");
            return ExitCode::from(2);
        }
    };
    let wanted = |kind: Kind| {
        options
            .only
            .as_ref()
            .is_none_or(|only| *only == kind.to_string())
    };
    let mut failed = false;
    let mut runtimes = Vec::new();
    if wanted(Kind::Cpu) {
        let driver = Ok(cpu::driver(HOST_BYTES));
        runtimes.push(runs(Kind::Cpu, driver, cpu::Cpu::violations, &mut failed));
    }
    if wanted(Kind::Fake) {
        let driver = Ok(fake::driver(&fake::Settings::default()));
        runtimes.push(runs(
            Kind::Fake,
            driver,
            fake::Fake::violations,
            &mut failed,
        ));
    }
    if wanted(Kind::Cuda) {
        let driver = cuda::driver(&options.settings.cuda);
        runtimes.push(runs(Kind::Cuda, driver, none, &mut failed));
    }
    if wanted(Kind::Hip) {
        let driver = hip::driver(&options.settings.hip);
        runtimes.push(runs(Kind::Hip, driver, none, &mut failed));
    }
    let record = json!({
        "schema": "fourspark-device-conformance-1",
        "version": env!("CARGO_PKG_VERSION"),
        "failed": failed,
        "survey": survey::survey(&options.settings),
        "runtimes": runtimes,
    });
    let _ = writeln!(std::io::stdout(), "{record:#}");
    ExitCode::from(u8::from(failed))
}
