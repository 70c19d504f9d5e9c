//! Where the drafter's layers run: what was asked for, and what came of it.
//!
//! Without a word they run where the model runs, so that their rows cost as little as its own; what cannot be there
//! runs on the processor, which is said and counted. What was named and cannot be is refused.
//! Must not know: layers, kernels.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use dspark_draft::backbone::{LocalBackbone, Options};
use dspark_draft::weights::DraftModel;
use engine_core::seams::Backbone;

use crate::error::Error;
use crate::placement::{self, DeviceChoice, DeviceInfo, DeviceOptions, Placed};

/// A place that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftDevice {
    /// Where the model runs; of several devices, where its last layers do.
    Same,
    /// This device.
    On(DeviceChoice),
}

impl FromStr for DraftDevice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "same" => Ok(Self::Same),
            _ => text
                .parse()
                .map(Self::On)
                .map_err(|_| format!("expected same, cpu, cuda:N or hip:N, got {text:?}")),
        }
    }
}

impl fmt::Display for DraftDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same => f.write_str("same"),
            Self::On(choice) => choice.fmt(f),
        }
    }
}

/// Where they run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayersInfo {
    /// The device; `None`: the processor.
    pub device: Option<DeviceInfo>,
    /// What a draft worker said it runs them on when it started, if there is one.
    pub worker: Option<String>,
    /// What was asked for by name.
    pub asked: Option<DraftDevice>,
    /// Why they run on the processor although the model's device was meant.
    pub instead: Option<String>,
    /// Where candidates are drawn from their rows.
    pub chains: ChainsInfo,
}

/// Where candidates are drawn: always beside the model's output matrix.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ChainsInfo {
    /// On the processor, where the model is.
    #[default]
    Processor,
    /// On the model's device, those of requests with a bias or penalties aside.
    Device(String),
    /// On the processor although the model is on a device, and why.
    Instead(String),
}

impl ChainsInfo {
    pub(super) fn of(placed: &Placed) -> Self {
        match (&placed.device, &placed.no_chains) {
            (None, _) => Self::Processor,
            (Some(device), None) => Self::Device(device.last().to_owned()),
            (Some(_), Some(why)) => Self::Instead(why.clone()),
        }
    }
}

impl fmt::Display for ChainsInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Processor => f.write_str("candidates are drawn on the processor"),
            Self::Device(id) => write!(f, "candidates are drawn on {id}"),
            Self::Instead(why) => write!(f, "candidates are drawn on the processor instead: {why}"),
        }
    }
}

impl LayersInfo {
    /// On the processor, as asked for or meant.
    pub(crate) fn processor(asked: Option<DraftDevice>) -> Self {
        Self {
            device: None,
            worker: None,
            asked,
            instead: None,
            chains: ChainsInfo::default(),
        }
    }

    /// The device's name here, `cpu` for the processor.
    #[must_use]
    pub fn id(&self) -> &str {
        let there = self.device.as_ref().map(|d| d.id.as_str());
        let worker = self.worker.as_ref().and_then(|w| w.split(',').next());
        there.or(worker).unwrap_or("cpu")
    }

    /// Whether they run on a device.
    #[must_use]
    pub fn is_on_device(&self) -> bool {
        // The processor as a device has a number.
        self.id() != "cpu"
    }

    /// How often something else was done than meant.
    #[must_use]
    pub fn fallbacks(&self) -> u64 {
        let chains = matches!(self.chains, ChainsInfo::Instead(_));
        u64::from(self.instead.is_some()) + u64::from(chains)
    }
}

impl fmt::Display for LayersInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.device, &self.worker) {
            (Some(device), _) => write!(f, "the drafter runs on {device}"),
            (None, Some(worker)) => write!(f, "the drafter runs in a worker on {worker}"),
            (None, None) => f.write_str("the drafter runs on the processor"),
        }?;
        match (&self.instead, self.asked) {
            (Some(why), _) => write!(f, " instead: {why}"),
            (None, Some(asked)) => write!(f, ": asked for {asked}"),
            (None, None) => Ok(()),
        }?;
        write!(f, "; {}", self.chains)
    }
}

/// The place that is meant.
pub(super) fn choice(asked: Option<DraftDevice>, how: &DeviceOptions) -> DeviceChoice {
    match asked {
        Some(DraftDevice::On(choice)) => choice,
        Some(DraftDevice::Same) | None => how.choice.last(),
    }
}

/// The drafter's layers in this process, where they are to run.
pub(super) fn place(
    asked: Option<DraftDevice>,
    how: &DeviceOptions,
    model: &Arc<DraftModel>,
    placed: &Placed,
    options: Options,
) -> Result<(Box<dyn Backbone + Send>, LayersInfo), Error> {
    let choice = choice(asked, how);
    let there = placement::place_layers(choice, how, Arc::clone(model), options.clone());
    let instead = match there {
        Ok(Some((layers, device))) => {
            let info = LayersInfo {
                device: Some(device),
                chains: ChainsInfo::of(placed),
                ..LayersInfo::processor(asked)
            };
            return Ok((layers, info));
        }
        Ok(None) => None,
        Err(error) if asked.is_some() => return Err(error),
        Err(error) => {
            tracing::warn!(%error, "the drafter runs on the processor instead");
            Some(error.to_string())
        }
    };
    let info = LayersInfo {
        instead,
        chains: ChainsInfo::of(placed),
        ..LayersInfo::processor(asked)
    };
    Ok((on_processor(model, placed, options)?, info))
}

/// The drafter's layers on the host's threads.
pub(super) fn on_processor(
    model: &Arc<DraftModel>,
    placed: &Placed,
    options: Options,
) -> Result<Box<dyn Backbone + Send>, Error> {
    let (model, pool) = (Arc::clone(model), Arc::clone(&placed.pool));
    Ok(Box::new(LocalBackbone::new(model, pool, options)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_named_strictly() {
        let parse = |text: &str| text.parse::<DraftDevice>();
        assert_eq!(parse("same"), Ok(DraftDevice::Same));
        for choice in [
            DeviceChoice::Cpu,
            DeviceChoice::Cuda(1),
            DeviceChoice::Hip(0),
        ] {
            let on = DraftDevice::On(choice);
            assert_eq!(parse(&on.to_string()), Ok(on));
        }
        for bad in ["", "auto", "cuda", "SAME"] {
            let expected = format!("expected same, cpu, cuda:N or hip:N, got {bad:?}");
            assert_eq!(parse(bad), Err(expected));
        }
    }

    #[test]
    fn a_place_says_why() {
        const DRAWN: &str = "candidates are drawn on the processor";
        let on = LayersInfo::processor;
        let said = on(None).to_string();
        assert_eq!(said, format!("the drafter runs on the processor; {DRAWN}"));
        let said = on(Some(DraftDevice::On(DeviceChoice::Cpu))).to_string();
        let asked = "the drafter runs on the processor: asked for cpu";
        assert_eq!(said, format!("{asked}; {DRAWN}"));
        let instead = LayersInfo {
            instead: Some("no room".to_owned()),
            chains: ChainsInfo::Instead("no kernel".to_owned()),
            ..on(None)
        };
        let said = instead.to_string();
        let want = "the drafter runs on the processor instead: no room";
        assert_eq!(said, format!("{want}; {DRAWN} instead: no kernel"));
        assert_eq!((on(None).fallbacks(), instead.fallbacks()), (0, 2));
    }
}
