//! Prefill and decode speed of a GGUF model on this processor: `speed FILE [threads] [depth] [generate]
//! [rounds]`. Prefills `depth` tokens, then decodes `generate` tokens at that depth, several rounds. Prints
//! medians, and what a token costs in processor time, regions and (feature `profile`) families of work. A
//! figure from a shared machine is only worth its ratio to another taken in the same run.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Instant;

use ds4_target::profile::Family;
use ds4_target::{CpuTarget, GgufSource, Model, Options};
use engine_core::{Out, SamplePlan, SeqId, Span, Tap, Target, Want};

const CHUNK: usize = 512;

fn span(seq: SeqId, pos: u32, len: usize) -> Span {
    let want = Want::Ids(Arc::new(SamplePlan::greedy()));
    Span {
        seq,
        pos,
        range: 0..len,
        out: Out::Last,
        want,
        tap: Tap::default(),
    }
}

fn pass(t: &mut CpuTarget, seq: SeqId, tokens: &[u32]) -> u32 {
    let pos = t.pos(seq).unwrap();
    let ticket = t.submit(tokens, &[span(seq, pos, tokens.len())]).unwrap();
    let next = t.wait(ticket, None).unwrap().ids[0];
    t.commit(seq, pos + tokens.len() as u32);
    next
}

/// Processor seconds of this process, all threads, in user mode.
fn processor() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit(')').next().unwrap_or_default();
    let ticks: f64 = after
        .split_whitespace()
        .nth(11)
        .map_or(0.0, |t| t.parse().unwrap());
    ticks / 100.0
}

/// What was used since the last look.
struct Meter {
    wall: Instant,
    processor: f64,
    regions: u64,
    families: [(Family, u64); Family::ALL.len()],
}

impl Meter {
    fn new(t: &CpuTarget) -> Self {
        Self {
            wall: Instant::now(),
            processor: processor(),
            regions: t.pool().regions(),
            families: t.profile(),
        }
    }
}

/// Sums over the rounds of one phase.
#[derive(Default)]
struct Phase {
    rates: Vec<f64>,
    tokens: usize,
    processor: f64,
    regions: u64,
    families: [u64; Family::ALL.len()],
}

impl Phase {
    fn add(&mut self, t: &CpuTarget, from: &Meter, tokens: usize) {
        self.rates
            .push(tokens as f64 / from.wall.elapsed().as_secs_f64());
        self.tokens += tokens;
        self.processor += processor() - from.processor;
        self.regions += t.pool().regions() - from.regions;
        let now = t.profile();
        for (i, sum) in self.families.iter_mut().enumerate() {
            *sum += now[i].1 - from.families[i].1;
        }
    }

    fn print(&mut self, name: &str) {
        self.rates.sort_by(f64::total_cmp);
        let n = self.tokens as f64;
        println!(
            "{name}: {:.0} tok/s (best {:.0}), {:.0} us processor, {:.1} regions a token",
            self.rates[self.rates.len() / 2],
            self.rates[self.rates.len() - 1],
            self.processor * 1e6 / n,
            self.regions as f64 / n
        );
        let all: u64 = self.families.iter().sum();
        for (family, nanos) in Family::ALL
            .iter()
            .zip(self.families)
            .filter(|(_, n)| *n > 0)
        {
            let (us, share) = (nanos as f64 / 1e3 / n, 100.0 * nanos as f64 / all as f64);
            println!(
                "  {:18} {us:8.1} us a token {share:5.1} %",
                format!("{family:?}")
            );
        }
    }
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |i: usize, default: usize| args.get(i).map_or(default, |a| a.parse().unwrap());
    let (threads, depth, generate) = (number(2, 2), number(3, 512), number(4, 128));
    let file = gguf::Gguf::open(&args[1], &gguf::OpenOptions::default()).unwrap();
    let model = Arc::new(Model::load(&GgufSource::new(file)).unwrap());
    let options = Options {
        n_ctx: depth + generate + 8,
        threads,
        ..Options::default()
    };
    let mut t = CpuTarget::new(model, options).unwrap();
    let tokens: Vec<u32> = (0..depth as u32)
        .map(|i| (i * 7919 + 13) % t.info().n_vocab as u32)
        .collect();
    let (mut prefill, mut decode) = (Phase::default(), Phase::default());
    for _ in 0..number(5, 5) {
        let seq = t.open().unwrap();
        let from = Meter::new(&t);
        let mut next = 0;
        for part in tokens.chunks(CHUNK) {
            next = pass(&mut t, seq, part);
        }
        prefill.add(&t, &from, depth);
        let from = Meter::new(&t);
        for _ in 0..generate {
            next = pass(&mut t, seq, &[next]);
        }
        decode.add(&t, &from, generate);
        t.close(seq);
    }
    println!("threads {threads}, depth {depth}");
    prefill.print("prefill");
    decode.print("decode");
}
