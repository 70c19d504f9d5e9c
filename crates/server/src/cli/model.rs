//! From arguments to an engine and a sampling plan.

use std::sync::Arc;

use anyhow::{Result, bail};
use fourspark::{Effort, Engine, EngineOptions, Generate, SamplePlan, Thinking};

use super::args::{ModelArgs, SampleArgs};
use super::out;

/// Loads the model, saying which when it was not named, and what is off.
pub(crate) fn load(args: &ModelArgs, options: EngineOptions) -> Result<Engine> {
    let options = EngineOptions {
        ctx: args.ctx.map(|n| n as usize),
        threads: args.threads.map(usize::from),
        kv_sim: !args.no_kv_sim,
        ..options
    };
    let engine = match &args.model {
        Some(path) => Engine::load(path, &options)?,
        None => {
            let engine = Engine::load_shipped(&options)?;
            if let Some(file) = &engine.info().file {
                out::note(&format!(
                    "no --model: using the shipped one, {}",
                    file.display()
                ));
            }
            engine
        }
    };
    for feature in engine.features() {
        tracing::info!("{feature}");
    }
    Ok(engine)
}

/// How to answer. Values are checked here, so that a wrong one is a usage error with its name.
pub(crate) fn generate(args: &SampleArgs) -> Result<Generate> {
    let in_range = |name: &str, value: f32, low: f32, high: f32| {
        if (low..=high).contains(&value) {
            return Ok(());
        }
        bail!("--{name} is {value}, expected {low} to {high}")
    };
    in_range("temperature", args.temperature, 0.0, 100.0)?;
    in_range("top-p", args.top_p, f32::MIN_POSITIVE, 1.0)?;
    in_range("min-p", args.min_p, 0.0, 1.0)?;
    let plan = SamplePlan {
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        seed: args.seed,
        ..SamplePlan::greedy()
    };
    Ok(Generate {
        plan: Arc::new(plan),
        max_tokens: args.max_tokens,
        ..Generate::default()
    })
}

/// Whether to think, and how hard.
pub(crate) fn thinking(args: &SampleArgs) -> Thinking {
    match args.effort {
        Some(effort) => effort,
        None if args.think => Thinking::On(Effort::default()),
        None => Thinking::Off,
    }
}
