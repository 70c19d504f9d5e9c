//! Holds a device against the CPU: every logit bit and state digest, over chunk sizes, verify widths and batches;
//! then what a step costs.
//!
//! `on_device MODEL [--device cuda:0|hip:0|cpu] [--prompt FILE] [--tokens N] [--ctx N] [--span N] [--steps N]
//! [--cache FOLDER] [--threads N] [--graphs N]`. FILE holds token ids in decimal, anything between them. Without it the
//! tokens are drawn from a fixed seed. The CPU as a device needs the feature `host-exec`.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use device::cache::Cache;
use device::driver::Driver;
use device::{Device, Runtime, cpu, cuda, hip};
use ds4_target::on_device::{DeviceTarget, Settings};
use ds4_target::{CpuTarget, GgufSource, Model, Options};
use engine_core::{Out, SamplePlan, SeqId, Span, Tap, Target, TokenId, Want};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What was asked for.
struct Args {
    model: PathBuf,
    device: String,
    prompt: Option<PathBuf>,
    tokens: usize,
    steps: usize,
    cache: Option<PathBuf>,
    graphs: usize,
    options: Options,
}

fn args() -> Result<Args> {
    let mut given = std::env::args().skip(1);
    let model = given.next().ok_or("the model's file is missing")?.into();
    let mut a = Args {
        model,
        device: "cuda:0".into(),
        prompt: None,
        tokens: 320,
        steps: 100,
        cache: None,
        graphs: 16,
        options: Options {
            n_ctx: 4096,
            n_seq_max: 8,
            ..Options::default()
        },
    };
    while let Some(name) = given.next() {
        let value = given.next().ok_or(format!("{name}: a value is missing"))?;
        match name.as_str() {
            "--device" => a.device = value,
            "--prompt" => a.prompt = Some(value.into()),
            "--tokens" => a.tokens = value.parse()?,
            "--steps" => a.steps = value.parse()?,
            "--cache" => a.cache = Some(value.into()),
            "--graphs" => a.graphs = value.parse()?,
            "--ctx" => a.options.n_ctx = value.parse()?,
            "--span" => a.options.span_max = value.parse()?,
            "--threads" => a.options.threads = value.parse()?,
            _ => return Err(format!("unknown option {name}").into()),
        }
    }
    Ok(a)
}

fn main() -> Result<()> {
    let a = args()?;
    let (kind, ordinal) = a.device.split_once(':').unwrap_or((&a.device, "0"));
    let ordinal = ordinal.parse()?;
    match kind {
        "cuda" => run(&cuda::runtime(&cuda::Settings::default())?, ordinal, &a),
        "hip" => run(&hip::runtime(&hip::Settings::default())?, ordinal, &a),
        "cpu" => run(&cpu::runtime(64 << 30), ordinal, &a),
        _ => Err(format!("--device {}: expected cuda:N, hip:N or cpu", a.device).into()),
    }
}

/// The tokens of the run.
fn ids(a: &Args, n_vocab: usize) -> Result<Vec<TokenId>> {
    let wanted = a.tokens.min(a.options.n_ctx - 8);
    let mut ids = Vec::new();
    if let Some(file) = &a.prompt {
        let text = std::fs::read_to_string(file)?;
        let words = text.split(|c: char| !c.is_ascii_digit());
        for word in words.filter(|w| !w.is_empty()) {
            ids.push(word.parse::<TokenId>()?.min(n_vocab as TokenId - 1));
        }
    }
    // The rest from a fixed sequence (Knuth's MMIX generator).
    let mut state = 7u64;
    while ids.len() < wanted {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ids.push(((state >> 33) % n_vocab as u64) as TokenId);
    }
    ids.truncate(wanted);
    Ok(ids)
}

/// What plain decoding on the CPU gives.
struct Reference {
    ids: Vec<TokenId>,
    logits: Vec<f32>,
    /// State after all tokens.
    digest: [u8; 32],
    n_vocab: usize,
}

impl Reference {
    /// Compares rows that start at token `from`; prints a line.
    fn rows(&self, what: &str, from: usize, got: &[f32], differences: &mut u64) {
        let want = &self.logits[from * self.n_vocab..][..got.len()];
        let differ =
            |(w, g): &(&f32, &f32)| w.to_bits() != g.to_bits() && !(w.is_nan() && g.is_nan());
        let count = want.iter().zip(got).filter(differ).count() as u64;
        let first = want.iter().zip(got).position(|p| differ(&p));
        *differences += count;
        match first {
            None => println!("equal    {what}: {} logits from token {from}", got.len()),
            Some(at) => println!(
                "DIFFERS  {what}: {count} of {} logits, first at token {} id {}: {} and {}",
                got.len(),
                from + at / self.n_vocab,
                at % self.n_vocab,
                want[at],
                got[at]
            ),
        }
    }

    fn state(&self, what: &str, got: [u8; 32], differences: &mut u64) {
        let equal = got == self.digest;
        *differences += u64::from(!equal);
        println!(
            "{}  {what}: state",
            if equal { "equal  " } else { "DIFFERS" }
        );
    }
}

