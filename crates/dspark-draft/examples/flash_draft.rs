//! A drafter with the shapes of the Flash model's and made-up weights (label synth) on a device: what features and a
//! block cost, and beside a target of full size what a whole draft costs and what the target's own passes do.
//!
//! `flash_draft [--device cuda:0] [--cache FOLDER] [--target none|flash] [--steps N] [--compare 0|1] [--clock N]`.
//! `--compare 1` first holds a block against the CPU bit by bit; `--clock N` prints the N longest kernels of a block.
//! Matrices are FP4_FAST, router and Markov head F16. Made-up candidates are never accepted: only times mean anything.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use device::cache::Cache;
use device::driver::{Driver, Kind};
use device::{Device, cuda, hip};
use ds4_kernels::cpu::synth::word;
use ds4_target::Model;
use ds4_target::on_device::{DeviceTarget, Markov, Settings};
use ds4_target::pool::Pool;
use ds4_target::source::{MetaValue, RawTensor, Source};
use ds4_target::synth::{self, Synth, SynthSource};
use dspark_draft::backbone::{LocalBackbone, Options};
use dspark_draft::drafter::DsparkDrafter;
use dspark_draft::on_device::DeviceBackbone;
use dspark_draft::weights::DraftModel;
use engine_core::seams::{Ask, Backbone, DraftRows, Drafter};
use engine_core::{Epoch, Out, Pos, SamplePlan, SeqId, Span, Tap, Target, TokenId, Want};
use fpx_quant::Format;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What the weights are made from.
const SEED: u64 = 0;
const ARCH: &str = "deepseek4-dflash-draft";
const STAGES: usize = 3;
const D: u64 = 4096;
const VOCAB: u64 = 129_280;
const RANK: u64 = 256;
const CAPTURE: [i64; STAGES] = [40, 41, 42];

/// The drafter's table.
struct Drafts;

/// Whole numbers by key.
const SIZES: &[(&str, i64)] = &[
    ("block_count", STAGES as i64),
    ("embedding_length", D as i64),
    ("vocab_size", VOCAB as i64),
    ("attention.head_count", 64),
    ("attention.head_count_kv", 1),
    ("attention.key_length", 512),
    ("attention.value_length", 512),
    ("rope.dimension_count", 64),
    ("attention.q_lora_rank", 1024),
    ("attention.output_lora_rank", 1024),
    ("attention.output_group_count", 8),
    ("attention.sliding_window", 128),
    ("expert_count", 256),
    ("expert_used_count", 6),
    ("expert_shared_count", 1),
    ("expert_feed_forward_length", 2048),
    ("hyper_connection.count", 4),
    ("hyper_connection.sinkhorn_iterations", 20),
    ("dflash.n_target_layers", STAGES as i64),
    ("dflash.block_size", 5),
    ("dflash.mask_token_id", 128_799),
    ("dflash.dspark.enabled", 1),
    ("dflash.dspark.markov_rank", RANK as i64),
    ("dflash.dspark.vocab_size", VOCAB as i64),
    ("dflash.dspark.confidence_dim", (D + RANK) as i64),
    ("dflash.dspark.confidence.enabled", 1),
];

const FLOATS: &[(&str, f64)] = &[
    ("rope.freq_base", 1e4),
    ("swiglu_clamp_exp", 10.0),
    ("expert_weights_scale", 1.5),
    ("hyper_connection.epsilon", 1e-6),
    ("attention.layer_norm_rms_epsilon", 1e-6),
];

