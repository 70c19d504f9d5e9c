//! Where the model runs: which device was asked for, and a target on it. It changes speed, never output.
//!
//! Must not know: layers, kernels. What cannot be had is refused when the engine is loaded, with the reason.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use device::cache::Cache;
use device::driver::{Driver, Kind};
use device::{AnyDevice, Device, EarlyLaunch, Runtime, cpu, cuda, hip, survey};
use ds4_target::on_device::{DeviceTarget, GRAPH_TOKENS, Markov, Settings, Share, equal_shares};
use ds4_target::pool::Pool;
use ds4_target::{CpuTarget, LoadError, Model, Options};
use dspark_draft::backbone;
use dspark_draft::on_device::{DeviceBackbone, GRAPH_ROWS};
use dspark_draft::weights::DraftModel;
use engine_core::Target;
use engine_core::seams::Backbone;

use crate::devices::{Devices, SplitInfo};
use crate::error::Error;
use crate::progress::{Progress, Upload};

/// Memory of the host as a device.
const HOST: u64 = 64 << 30;

/// A device to run the model on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The processor.
    #[default]
    Cpu,
    /// An NVIDIA device, by number.
    Cuda(u32),
    /// An AMD device, by number.
    Hip(u32),
    /// The processor as a device: the kernels' host build, far slower than `Cpu`. For tests; needs the feature
    /// `host-exec`.
    Host,
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = match (text, Kind::of_name(text)) {
            ("cpu", _) => Some(Self::Cpu),
            ("host", _) => Some(Self::Host),
            (_, Some((Kind::Cuda, n))) => Some(Self::Cuda(n)),
            (_, Some((Kind::Hip, n))) => Some(Self::Hip(n)),
            _ => None,
        };
        known.ok_or_else(|| format!("expected cpu, cuda:N or hip:N, got {text:?}"))
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(n) => write!(f, "cuda:{n}"),
            Self::Hip(n) => write!(f, "hip:{n}"),
            Self::Host => f.write_str("host"),
        }
    }
}

/// Which devices, and how they are used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceOptions {
    /// The devices.
    pub choice: Devices,
    /// Folder of compiled images; without one every start compiles.
    pub images: Option<PathBuf>,
    /// Whether short passes are captured as graphs and replayed.
    pub graphs: bool,
    /// Whether kernels may start before the one ahead has ended, on devices that can.
    pub early_launch: bool,
    /// Whether all bytes of weights are read back after they were sent, and compared. A draft worker's are not.
    pub check_load: bool,
    /// Who hears of their way there.
    pub progress: Progress,
    /// The vendors' libraries.
    pub libraries: survey::Settings,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self {
            choice: Devices::default(),
            images: None,
            graphs: true,
            early_launch: true,
            check_load: false,
            progress: Progress::default(),
            libraries: survey::Settings::default(),
        }
    }
}

/// The device in use, or the devices that share the model's layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its name here, as `cuda:0`; those of several with commas.
    pub id: String,
    /// The vendor's name and the architecture.
    pub what: String,
    /// Tokens up to which passes are replayed as graphs; 0: none are.
    pub graph_tokens: usize,
    /// Whether kernels start before the one ahead has ended.
    pub early_launch: EarlyLaunch,
    /// How layers are shared, if they are.
    pub split: Option<SplitInfo>,
}

impl DeviceInfo {
    /// The name of the device that runs the last layers and the output matrix.
    #[must_use]
    pub fn last(&self) -> &str {
        let split = self.split.as_ref().and_then(|s| s.shares.last());
        split.map_or(&self.id, |(id, _)| id)
    }
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}; ", self.id, self.what)?;
        match self.graph_tokens {
            0 => f.write_str("no graphs"),
            n => write!(f, "graphs for passes of up to {n} tokens"),
        }?;
        write!(f, "; early launch {}", self.early_launch)?;
        self.split.iter().try_for_each(|s| write!(f, "; {s}"))
    }
}

/// A target, the host's threads beside it, and the device if it runs on one.
pub(crate) struct Placed {
    pub(crate) target: Box<dyn Target + Send>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) device: Option<DeviceInfo>,
    /// The device itself, for what a draft worker shares with it.
    pub(crate) there: Option<Arc<dyn AnyDevice>>,
    /// Why a drafter's chains are not drawn on the target's device, where one was given.
    pub(crate) no_chains: Option<String>,
}

/// Work for a device of whatever runtime.
pub(crate) trait Visit {
    type Out;

    fn visit<R: Driver>(self, opened: Opened<'_, R>) -> Result<Self::Out, Error>;
}

/// Devices of one runtime, at least one, and how they are used.
pub(crate) struct Opened<'a, R: Driver> {
    pub(crate) devices: Vec<Device<R>>,
    how: &'a DeviceOptions,
}

