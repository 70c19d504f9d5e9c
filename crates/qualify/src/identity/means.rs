//! What arms may use beside the processor: devices and a draft worker. Each is found once, or absent with
//! the reason.
//!
//! Must not know: arms.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use device::cache::Cache;
use device::driver::{Driver, Kind};
use device::survey::{self, Seen, Settings};
use device::{Device, Runtime, cuda, hip};
use ds4_target::on_device;

use super::Error;
use super::there::{Made, Put};

/// Whose runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    /// NVIDIA's.
    Cuda,
    /// AMD's.
    Hip,
}

impl Vendor {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Cuda, Self::Hip];

    /// Its name in arms and options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Hip => "hip",
        }
    }

    const fn kind(self) -> Kind {
        match self {
            Self::Cuda => Kind::Cuda,
            Self::Hip => Kind::Hip,
        }
    }
}

/// A device that must be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    /// Whose.
    pub vendor: Vendor,
    /// Its number.
    pub ordinal: u32,
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Kind::of_name(text).and_then(|(kind, ordinal)| {
            let vendor = Vendor::ALL.into_iter().find(|v| v.kind() == kind)?;
            Some(Self { vendor, ordinal })
        });
        known.ok_or_else(|| format!("expected auto, cpu, cuda:N or hip:N, got {text:?}"))
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.vendor.name(), self.ordinal)
    }
}

/// Which devices to run on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The first of each vendor, if there is one.
    #[default]
    Auto,
    /// None.
    Cpu,
    /// These, or nothing at all.
    These(Vec<Named>),
}

impl Choice {
    /// Reads the values of all options `--device`.
    ///
    /// # Errors
    /// A value that is no device, or values that do not go together.
    pub fn of(values: &[&str]) -> Result<Self, String> {
        match values {
            [] | ["auto"] => Ok(Self::Auto),
            ["cpu"] => Ok(Self::Cpu),
            all => {
                let named: Vec<Named> = all.iter().map(|v| v.parse()).collect::<Result<_, _>>()?;
                for vendor in Vendor::ALL {
                    let of = named.iter().filter(|n| n.vendor == vendor);
                    let of: Vec<u32> = of.map(|n| n.ordinal).collect();
                    let name = vendor.name();
                    match of[..] {
                        [a, b] if a == b => return Err(format!("{name}:{a} is named twice")),
                        [_, _, _, ..] => {
                            let n = of.len();
                            return Err(format!("at most two devices of {name}, got {n}"));
                        }
                        _ => {}
                    }
                }
                Ok(Self::These(named))
            }
        }
    }

    /// The numbers to open of a vendor, one or two, and why there is no second; or why there is none.
    fn ordinals(&self, seen: &Seen, vendor: Vendor) -> Result<(Vec<u32>, String), String> {
        const TWO: &str = "a split needs two";
        let name = vendor.name();
        let wanted: Option<Vec<usize>> = match self {
            Self::Cpu => return Err("--device cpu: only the processor was asked for".to_owned()),
            Self::Auto => None,
            Self::These(all) => {
                let named = all.iter().filter(|n| n.vendor == vendor);
                Some(named.map(|n| n.ordinal as usize).collect())
            }
        };
        if wanted.as_ref().is_some_and(Vec::is_empty) {
            let name = name.to_uppercase();
            return Err(format!("--device names no device of {name}"));
        }
        if let Some(absent) = &seen.absent {
            return Err(absent.to_string());
        }
        let fit = |at: &usize| seen.devices[*at].unfit.is_none();
        let all = (0..seen.devices.len()).filter(fit);
        let (at, alone) = match wanted {
            Some(named) => (named, format!("--device names one device of {name}: {TWO}")),
            None => {
                let n = all.clone().count();
                let mut some: Vec<usize> = all.take(2).collect();
                if some.is_empty() {
                    // The first one, to say what is wrong with it.
                    some.push(0);
                }
                (some, format!("of {name} {n} devices can be used: {TWO}"))
            }
        };
        for at in &at {
            let Some(found) = seen.devices.get(*at) else {
                let n = seen.devices.len();
                return Err(format!("{name}:{at}: there are {n} devices"));
            };
            if let Some(why) = &found.unfit {
                return Err(format!("{}: {why}", found.id));
            }
        }
        Ok((at.into_iter().map(|at| at as u32).collect(), alone))
    }
}

