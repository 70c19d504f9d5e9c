//! A model at full size with made-up weights (label synth, `ds4_target::synth`) on a device: load, a few tokens held against
//! the CPU bit by bit, then what passes cost.
//!
//! `flash [--model synth:flash] [--device cuda:0] [--cache FOLDER] [--compare N] [--chunk N] [--steps N] [--depth N,N,..] [--widths N,N,..] [--span N]
//! [--clock N] [--early-launch on|off] [--check on|off]`. `--compare 0` compares nothing, `--check on` reads
//! all weights back and compares them, `--chunk` is the tokens of the
//! compared chunk; `--clock N` prints the N longest kernels of a
//! step and of a chunk; `--early-launch off` lets no kernel start before the one ahead has ended. A device makes its
//! weights itself; what the CPU is compared with is made in the host's memory, all of it (a Flash model: 104 GB), and
//! refused where that is not there.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use device::cache::Cache;
use device::driver::{Driver, Kind};
use device::{Device, cuda, hip};
use ds4_kernels::cpu::synth::word;
use ds4_target::on_device::{DeviceTarget, Settings};
use ds4_target::synth::{Synth, SynthSource};
use ds4_target::{CpuTarget, Model, Options};
use engine_core::{Out, SamplePlan, SeqId, Span, Tap, Target, TokenId, Want};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

struct Args {
    model: Synth,
    device: String,
    cache: Option<std::path::PathBuf>,
    compare: usize,
    chunk: usize,
    steps: usize,
    depths: Vec<usize>,
    widths: Vec<usize>,
    clock: usize,
    early_launch: bool,
    check: bool,
    options: Options,
}

fn args() -> Result<Args> {
    let mut a = Args {
        model: "synth:flash".parse()?,
        device: "cuda:0".into(),
        cache: None,
        compare: 3,
        chunk: 8,
        steps: 50,
        depths: vec![64, 2048, 8192],
        widths: vec![1, 2, 3, 4, 5, 6, 8],
        clock: 0,
        early_launch: true,
        check: false,
        options: Options {
            n_ctx: 32_768,
            n_seq_max: 2,
            span_max: 2048,
            ..Options::default()
        },
    };
    let mut given = std::env::args().skip(1);
    while let Some(name) = given.next() {
        let value = given.next().ok_or(format!("{name}: a value is missing"))?;
        match name.as_str() {
            "--model" => a.model = value.parse()?,
            "--device" => a.device = value,
            "--cache" => a.cache = Some(value.into()),
            "--compare" => a.compare = value.parse()?,
            "--chunk" => a.chunk = value.parse()?,
            "--steps" => a.steps = value.parse()?,
            "--span" => a.options.span_max = value.parse()?,
            "--depth" => a.depths = numbers(&value)?,
            "--widths" => a.widths = numbers(&value)?,
            "--clock" => a.clock = value.parse()?,
            "--early-launch" => a.early_launch = switch(&name, &value)?,
            "--check" => a.check = switch(&name, &value)?,
            _ => return Err(format!("unknown option {name}").into()),
        }
    }
    Ok(a)
}

fn switch(name: &str, value: &str) -> Result<bool> {
    match value {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(format!("{name}: on or off").into()),
    }
}

/// Numbers between commas.
fn numbers(text: &str) -> Result<Vec<usize>> {
    let all = text.split(',').map(str::parse);
    Ok(all.collect::<std::result::Result<_, _>>()?)
}

fn main() -> Result<()> {
    let a = args()?;
    match Kind::of_name(&a.device) {
        Some((Kind::Cuda, n)) => run(&cuda::runtime(&cuda::Settings::default())?.open(n)?, &a),
        Some((Kind::Hip, n)) => run(&hip::runtime(&hip::Settings::default())?.open(n)?, &a),
        _ => Err("--device: cuda:N or hip:N".into()),
    }
}

fn span(seq: SeqId, pos: usize, n: usize, want: Want) -> Span {
    Span {
        seq,
        pos: pos as u32,
        range: 0..n,
        out: Out::All,
        want,
        tap: Tap::default(),
    }
}

