//! What a GPU's own tools say of it: driver, limit of power, and around each run its clocks, power, warmth and
//! whether it held itself back. What is not offered is `None`, and the verdict treats that as missing.
//!
//! Sources: the program `nvidia-smi` of NVIDIA's driver (its query fields), and Linux's amdgpu files (`pp_dpm_sclk`,
//! hwmon). Must not know: the engine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use engine_core::mutant::mutant;
use serde::{Deserialize, Serialize};

/// A GPU and its driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Card {
    /// Its name.
    pub name: String,
    /// Version of the driver.
    pub driver: String,
    /// Most power it may take, thousandths of a watt.
    pub power_limit_mw: Option<u64>,
}

/// One look at a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Look {
    /// Clock of the processors, MHz.
    pub core_mhz: u64,
    /// Clock of the memory, MHz.
    pub memory_mhz: u64,
    /// Power it takes, thousandths of a watt.
    pub power_mw: Option<u64>,
    /// Its temperature, thousandths of a degree Celsius.
    pub temperature_mc: Option<i64>,
    /// Whether warmth or a lack of power slows it down; `None` if it does not say.
    pub slowed: Option<bool>,
}

/// Looks before and after a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Around {
    /// Before it.
    pub before: Look,
    /// After it.
    pub after: Look,
}

/// Where a GPU tells of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The program of NVIDIA's driver, and the GPU's number there.
    Nvidia(PathBuf, u32),
    /// The folder of an AMD GPU, `/sys/class/drm/cardN/device`.
    Amd(PathBuf),
}

const QUERY: &str = "--query-gpu=name,driver_version,power.limit,clocks.sm,clocks.mem,power.draw,temperature.gpu,\
                     clocks_throttle_reasons.active";

/// Reasons of a slower clock that come from warmth or from the supply: the hardware's own slowdown, thermal by software
/// and by hardware, power brake (nvml.h, `nvmlClocksThrottleReason*`). The software's limit of power is none of
/// them: every loaded card meets it.
const SLOWED: u64 = 0x8 | 0x20 | 0x40 | 0x80;

impl Source {
    /// Where the GPU `arch` tells of itself: by NVIDIA's program for `sm_*`, below `sys` for `gfx*`. `index`: its
    /// number among its kind.
    #[must_use]
    pub fn of(arch: &str, index: u32, sys: &Path) -> Option<Self> {
        if arch.starts_with("sm_") {
            return Some(Self::Nvidia(PathBuf::from("nvidia-smi"), index));
        }
        arch.starts_with("gfx").then_some(())?;
        let amd = |card: &PathBuf| text(&card.join("vendor")).as_deref() == Some("0x1002");
        let mut cards: Vec<PathBuf> = fs::read_dir(sys.join("class/drm"))
            .ok()?
            .flatten()
            .filter(|e| !e.file_name().to_string_lossy().contains('-'))
            .map(|e| e.path().join("device"))
            .filter(amd)
            .collect();
        cards.sort();
        cards.into_iter().nth(index as usize).map(Self::Amd)
    }

    /// The GPU and a look at it.
    #[must_use]
    pub fn read(&self) -> Option<(Card, Look)> {
        match self {
            Self::Nvidia(program, index) => {
                let out = Command::new(program)
                    .args([QUERY, "--format=csv,noheader,nounits", "-i"])
                    .arg(index.to_string())
                    .output();
                let out = out.ok().filter(|o| o.status.success())?;
                nvidia(String::from_utf8_lossy(&out.stdout).trim())
            }
            Self::Amd(folder) => amd(folder),
        }
    }
}

/// Watts in decimals, as thousandths.
fn milli(watts: &str) -> Option<u64> {
    let (whole, part) = watts.split_once('.').unwrap_or((watts, "0"));
    let part: String = part.chars().chain("000".chars()).take(3).collect();
    let whole: u64 = whole.parse().ok()?;
    whole.checked_mul(1000)?.checked_add(part.parse().ok()?)
}

/// One line of the query.
fn nvidia(line: &str) -> Option<(Card, Look)> {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [name, driver, limit, core, memory, power, warm, reasons] = fields[..] else {
        return None;
    };
    let reasons = reasons.strip_prefix("0x").unwrap_or(reasons);
    let reasons = u64::from_str_radix(reasons, 16).ok();
    let degrees: Option<i64> = warm.parse().ok();
    let card = Card {
        name: name.to_owned(),
        driver: driver.to_owned(),
        power_limit_mw: milli(limit),
    };
    let look = Look {
        core_mhz: core.parse().ok()?,
        memory_mhz: memory.parse().ok()?,
        power_mw: milli(power),
        temperature_mc: degrees.and_then(|d| d.checked_mul(1000)),
        slowed: reasons.map(|r| r & SLOWED != 0 && !mutant(327)),
    };
    Some((card, look))
}

