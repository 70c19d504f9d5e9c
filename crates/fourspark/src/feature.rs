//! What of the engine is on, what is off, and why. Shown at start-up, in `/props` and by `doctor`:
//! nothing is silently off.

use std::borrow::Cow;

use crate::model::ModelInfo;
use crate::placement::DeviceInfo;

/// A feature's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Its name, stable.
    pub name: &'static str,
    /// Whether it is in use.
    pub on: bool,
    /// Why: for one that is on, in which form.
    pub reason: Cow<'static, str>,
}

impl Feature {
    /// A feature in use.
    pub fn on(name: &'static str, reason: impl Into<Cow<'static, str>>) -> Self {
        Self {
            name,
            on: true,
            reason: reason.into(),
        }
    }

    /// A feature not in use.
    pub fn off(name: &'static str, reason: impl Into<Cow<'static, str>>) -> Self {
        Self {
            name,
            on: false,
            reason: reason.into(),
        }
    }
}

impl std::fmt::Display for Feature {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = if self.on { "on" } else { "off" };
        write!(f, "{} {state}: {}", self.name, self.reason)
    }
}

/// Whether the model runs on a device of a vendor.
fn vendor(info: &ModelInfo, name: &'static str, why_not: &'static str) -> Feature {
    let ours = |d: &&DeviceInfo| d.id.split(':').next() == Some(name);
    match info.device.as_ref().filter(ours) {
        Some(device) => Feature::on(name, format!("the model runs on {device}")),
        None => Feature::off(name, why_not),
    }
}

/// Whether several devices share the layers.
fn split(info: &ModelInfo) -> Feature {
    const NAME: &str = "layer_split";
    let split = info.device.as_ref().and_then(|d| d.split.as_ref());
    match split {
        Some(split) => Feature::on(NAME, split.to_string()),
        None => Feature::off(NAME, "not asked for: device cuda:N,cuda:M or hip:N,hip:M"),
    }
}

/// The process that runs the drafter's layers, as it was at the start.
fn worker(info: &ModelInfo) -> Feature {
    const NAME: &str = "draft_worker";
    let Some(draft) = &info.draft else {
        return Feature::off(NAME, "nothing is drafted");
    };
    match (&draft.worker, &draft.file) {
        (Some(worker), _) if worker.watch.report().transport.is_some() => {
            Feature::on(NAME, worker.to_string())
        }
        (Some(worker), _) => Feature::off(NAME, worker.to_string()),
        (None, Some(_)) => Feature::off(NAME, "not asked for: the drafter runs in this process"),
        (None, None) => Feature::off(NAME, "copies of the text need none"),
    }
}

/// Where the drafter's layers run.
fn layers(info: &ModelInfo) -> Feature {
    const NAME: &str = "draft_device";
    let place = info.draft.as_ref().and_then(|d| d.layers.as_ref());
    match place {
        None => Feature::off(NAME, "no drafter's model is loaded"),
        Some(place) if place.is_on_device() => Feature::on(NAME, place.to_string()),
        Some(place) => Feature::off(NAME, place.to_string()),
    }
}

/// The features of an engine over a model.
pub(crate) fn features(info: &ModelInfo) -> Vec<Feature> {
    let thinking = info.generation_remark.clone().unwrap_or_else(|| {
        format!(
            "prompt format {}, from general.architecture",
            info.generation
        )
    });
    let kv_sim = if info.kv_sim {
        Feature::on(
            "kv_sim",
            "the model's own roundings of cached rows, rows packed",
        )
    } else {
        Feature::off("kv_sim", "switched off: cached rows are kept in f32")
    };
    vec![
        Feature::on("cpu", format!("{} threads", info.threads)),
        vendor(info, "cuda", "not asked for: device cuda:N"),
        vendor(info, "hip", "not asked for: device hip:N"),
        split(info),
        kv_sim,
        match &info.draft {
            Some(draft) => Feature::on("draft", draft.to_string()),
            None => Feature::off(
                "draft",
                "no drafter was asked for, or the switch spec.draft is 0",
            ),
        },
        layers(info),
        worker(info),
        Feature::off(
            "prefix_cache",
            "not built yet: every prompt is computed from its first token",
        ),
        Feature::on(
            "batching",
            format!("up to {} sequences in a pass", info.sequences),
        ),
        Feature::on("thinking", thinking),
        Feature::on("tools", "DSML calls are parsed as they stream"),
        Feature::off("response_format", "this build has no constrained decoding"),
        Feature::off("logprobs", "this build does not report log-probabilities"),
    ]
}