impl<R: Driver> Opened<'_, R> {
    /// The one that runs what comes last.
    fn last(&self) -> &Device<R> {
        &self.devices[self.devices.len() - 1]
    }

    /// The folder of compiled images.
    pub(crate) fn cache(&self) -> Result<Option<Cache>, Error> {
        let cache = self.how.images.as_ref();
        let cache = cache.map(|folder| Cache::open(folder, Cache::MOST));
        Ok(cache.transpose()?)
    }

    /// Tells who hears of a model's way there.
    fn told(&self, what: &'static str, device: String) -> impl FnMut(u64, u64) {
        let progress = &self.how.progress;
        move |done, total| {
            progress.tell(&Upload {
                what,
                device: &device,
                done,
                total,
            });
        }
    }

    fn settings<'a>(
        &self,
        cache: Option<Cache>,
        info: &DeviceInfo,
        progress: &'a mut dyn FnMut(u64, u64),
    ) -> Settings<'a> {
        Settings {
            cache,
            progress,
            check: self.how.check_load,
            graph_tokens: info.graph_tokens,
        }
    }

    /// What may be known of it, with graphs for passes of up to so many tokens.
    fn info(&self, most: usize) -> DeviceInfo {
        let ids = self.devices.iter().map(|d| d.id().to_string());
        let mut kinds: Vec<String> = Vec::new();
        for device in &self.devices {
            let facts = device.facts();
            kinds.push(format!("{}, {}", facts.name, facts.arch));
        }
        kinds.dedup();
        DeviceInfo {
            id: ids.collect::<Vec<_>>().join(","),
            what: kinds.join(" and "),
            graph_tokens: if self.how.graphs { most } else { 0 },
            early_launch: self.early_launch(),
            split: None,
        }
    }

    /// On if it is on everywhere.
    fn early_launch(&self) -> EarlyLaunch {
        let one = |d: &Device<R>| match d.early_launch() {
            EarlyLaunch::Off(why) if self.devices.len() > 1 => {
                Some(EarlyLaunch::Off(format!("{}: {why}", d.id())))
            }
            EarlyLaunch::Off(why) => Some(EarlyLaunch::Off(why)),
            EarlyLaunch::On => None,
        };
        self.devices.iter().find_map(one).unwrap_or(EarlyLaunch::On)
    }
}

/// Opens devices of one kind for some work; `None` for the processor itself.
pub(crate) fn open<V: Visit>(
    choices: &[DeviceChoice],
    how: &DeviceOptions,
    work: V,
) -> Result<Option<V::Out>, Error> {
    let number = |choice: &DeviceChoice| match choice {
        DeviceChoice::Cuda(n) | DeviceChoice::Hip(n) => *n,
        DeviceChoice::Cpu | DeviceChoice::Host => 0,
    };
    let numbers: Vec<u32> = choices.iter().map(number).collect();
    let done = match choices.first() {
        None | Some(DeviceChoice::Cpu) => return Ok(None),
        Some(DeviceChoice::Cuda(_)) => {
            on(&cuda::runtime(&how.libraries.cuda)?, &numbers, how, work)
        }
        Some(DeviceChoice::Hip(_)) => on(&hip::runtime(&how.libraries.hip)?, &numbers, how, work),
        Some(DeviceChoice::Host) => on(&cpu::runtime(HOST), &numbers, how, work),
    };
    done.map(Some)
}

fn on<R: Driver, V: Visit>(
    runtime: &Runtime<R>,
    numbers: &[u32],
    how: &DeviceOptions,
    work: V,
) -> Result<V::Out, Error> {
    let devices = numbers.iter().map(|n| runtime.open(*n));
    let devices = devices.collect::<Result<Vec<_>, _>>()?;
    if !how.early_launch {
        devices.iter().for_each(Device::turn_early_launch_off);
    }
    work.visit(Opened { devices, how })
}

/// Puts a model on the device asked for, with what draws a drafter's chains there.
pub(crate) fn place(
    how: &DeviceOptions,
    model: Arc<Model>,
    run: Options,
    draft: Option<&DraftModel>,
) -> Result<Placed, Error> {
    let work = PlaceTarget {
        model: Arc::clone(&model),
        run: run.clone(),
        draft,
    };
    if let Some((target, device, no_chains, there)) = open(how.choice.all(), how, work)? {
        return Ok(Placed {
            target,
            pool: Arc::new(Pool::new(run.threads)),
            device: Some(device),
            there: Some(there),
            no_chains,
        });
    }
    let target = CpuTarget::new(model, run)?;
    Ok(Placed {
        pool: Arc::clone(target.pool()),
        target: Box::new(target),
        device: None,
        there: None,
        no_chains: None,
    })
}