fn text(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

/// The clock in force of a list of lines `1: 2100Mhz *`.
fn starred(path: &Path) -> Option<u64> {
    let list = text(path)?;
    let line = list.lines().find(|l| l.trim_end().ends_with('*'))?;
    let clock = line.split_once(':')?.1.trim().to_lowercase();
    clock.split_once("mhz")?.0.trim().parse().ok()
}

/// The files of amdgpu. It does not say whether it is slowed.
fn amd(folder: &Path) -> Option<(Card, Look)> {
    let sensors = fs::read_dir(folder.join("hwmon")).into_iter().flatten();
    let sensor = sensors.flatten().map(|e| e.path()).next();
    let number = |name: &str| -> Option<u64> { text(&sensor.as_ref()?.join(name))?.parse().ok() };
    let driver = text(Path::new("/sys/module/amdgpu/version"));
    let card = Card {
        name: text(&folder.join("product_name")).unwrap_or_default(),
        driver: driver.unwrap_or_else(|| "of the kernel".to_owned()),
        power_limit_mw: number("power1_cap").map(|uw| uw / 1000),
    };
    let look = Look {
        core_mhz: starred(&folder.join("pp_dpm_sclk"))?,
        memory_mhz: starred(&folder.join("pp_dpm_mclk"))?,
        power_mw: number("power1_average").map(|uw| uw / 1000),
        temperature_mc: number("temp1_input").and_then(|t| i64::try_from(t).ok()),
        slowed: None,
    };
    Some((card, look))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "NVIDIA H200, 580.159.04, 700.00, 1980, 3201, 79.53, 36, 0x0000000000000001";

    #[test]
    fn a_line_of_the_query_is_read() {
        let (card, look) = nvidia(LINE).unwrap();
        assert_eq!(
            (card.name.as_str(), card.driver.as_str()),
            ("NVIDIA H200", "580.159.04")
        );
        assert_eq!(card.power_limit_mw, Some(700_000));
        assert_eq!((look.core_mhz, look.memory_mhz), (1980, 3201));
        assert_eq!(look.power_mw, Some(79_530));
        assert_eq!(look.temperature_mc, Some(36_000));
        assert_eq!(look.slowed, Some(false), "idle is no reason");
    }

    #[test]
    fn heat_and_a_weak_supply_slow_down_and_the_usual_limit_does_not() {
        let slowed = |bits: u64| {
            let line = LINE.replace("0x0000000000000001", &format!("{bits:#018x}"));
            nvidia(&line).unwrap().1.slowed
        };
        for (bits, expected) in [
            (0, false),
            (4, false),
            (8, true),
            (0x20, true),
            (0x44, true),
            (0x80, true),
        ] {
            assert_eq!(slowed(bits), Some(expected), "{bits:#x}");
        }
    }

    #[test]
    fn what_a_card_does_not_say_is_missing() {
        let line = LINE
            .replace("79.53", "[N/A]")
            .replace("0x0000000000000001", "[N/A]");
        let look = nvidia(&line).unwrap().1;
        assert_eq!((look.power_mw, look.slowed), (None, None));
        for bad in [
            LINE.replace("1980", "[N/A]"),
            String::new(),
            "No devices were found".into(),
        ] {
            assert_eq!(nvidia(&bad), None, "{bad}");
        }
        let nowhere = Source::Nvidia(PathBuf::from("/no/such/program"), 0);
        assert_eq!(nowhere.read(), None);
    }

    #[test]
    fn the_files_of_an_amd_card_are_read() {
        let sys = tempfile::tempdir().unwrap();
        let drm = sys.path().join("class/drm");
        let write = |path: &str, text: &str| {
            let path = drm.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("card0/device/vendor", "0x10de\n");
        write("card1/device/vendor", "0x1002\n");
        write("card1-DP-1/device/vendor", "0x1002\n");
        write(
            "card1/device/pp_dpm_sclk",
            "0: 600Mhz\n1: 1100Mhz *\n2: 2900Mhz\n",
        );
        write("card1/device/pp_dpm_mclk", "0: 1000Mhz *\n");
        write("card1/device/hwmon/hwmon3/power1_average", "45123000\n");
        write("card1/device/hwmon/hwmon3/temp1_input", "51000\n");
        let source = Source::of("gfx1151", 0, sys.path()).unwrap();
        assert_eq!(source, Source::Amd(drm.join("card1/device")));
        let (card, look) = source.read().unwrap();
        assert_eq!(card.power_limit_mw, None);
        assert_eq!((look.core_mhz, look.memory_mhz), (1100, 1000));
        assert_eq!(
            (look.power_mw, look.temperature_mc),
            (Some(45_123), Some(51_000))
        );
        assert_eq!(look.slowed, None);
        assert_eq!(Source::of("gfx1151", 1, sys.path()), None);
        assert_eq!(Source::of("other", 0, sys.path()), None);
    }
}
