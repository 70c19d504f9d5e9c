//! From choices to a drafter beside a target: loaded, checked against it, and described.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ds4_target::GgufSource;
use dspark_draft::backbone::Options;
use dspark_draft::config::TargetMatch;
use dspark_draft::drafter::DsparkDrafter;
use dspark_draft::error::DraftError;
use dspark_draft::suffix::{Chooser, Suffix, SuffixOptions};
use dspark_draft::weights::DraftModel;
use engine_core::Drafter;
use engine_core::seams::Backbone;
use gguf::{Gguf, OpenOptions};
use scheduler::{Policy, Speculation};

use super::layers::{self, ChainsInfo, LayersInfo};
use super::worker::{self, StartError, Step};
use super::{
    Draft, DraftInfo, DraftOptions, DraftSource, Pairing, WARM_UP, WorkerInfo, WorkerMode,
    WorkerOptions, WorkerTransport,
};
use crate::error::Error;
use crate::placement::{DeviceChoice, DeviceOptions, Placed};

/// A drafter's model beside its target.
type Model = DsparkDrafter<Box<dyn Backbone + Send>>;

/// A drafter that was asked for, before anything is started for it.
pub(crate) struct Opened {
    source: DraftSource,
    /// The file and its model, if there is one.
    model: Option<(PathBuf, Arc<DraftModel>)>,
    /// Bytes of the file's tensors.
    tensor_bytes: u64,
}

impl Opened {
    /// The model.
    pub(crate) fn model(&self) -> Option<&DraftModel> {
        self.model.as_ref().map(|(_, model)| &**model)
    }
}

/// Opens what was asked for; `None` if nothing was.
pub(crate) fn open(draft: &Draft, options: &DraftOptions) -> Result<Option<Opened>, Error> {
    let path = draft.path()?;
    check_worker(&options.worker, path.is_some())?;
    check_device(options, path.is_some())?;
    let Some(source) = source(path.is_some(), options)? else {
        return Ok(None);
    };
    let load = |path: PathBuf| {
        let file = Gguf::open(&path, &OpenOptions::default())?;
        let bytes = file.tensor_bytes();
        let model = DraftModel::load(&GgufSource::new(file))?;
        Ok::<_, Error>(((path, Arc::new(model)), bytes))
    };
    let (model, bytes) = path.map(load).transpose()?.unzip();
    Ok(Some(Opened {
        source,
        model,
        tensor_bytes: bytes.unwrap_or(0),
    }))
}

/// Makes what speculates for a target.
pub(crate) fn load(
    opened: Opened,
    options: &DraftOptions,
    device: &DeviceOptions,
    placed: &Placed,
    sequences: usize,
) -> Result<(Speculation, DraftInfo), Error> {
    let info = placed.target.info();
    let source = opened.source;
    let (path, started) = match opened.model {
        Some((path, model)) => {
            let started = start(&path, model, options, device, placed, sequences)?;
            (Some(path), Some(started))
        }
        None => (None, None),
    };
    let (model, layers, worker) = match started {
        Some((model, layers, worker)) => (Some(model), Some(layers), worker),
        None => (None, None, None),
    };
    let meta = model.as_ref().map(|m| m.model().meta.clone());
    let most = info.verify_max.saturating_sub(1);
    let block = meta.as_ref().map_or(most, |m| m.block);
    let deepest = match source {
        DraftSource::Backbone => most.min(block),
        DraftSource::Suffix | DraftSource::Auto => most,
    };
    let depth = depth(options, deepest)?;
    let confident =
        source != DraftSource::Backbone || meta.as_ref().is_some_and(|m| m.confidence.is_some());
    let policy = policy(options, depth, confident)?;
    let pairing = model.as_ref().map(|m| match m.pairing() {
        TargetMatch::Same => Pairing::Same,
        TargetMatch::Unrecorded => Pairing::Unrecorded,
        TargetMatch::Other { .. } => Pairing::Other,
    });
    if let Some(pairing) = pairing.filter(|p| *p != Pairing::Same) {
        tracing::warn!(file = ?path, "the drafter: {pairing}");
    }
    let tap_window = meta.as_ref().map_or(0, |m| m.stage.window);
    let info = DraftInfo {
        source,
        file: path,
        tensor_bytes: opened.tensor_bytes,
        policy: policy.clone(),
        depth,
        pairing,
        layers,
        worker,
    };
    let speculation = Speculation {
        drafter: drafter(source, model, block, sequences),
        policy,
        depth,
        tap_window,
        overlap: options.worker.overlap,
        warm_up: options.warm_up.unwrap_or(WARM_UP),
    };
    Ok((speculation, info))
}