/// A device that is open, and perhaps a second one beside it.
#[derive(Debug)]
struct Opened<R: Driver> {
    /// One or two.
    devices: Vec<Device<R>>,
    what: String,
    /// What both are, or why there is no second.
    both: Result<String, String>,
    arch: String,
}

fn open<R: Driver>(
    runtime: &Runtime<R>,
    (ordinals, alone): (Vec<u32>, String),
) -> Result<Opened<R>, String> {
    let devices = ordinals.into_iter().map(|n| runtime.open(n));
    let devices = devices.collect::<Result<Vec<_>, _>>();
    let devices = devices.map_err(|e| e.to_string())?;
    let what = |device: &Device<R>| {
        let facts = device.facts();
        format!("{}, {}, {}", device.id(), facts.name, facts.arch)
    };
    let [first, rest @ ..] = &devices[..] else {
        return Err("no device was named".to_owned());
    };
    let second = rest
        .first()
        .map(|second| format!("{}; {}", what(first), what(second)));
    Ok(Opened {
        what: what(first),
        both: second.ok_or(alone),
        arch: first.facts().arch.clone(),
        devices,
    })
}

/// How devices of a vendor are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct On {
    /// Whose.
    pub vendor: Vendor,
    /// Whether short passes are replayed as graphs; the arm must have some.
    pub graphs: bool,
    /// Whether two devices share the target's layers.
    pub split: bool,
}

/// What to look for.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    /// Which devices.
    pub devices: Choice,
    /// Where vendors' libraries are, if not where the system finds them.
    pub libraries: Settings,
    /// Folder of compiled images; without one every arm on a device compiles.
    pub images: Option<PathBuf>,
    /// A program whose `draft-worker PARENT` serves a draft worker.
    pub worker: Option<PathBuf>,
}

/// What arms may use.
#[derive(Debug)]
pub struct Means {
    cuda: Result<Opened<cuda::Cuda>, String>,
    hip: Result<Opened<hip::Hip>, String>,
    images: Option<PathBuf>,
    worker: Result<PathBuf, String>,
}

impl Means {
    /// The processor alone.
    #[must_use]
    pub fn none() -> Self {
        let none = || "not looked for".to_owned();
        Self {
            cuda: Err(none()),
            hip: Err(none()),
            images: None,
            worker: Err(none()),
        }
    }

    /// Looks. What was named and cannot be had is an error; what was not named is absent.
    ///
    /// # Errors
    /// The device that was named, and why it cannot be used.
    pub fn find(wish: &Wish) -> Result<Self, String> {
        let libraries = &wish.libraries;
        let seen = match &wish.devices {
            Choice::Cpu => Vec::new(),
            _ => survey::survey(libraries),
        };
        let ordinal = |vendor: Vendor| {
            let of = seen.iter().find(|s| s.kind == vendor.kind());
            let nothing = Seen {
                kind: vendor.kind(),
                absent: None,
                versions: Vec::new(),
                devices: Vec::new(),
            };
            wish.devices.ordinals(of.unwrap_or(&nothing), vendor)
        };
        let cuda = ordinal(Vendor::Cuda).and_then(|n| {
            let runtime = cuda::runtime(&libraries.cuda).map_err(|e| e.to_string())?;
            open(&runtime, n)
        });
        let hip = ordinal(Vendor::Hip).and_then(|n| {
            let runtime = hip::runtime(&libraries.hip).map_err(|e| e.to_string())?;
            open(&runtime, n)
        });
        let means = Self {
            cuda,
            hip,
            images: wish.images.clone(),
            worker: worker(wish.worker.as_deref()),
        };
        if let Choice::These(named) = &wish.devices {
            for named in named {
                means
                    .device(named.vendor)
                    .map_err(|why| format!("--device {named}: {why}"))?;
            }
        }
        Ok(means)
    }

