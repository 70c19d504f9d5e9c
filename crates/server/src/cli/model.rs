//! From arguments to an engine and a sampling plan.

use std::sync::Arc;

use anyhow::Result;
use fourspark::{Draft, Effort, Engine, EngineOptions, Generate, SamplePlan, Thinking};

use super::args::{ModelArgs, SampleArgs};
use super::out;

/// Loads the model, saying which when it was not named, and what is off.
pub(crate) fn load(args: &ModelArgs, options: EngineOptions) -> Result<Engine> {
    let options = EngineOptions {
        ctx: args.ctx.map(|n| n as usize),
        threads: args.threads.map(usize::from),
        kv_sim: !args.no_kv_sim,
        draft: match &args.draft {
            None => Draft::Off,
            Some(None) => Draft::Shipped,
            Some(Some(file)) => Draft::File(file.clone()),
        },
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