fn ids(n: usize, seed: u64, vocab: usize) -> Vec<TokenId> {
    (0..n as u64)
        .map(|i| (word(seed, i) % vocab as u64) as TokenId)
        .collect()
}

/// Logits of one span as bits; commits `keep` tokens.
fn logits(t: &mut dyn Target, seq: SeqId, tokens: &[TokenId], keep: usize) -> Result<Vec<u32>> {
    let pos = t.pos(seq).ok_or("not open")? as usize;
    let ticket = t.submit(tokens, &[span(seq, pos, tokens.len(), Want::Logits)])?;
    let bits = t
        .wait(ticket, None)?
        .logits
        .iter()
        .map(|v| v.to_bits())
        .collect();
    t.commit(seq, (pos + keep) as u32);
    Ok(bits)
}

fn run<R: Driver>(device: &Device<R>, a: &Args) -> Result<()> {
    if !a.early_launch {
        device.turn_early_launch_off();
    }
    println!(
        "device {}: {}, early launch {}, label synth",
        device.id(),
        device.facts().name,
        device.early_launch()
    );
    let start = Instant::now();
    let model = Arc::new(Model::load(&SynthSource::new(&a.model))?);
    println!(
        "{}, bound in {:.1} s",
        a.model,
        start.elapsed().as_secs_f64()
    );
    let cache = a.cache.as_ref().map(|f| Cache::open(f, 1 << 30));
    let (start, mut bytes) = (Instant::now(), 0);
    let settings = Settings {
        cache: cache.transpose()?,
        progress: &mut |_, total| bytes = total,
        graph_tokens: 16,
        check: a.check,
    };
    let mut t = DeviceTarget::new(Arc::clone(&model), a.options.clone(), device, settings)?;
    let seconds = start.elapsed().as_secs_f64();
    println!("loaded {bytes} bytes of weights in {seconds:.1} s");
    compare(&model, &mut t, a)?;
    for depth in &a.depths {
        at_depth(&mut t, *depth, a)?;
    }
    println!("{:?}, {:?}", t.counts(), device.counters());
    Ok(())
}

/// A chunk, steps and a verify on both; every bit of logits and the state.
fn compare<R: Driver>(model: &Arc<Model>, t: &mut DeviceTarget<R>, a: &Args) -> Result<()> {
    if a.compare == 0 {
        return Ok(());
    }
    let start = Instant::now();
    let mut cpu = CpuTarget::new(Arc::clone(model), a.options.clone())?;
    println!(
        "the host's copy made in {:.1} s",
        start.elapsed().as_secs_f64()
    );
    let (x, y) = (cpu.open()?, t.open()?);
    let ids = ids(a.chunk + a.compare + 4, 3, model.meta.n_vocab);
    let (start, mut values, mut differing) = (Instant::now(), 0, 0);
    let mut at = 0;
    let steps = (0..a.compare).map(|_| (1, 1));
    for (n, keep) in [(a.chunk, a.chunk)]
        .into_iter()
        .chain(steps)
        .chain([(4, 2)])
    {
        let want = logits(&mut cpu, x, &ids[at..at + n], keep)?;
        let got = logits(t, y, &ids[at..at + n], keep)?;
        let wrong = want.iter().zip(&got).filter(|(w, g)| w != g).count();
        let finite = want
            .iter()
            .filter(|w| f32::from_bits(**w).is_finite())
            .count();
        println!(
            "{n} tokens at {at}: {} logits, {finite} finite, {wrong} differ",
            want.len()
        );
        values += want.len();
        differing += wrong;
        at += keep;
    }
    let same = cpu.digest(x)? == t.digest(y)?;
    let seconds = start.elapsed().as_secs_f64();
    println!("compared {values} logits, {differing} differ; states equal: {same}; {seconds:.1} s");
    t.close(y);
    if differing == 0 && same {
        return Ok(());
    }
    Err("the device differs from the CPU".into())
}

