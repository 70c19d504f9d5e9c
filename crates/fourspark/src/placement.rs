//! Where the model runs: which device was asked for, and a target on it. It changes speed, never output.
//!
//! Must not know: layers, kernels. What cannot be had is refused when the engine is loaded, with the reason.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use device::cache::Cache;
use device::driver::Driver;
use device::{EarlyLaunch, Runtime, cpu, cuda, hip};
use ds4_target::on_device::{DeviceTarget, Settings};
use ds4_target::pool::Pool;
use ds4_target::{CpuTarget, Model, Options};
use engine_core::Target;

use crate::error::Error;

/// Bytes of compiled images that a folder may hold.
const IMAGES: u64 = 1 << 30;
/// Passes of so many tokens are replayed as graphs: a step of several sequences with their candidates.
const GRAPH_TOKENS: usize = 16;
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
        let number = |digits: &str| {
            let plain = digits.bytes().all(|b| b.is_ascii_digit());
            digits.parse().ok().filter(|_| plain)
        };
        let known = match text.split_once(':') {
            None if text == "cpu" => Some(Self::Cpu),
            None if text == "host" => Some(Self::Host),
            Some(("cuda", n)) => number(n).map(Self::Cuda),
            Some(("hip", n)) => number(n).map(Self::Hip),
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

/// Which device, and how it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceOptions {
    /// The device.
    pub choice: DeviceChoice,
    /// Folder of compiled images; without one every start compiles.
    pub images: Option<PathBuf>,
    /// Whether short passes are captured as graphs and replayed.
    pub graphs: bool,
    /// Whether kernels may start before the one ahead has ended, on devices that can.
    pub early_launch: bool,
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self {
            choice: DeviceChoice::Cpu,
            images: None,
            graphs: true,
            early_launch: true,
        }
    }
}

/// The device in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its name here, as `cuda:0`.
    pub id: String,
    /// The vendor's name and the architecture.
    pub what: String,
    /// Tokens up to which passes are replayed as graphs; 0: none are.
    pub graph_tokens: usize,
    /// Whether kernels start before the one ahead has ended.
    pub early_launch: EarlyLaunch,
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the model runs on {}, {}; ", self.id, self.what)?;
        match self.graph_tokens {
            0 => f.write_str("no graphs"),
            n => write!(f, "graphs for passes of up to {n} tokens"),
        }?;
        write!(f, "; early launch {}", self.early_launch)
    }
}

/// A target, the host's threads beside it, and the device if it runs on one.
pub(crate) struct Placed {
    pub(crate) target: Box<dyn Target + Send>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) device: Option<DeviceInfo>,
}

/// Puts a model on the device asked for.
pub(crate) fn place(how: &DeviceOptions, model: Arc<Model>, run: Options) -> Result<Placed, Error> {
    match how.choice {
        DeviceChoice::Cpu => {
            let target = CpuTarget::new(model, run)?;
            let pool = Arc::clone(target.pool());
            Ok(Placed {
                target: Box::new(target),
                pool,
                device: None,
            })
        }
        DeviceChoice::Cuda(n) => on(
            &cuda::runtime(&cuda::Settings::default())?,
            n,
            how,
            model,
            run,
        ),
        DeviceChoice::Hip(n) => on(
            &hip::runtime(&hip::Settings::default())?,
            n,
            how,
            model,
            run,
        ),
        DeviceChoice::Host => on(&cpu::runtime(HOST), 0, how, model, run),
    }
}

fn on<R: Driver>(
    runtime: &Runtime<R>,
    ordinal: u32,
    how: &DeviceOptions,
    model: Arc<Model>,
    run: Options,
) -> Result<Placed, Error> {
    let device = runtime.open(ordinal)?;
    if !how.early_launch {
        device.turn_early_launch_off();
    }
    let cache = how
        .images
        .as_ref()
        .map(|folder| Cache::open(folder, IMAGES));
    let graph_tokens = if how.graphs { GRAPH_TOKENS } else { 0 };
    let pool = Arc::new(Pool::new(run.threads));
    let settings = Settings {
        cache: cache.transpose()?,
        progress: &mut |done, total| tracing::debug!(done, total, "bytes of weights"),
        graph_tokens,
    };
    let target = DeviceTarget::new(model, run, &device, settings)?;
    let facts = device.facts();
    Ok(Placed {
        target: Box::new(target),
        pool,
        device: Some(DeviceInfo {
            id: device.id().to_string(),
            what: format!("{}, {}", facts.name, facts.arch),
            graph_tokens,
            early_launch: device.early_launch(),
        }),
    })
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
