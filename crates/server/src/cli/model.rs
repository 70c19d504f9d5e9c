//! From arguments to an engine and a sampling plan.

use std::sync::Arc;

use anyhow::{Context, Result};
use fourspark::shipped::candidates;
use fourspark::{
    DeviceOptions, Draft, DraftDevice, DraftOptions, Effort, Engine, EngineOptions, Error,
    Generate, ModelName, SamplePlan, Thinking, WorkerCommand, WorkerMode, WorkerOptions,
    shipped_model,
};

use super::args::{DialectArgs, ModelArgs, SampleArgs};
use super::{loading, out, switching};

/// The options that a command line stands for.
pub(crate) fn options(args: &ModelArgs) -> EngineOptions {
    let switches = switching::effective();
    let (draft, draft_options) = drafting(args, switches.is_on("spec.draft"));
    let device = DeviceOptions {
        choice: args.device.clone(),
        images: args.kernel_cache.clone(),
        graphs: switches.is_on("device.graphs"),
        early_launch: switches.is_on("device.early_launch"),
        check_load: switches.is_on("device.check_load"),
        progress: loading::progress(),
        ..DeviceOptions::default()
    };
    EngineOptions {
        ctx: args.ctx.map(|n| n as usize),
        threads: args.threads.map(usize::from),
        chunk: args.chunk.map(|n| n as usize),
        kv_sim: !args.no_kv_sim,
        dialects: dialects(&args.dialect),
        device,
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
        device: device(args, asked != Draft::Off),
        worker: worker(args, asked != Draft::Off),
        warm_up: (!switching::effective().is_on("draft.warm_up")).then_some(0.0),
    };
    (asked, options)
}

/// The place asked for: by the option, or by the switch where there is a drafter.
fn device(args: &ModelArgs, drafter: bool) -> Option<DraftDevice> {
    let switches = switching::effective();
    // The word auto names no place.
    let switch = switches.value("draft.device").parse().ok();
    args.draft_device.or(switch.filter(|_| drafter))
}

/// Variables by which vendors' libraries find themselves and number their devices: a worker must see the same devices.
const VENDORS: [&str; 6] = [
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
];

/// The worker asked for: by the options, or by the switches where there is a drafter.
fn worker(args: &ModelArgs, drafter: bool) -> WorkerOptions {
    let switches = switching::effective();
    let mode = switches.value("draft.worker").parse().ok();
    let transport = switches.value("draft.transport").parse().ok();
    let named = args.draft_worker_program.clone();
    let isa = switches.settings().iter();
    let isa = isa.filter(|s| s.switch.name == "cpu.isa");
    let isa = isa.map(|s| (s.switch.variable.into(), s.value.as_str().into()));
    let vendors = ::switches::environment().filter(|(name, _)| VENDORS.contains(&name.as_str()));
    let vendors = vendors.map(|(name, value)| (name.into(), value.into()));
    let command = WorkerCommand {
        // The same program, even where its file has been replaced.
        program: named.clone().unwrap_or_else(|| "/proc/self/exe".into()),
        args: vec!["draft-worker".into()],
        env: isa.chain(vendors).collect(),
    };
    let mode = args.draft_worker.or(mode.filter(|_| drafter));
    let mode = mode.unwrap_or_default();
    // A switch without anything to act on is none; an option is refused.
    let transport = transport.filter(|_| mode != WorkerMode::Off);
    let overlap = switches.value("draft.overlap") == "on" && mode != WorkerMode::Off;
    let asked = args.draft_overlap.as_deref().map(|word| word == "on");
    WorkerOptions {
        mode,
        transport: args.draft_transport.or(transport).unwrap_or_default(),
        overlap: asked.unwrap_or(overlap),
        // One that was named and has nothing to serve is refused.
        command: (mode != WorkerMode::Off || named.is_some()).then_some(command),
    }
}

/// Meanings of ambiguous type ids; the names were checked when they were read.
pub(crate) fn dialects(args: &DialectArgs) -> gguf::Dialects {
    gguf::Dialects {
        fp2: args.fp2.as_deref().and_then(gguf::types::fp2_from_name),
        fp6: args.fp6.as_deref().and_then(gguf::types::fp6_from_name),
    }
}

/// The model: the one named, saying so of made-up weights, or the shipped one, saying so.
pub(crate) fn name(args: &ModelArgs) -> Result<ModelName> {
    if let Some(name) = &args.model {
        if let ModelName::Synth(synth) = name {
            out::note(&format!(
                "label synth: {synth} is made-up weights; what they say means nothing, and no figure is a real model's"
            ));
        }
        return Ok(name.clone());
    }
    let path = shipped_model().ok_or_else(|| Error::NoShippedModel {
        looked: candidates(),
    });
    let path = path.context("without --model")?;
    out::note(&format!(
        "no --model: using the shipped one, {}",
        path.display()
    ));
    Ok(path.into())
}

/// Loads the model.
pub(crate) fn load(args: &ModelArgs, options: EngineOptions) -> Result<Engine> {
    let engine = Engine::load(name(args)?, &options)?;
    for feature in &*engine.features() {
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