fn span(seq: SeqId, pos: usize, range: std::ops::Range<usize>, out: Out) -> Span {
    Span {
        seq,
        pos: pos as u32,
        range,
        out,
        want: Want::Logits,
        tap: Tap::default(),
    }
}

/// Runs tokens as one span, commits `accept`, and gives the logits of all rows.
fn feed<T: Target>(t: &mut T, seq: SeqId, tokens: &[TokenId], accept: usize) -> Result<Vec<f32>> {
    let pos = t.pos(seq).ok_or("not open")? as usize;
    let ticket = t.submit(tokens, &[span(seq, pos, 0..tokens.len(), Out::All)])?;
    let logits = t.wait(ticket, None)?.logits.clone();
    t.commit(seq, (pos + accept) as u32);
    Ok(logits)
}

fn reference(model: &Arc<Model>, a: &Args) -> Result<Reference> {
    let mut cpu = CpuTarget::new(Arc::clone(model), a.options.clone())?;
    let n_vocab = cpu.info().n_vocab;
    let ids = ids(a, n_vocab)?;
    let seq = cpu.open()?;
    let (mut logits, start) = (Vec::new(), Instant::now());
    for id in &ids {
        logits.extend(feed(&mut cpu, seq, &[*id], 1)?);
    }
    let rate = ids.len() as f64 / start.elapsed().as_secs_f64();
    println!("cpu: {} tokens one by one, {rate:.1} tokens/s", ids.len());
    let digest = cpu.digest(seq)?;
    Ok(Reference {
        ids,
        logits,
        digest,
        n_vocab,
    })
}

fn run<R: Driver>(runtime: &Runtime<R>, ordinal: u32, a: &Args) -> Result<()> {
    let device = runtime.open(ordinal)?;
    println!("device {}: {}", device.id(), device.facts().name);
    let source = GgufSource::new(gguf::Gguf::open(&a.model, &gguf::OpenOptions::default())?);
    let model = Arc::new(Model::load(&source)?);
    let mut target = load(&model, a, &device)?;
    let want = reference(&model, a)?;
    let mut differences = 0;
    chunks(&mut target, &want, &mut differences)?;
    widths(&mut target, &want, &mut differences)?;
    batch(&mut target, &want, &mut differences)?;
    steps(&mut target, &want, a.steps)?;
    println!("{differences} differences");
    if differences == 0 {
        return Ok(());
    }
    Err("the device differs from the CPU".into())
}

fn load<R: Driver>(model: &Arc<Model>, a: &Args, device: &Device<R>) -> Result<DeviceTarget<R>> {
    let cache = a.cache.as_ref().map(|f| Cache::open(f, 1 << 30));
    let start = Instant::now();
    let mut bytes = 0;
    let settings = Settings {
        cache: cache.transpose()?,
        progress: &mut |_, total| bytes = total,
        graph_tokens: a.graphs,
        check: false,
    };
    let target = DeviceTarget::new(Arc::clone(model), a.options.clone(), device, settings)?;
    let seconds = start.elapsed().as_secs_f64();
    println!("loaded {bytes} bytes of weights in {seconds:.2} s");
    Ok(target)
}

/// Prefill in chunks of several sizes.
fn chunks<R: Driver>(
    t: &mut DeviceTarget<R>,
    want: &Reference,
    differences: &mut u64,
) -> Result<()> {
    let span_max = t.info().span_max;
    for chunk in [1, 3, 8, 61, 128, span_max] {
        let seq = t.open()?;
        t.poison_stale(seq)?;
        let (mut got, start) = (Vec::new(), Instant::now());
        for part in want.ids.chunks(chunk.min(span_max)) {
            got.extend(feed(t, seq, part, part.len())?);
        }
        let rate = want.ids.len() as f64 / start.elapsed().as_secs_f64();
        let what = format!("chunks of {chunk} ({rate:.1} tokens/s with all logits)");
        want.rows(&what, 0, &got, differences);
        want.state(&what, t.digest(seq)?, differences);
        t.close(seq);
    }
    Ok(())
}

/// Verifies of every width, half of which stand.
fn widths<R: Driver>(
    t: &mut DeviceTarget<R>,
    want: &Reference,
    differences: &mut u64,
) -> Result<()> {
    for q in 2..=t.info().verify_max {
        let seq = t.open()?;
        let half = want.ids.len() / 2;
        for part in want.ids[..half].chunks(t.info().span_max) {
            feed(t, seq, part, part.len())?;
        }
        let (mut at, mut got) = (half, Vec::new());
        while at + q <= want.ids.len() {
            let accept = q.div_ceil(2);
            let rows = feed(t, seq, &want.ids[at..at + q], accept)?;
            got.extend_from_slice(&rows[..accept * want.n_vocab]);
            at += accept;
        }
        let what = format!("verify of {q}, {} accepted", q.div_ceil(2));
        want.rows(&what, half, &got, differences);
        while at < want.ids.len() {
            feed(t, seq, &want.ids[at..=at], 1)?;
            at += 1;
        }
        want.state(&what, t.digest(seq)?, differences);
        t.close(seq);
    }
    Ok(())
}

