//! What others found broken in drivers, compilers and firmware, as data. `fourspark doctor` shows what
//! fits the machine. Nothing is switched off by it: case lists on the device decide that.

use serde::Serialize;

use crate::driver::Kind;

/// A version: major and minor.
pub type Version = (u32, u32);

/// Whose version counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// NVRTC or hipRTC.
    Compiler,
    /// The driver or runtime library.
    Runtime,
    /// Something that cannot be asked for here, such as firmware.
    Unseen,
}

/// A known fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct KnownBad {
    /// Its stable name.
    pub id: &'static str,
    /// The runtime.
    pub kind: Kind,
    /// Exact architectures; empty for all.
    pub archs: &'static [&'static str],
    /// Whose version.
    pub part: Part,
    /// First and last version; `None` if every version is meant.
    pub versions: Option<(Version, Version)>,
    /// What goes wrong, and what helps.
    pub what: &'static str,
    /// Where it was reported.
    pub source: &'static str,
}

/// The list. Read on 2026-11-29; nothing of it was reproduced here.
pub const LIST: [KnownBad; 5] = [
    KnownBad {
        id: "nvrtc-13.2-bytes",
        kind: Kind::Cuda,
        archs: &["sm_120", "sm_121"],
        part: Part::Compiler,
        versions: Some(((13, 2), (13, 2))),
        what: "reads of single bytes of a packed word are compiled wrongly by 13.2.0 and 13.2.1; use \
               13.2.2 or newer (NVRTC does not tell its patch level)",
        source: "github.com/ggml-org/llama.cpp/issues/28581",
    },
    KnownBad {
        id: "nvrtc-13.0-sm120",
        kind: Kind::Cuda,
        archs: &["sm_120", "sm_121"],
        part: Part::Compiler,
        versions: Some(((13, 0), (13, 0))),
        what: "wrong code in matrix kernels of block formats; use a newer compiler",
        source: "github.com/ggml-org/llama.cpp/pull/19168",
    },
    KnownBad {
        id: "hip-graph-stale-arguments",
        kind: Kind::Hip,
        archs: &["gfx1201"],
        part: Part::Runtime,
        versions: None,
        what: "replays of graphs with some 200 kernels or more read stale addresses; keep graphs shorter",
        source: "github.com/ROCm/hip/issues/3887",
    },
    KnownBad {
        id: "hip-7.2-copy-fault",
        kind: Kind::Hip,
        archs: &["gfx1151"],
        part: Part::Runtime,
        versions: Some(((7, 2), (7, 2))),
        what: "copies end in a page fault on some systems with 7.2.1",
        source: "github.com/ROCm/legacy-rocm-build/issues/6146",
    },
    KnownBad {
        id: "gfx1151-mes-0x83",
        kind: Kind::Hip,
        archs: &["gfx1151"],
        part: Part::Unseen,
        versions: None,
        what: "MES firmware 0x83 (linux-firmware of 2025-11-25) hangs or faults; its version is readable by \
               root only: /sys/kernel/debug/dri/*/amdgpu_firmware_info",
        source: "github.com/ROCm/legacy-rocm-build/issues/5724",
    },
];

/// Entries that fit a device. An unknown version fits: a warning too many is not a fault.
#[must_use]
pub fn fitting(
    kind: Kind,
    arch: &str,
    compiler: Option<Version>,
    runtime: Option<Version>,
) -> Vec<&'static KnownBad> {
    LIST.iter()
        .filter(|bad| {
            let version = match bad.part {
                Part::Compiler => compiler,
                Part::Runtime => runtime,
                Part::Unseen => None,
            };
            let in_range = match (bad.versions, version) {
                (Some((first, last)), Some(version)) => (first..=last).contains(&version),
                _ => true,
            };
            let arch_fits = bad.archs.is_empty() || bad.archs.contains(&arch);
            bad.kind == kind && arch_fits && in_range
        })
        .collect()
}

/// The first `major.minor` in a text such as `NVRTC 13.2`.
#[must_use]
pub fn version_in(text: &str) -> Option<Version> {
    let word = text.split_whitespace().find(|w| w.contains('.'))?;
    let mut parts = word.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(kind: Kind, arch: &str, version: Option<Version>) -> Vec<&'static str> {
        fitting(kind, arch, version, version)
            .iter()
            .map(|b| b.id)
            .collect()
    }

    #[test]
    fn architectures_are_exact() {
        assert_eq!(
            ids(Kind::Hip, "gfx1151", Some((7, 1))),
            ["gfx1151-mes-0x83"]
        );
        for other in ["gfx1150", "gfx1152", "gfx1100", "gfx1200", "gfx11", ""] {
            assert_eq!(
                ids(Kind::Hip, other, Some((7, 2))),
                [] as [&str; 0],
                "{other}"
            );
        }
        assert_eq!(
            ids(Kind::Hip, "gfx1201", None),
            ["hip-graph-stale-arguments"]
        );
    }

    #[test]
    fn versions_are_ranges_and_unknown_ones_warn() {
        assert_eq!(
            ids(Kind::Cuda, "sm_120", Some((13, 2))),
            ["nvrtc-13.2-bytes"]
        );
        assert_eq!(ids(Kind::Cuda, "sm_120", Some((13, 1))), [] as [&str; 0]);
        assert_eq!(ids(Kind::Cuda, "sm_90", Some((13, 2))), [] as [&str; 0]);
        assert_eq!(ids(Kind::Cuda, "sm_120", None).len(), 2);
        assert_eq!(
            ids(Kind::Hip, "gfx1151", Some((7, 2))),
            ["hip-7.2-copy-fault", "gfx1151-mes-0x83"]
        );
    }

    #[test]
    fn every_entry_says_what_and_where() {
        for bad in LIST {
            assert!(
                bad.what.len() > 20 && bad.source.starts_with("github.com/"),
                "{bad:?}"
            );
            assert!(matches!(bad.kind, Kind::Cuda | Kind::Hip));
        }
    }

    #[test]
    fn versions_are_read_from_names() {
        assert_eq!(version_in("NVRTC 13.2"), Some((13, 2)));
        assert_eq!(version_in("hipRTC 7.14"), Some((7, 14)));
        for none in ["NVRTC", "", "a.b", "13"] {
            assert_eq!(version_in(none), None, "{none}");
        }
    }
}