/// Tensors of a stage: name, shape with the input dimension first, format.
const STAGE: &[(&str, &[u64], Format)] = &[
    ("hc_attn_fn.weight", &[4 * D, 24], Format::F16),
    ("hc_attn_base.weight", &[24], Format::F32),
    ("hc_attn_scale.weight", &[3], Format::F32),
    ("attn_norm.weight", &[D], Format::F32),
    ("attn_q_a.weight", &[D, 1024], Format::Fp4Fast),
    ("attn_q_a_norm.weight", &[1024], Format::F32),
    ("attn_q_b.weight", &[1024, 32_768], Format::Fp4Fast),
    ("attn_kv.weight", &[D, 512], Format::Fp4Fast),
    ("attn_kv_a_norm.weight", &[512], Format::F32),
    ("attn_sinks.weight", &[64], Format::F32),
    ("attn_output_a.weight", &[D, 8192], Format::Fp4Fast),
    ("attn_output_b.weight", &[8192, D], Format::Fp4Fast),
    ("hc_ffn_fn.weight", &[4 * D, 24], Format::F16),
    ("hc_ffn_base.weight", &[24], Format::F32),
    ("hc_ffn_scale.weight", &[3], Format::F32),
    ("ffn_norm.weight", &[D], Format::F32),
    ("ffn_gate_inp.weight", &[D, 256], Format::F16),
    ("exp_probs_b.bias", &[256], Format::F32),
    ("ffn_gate_exps.weight", &[D, 2048, 256], Format::Fp4Fast),
    ("ffn_up_exps.weight", &[D, 2048, 256], Format::Fp4Fast),
    ("ffn_down_exps.weight", &[2048, D, 256], Format::Fp4Fast),
    ("ffn_gate_shexp.weight", &[D, 2048], Format::Fp4Fast),
    ("ffn_up_shexp.weight", &[D, 2048], Format::Fp4Fast),
    ("ffn_down_shexp.weight", &[2048, D], Format::Fp4Fast),
];

/// The other tensors.
const WHOLE: &[(&str, &[u64], Format)] = &[
    ("dflash.fc.weight", &[3 * D, D], Format::Fp4Fast),
    ("dflash.hidden_norm.weight", &[D], Format::F32),
    ("output_hc_fn.weight", &[4 * D, 4], Format::F16),
    ("output_hc_base.weight", &[4], Format::F32),
    ("output_hc_scale.weight", &[1], Format::F32),
    ("output_norm.weight", &[D], Format::F32),
    ("dflash.dspark.markov.w1", &[RANK, VOCAB], Format::F16),
    ("dflash.dspark.markov.w2", &[RANK, VOCAB], Format::F16),
    (
        "dflash.dspark.confidence.weight",
        &[D + RANK, 1],
        Format::F16,
    ),
    ("dflash.dspark.confidence.bias", &[1], Format::F32),
];

impl Source for Drafts {
    fn name(&self) -> &str {
        "synth:flash-draft"
    }

    fn meta(&self, key: &str) -> Option<MetaValue> {
        if key == "general.architecture" {
            return Some(MetaValue::Str(ARCH.to_owned()));
        }
        let key = key.strip_prefix(ARCH)?.strip_prefix('.')?;
        if key == "dflash.capture_layer_ids" {
            return Some(MetaValue::Ints(CAPTURE.to_vec()));
        }
        let size = SIZES.iter().find(|(name, _)| *name == key);
        let float = FLOATS.iter().find(|(name, _)| *name == key);
        let size = size.map(|(_, v)| MetaValue::Int(*v));
        size.or_else(|| float.map(|(_, v)| MetaValue::Float(*v)))
    }

    fn tensor(&self, name: &str) -> Option<RawTensor> {
        let stage = name.strip_prefix("blk.").and_then(|n| n.split_once('.'));
        let (table, short) = match stage {
            Some((n, short)) if n.parse::<usize>().ok()? < STAGES => (STAGE, short),
            Some(_) => return None,
            None => (WHOLE, name),
        };
        let (_, shape, format) = table.iter().find(|(n, ..)| *n == short)?;
        synth::tensor(SEED, name, shape.to_vec(), *format)
    }

    fn tensor_names(&self) -> Vec<String> {
        let stages = (0..STAGES).flat_map(|s| {
            let of = move |(name, ..): &(&str, &[u64], Format)| format!("blk.{s}.{name}");
            STAGE.iter().map(of)
        });
        let whole = WHOLE.iter().map(|(name, ..)| (*name).to_owned());
        stages.chain(whole).collect()
    }
}

struct Args {
    device: String,
    cache: Option<std::path::PathBuf>,
    target: bool,
    steps: usize,
    compare: bool,
    clock: usize,
}

