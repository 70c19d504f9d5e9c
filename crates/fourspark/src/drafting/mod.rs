//! Which drafter speculates and how. It changes speed, never output.
//!
//! Here are the choices and what may be known of them; `load` makes a drafter of them. What cannot work
//! together is refused when the engine is loaded, never ignored.

mod layers;
mod load;
pub mod worker;

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use scheduler::Policy;

use crate::error::Error;
use crate::shipped;

pub use layers::{ChainsInfo, DraftDevice, LayersInfo};
pub(crate) use load::{Opened, load, open};
pub use worker::{WorkerCommand, WorkerInfo, WorkerMode, WorkerOptions, WorkerTransport};

/// Which drafter to use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Draft {
    /// None.
    #[default]
    Off,
    /// The one that ships beside the shipped model.
    Shipped,
    /// A GGUF file.
    File(PathBuf),
}

impl Draft {
    /// The file to load, if any.
    fn path(&self) -> Result<Option<PathBuf>, Error> {
        match self {
            Self::Off => Ok(None),
            Self::File(path) => Ok(Some(path.clone())),
            Self::Shipped => {
                shipped::shipped_drafter()
                    .map(Some)
                    .ok_or_else(|| Error::NoShippedModel {
                        looked: shipped::drafter_candidates(),
                    })
            }
        }
    }
}

/// Where candidates come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftSource {
    /// The DSpark model.
    Backbone,
    /// Copies of what stood earlier in the text; needs no file.
    Suffix,
    /// Both: for each step the one that promises more.
    Auto,
}

impl DraftSource {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Backbone => "backbone",
            Self::Suffix => "suffix",
            Self::Auto => "auto",
        }
    }
}

impl FromStr for DraftSource {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        [Self::Backbone, Self::Suffix, Self::Auto]
            .into_iter()
            .find(|s| s.name() == name)
            .ok_or_else(|| format!("expected backbone, suffix or auto, got {name:?}"))
    }
}

/// How to draft. `None` where the default will do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DraftOptions {
    /// How many candidates a step verifies; by measured costs if `None`.
    pub policy: Option<Policy>,
    /// Most candidates of a step; as many as drafter and target can if `None`.
    pub depth: Option<usize>,
    /// Where they come from; both sources if `None` and there is a model.
    pub source: Option<DraftSource>,
    /// Where the drafter's layers run; where the model does, if they can, if `None`.
    pub device: Option<DraftDevice>,
    /// Whether the drafter's layers run in a process of their own.
    pub worker: WorkerOptions,
    /// Seconds that measuring passes and drafts may take before the first request; 1 if `None`, and 0 measures
    /// nothing. Used where widths go by measured costs.
    pub warm_up: Option<f64>,
}

/// Seconds of a warm-up.
pub(crate) const WARM_UP: f64 = 1.0;

/// A drafter in use.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftInfo {
    /// Where candidates come from.
    pub source: DraftSource,
    /// The drafter's file, if there is a model.
    pub file: Option<PathBuf>,
    /// Bytes of that file's tensors; 0 without one.
    pub tensor_bytes: u64,
    /// How widths are chosen.
    pub policy: Policy,
    /// Most candidates of a step.
    pub depth: usize,
    /// Whether the file says that it was made for this model.
    pub pairing: Option<Pairing>,
    /// Where its layers run, if there is a model.
    pub layers: Option<LayersInfo>,
    /// The process that runs the drafter's layers, or what became of it; `None`: none was asked for.
    pub worker: Option<WorkerInfo>,
}

/// What a drafter's file says about its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// It was made for this model.
    Same,
    /// Nothing.
    Unrecorded,
    /// It was made for another model, or another quantisation of this one.
    Other,
}

impl fmt::Display for Pairing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Same => "made for this model",
            Self::Unrecorded => "it does not say for which model it was made",
            Self::Other => "made for another model: it will draft badly",
        })
    }
}

impl fmt::Display for DraftInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "DSpark, {}", file.display())?,
            None => f.write_str("copies of the text")?,
        }
        let (source, policy) = (self.source.name(), &self.policy);
        write!(
            f,
            "; source {source}, policy {policy}, depth {}",
            self.depth
        )?;
        if let Some(pairing) = self.pairing {
            write!(f, "; {pairing}")?;
        }
        match (&self.worker, &self.layers) {
            (Some(worker), _) => write!(f, "; {worker}"),
            (None, Some(layers)) => write!(f, "; {layers}"),
            (None, None) => Ok(()),
        }
    }
}