/// A worker needs a model, and a transport a worker.
fn check_worker(worker: &WorkerOptions, model: bool) -> Result<(), Error> {
    let (mode, transport) = (worker.mode, worker.transport);
    if mode == WorkerMode::Off && worker.overlap {
        let expected = "off without a draft worker";
        return Err(refusal("draft overlap", expected, "on"));
    }
    if mode != WorkerMode::Off && !model {
        let expected = "off without a drafter's model";
        return Err(refusal("draft worker", expected, mode.name()));
    }
    if mode == WorkerMode::Off && transport != WorkerTransport::Auto {
        let expected = "auto without a draft worker";
        return Err(refusal("draft transport", expected, transport.name()));
    }
    if let (WorkerMode::Off, Some(command)) = (mode, &worker.command) {
        let expected = "none without a draft worker";
        let got = command.program.display();
        return Err(refusal("draft worker program", expected, got));
    }
    Ok(())
}

/// A place needs a model.
fn check_device(options: &DraftOptions, model: bool) -> Result<(), Error> {
    match options.device {
        Some(asked) if !model => {
            let expected = "none without a drafter's model";
            Err(refusal("draft device", expected, asked))
        }
        _ => Ok(()),
    }
}

fn refusal(option: &'static str, expected: impl Into<String>, got: impl ToString) -> Error {
    Error::Draft(DraftError::Option {
        option,
        expected: expected.into(),
        got: got.to_string(),
    })
}

/// Where candidates come from; `None` if drafting is off.
fn source(model: bool, options: &DraftOptions) -> Result<Option<DraftSource>, Error> {
    const NONE: &str = "a drafter beside it (the shipped one, a file, or source suffix)";
    match (model, options.source) {
        (true, Some(DraftSource::Suffix)) => Err(refusal(
            "draft source",
            "backbone or auto, with a drafter's model, or no model",
            "suffix",
        )),
        (true, source) => Ok(Some(source.unwrap_or(DraftSource::Auto))),
        (false, Some(DraftSource::Suffix)) => Ok(Some(DraftSource::Suffix)),
        (false, Some(source)) => Err(refusal("draft source", NONE, source.name())),
        (false, None) => match (&options.policy, options.depth) {
            (Some(policy), _) => Err(refusal("draft policy", NONE, policy)),
            (None, Some(depth)) => Err(refusal("draft depth", NONE, depth)),
            (None, None) => Ok(None),
        },
    }
}

fn depth(options: &DraftOptions, deepest: usize) -> Result<usize, Error> {
    match options.depth {
        None => Ok(deepest),
        Some(depth) if (1..=deepest).contains(&depth) => Ok(depth),
        Some(depth) => Err(refusal(
            "draft depth",
            format!("1 to {deepest}, what drafter and target can"),
            depth,
        )),
    }
}

fn policy(options: &DraftOptions, depth: usize, confident: bool) -> Result<Policy, Error> {
    match options.policy.clone() {
        None => Ok(Policy::AverageReward(Default::default())),
        Some(Policy::Fixed(width)) if width > depth + 1 => Err(refusal(
            "draft policy",
            format!(
                "fixed:N with N up to {}, a seed and {depth} candidates",
                depth + 1
            ),
            format!("fixed:{width}"),
        )),
        Some(policy @ Policy::Threshold { .. }) if !confident => Err(refusal(
            "draft policy",
            "fixed:N, ewma or reward: the drafter has no confidence head",
            policy,
        )),
        Some(policy) => Ok(policy),
    }
}