fn args() -> Result<Args> {
    let mut a = Args {
        device: "cuda:0".into(),
        cache: None,
        target: false,
        steps: 50,
        compare: true,
        clock: 0,
    };
    let mut given = std::env::args().skip(1);
    while let Some(name) = given.next() {
        let value = given.next().ok_or(format!("{name}: a value is missing"))?;
        match (name.as_str(), value.as_str()) {
            ("--device", _) => a.device = value,
            ("--cache", _) => a.cache = Some(value.into()),
            ("--target", "none") => a.target = false,
            ("--target", "flash") => a.target = true,
            ("--steps", _) => a.steps = value.parse()?,
            ("--compare", "0") => a.compare = false,
            ("--compare", "1") => a.compare = true,
            ("--clock", _) => a.clock = value.parse()?,
            _ => return Err(format!("unknown option {name} {value}").into()),
        }
    }
    Ok(a)
}

fn main() -> Result<()> {
    let a = args()?;
    const NAMES: &str = "--device: cuda:N or hip:N";
    let model = Arc::new(DraftModel::load(&Drafts)?);
    match Kind::of_name(&a.device) {
        Some((Kind::Cuda, n)) => run(
            &cuda::runtime(&cuda::Settings::default())?.open(n)?,
            model,
            &a,
        ),
        Some((Kind::Hip, n)) => run(
            &hip::runtime(&hip::Settings::default())?.open(n)?,
            model,
            &a,
        ),
        _ => Err(NAMES.into()),
    }
}

/// Values between -1 and 1.
fn values(n: usize, seed: u64) -> Vec<f32> {
    let value = |i| (word(seed, i) >> 40) as f32 / 8_388_608.0 - 1.0;
    (0..n as u64).map(value).collect()
}

fn ask(seq: u32, pos: Pos, depth: u32) -> Ask {
    Ask {
        seq: SeqId(seq),
        epoch: Epoch(0),
        pos,
        ahead: 0,
        seed: 7,
        depth,
    }
}

/// Median and quartiles of times in milliseconds.
fn times(what: &str, steps: usize, mut work: impl FnMut() -> Result<()>) -> Result<()> {
    let mut times = Vec::new();
    for i in 0..steps + 3 {
        let start = Instant::now();
        work()?;
        if i >= 3 {
            times.push(1e3 * start.elapsed().as_secs_f64());
        }
    }
    times.sort_by(f64::total_cmp);
    let at = |share: usize| times[(times.len() - 1) * share / 4];
    let [low, median, high] = [1, 2, 3].map(at);
    println!("  {what}: median {median:.3} ms ({low:.3} to {high:.3})");
    Ok(())
}

fn run<R: Driver>(device: &Device<R>, model: Arc<DraftModel>, a: &Args) -> Result<()> {
    let (id, name) = (device.id(), &device.facts().name);
    let early = device.early_launch();
    println!("device {id}: {name}, early launch {early}, label synth");
    let options = Options {
        n_seq_max: 8,
        ..Options::default()
    };
    let cache = || a.cache.as_ref().map(|f| Cache::open(f, 1 << 30));
    let target = match a.target {
        true => Some(target(device, &model, cache().transpose()?)?),
        false => None,
    };
    let start = Instant::now();
    let settings = Settings {
        cache: cache().transpose()?,
        progress: &mut |_, _| {},
        graph_tokens: 40,
        check: false,
    };
    let mut b = DeviceBackbone::new(Arc::clone(&model), options.clone(), device, settings)?;
    let [weights, state, scratch] = b.blocks().bytes();
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "loaded the drafter in {seconds:.1} s: {weights} bytes of weights, {state} of rows, {scratch} of scratch"
    );
    if a.compare {
        compare(&model, &mut b, options)?;
    }
    layers(&mut b, a)?;
    if let Some(target) = target {
        beside(target, b, &model, a)?;
    }
    Ok(())
}

