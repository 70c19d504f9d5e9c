//! What machine and what tree. What cannot be known is left out, and the verdict treats it as missing.

use std::fs;
use std::path::Path;
use std::process::Command;

use device::survey::{Found, Seen};

use crate::report::{Build, Machine};

fn read(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// A line `name : value` of a file of such lines.
fn field(path: &str, name: &str) -> Option<String> {
    let text = read(path)?;
    let mut lines = text.lines().filter_map(|l| l.split_once(':'));
    let found = lines.find(|(key, _)| key.trim() == name)?;
    Some(found.1.trim().to_owned())
}

/// Load over the last minute, hundredths; the largest number if unknown.
#[must_use]
pub fn load_centi() -> u64 {
    let text = read("/proc/loadavg").unwrap_or_default();
    let first = text.split(' ').next().unwrap_or_default();
    let digits = first.replace('.', "");
    match first.split_once('.') {
        Some((_, cents)) if cents.len() == 2 => digits.parse().unwrap_or(u64::MAX),
        _ => u64::MAX,
    }
}

/// Pages swapped in and out since the machine started.
#[must_use]
pub fn swapped_pages() -> u64 {
    let text = read("/proc/vmstat").unwrap_or_default();
    let count = |line: &str| line.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok());
    let swaps = text
        .lines()
        .filter(|l| l.starts_with("pswpin ") || l.starts_with("pswpout "));
    swaps.filter_map(count).sum()
}

/// The clock of the first processor, MHz.
#[must_use]
pub fn clock_mhz() -> Option<u64> {
    let text = field("/proc/cpuinfo", "cpu MHz")?;
    text.split('.').next()?.parse().ok()
}

/// What the system says of clocks above the base: two drivers, two words.
fn boost() -> Option<String> {
    let cpu = "/sys/devices/system/cpu";
    let turbo = read(&format!("{cpu}/intel_pstate/no_turbo")).map(|v| format!("no_turbo {v}"));
    turbo.or_else(|| read(&format!("{cpu}/cpufreq/boost")).map(|v| format!("boost {v}")))
}

/// The architecture of a GPU that the engine can use: the one wanted if it is there, otherwise the first.
#[must_use]
pub fn gpu(seen: &[Seen], wanted: &str) -> Option<String> {
    let fit = |d: &&Found| d.unfit.is_none();
    let archs = || {
        let devices = seen.iter().flat_map(|s| &s.devices);
        devices.filter(fit).map(|d| d.facts.arch.clone())
    };
    archs()
        .find(|arch| arch == wanted)
        .or_else(|| archs().next())
}

/// The machine, before anything runs. GPUs are not looked for.
#[must_use]
pub fn machine() -> Machine {
    let kb = field("/proc/meminfo", "MemTotal");
    let kb = kb.and_then(|t| t.split(' ').next()?.parse::<u64>().ok());
    let governor = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";
    Machine {
        cpu: field("/proc/cpuinfo", "model name").unwrap_or_default(),
        threads: std::thread::available_parallelism().map_or(0, |n| n.get() as u64),
        mem_bytes: kb.unwrap_or(0) * 1024,
        kernel: format!(
            "{} {}",
            std::env::consts::OS,
            read("/proc/sys/kernel/osrelease").unwrap_or_default()
        ),
        governor: read(governor),
        boost: boost(),
        power_profile: read("/sys/firmware/acpi/platform_profile"),
        microcode: field("/proc/cpuinfo", "microcode"),
        gpu_arch: None,
        gpu: None,
        load_before_centi: load_centi(),
        swapped_pages: 0,
    }
}

/// The tree a report speaks for.
#[must_use]
pub fn build(root: &Path, exe_blake3: String) -> Build {
    let git = |args: &[&str]| {
        let out = Command::new("git").arg("-C").arg(root).args(args).output();
        let out = out.ok().filter(|o| o.status.success())?;
        Some(String::from_utf8_lossy(&out.stdout).trim().to_owned())
    };
    Build {
        commit: git(&["rev-parse", "HEAD"]).unwrap_or_default(),
        dirty: git(&["status", "--porcelain"]).is_none_or(|s| !s.is_empty()),
        exe_blake3,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        packed: false,
    }
}
