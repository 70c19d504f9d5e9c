//! What this machine has: runtimes, versions, devices, known faults, and why something is absent.
//! `fourspark doctor` prints it.
//!
//! Looks, and opens no device: a context costs memory and time on a card that is at work.

use std::fs;
use std::path::Path;

use serde::Serialize;

use crate::ability::Ability;
use crate::driver::{Driver, Facts, Kind};
use crate::fault::Absent;
use crate::known_bad::{self, KnownBad, Version};
use crate::runtime::Runtime;
use crate::{cuda, hip};

/// A named version, or why it is not known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Named {
    /// Of what.
    pub name: &'static str,
    /// The version in the vendor's form.
    pub value: Option<String>,
    /// Why there is none.
    pub reason: Option<String>,
}

impl Named {
    fn of(name: &'static str, found: Result<String, String>) -> Self {
        let (value, reason) = match found {
            Ok(value) => (Some(value), None),
            Err(reason) => (None, Some(reason)),
        };
        Self {
            name,
            value,
            reason,
        }
    }
}

/// A device that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Found {
    /// Its name: `cuda:0`.
    pub id: String,
    /// What is known of it.
    pub facts: Facts,
    /// Known faults that fit it.
    pub known_bad: Vec<&'static KnownBad>,
    /// Why the engine's kernels cannot run on it, if they cannot.
    pub unfit: Option<String>,
    /// Which other devices of its runtime it says it can reach, by name.
    pub peers: Vec<Peer>,
}

/// Another device of the same runtime.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Peer {
    /// Its name.
    pub id: String,
    /// Whether its memory can be reached, by what the devices say; nothing was opened.
    pub can: Ability,
}

/// One runtime.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Seen {
    /// Which.
    pub kind: Kind,
    /// Why it cannot be used, if it cannot.
    pub absent: Option<Absent>,
    /// Versions of driver, runtime, compiler, kernel module.
    pub versions: Vec<Named>,
    /// Its devices.
    pub devices: Vec<Found>,
}

/// Where to look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// CUDA's files.
    pub cuda: cuda::Settings,
    /// HIP's files.
    pub hip: hip::Settings,
}

/// Looks for both vendors' runtimes.
#[must_use]
pub fn survey(settings: &Settings) -> Vec<Seen> {
    vec![cuda_seen(&settings.cuda), hip_seen(&settings.hip)]
}

fn cuda_seen(settings: &cuda::Settings) -> Seen {
    let module = Named::of("kernel module", module_version("nvidia"));
    match cuda::runtime(settings) {
        Err(absent) => nothing(Kind::Cuda, absent, vec![module]),
        Ok(runtime) => {
            // 13000 is 13.0 (CUDA driver API, `cuDriverGetVersion`).
            let version = runtime.driver().version();
            let version = (version as u32 / 1000, version as u32 % 1000 / 10);
            let driver = Named::of("driver", Ok(format!("CUDA {}.{}", version.0, version.1)));
            seen(&runtime, version, vec![driver, module])
        }
    }
}

fn hip_seen(settings: &hip::Settings) -> Seen {
    let mut versions = vec![Named::of("kernel module", module_version("amdgpu"))];
    versions.extend(gtt());
    match hip::runtime(settings) {
        Err(absent) => nothing(Kind::Hip, absent, versions),
        Ok(runtime) => {
            // 60342134 is 6.3 (HIP_VERSION in hip_version.h: major * 10^7 + minor * 10^5 + patch).
            let driver = runtime.driver();
            let number = driver.version() as u32;
            let version = (number / 10_000_000, number / 100_000 % 100);
            let name = format!("HIP {}.{} ({})", version.0, version.1, driver.file());
            versions.insert(0, Named::of("runtime", Ok(name)));
            seen(&runtime, version, versions)
        }
    }
}

fn nothing(kind: Kind, absent: Absent, versions: Vec<Named>) -> Seen {
    Seen {
        kind,
        absent: Some(absent),
        versions,
        devices: Vec::new(),
    }
}

fn seen<R: Driver>(runtime: &Runtime<R>, version: Version, mut versions: Vec<Named>) -> Seen {
    let kind = runtime.kind();
    let compiler = runtime.driver().compiler();
    let compiler_version = compiler.as_deref().ok().and_then(known_bad::version_in);
    versions.push(Named::of("compiler", compiler));
    let mut devices = Vec::new();
    let mut absent = None;
    for ordinal in 0..runtime.count().unwrap_or(0) {
        match runtime.facts(ordinal) {
            Ok(facts) => devices.push(Found {
                id: format!("{kind}:{ordinal}"),
                known_bad: known_bad::fitting(kind, &facts.arch, compiler_version, Some(version)),
                unfit: unfit(&facts),
                peers: peers(runtime, ordinal),
                facts,
            }),
            Err(fault) => {
                absent = Some(Absent {
                    what: format!("{kind}:{ordinal}"),
                    reason: fault.to_string(),
                });
            }
        }
    }
    Seen {
        kind,
        absent,
        versions,
        devices,
    }
}

