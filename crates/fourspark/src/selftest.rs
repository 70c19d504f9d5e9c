//! Whether a device computes what this engine's arithmetic fixes: the device layer's suite, then every
//! kernel family's case list, each value compared with the Rust definition.
//!
//! Must not know: models, how a report is shown.

use std::time::{Duration, Instant};

use device::conformance;
use device::driver::Driver;
use device::survey::Settings;
use device::watch::Watched;
use device::{Absent, Runtime, cpu, cuda, hip};
use ds4_kernels::KernelError;
use ds4_kernels::cases::{self, Depth, Outcome};
use ds4_kernels::image::KERNELS;
use ds4_kernels::run::{Kernels, Runner};

use crate::placement::DeviceChoice;

/// Memory of the CPU as a device.
const CPU_BYTES: u64 = 2 << 30;

/// One kernel family.
#[derive(Clone, Debug)]
pub struct Family {
    /// Its name.
    pub name: &'static str,
    /// Comparisons made.
    pub comparisons: usize,
    /// Values compared.
    pub values: u64,
    /// The comparisons with a difference.
    pub wrong: Vec<Outcome>,
    /// Time taken.
    pub took: Duration,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct SelftestReport {
    /// Checks of the device layer.
    pub device: conformance::Report,
    /// Kernel families in order.
    pub families: Vec<Family>,
    /// Time taken in all.
    pub took: Duration,
}

impl SelftestReport {
    /// Whether nothing was wrong.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let right = |f: &Family| f.wrong.is_empty() && f.values > 0;
        self.device.failed().is_empty() && self.families.iter().all(right)
    }
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum SelftestError {
    /// The runtime is not here.
    #[error(transparent)]
    Absent(#[from] Absent),
    /// The device cannot be used.
    #[error(transparent)]
    Device(#[from] device::Fault),
    /// A kernel could not be run at all.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// Tests a device; with the short lists if `quick`. The CPU is tested as a device, on the kernels' host
/// build, which a build without the feature `host-exec` does not have, and always with the short lists.
///
/// # Errors
/// Any [`SelftestError`]; differences are in the report.
pub fn selftest(
    device: DeviceChoice,
    quick: bool,
    libraries: &Settings,
) -> Result<SelftestReport, SelftestError> {
    let depth = if quick { Depth::Quick } else { Depth::Full };
    match device {
        DeviceChoice::Cpu | DeviceChoice::Host => test(cpu::driver(CPU_BYTES), 0, Depth::Quick),
        DeviceChoice::Cuda(n) => test(cuda::driver(&libraries.cuda)?, n, depth),
        DeviceChoice::Hip(n) => test(hip::driver(&libraries.hip)?, n, depth),
    }
}

fn none<D: Driver>(_: &D) -> Vec<String> {
    Vec::new()
}

fn test<D: Driver>(driver: D, ordinal: u32, depth: Depth) -> Result<SelftestReport, SelftestError> {
    let start = Instant::now();
    let runtime = Runtime::new(Watched::new(driver));
    // Opened first, so that a number too large is told as one.
    let device = runtime.open(ordinal)?;
    let report = conformance::run(&runtime, ordinal, none)?;
    let mut kernels = Kernels::new(&device, None);
    let sources: Vec<&'static str> = KERNELS.iter().map(|source| source.name).collect();
    kernels.compile(&sources)?;
    let mut runner = Runner::new(kernels)?;
    let mut families = Vec::new();
    for (name, list) in cases::families() {
        let begin = Instant::now();
        // All 2^32 arguments of every function take minutes: `m0` does that.
        let depth = if name == "math" { Depth::Quick } else { depth };
        let outcomes = list(&mut runner, depth)?;
        cases::Runner::reset(&mut runner);
        families.push(Family {
            name,
            comparisons: outcomes.len(),
            values: outcomes.iter().map(|o| o.compared).sum(),
            wrong: outcomes.into_iter().filter(|o| !o.equal()).collect(),
            took: begin.elapsed(),
        });
    }
    Ok(SelftestReport {
        device: report,
        families,
        took: start.elapsed(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(not(feature = "host-exec"))]
    #[test]
    fn without_host_kernels_the_cpu_says_why() {
        let said = selftest(DeviceChoice::Cpu, true, &Settings::default())
            .unwrap_err()
            .to_string();
        assert!(said.contains("feature host-exec"), "{said}");
    }

    #[test]
    fn a_report_without_values_is_not_sound() {
        let family = |values, wrong: &[&str]| Family {
            name: "a8",
            comparisons: 1,
            values,
            wrong: wrong
                .iter()
                .map(|name| Outcome {
                    name: (*name).to_owned(),
                    compared: 4,
                    differing: 1,
                    first: None,
                })
                .collect(),
            took: Duration::ZERO,
        };
        let report = |families| SelftestReport {
            device: conformance::Report {
                device: "cpu:0".to_owned(),
                facts: cpu::runtime(1).open(0).expect("the CPU").facts().clone(),
                compiler: String::new(),
                checks: Vec::new(),
            },
            families,
            took: Duration::ZERO,
        };
        assert!(report(vec![family(4, &[])]).is_sound());
        assert!(!report(vec![family(0, &[])]).is_sound());
        assert!(!report(vec![family(4, &["x"])]).is_sound());
    }
}