/// A context and a block on both; every bit.
fn compare<R: Driver>(
    model: &Arc<DraftModel>,
    b: &mut DeviceBackbone<R>,
    options: Options,
) -> Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut cpu = LocalBackbone::new(Arc::clone(model), Arc::new(Pool::new(threads)), options)?;
    let (seq, n) = (SeqId(7), 140);
    let features = values(n * model.meta.feature_width(), 3);
    let block = values(model.meta.block * model.meta.stage.n_embd, 4);
    let start = Instant::now();
    let drafted = |b: &mut dyn Backbone| -> Result<(DraftRows, Vec<u8>)> {
        b.observe(seq, 9, &features)?;
        let ticket = b.submit(&[ask(7, 9 + n as Pos, 5)], &block)?;
        let rows = b.poll(ticket, None)?;
        let mut saved = Vec::new();
        b.save(seq, &mut saved)?;
        b.close(seq);
        Ok((rows, saved))
    };
    let ((want, context), (got, saved)) = (drafted(&mut cpu)?, drafted(b)?);
    let pairs = |a: &[f32], b: &[f32]| {
        let differ = a.iter().zip(b).filter(|(a, b)| a.to_bits() != b.to_bits());
        differ.count() + a.len().abs_diff(b.len())
    };
    let differ = pairs(&want.normed, &got.normed) + pairs(&want.pre_norm, &got.pre_norm);
    let values = want.normed.len() + want.pre_norm.len();
    let finite = want.normed.iter().filter(|v| v.is_finite()).count();
    let (same, seconds) = (context == saved, start.elapsed().as_secs_f64());
    println!(
        "compared {values} values ({finite} normed ones finite), {differ} differ; contexts equal: {same}; {seconds:.1} s"
    );
    match differ == 0 && same {
        true => Ok(()),
        false => Err("the device differs from the CPU".into()),
    }
}

/// Features and blocks alone.
fn layers<R: Driver>(b: &mut DeviceBackbone<R>, a: &Args) -> Result<()> {
    let (width, d) = (b.model().meta.feature_width(), b.model().meta.stage.n_embd);
    let rows = b.model().meta.block;
    for n in [1usize, 2, 4, 6, 128, 256] {
        let features = values(n * width, 5);
        times(&format!("features of {n} tokens"), a.steps, || {
            b.close(SeqId(0));
            b.observe(SeqId(0), 1000, &features)?;
            // Waits for it.
            b.blocks().read(0, 0, 1)?;
            Ok(())
        })?;
    }
    let features = values(256 * width, 6);
    for seq in 0..8 {
        b.close(SeqId(seq));
        b.observe(SeqId(seq), 1000, &features)?;
    }
    for asks in [1u32, 2, 4, 8] {
        let list: Vec<Ask> = (0..asks).map(|seq| ask(seq, 1256, 5)).collect();
        let block = values(asks as usize * rows * d, 8);
        let what = format!("a block of {rows} rows for {asks} sequences");
        times(&what, a.steps, || {
            let ticket = b.submit(&list, &block)?;
            b.poll(ticket, None)?;
            Ok(())
        })?;
    }
    if a.clock > 0 {
        clocked(b, a.clock)?;
    }
    println!("{:?}", b.blocks().launches());
    Ok(())
}

/// The longest kernels of a block.
fn clocked<R: Driver>(b: &mut DeviceBackbone<R>, most: usize) -> Result<()> {
    let n = b.model().meta.block * b.model().meta.stage.n_embd;
    b.blocks_mut().clock()?;
    let ticket = b.submit(&[ask(0, 1256, 5)], &values(n, 8))?;
    b.poll(ticket, None)?;
    let all = b.blocks_mut().clocked()?;
    let launches: u64 = all.iter().map(|c| c.launches).sum();
    let millis: f64 = all.iter().map(|c| c.millis).sum();
    println!("  kernels of a block: {launches} launches, {millis:.3} ms with gaps");
    for c in all.iter().take(most) {
        let [x, y, z] = c.grid;
        println!(
            "    {:<24} {:>17} {:>4} launches {:>9.3} ms",
            c.kernel,
            format!("{x}x{y}x{z}"),
            c.launches,
            c.millis
        );
    }
    Ok(())
}