    /// What a vendor's device is, or why there is none.
    ///
    /// # Errors
    /// The reason.
    pub fn device(&self, vendor: Vendor) -> Result<&str, &str> {
        let of = match vendor {
            Vendor::Cuda => self.cuda.as_ref().map(|o| &o.what),
            Vendor::Hip => self.hip.as_ref().map(|o| &o.what),
        };
        of.map(String::as_str).map_err(String::as_str)
    }

    /// What a vendor's two devices are that share layers, or why there are no two.
    ///
    /// # Errors
    /// The reason.
    pub fn split(&self, vendor: Vendor) -> Result<&str, &str> {
        let both = match vendor {
            Vendor::Cuda => self.cuda.as_ref().map(|o| &o.both),
            Vendor::Hip => self.hip.as_ref().map(|o| &o.both),
        };
        both.map_err(String::as_str)?
            .as_deref()
            .map_err(String::as_str)
    }

    /// Architectures of the devices in use.
    #[must_use]
    pub fn archs(&self) -> Vec<&str> {
        let cuda = self.cuda.as_ref().ok().map(|o| o.arch.as_str());
        let hip = self.hip.as_ref().ok().map(|o| o.arch.as_str());
        cuda.into_iter().chain(hip).collect()
    }

    /// The program of a worker, or why there is none.
    ///
    /// # Errors
    /// The reason.
    pub fn worker(&self) -> Result<&Path, &str> {
        self.worker.as_deref().map_err(String::as_str)
    }

    /// The name of a vendor's device, as `cuda:0`, and the folder of compiled images, for a worker.
    pub(crate) fn place(&self, vendor: Vendor) -> (String, Option<&Path>) {
        let id = match vendor {
            Vendor::Cuda => self.cuda.as_ref().ok().map(|o| o.devices[0].id()),
            Vendor::Hip => self.hip.as_ref().ok().map(|o| o.devices[0].id()),
        };
        let name = id.map_or_else(String::new, |id| id.to_string());
        (name, self.images.as_deref())
    }

    /// Makes something on a vendor's device, or on two of them.
    pub(crate) fn put<W: Put>(&self, on: On, work: W) -> Made<W> {
        let On { vendor, .. } = on;
        let absent = |why: &String| Error::Device {
            device: vendor.name(),
            why: why.clone(),
        };
        match vendor {
            Vendor::Cuda => self.on(self.cuda.as_ref().map_err(absent)?, on, work),
            Vendor::Hip => self.on(self.hip.as_ref().map_err(absent)?, on, work),
        }
    }

    fn on<R: Driver, W: Put>(&self, opened: &Opened<R>, on: On, work: W) -> Made<W> {
        let devices = match (on.split, &opened.both) {
            (false, _) => &opened.devices[..1],
            (true, Ok(_)) => &opened.devices[..],
            (true, Err(why)) => {
                return Err(Error::Device {
                    device: on.vendor.name(),
                    why: why.clone(),
                });
            }
        };
        let cache = self.images.as_ref().map(|f| Cache::open(f, Cache::MOST));
        let cache = cache.transpose().map_err(|e| Error::Device {
            device: "images",
            why: e.to_string(),
        })?;
        let settings = on_device::Settings {
            cache,
            progress: &mut |_, _| {},
            graph_tokens: if on.graphs { W::GRAPHS } else { 0 },
            check: false,
        };
        work.put(devices, settings)
    }
}

#[cfg(target_os = "linux")]
fn worker(program: Option<&Path>) -> Result<PathBuf, String> {
    program
        .map(Path::to_path_buf)
        .ok_or_else(|| "no program was named that serves one".to_owned())
}

