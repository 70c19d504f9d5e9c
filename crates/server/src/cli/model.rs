//! From arguments to an engine and a sampling plan.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use fourspark::shipped::candidates;
use fourspark::{
    Draft, DraftOptions, Effort, Engine, EngineOptions, Error, Generate, SamplePlan, Thinking,
    shipped_model,
};

use super::args::{DialectArgs, ModelArgs, SampleArgs};
use super::{out, switching};

/// The options that a command line stands for.
pub(crate) fn options(args: &ModelArgs) -> EngineOptions {
    let (draft, draft_options) = drafting(args, switching::effective().is_on("spec.draft"));
    EngineOptions {
        ctx: args.ctx.map(|n| n as usize),
        threads: args.threads.map(usize::from),
        chunk: args.chunk.map(|n| n as usize),
        kv_sim: !args.no_kv_sim,
        dialects: dialects(&args.dialect),
        draft,
        draft_options,
        ..EngineOptions::default()
    }
}

/// The drafter and the way of drafting asked for, unless the switch takes them out, which is said.
fn drafting(args: &ModelArgs, switch: bool) -> (Draft, DraftOptions) {
    let asked = match &args.draft_model {
        Some(file) => Draft::File(file.clone()),
        None if args.draft => Draft::Shipped,
        None => Draft::Off,
    };
    if !switch && (asked != Draft::Off || args.draft_source.is_some()) {
        out::note("the drafter that was asked for is not loaded: the switch spec.draft is 0");
        return (Draft::Off, DraftOptions::default());
    }
    let options = DraftOptions {
        policy: args.draft_policy.clone(),
        depth: args.draft_depth.map(usize::from),
        source: args.draft_source,
    };
    (asked, options)
}

/// Meanings of ambiguous type ids; the names were checked when they were read.
pub(crate) fn dialects(args: &DialectArgs) -> gguf::Dialects {
    gguf::Dialects {
        fp2: args.fp2.as_deref().and_then(gguf::types::fp2_from_name),
        fp6: args.fp6.as_deref().and_then(gguf::types::fp6_from_name),
    }
}

/// The model file: the one named, or the shipped one, saying so.
pub(crate) fn path(args: &ModelArgs) -> Result<PathBuf> {
    if let Some(path) = &args.model {
        return Ok(path.clone());
    }
    let path = shipped_model().ok_or_else(|| Error::NoShippedModel {
        looked: candidates(),
    });
    let path = path.context("without --model")?;
    out::note(&format!(
        "no --model: using the shipped one, {}",
        path.display()
    ));
    Ok(path)
}

/// Loads the model.
pub(crate) fn load(args: &ModelArgs, options: EngineOptions) -> Result<Engine> {
    let engine = Engine::load(path(args)?, &options)?;
    for feature in engine.features() {
        tracing::info!("{feature}");
    }
    Ok(engine)
}

/// How to answer.
pub(crate) fn generate(args: &SampleArgs) -> Generate {
    let plan = SamplePlan {
        // Too small to tell from greedy, and too small to divide by.
        temperature: if args.temperature < 1e-5 {
            0.0
        } else {
            args.temperature
        },
        top_k: args.top_k,
        // 0 means the best token alone.
        top_p: args.top_p.max(f32::MIN_POSITIVE),
        min_p: args.min_p,
        seed: args.seed,
        ..SamplePlan::greedy()
    };
    Generate {
        plan: Arc::new(plan),
        max_tokens: args.max_tokens,
        ..Generate::default()
    }
}

/// Whether to think, and how hard.
pub(crate) fn thinking(args: &SampleArgs) -> Thinking {
    match args.effort {
        Some(effort) => effort,
        None if args.think => Thinking::On(Effort::default()),
        None => Thinking::Off,
    }
}