/// A target, its device, why there are no chains on it, and the device itself.
type PlacedTarget = (
    Box<dyn Target + Send>,
    DeviceInfo,
    Option<String>,
    Arc<dyn AnyDevice>,
);

/// A target onto a device.
struct PlaceTarget<'a> {
    model: Arc<Model>,
    run: Options,
    draft: Option<&'a DraftModel>,
}

impl Visit for PlaceTarget<'_> {
    type Out = PlacedTarget;

    fn visit<R: Driver>(self, opened: Opened<'_, R>) -> Result<Self::Out, Error> {
        let mut info = opened.info(GRAPH_TOKENS);
        let new = |markov, cache| {
            let mut told = opened.told("model", info.id.clone());
            let settings = opened.settings(cache, &info, &mut told);
            let (model, run) = (Arc::clone(&self.model), self.run.clone());
            let shares = self.shares(&opened, markov)?;
            DeviceTarget::split(model, run, markov, &shares, settings)
        };
        let markov = self.draft.map(|draft| Markov {
            first: &draft.heads.w1,
            second: &draft.heads.w2,
        });
        let (target, no_chains) = match new(markov, opened.cache()?) {
            // Known before anything is on the device. The model itself may well fit.
            Err(
                error @ (LoadError::NoKernel { .. }
                | LoadError::DeviceMemory { .. }
                | LoadError::Option { .. }),
            ) if markov.is_some() => (new(None, opened.cache()?)?, Some(error.to_string())),
            placed => (placed?, None),
        };
        info.split = (opened.devices.len() > 1).then(|| SplitInfo {
            shares: target
                .devices()
                .map(|(id, l)| (id.to_string(), l))
                .collect(),
            crossings: target.crossings(),
        });
        let there: Arc<dyn AnyDevice> = Arc::new(opened.last().clone());
        Ok((Box::new(target), info, no_chains, there))
    }
}

impl PlaceTarget<'_> {
    /// The layers of each device: as they were named, or as many bytes on each.
    fn shares<R: Driver>(
        &self,
        opened: &Opened<'_, R>,
        markov: Option<Markov<'_>>,
    ) -> Result<Vec<Share<R>>, LoadError> {
        let layers = match opened.how.choice.layers() {
            Some(layers) => layers,
            None => equal_shares(&self.model, &self.run, markov, opened.devices.len())?,
        };
        let both = opened.devices.iter().cloned().zip(layers);
        Ok(both
            .map(|(device, layers)| Share { device, layers })
            .collect())
    }
}

/// A drafter's layers on a device.
pub(crate) type PlacedLayers = (Box<dyn Backbone + Send>, DeviceInfo);

/// Puts a drafter's layers on a device; `None` for the processor itself.
pub(crate) fn place_layers(
    choice: DeviceChoice,
    how: &DeviceOptions,
    model: Arc<DraftModel>,
    run: backbone::Options,
) -> Result<Option<PlacedLayers>, Error> {
    open(&[choice], how, PlaceLayers { model, run })
}

struct PlaceLayers {
    model: Arc<DraftModel>,
    run: backbone::Options,
}

impl Visit for PlaceLayers {
    type Out = PlacedLayers;

    fn visit<R: Driver>(self, opened: Opened<'_, R>) -> Result<Self::Out, Error> {
        let info = opened.info(GRAPH_ROWS);
        let mut told = opened.told("drafter", info.id.clone());
        let settings = opened.settings(opened.cache()?, &info, &mut told);
        let layers = DeviceBackbone::new(self.model, self.run, opened.last(), settings)?;
        Ok((Box::new(layers), info))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_strictly() {
        let parse = |text: &str| text.parse::<DeviceChoice>();
        assert_eq!(parse("cpu"), Ok(DeviceChoice::Cpu));
        assert_eq!(parse("cuda:0"), Ok(DeviceChoice::Cuda(0)));
        assert_eq!(parse("hip:13"), Ok(DeviceChoice::Hip(13)));
        for choice in [
            DeviceChoice::Cpu,
            DeviceChoice::Cuda(3),
            DeviceChoice::Hip(0),
        ] {
            assert_eq!(parse(&choice.to_string()), Ok(choice));
        }
        for bad in [
            "", "cuda", "cuda:", "cuda:-1", "cuda:+1", "CUDA:0", "cpu:0", "vulkan:0",
        ] {
            let refusal = parse(bad).unwrap_err();
            assert_eq!(
                refusal,
                format!("expected cpu, cuda:N or hip:N, got {bad:?}")
            );
        }
    }
}