#[cfg(not(target_os = "linux"))]
fn worker(_: Option<&Path>) -> Result<PathBuf, String> {
    Err("draft workers need Linux".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_strictly() {
        assert_eq!(Choice::of(&[]), Ok(Choice::Auto));
        assert_eq!(Choice::of(&["auto"]), Ok(Choice::Auto));
        assert_eq!(Choice::of(&["cpu"]), Ok(Choice::Cpu));
        let Ok(Choice::These(named)) = Choice::of(&["hip:1", "cuda:0"]) else {
            panic!("two devices")
        };
        let shown: Vec<String> = named.iter().map(Named::to_string).collect();
        assert_eq!(shown, ["hip:1", "cuda:0"]);
        for bad in [
            &["cuda"][..],
            &["cuda:+1"],
            &["CUDA:0"],
            &["cpu", "cuda:0"],
            &["auto", "cuda:0"],
            &["cuda:0", "cuda:0"],
            &["cuda:0", "cuda:1", "cuda:2"],
            &[""],
        ] {
            assert!(Choice::of(bad).is_err(), "{bad:?}");
        }
    }

    fn seen(absent: Option<&str>, lanes: &[u32]) -> Seen {
        let runtime = device::cpu::runtime(1);
        let facts = runtime.facts(0).expect("the CPU");
        let device = |(at, lanes): (usize, &u32)| survey::Found {
            id: format!("hip:{at}"),
            facts: facts.clone(),
            known_bad: Vec::new(),
            peers: Vec::new(),
            unfit: (*lanes != 32).then(|| format!("{lanes} lanes")),
        };
        Seen {
            kind: Kind::Hip,
            absent: absent.map(|reason| device::Absent {
                what: "HIP runtime".to_owned(),
                reason: reason.to_owned(),
            }),
            versions: Vec::new(),
            devices: lanes.iter().enumerate().map(device).collect(),
        }
    }

    /// What is absent has a reason, and what is unfit is not taken.
    #[test]
    fn c_40_a_device_is_chosen_or_absent_with_its_reason() {
        let these = Choice::of(&["hip:1"]).unwrap();
        let auto = Choice::Auto;
        let all = |choice: &Choice, seen: &Seen| choice.ordinals(seen, Vendor::Hip);
        let of = |choice: &Choice, seen: &Seen| all(choice, seen).map(|(at, _)| at);
        assert_eq!(of(&auto, &seen(None, &[64, 32])), Ok(vec![1]));
        assert_eq!(of(&auto, &seen(None, &[32, 64, 32, 32])), Ok(vec![0, 2]));
        assert_eq!(of(&these, &seen(None, &[32, 32])), Ok(vec![1]));
        let both = Choice::of(&["hip:1", "hip:0"]).unwrap();
        assert_eq!(of(&both, &seen(None, &[32, 32])), Ok(vec![1, 0]));
        let alone = |choice: &Choice| all(choice, &seen(None, &[64, 32])).unwrap().1;
        assert_eq!(
            alone(&auto),
            "of hip 1 devices can be used: a split needs two"
        );
        assert_eq!(
            alone(&these),
            "--device names one device of hip: a split needs two"
        );
        let why = |choice: &Choice, seen: &Seen| of(choice, seen).unwrap_err();
        assert!(why(&auto, &seen(None, &[64])).contains("64 lanes"));
        assert!(why(&these, &seen(None, &[32, 64])).contains("hip:1: 64 lanes"));
        assert!(why(&these, &seen(None, &[32])).contains("there are 1 devices"));
        assert!(why(&auto, &seen(None, &[])).contains("there are 0 devices"));
        assert!(why(&both, &seen(None, &[32, 64])).contains("hip:1: 64 lanes"));
        let absent = why(&auto, &seen(Some("libamdhip64.so: not found"), &[]));
        assert!(absent.contains("libamdhip64.so: not found"), "{absent}");
        let other = Choice::of(&["cuda:0"]).unwrap();
        assert!(why(&other, &seen(None, &[32])).contains("no device of HIP"));
        assert!(why(&Choice::Cpu, &seen(None, &[32])).contains("--device cpu"));
    }

    #[test]
    fn a_named_device_that_is_not_there_is_an_error() {
        let wish = |values: &[&str]| Wish {
            devices: Choice::of(values).unwrap(),
            libraries: Settings {
                hip: hip::Settings {
                    hip: Some("/nowhere/lib.so".into()),
                    hiprtc: None,
                },
                ..Settings::default()
            },
            ..Wish::default()
        };
        let error = Means::find(&wish(&["hip:0"])).unwrap_err();
        assert!(error.starts_with("--device hip:0: "), "{error}");
        assert!(error.contains("/nowhere/lib.so"), "{error}");
        let means = Means::find(&wish(&[])).unwrap();
        assert!(
            means
                .device(Vendor::Hip)
                .unwrap_err()
                .contains("/nowhere/lib.so")
        );
        assert!(means.worker().is_err());
    }
}