/// All sequences in one pass, each a few tokens behind the other.
fn batch<R: Driver>(
    t: &mut DeviceTarget<R>,
    want: &Reference,
    differences: &mut u64,
) -> Result<()> {
    let n = t.info().n_seq_max;
    let seqs = (0..n)
        .map(|_| t.open())
        .collect::<std::result::Result<Vec<_>, _>>()?;
    let mut at = vec![0usize; n];
    let mut got = vec![Vec::new(); n];
    let most = t.info().span_max;
    while at.iter().any(|p| *p < want.ids.len()) {
        let (mut tokens, mut spans, mut which) = (Vec::new(), Vec::new(), Vec::new());
        for (i, seq) in seqs.iter().enumerate() {
            let len = (1 + (at[i] * 7 + i * 5) % 40)
                .min(want.ids.len() - at[i])
                .min(most);
            if len > 0 {
                let range = tokens.len()..tokens.len() + len;
                tokens.extend_from_slice(&want.ids[at[i]..at[i] + len]);
                spans.push(span(*seq, at[i], range, Out::All));
                which.push((i, len));
            }
        }
        let ticket = t.submit(&tokens, &spans)?;
        let rows = t.wait(ticket, None)?.clone();
        for (s, (i, len)) in which.into_iter().enumerate() {
            for row in rows.span_rows[s].clone() {
                got[i].extend_from_slice(rows.logits(row).ok_or("no logits")?);
            }
            at[i] += len;
            t.commit(seqs[i], at[i] as u32);
        }
    }
    for (i, seq) in seqs.iter().enumerate() {
        let what = format!("sequence {i} of {n} in one pass");
        want.rows(&what, 0, &got[i], differences);
        want.state(&what, t.digest(*seq)?, differences);
        t.close(*seq);
    }
    Ok(())
}

/// A step whose rows give tokens alone; commits the first token.
fn step<R: Driver>(t: &mut DeviceTarget<R>, seq: SeqId, tokens: &[TokenId]) -> Result<()> {
    let pos = t.pos(seq).ok_or("not open")? as usize;
    let ids = Span {
        want: Want::Ids(Arc::new(SamplePlan::greedy())),
        ..span(seq, pos, 0..tokens.len(), Out::All)
    };
    let ticket = t.submit(tokens, &[ids])?;
    t.wait(ticket, None)?;
    t.commit(seq, pos as u32 + 1);
    Ok(())
}

/// What a step of 1, 2, 4, .. tokens costs, at the end of the tokens, with logits and with tokens alone; and
/// prefill without logits.
fn steps<R: Driver>(t: &mut DeviceTarget<R>, want: &Reference, steps: usize) -> Result<()> {
    let (span_max, n_ctx) = (t.info().span_max, t.options().n_ctx);
    for (q, logits) in [1, 2, 3, 4, 6, 8]
        .into_iter()
        .flat_map(|q| [(q, true), (q, false)])
    {
        let seq = t.open()?;
        for part in want.ids.chunks(span_max) {
            feed(t, seq, part, part.len())?;
        }
        let tokens = &want.ids[..q.min(want.ids.len())];
        let count = steps.min(n_ctx.saturating_sub(want.ids.len() + q + 2));
        let (mut before, mut times) = (0, Vec::new());
        // Twice more: graphs are built the second time.
        for i in 0..count + 2 {
            let start = Instant::now();
            match logits {
                true => drop(feed(t, seq, tokens, 1)?),
                false => step(t, seq, tokens)?,
            }
            match i {
                0 | 1 => before = t.counts().launches,
                _ => times.push(start.elapsed()),
            }
        }
        times.sort_unstable();
        let all: Duration = times.iter().sum();
        let launches = (t.counts().launches - before) / count.max(1) as u64;
        println!(
            "step of {q}, {}: {:.1} us mean, {:.1} us median, {launches} launches, {:.1} steps/s",
            if logits { "logits" } else { "tokens alone" },
            all.as_secs_f64() * 1e6 / count.max(1) as f64,
            times.get(count / 2).map_or(0.0, |t| t.as_secs_f64() * 1e6),
            count as f64 / all.as_secs_f64()
        );
        t.close(seq);
    }
    let seq = t.open()?;
    let n = span_max.min(want.ids.len());
    let start = Instant::now();
    let ticket = t.submit(&want.ids[..n], &[span(seq, 0, 0..n, Out::Last)])?;
    t.wait(ticket, None)?;
    let rate = n as f64 / start.elapsed().as_secs_f64();
    println!("prefill of {n} tokens: {rate:.1} tokens/s");
    t.close(seq);
    println!("{:?}", t.counts());
    Ok(())
}