/// Prefill to a depth, then passes of the widths there, their tokens drawn on the device.
fn at_depth<R: Driver>(t: &mut DeviceTarget<R>, depth: usize, a: &Args) -> Result<()> {
    let seq = t.open()?;
    let ids = ids(depth.max(16), 9, t.info().n_vocab);
    let mut parts = Vec::new();
    for (at, part) in ids[..depth].chunks(t.info().span_max).enumerate() {
        let start = Instant::now();
        let pos = at * t.info().span_max;
        pass(t, seq, pos, part)?;
        t.commit(seq, (pos + part.len()) as u32);
        parts.push((part.len() as f64, start.elapsed().as_secs_f64()));
    }
    let (tokens, seconds) = parts.iter().fold((0.0, 0.0), |a, p| (a.0 + p.0, a.1 + p.1));
    let each: Vec<String> = parts.iter().map(|p| format!("{:.0}", p.0 / p.1)).collect();
    let (rate, each) = (tokens / seconds, each.join(", "));
    println!("prefill of {depth}: {rate:.0} tokens/s (chunk by chunk {each})");
    for q in a.widths.iter().copied() {
        width(t, seq, depth, q, a.steps)?;
    }
    if a.clock > 0 {
        for q in [1, t.info().span_max] {
            clocked(t, seq, depth, q, a.clock)?;
        }
    }
    t.close(seq);
    Ok(())
}

/// One pass of `tokens`, the last one's successor drawn on the device.
fn pass<R: Driver>(
    t: &mut DeviceTarget<R>,
    seq: SeqId,
    pos: usize,
    tokens: &[TokenId],
) -> Result<()> {
    let want = Want::Ids(Arc::new(SamplePlan::greedy()));
    let mut s = span(seq, pos, tokens.len(), want);
    s.out = Out::Last;
    let ticket = t.submit(tokens, &[s])?;
    t.wait(ticket, None)?;
    Ok(())
}

/// Times of passes of `q` tokens.
fn width<R: Driver>(
    t: &mut DeviceTarget<R>,
    seq: SeqId,
    depth: usize,
    q: usize,
    steps: usize,
) -> Result<()> {
    let ids = ids(depth.max(16), 9, t.info().n_vocab);
    let mut times = Vec::new();
    for i in 0..steps + 3 {
        let start = Instant::now();
        let want = Want::Ids(Arc::new(SamplePlan::greedy()));
        // New tokens each time: the first layers route by token.
        let tokens = &ids[(i * 3) % (ids.len() - q)..][..q];
        let ticket = t.submit(tokens, &[span(seq, depth, q, want)])?;
        t.wait(ticket, None)?;
        t.commit(seq, depth as u32);
        if i >= 3 {
            times.push(start.elapsed().as_secs_f64());
        }
    }
    times.sort_by(f64::total_cmp);
    let at = |share: usize| 1e3 * times[(times.len() - 1) * share / 4];
    println!(
        "  depth {depth}, {q} tokens: median {:.3} ms ({:.3} to {:.3}), {:.1} passes/s",
        at(2),
        at(1),
        at(3),
        1e3 / at(2)
    );
    Ok(())
}

/// The longest kernels of the second pass of `q` tokens.
fn clocked<R: Driver>(
    t: &mut DeviceTarget<R>,
    seq: SeqId,
    depth: usize,
    q: usize,
    most: usize,
) -> Result<()> {
    let ids = ids(q, 11, t.info().n_vocab);
    let mut at = t.pos(seq).map_or(depth, |pos| pos as usize);
    for clocked in [false, true] {
        if clocked {
            t.clock()?;
        }
        pass(t, seq, at, &ids)?;
        // A chunk's rows cannot be taken back: the sequence goes on.
        at += q;
        t.commit(seq, at as u32);
    }
    let all = t.clocked()?;
    let launches: u64 = all.iter().map(|c| c.launches).sum();
    let millis: f64 = all.iter().map(|c| c.millis).sum();
    println!(
        "  kernels at depth {}, {q} tokens: {launches} launches, {millis:.3} ms with gaps",
        at - q
    );
    for c in all.iter().take(most) {
        let [x, y, z] = c.grid;
        println!(
            "    {:<24} {:>17} {:>4} launches {:>9.3} ms, {:>8.1} us each",
            c.kernel,
            format!("{x}x{y}x{z}"),
            c.launches,
            c.millis,
            1e3 * c.millis / c.launches as f64
        );
    }
    Ok(())
}