fn start(
    path: &Path,
    model: Arc<DraftModel>,
    how: &DraftOptions,
    device: &DeviceOptions,
    placed: &Placed,
    sequences: usize,
) -> Result<(Model, LayersInfo, Option<WorkerInfo>), Error> {
    // A wrong pair is refused before anything is started for it.
    model.meta.check_target(&model.file, placed.target.info())?;
    let options = Options {
        n_seq_max: sequences,
        verify_max: placed.target.info().verify_max,
        ..Options::default()
    };
    let pool = Arc::clone(&placed.pool);
    let (backbone, layers, worker) = if how.worker.mode == WorkerMode::Off {
        let (backbone, info) = layers::place(how.device, device, &model, placed, options)?;
        (backbone, info, None)
    } else {
        let (backbone, layers, info) = in_worker(path, how, device, &model, placed, options)?;
        (backbone, layers, Some(info))
    };
    let drafter = DsparkDrafter::new(model, backbone, placed.target.info(), pool)?;
    Ok((drafter, layers, worker))
}

/// A backbone beside a worker, where its layers run, and what became of the worker.
type Worked = (Box<dyn Backbone + Send>, LayersInfo, WorkerInfo);

/// The drafter's layers in a worker, or else in this process.
fn in_worker(
    path: &Path,
    how: &DraftOptions,
    device: &DeviceOptions,
    model: &Arc<DraftModel>,
    placed: &Placed,
    options: Options,
) -> Result<Worked, Error> {
    let worker = &how.worker;
    let info = |watch| WorkerInfo {
        mode: worker.mode,
        overlap: worker.overlap,
        watch,
    };
    let start = |choice| {
        let place = worker::place(choice, device);
        worker::start(worker, path, model, placed, &options, place)
    };
    let mut layers = LayersInfo {
        chains: ChainsInfo::of(placed),
        ..LayersInfo::processor(how.device)
    };
    let choice = layers::choice(how.device, device);
    let started = match start(choice) {
        // Meant, not named: the processor will do.
        Err(error) if how.device.is_none() && choice != DeviceChoice::Cpu => {
            tracing::warn!(%error, "the draft worker runs on the processor instead");
            layers.instead = Some(error.to_string());
            start(DeviceChoice::Cpu)
        }
        started => started,
    };
    match started {
        Ok((backbone, watch)) => {
            layers.worker = Some(watch.report().device);
            Ok((backbone, layers, info(watch)))
        }
        Err(error) if is_fatal(worker, &error) => Err(Error::Worker(error)),
        Err(error) => {
            tracing::warn!(%error, "drafting in this process instead");
            let (backbone, layers) = layers::place(how.device, device, model, placed, options)?;
            Ok((backbone, layers, info(worker::instead(&error))))
        }
    }
}

/// Whether a start that failed ends the program: a worker is required, or a transport was named that
/// cannot be.
fn is_fatal(worker: &WorkerOptions, error: &StartError) -> bool {
    let named = worker.transport == WorkerTransport::Shared && error.step == Step::Region;
    worker.mode == WorkerMode::Required || named
}

fn drafter(
    source: DraftSource,
    model: Option<Model>,
    block: usize,
    sequences: usize,
) -> Box<dyn Drafter + Send> {
    let suffix = || {
        let defaults = SuffixOptions::default();
        Suffix::new(SuffixOptions {
            texts_max: defaults.texts_max.max(sequences),
            ..defaults
        })
    };
    match (model, source) {
        (Some(model), DraftSource::Auto) => Box::new(Chooser::new(model, block as u32, suffix())),
        (Some(model), _) => Box::new(model),
        (None, _) => Box::new(suffix()),
    }
}