/// A target of full size, with the drafter's chains.
fn target<R: Driver>(
    device: &Device<R>,
    draft: &DraftModel,
    cache: Option<Cache>,
) -> Result<DeviceTarget<R>> {
    let start = Instant::now();
    let options = ds4_target::Options {
        n_ctx: 4096,
        n_seq_max: 8,
        ..ds4_target::Options::default()
    };
    let settings = Settings {
        cache,
        progress: &mut |_, _| {},
        graph_tokens: 16,
        check: false,
    };
    let name: Synth = "synth:flash".parse()?;
    let flash = Arc::new(Model::load(&SynthSource::new(&name))?);
    let markov = Markov {
        first: &draft.heads.w1,
        second: &draft.heads.w2,
    };
    let markov = Some(markov);
    let target = DeviceTarget::with_chains(flash, options, markov, device, settings)?;
    let seconds = start.elapsed().as_secs_f64();
    println!("loaded a target of full size in {seconds:.1} s");
    Ok(target)
}

/// Passes of a target, and drafts of every depth beside it.
fn beside<R: Driver>(
    mut t: DeviceTarget<R>,
    b: DeviceBackbone<R>,
    model: &Arc<DraftModel>,
    a: &Args,
) -> Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let pool = Arc::new(Pool::new(threads));
    let mut drafter = DsparkDrafter::new(Arc::clone(model), b, t.info(), pool)?;
    let seq = t.open()?;
    drafter.close(seq);
    let tap = drafter.tap();
    let n = 256;
    let mut drawn = 0..;
    let mut ids = |n: usize| -> Vec<TokenId> {
        let id = |i| (word(3, i) % VOCAB) as TokenId;
        drawn.by_ref().take(n).map(id).collect()
    };
    let prompt = ids(n);
    pass(&mut t, &mut drafter, seq, &prompt, &tap)?;
    for q in [1usize, 2, 4, 6] {
        let tokens = ids(q);
        times(&format!("the target, {q} tokens at {n}"), a.steps, || {
            let ticket = t.submit(&tokens, &[span(seq, n, q, Tap::default())])?;
            t.wait(ticket, None)?;
            t.commit(seq, n as Pos);
            Ok(())
        })?;
    }
    let filtered = SamplePlan {
        top_p: 0.9,
        ..sampled()
    };
    let biased = SamplePlan {
        bias: Arc::from([(5, 1.0)]),
        ..SamplePlan::greedy()
    };
    let plans = [
        ("greedy", SamplePlan::greedy()),
        ("sampled", sampled()),
        ("filtered", filtered),
        ("with a bias, drawn on the processor", biased),
    ];
    for (name, plan) in plans {
        for depth in 1..=5 {
            let mut drawn = usize::MAX;
            times(&format!("a draft of {depth}, {name}"), a.steps, || {
                let asks = [Ask {
                    seq,
                    ..ask(0, n as Pos, depth)
                }];
                let drafted = drafter.propose(&mut t, &asks, &[&plan])?;
                drawn = drawn.min(drafted[0].tokens.len());
                Ok(())
            })?;
            if drawn < depth as usize {
                println!("    only {drawn} candidates: a row held no number");
            }
        }
    }
    println!("{:?}", t.counts());
    Ok(())
}

fn sampled() -> SamplePlan {
    SamplePlan {
        temperature: 0.8,
        seed: 4,
        ..SamplePlan::greedy()
    }
}

fn span(seq: SeqId, pos: usize, n: usize, tap: Tap) -> Span {
    Span {
        seq,
        pos: pos as Pos,
        range: 0..n,
        out: Out::Last,
        want: Want::Ids(Arc::new(SamplePlan::greedy())),
        tap,
    }
}

/// A prompt whose features the drafter sees.
fn pass<R: Driver>(
    t: &mut DeviceTarget<R>,
    drafter: &mut DsparkDrafter<DeviceBackbone<R>>,
    seq: SeqId,
    tokens: &[TokenId],
    tap: &Tap,
) -> Result<()> {
    let ticket = t.submit(tokens, &[span(seq, 0, tokens.len(), tap.clone())])?;
    let features = t.wait(ticket, None)?.features.clone();
    t.commit(seq, tokens.len() as Pos);
    drafter.observe(seq, 0, tokens, &features)?;
    Ok(())
}
