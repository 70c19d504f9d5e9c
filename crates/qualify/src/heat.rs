//! What a machine says of its own heat: how often it throttled, and how warm it is. Read before and after
//! a run; what it does not offer is `None`, and the verdict treats that as missing, not as cool.
//!
//! Sources: Linux's `thermal_throttle` counters of x86 processors, and hwmon's temperatures.

use std::fs;
use std::path::{Path, PathBuf};

use engine_core::mutant::mutant;

use crate::run::Heat;

/// One look at a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Throttling events of all processors since the machine started; `None` if there is no such
    /// counter, or one of them cannot be read.
    pub throttled: Option<u64>,
    /// The hottest sensor, thousandths of a degree Celsius.
    pub hottest_mc: Option<i64>,
    /// The least distance of a sensor to its own critical temperature, thousandths of a degree.
    pub margin_mc: Option<i64>,
}

/// Entries of a folder whose names begin so, sorted.
fn entries(folder: &Path, begin: &str) -> Vec<PathBuf> {
    let names = fs::read_dir(folder).into_iter().flatten().flatten();
    let fits = |name: &str| {
        let rest = name.strip_prefix(begin);
        rest.is_some_and(|r| r.starts_with(|c: char| c.is_ascii_digit()))
    };
    let mut all: Vec<PathBuf> = names
        .filter(|e| e.file_name().to_str().is_some_and(fits))
        .map(|e| e.path())
        .collect();
    all.sort();
    all
}

fn number(path: &Path) -> Option<i64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The counters of one processor.
fn counters(cpu: &Path) -> Vec<PathBuf> {
    let folder = fs::read_dir(cpu.join("thermal_throttle"));
    let paths = folder.into_iter().flatten().flatten().map(|e| e.path());
    paths
        .filter(|p| p.to_str().is_some_and(|p| p.ends_with("_throttle_count")))
        .collect()
}

/// Looks at the machine. `root`: where the system's files are, `/sys`.
#[must_use]
pub fn read(root: &Path) -> Reading {
    let cpus = entries(&root.join("devices/system/cpu"), "cpu");
    let counts: Vec<Option<u64>> = cpus
        .iter()
        .flat_map(|cpu| counters(cpu))
        .map(|path| number(&path).and_then(|n| u64::try_from(n).ok()))
        .collect();
    let sum = |counts: Vec<Option<u64>>| counts.into_iter().sum::<Option<u64>>();
    let mut reading = Reading {
        throttled: Some(counts).filter(|c| !c.is_empty()).and_then(sum),
        ..Reading::default()
    };
    for sensor in entries(&root.join("class/hwmon"), "hwmon") {
        for input in entries(&sensor, "temp") {
            let Some(kind) = input.to_str().and_then(|p| p.strip_suffix("_input")) else {
                continue;
            };
            let Some(now) = number(&input) else { continue };
            reading.hottest_mc = reading.hottest_mc.max(Some(now));
            let critical = number(Path::new(&format!("{kind}_crit")));
            // Sensors without a limit of their own often say 0.
            if let Some(limit) = critical.filter(|limit| *limit > 0) {
                let margin = limit - now;
                reading.margin_mc = Some(reading.margin_mc.map_or(margin, |m| m.min(margin)));
            }
        }
    }
    reading
}

/// What happened between two looks: throttling events, if both have the counter and it did not go
/// back, and the temperatures.
#[must_use]
pub fn between(before: &Reading, after: &Reading) -> (Option<u64>, Option<Heat>) {
    let events = match (before.throttled, after.throttled) {
        (Some(_), Some(_)) if mutant(323) => Some(0),
        (Some(from), Some(to)) => to.checked_sub(from),
        _ => None,
    };
    let heat = before.hottest_mc.zip(after.hottest_mc);
    let margin = before.margin_mc.into_iter().chain(after.margin_mc).min();
    let heat = heat.map(|(before_mc, after_mc)| Heat {
        before_mc,
        after_mc,
        margin_mc: margin,
    });
    (events, heat)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    const CPU: &str = "devices/system/cpu";

    fn machine(package: &str, core: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for cpu in 0..2 {
            let folder = format!("{CPU}/cpu{cpu}/thermal_throttle");
            write(
                root.path(),
                &format!("{folder}/package_throttle_count"),
                package,
            );
            write(root.path(), &format!("{folder}/core_throttle_count"), core);
            write(
                root.path(),
                &format!("{folder}/core_throttle_max_time_ms"),
                "99",
            );
        }
        write(root.path(), &format!("{CPU}/cpufreq/policy0"), "7");
        for (sensor, now, critical) in [(0, "41000\n", "0"), (1, "63500\n", "95000\n")] {
            write(
                root.path(),
                &format!("class/hwmon/hwmon{sensor}/temp1_input"),
                now,
            );
            write(
                root.path(),
                &format!("class/hwmon/hwmon{sensor}/temp1_crit"),
                critical,
            );
        }
        write(root.path(), "class/hwmon/hwmon0/temp2_input", "-200");
        root
    }

    #[test]
    fn thermal_counters_and_sensors_are_read() {
        let root = machine("5\n", "2\n");
        let cool = read(root.path());
        let expected = Reading {
            throttled: Some(14),
            hottest_mc: Some(63_500),
            margin_mc: Some(31_500),
        };
        assert_eq!(cool, expected);
        write(
            root.path(),
            &format!("{CPU}/cpu1/thermal_throttle/core_throttle_count"),
            "3",
        );
        write(root.path(), "class/hwmon/hwmon1/temp1_input", "96000");
        let hot = read(root.path());
        let heat = Heat {
            before_mc: 63_500,
            after_mc: 96_000,
            margin_mc: Some(-1000),
        };
        assert_eq!(between(&cool, &hot), (Some(1), Some(heat)));
        assert_eq!(between(&cool, &cool).0, Some(0));
        // A counter that went back was reset in between: nobody knows what it had reached.
        assert_eq!(between(&hot, &cool).0, None);
    }

    #[test]
    fn a_machine_that_says_nothing_is_not_a_cool_one() {
        let empty = tempfile::tempdir().unwrap();
        let nothing = read(empty.path());
        assert_eq!(nothing, Reading::default());
        assert_eq!(between(&nothing, &nothing), (None, None));
        let known = read(machine("0", "0").path());
        assert_eq!(known.throttled, Some(0));
        assert_eq!(between(&nothing, &known), (None, None));
        assert_eq!(between(&known, &nothing), (None, None));
        // One counter of several that cannot be read: the sum is not known.
        assert_eq!(read(machine("0", "-1").path()).throttled, None);
        assert_eq!(read(machine("much", "0").path()).throttled, None);
    }
}