/// What a device says of the others. One that cannot be asked is not in the list: it is told as absent.
fn peers<R: Driver>(runtime: &Runtime<R>, from: u32) -> Vec<Peer> {
    let others = (0..runtime.count().unwrap_or(0)).filter(|to| *to != from);
    let asked = others.filter_map(|to| Some((to, runtime.peer(from, to).ok()?)));
    asked
        .map(|(to, can)| Peer {
            id: format!("{}:{to}", runtime.kind()),
            can,
        })
        .collect()
}

/// Why the kernels cannot run: they assume 32 lanes (ADR 0005) and an architecture that has a name.
fn unfit(facts: &Facts) -> Option<String> {
    if facts.arch.is_empty() {
        return Some("the runtime does not name the device's architecture".into());
    }
    let lanes = facts.lanes;
    (lanes != 32).then(|| format!("its warps have {lanes} lanes, the kernels need 32"))
}

/// The version of a kernel module, from sysfs.
fn module_version(module: &str) -> Result<String, String> {
    let folder = format!("/sys/module/{module}");
    if !Path::new(&folder).exists() {
        return Err(format!("{module} is not loaded"));
    }
    let version = read(&format!("{folder}/version"));
    // Modules of the kernel's own tree have no version.
    Ok(version.unwrap_or_else(|| "loaded, of the kernel's own tree".into()))
}

/// What AMD's kernel module lets the GPU use of the host's memory, card by card
/// (`mem_info_gtt_total`, amdgpu documentation).
fn gtt() -> Vec<Named> {
    let Ok(cards) = fs::read_dir("/sys/class/drm") else {
        return Vec::new();
    };
    let limits = cards.flatten().filter_map(|card| {
        let bytes = read(&format!(
            "{}/device/mem_info_gtt_total",
            card.path().display()
        ))?;
        let name = card.file_name().to_string_lossy().into_owned();
        Some(Named::of("GTT limit", Ok(format!("{name}: {bytes} bytes"))))
    });
    limits.collect()
}

fn read(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;

    #[test]
    fn both_vendors_are_listed_and_absence_has_a_reason() {
        let wrong = Path::new("/nowhere/lib.so").to_path_buf();
        let settings = Settings {
            hip: hip::Settings {
                hip: Some(wrong),
                hiprtc: None,
            },
            ..Settings::default()
        };
        let seen = survey(&settings);
        assert_eq!([seen[0].kind, seen[1].kind], [Kind::Cuda, Kind::Hip]);
        // Whatever this machine has, a path that is not there is authoritative.
        let absent = seen[1].absent.as_ref().unwrap();
        assert!(absent.to_string().contains("/nowhere/lib.so"), "{absent}");
        for runtime in &seen {
            assert_eq!(runtime.devices.is_empty(), runtime.absent.is_some());
        }
        let json = serde_json::to_value(&seen).unwrap();
        assert_eq!(json[1]["kind"], "hip");
        assert_eq!(json[1]["absent"]["what"], "HIP runtime");
    }

    #[test]
    fn found_devices_are_described() {
        let settings = fake::Settings {
            devices: 2,
            compiler: Some("c 1.2".into()),
            ..fake::Settings::default()
        };
        let seen = seen(&fake::runtime(&settings), (1, 0), Vec::new());
        assert_eq!(seen.devices[1].id, "fake:1");
        let peers = &seen.devices[1].peers;
        assert_eq!((peers.len(), &*peers[0].id), (1, "fake:0"));
        let why = "no: not asked for in its settings";
        assert_eq!(peers[0].can.to_string(), why);
        assert_eq!(seen.devices[0].facts.register.to_string(), why);
        assert_eq!(seen.devices[1].unfit, None);
        assert_eq!(seen.versions[0].value.as_deref(), Some("c 1.2"));
        let other = Facts {
            lanes: 64,
            ..seen.devices[0].facts.clone()
        };
        assert!(unfit(&other).unwrap().contains("64 lanes"));
        let nameless = Facts {
            arch: String::new(),
            ..other
        };
        assert!(unfit(&nameless).unwrap().contains("architecture"));
    }
}
