//! Acceptance and speed of the shipped pair by kind of text:
//! `cargo run --release -p dspark-draft --example acceptance -- [PROMPTS_A_KIND [TOKENS [ROUNDS [THREADS [PAST_END [KIND [FRESH]]]]]]]`.
//! With 0 threads one thread runs and its processor time is measured instead of the clock's, by the
//! policies too: for a machine that others use. With PAST_END 1 texts go on behind the end of the answer to
//! TOKENS tokens, as in the soak tests: what a policy costs while it learns is then a small part. KIND is one
//! of them by number, or all of them (4). With FRESH 1 each answer is made as by a process of its own: nothing
//! is known but what a warm-up measures, as the program does before its first request; else one is made once.
//!
//! Every text is made plainly and with each way of drafting in turn, in alternating order; a ratio is the
//! time of plain decoding over that of the other run beside it, decoding alone, and the median of all is
//! shown. Texts are compared, too. After that: what passes of 1 to 8 rows take here, and a replay of the
//! drafter's recorded hits over these times and over those of a device that memory bounds.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a tool for people"
)]

use std::env;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use ds4_target::{CpuTarget, GgufSource, Model, Options};
use dspark_draft::backbone::{self, LocalBackbone};
use dspark_draft::drafter::DsparkDrafter;
use dspark_draft::speculate::{
    Clock, Config, Emitted, Flow, Grants, InPass, Need, Request, Sink, Speculator, Turn,
};
use dspark_draft::stats::Stats;
use dspark_draft::suffix::{Chooser, Suffix};
use dspark_draft::weights::DraftModel;
use dspark_draft::width::Policy;
use engine_core::seams::{Ask, Proposal};
use engine_core::{Drafter, Fault, Out, Pos, SamplePlan, SeqId, Span, Tap, Target, TokenId, Want};
use gguf::{Gguf, OpenOptions};
use testkit::prompts::{KINDS, Prompt, prompts};

struct Pair {
    model: Arc<Model>,
    draft: Arc<DraftModel>,
    /// Ends an answer; none if texts go on.
    end: Option<TokenId>,
}

impl Pair {
    fn load(past_end: bool) -> Self {
        let open = |name: &str| {
            let models = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models");
            Gguf::open(models.join(name), &OpenOptions::default()).unwrap()
        };
        let (target, draft) = (open("tiny.gguf"), open("tiny-draft.gguf"));
        let end = target.metadata().get_u32("tokenizer.ggml.eos_token_id");
        Self {
            end: (!past_end).then(|| end.unwrap()),
            model: Arc::new(Model::load(&GgufSource::new(target)).unwrap()),
            draft: Arc::new(DraftModel::load(&GgufSource::new(draft)).unwrap()),
        }
    }

    fn target(&self, threads: usize) -> CpuTarget {
        let options = Options {
            n_ctx: 1024,
            n_seq_max: 1,
            threads,
            ..Options::default()
        };
        CpuTarget::new(Arc::clone(&self.model), options).unwrap()
    }

    fn drafter(&self, t: &CpuTarget) -> DsparkDrafter<LocalBackbone> {
        let (model, pool) = (Arc::clone(&self.draft), Arc::clone(t.pool()));
        let options = backbone::Options::default();
        let backbone = LocalBackbone::new(Arc::clone(&model), Arc::clone(&pool), options).unwrap();
        DsparkDrafter::new(model, backbone, t.info(), pool).unwrap()
    }

    fn chooser(&self, t: &CpuTarget) -> Box<dyn Drafter> {
        let block = self.draft.meta.block as u32;
        Box::new(Chooser::new(self.drafter(t), block, Suffix::default()))
    }
}

/// What is measured.
#[derive(Clone, Copy)]
enum Watch {
    Wall(Instant),
    Processor,
}

impl Clock for Watch {
    fn seconds(&self) -> f64 {
        match self {
            Self::Wall(start) => start.elapsed().as_secs_f64(),
            Self::Processor => {
                let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
                now.tv_sec as f64 + now.tv_nsec as f64 * 1e-9
            }
        }
    }
}

/// How texts are made.
#[derive(Clone, Copy)]
struct Plan {
    /// Tokens of a text.
    budget: u32,
    rounds: usize,
    /// Whether each text is made by a loop that has learned nothing.
    fresh: bool,
}

/// A way of decoding; it lives as long as a server would, or as a run of one answer.
struct Way {
    name: &'static str,
    drafter: Option<Box<dyn Drafter>>,
    speculator: Speculator,
    ratios: Vec<f64>,
    seconds: f64,
    /// Counters of loops that are gone.
    past: Stats,
}

impl Way {
    /// A loop that knows what a warm-up measures, and nothing else.
    fn renew(&mut self, with: Self, t: &mut CpuTarget) {
        self.past.merge(self.speculator.stats());
        (self.drafter, self.speculator) = (with.drafter, with.speculator);
        if let Some(drafter) = self.drafter.as_deref_mut() {
            self.speculator.warm_up(t, drafter, 1.0).unwrap();
        }
    }

    fn stats(&self) -> Stats {
        let mut all = self.past.clone();
        all.merge(self.speculator.stats());
        all
    }
}

fn ways(pair: &Pair, t: &CpuTarget, watch: Watch) -> Vec<Way> {
    let config = |policy, depth| Config {
        policy,
        depth,
        tap_window: pair.draft.meta.stage.window,
        in_pass: InPass::Keyed,
        ..Config::default()
    };
    let way = |name, drafter, config| Way {
        name,
        drafter,
        speculator: Speculator::with_clock(t.info(), config, Box::new(watch)),
        ratios: Vec::new(),
        seconds: 0.0,
        past: Stats::default(),
    };
    let backbone = || Some(Box::new(pair.drafter(t)) as Box<dyn Drafter>);
    let reward = || Policy::AverageReward(Default::default());
    vec![
        way("plain", None, config(Policy::Fixed(1), 7)),
        way("fixed:5 backbone", backbone(), config(Policy::Fixed(5), 5)),
        way("reward backbone", backbone(), config(reward(), 5)),
        way(
            "reward auto (default)",
            Some(pair.chooser(t)),
            config(reward(), 7),
        ),
    ]
}

#[derive(Default)]
struct Tokens(Vec<TokenId>);

impl Sink for Tokens {
    fn token(&mut self, emitted: Emitted) -> Flow {
        self.0.push(emitted.token);
        Flow::Go
    }
}

/// Runs a request; its text and the seconds of its steps after the prompt.
fn run(t: &mut CpuTarget, way: &mut Way, request: &Request, watch: Watch) -> (Vec<TokenId>, f64) {
    let seq = t.open().unwrap();
    way.speculator.admit(t, seq, request.clone()).unwrap();
    let (mut sink, mut seconds) = (Tokens::default(), 0.0);
    loop {
        let Some((_, need)) = way.speculator.needs().next() else {
            break;
        };
        let begin = watch.seconds();
        way.speculator.step(Turn {
            target: &mut *t,
            drafter: match way.drafter.as_mut() {
                Some(drafter) => Some(&mut **drafter),
                None => None,
            },
            sink: &mut sink,
            grants: Grants::Each(512),
            riders: &[],
        });
        if need == Need::Decode {
            seconds += watch.seconds() - begin;
        }
    }
    t.close(seq);
    if let Some(drafter) = way.drafter.as_mut() {
        drafter.close(seq);
    }
    assert_eq!(way.speculator.drafter_lost(), None);
    (sink.0, seconds)
}

fn request(pair: &Pair, prompt: &Prompt, budget: u32) -> Request {
    let mut request = Request::greedy(prompt.ids.clone(), budget);
    if prompt.chat {
        request.stops = pair.end.into_iter().collect();
    }
    request
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn renew(all: &mut [Way], pair: &Pair, t: &mut CpuTarget, watch: Watch) {
    let new = ways(pair, t, watch);
    for (way, new) in all.iter_mut().zip(new) {
        way.renew(new, t);
    }
}

fn kind(pair: &Pair, t: &mut CpuTarget, list: &[Prompt], plan: Plan, watch: Watch) {
    let mut ways = ways(pair, t, watch);
    renew(&mut ways, pair, t, watch);
    for round in 0..plan.rounds {
        for prompt in list {
            let request = request(pair, prompt, plan.budget);
            for at in 1..ways.len() {
                if plan.fresh {
                    renew(&mut ways, pair, t, watch);
                }
                let (first, second) = if round % 2 == 0 { (0, at) } else { (at, 0) };
                let a = run(t, &mut ways[first], &request, watch);
                let b = run(t, &mut ways[second], &request, watch);
                assert_eq!(a.0, b.0, "{}: {:?}", ways[at].name, prompt.text);
                let (plain, other) = if first == 0 { (a.1, b.1) } else { (b.1, a.1) };
                ways[at].seconds += other;
                ways[0].seconds += plain / (ways.len() - 1) as f64;
                if a.0.len() > 1 {
                    ways[at].ratios.push(plain / other);
                }
            }
        }
    }
    let plain = ways[0].seconds;
    for way in &mut ways[1..] {
        let n = way.ratios.len();
        let all = plain / way.seconds;
        println!(
            "  {:<22} speed to plain: median {:.3} of {n} pairs, all together {all:.3}",
            way.name,
            median(&mut way.ratios)
        );
        show(&way.stats());
    }
}

fn show(s: &Stats) {
    let or = |v: Option<f64>| v.map_or("-".to_owned(), |v| format!("{v:.3}"));
    println!(
        "    accepted {} of {} ({}); length {}; width {}; drafts {} of {} steps",
        s.matched,
        s.offered,
        or(s.acceptance_rate()),
        or(s.accepted_length()),
        or(s.mean_width()),
        s.drafts,
        s.steps
    );
    let survival: Vec<String> = (0..7).map(|k| or(s.survival(k))).collect();
    println!("    survival by position {}", survival.join(" "));
    let t = &s.times;
    let steps = s.steps.max(1) as f64;
    let each = |v: f64| format!("{:.3}", 1e3 * v / steps);
    println!(
        "    ms a step: draft {} choose {} pass {} accept {} observe {} commit {} (prompts included)",
        each(t.draft),
        each(t.choose),
        each(t.pass),
        each(t.accept),
        each(t.observe),
        each(t.commit)
    );
}

/// Milliseconds of a pass of 1 to 8 rows behind `ids`, with or without taps.
fn pass_times(t: &mut CpuTarget, ids: &[TokenId], tap: &Tap, watch: Watch) -> [Vec<f64>; 2] {
    let seq = t.open().unwrap();
    let span = |pos: usize, n: usize, out, tap: &Tap| Span {
        seq,
        pos: pos as Pos,
        range: 0..n,
        out,
        want: Want::Ids(Arc::new(SamplePlan::greedy())),
        tap: tap.clone(),
    };
    let first = span(0, ids.len(), Out::Last, tap);
    let ticket = t.submit(ids, &[first]).unwrap();
    t.wait(ticket, None).unwrap();
    t.commit(seq, ids.len() as Pos);
    let none = Tap::default();
    let mut samples = [vec![Vec::new(); 8], vec![Vec::new(); 8]];
    for round in 0..80 {
        for rows in 1..=8 {
            // Both in turn: what the machine does meanwhile meets both.
            let tapped = round % 2;
            let tap = [&none, tap][tapped];
            let begin = watch.seconds();
            let span = span(ids.len(), rows, Out::All, tap);
            let ticket = t.submit(&ids[..rows], &[span]).unwrap();
            t.wait(ticket, None).unwrap();
            samples[tapped][rows - 1].push(1e3 * (watch.seconds() - begin));
            t.commit(seq, ids.len() as Pos);
        }
    }
    t.close(seq);
    samples.map(|mut of| of.iter_mut().map(|s| median(s)).collect())
}

/// Asks at every position and offers nothing: what it would have proposed stays here.
struct Recorder<D> {
    inner: D,
    proposed: Vec<(Pos, Vec<TokenId>)>,
    seconds: f64,
    watch: Watch,
}

impl<D: Drafter> Drafter for Recorder<D> {
    fn propose(
        &mut self,
        target: &mut dyn Target,
        asks: &[Ask],
        plans: &[&SamplePlan],
    ) -> Result<Vec<Proposal>, Fault> {
        let begin = self.watch.seconds();
        let found = self.inner.propose(target, asks, plans)?;
        self.seconds += self.watch.seconds() - begin;
        let places = asks.iter().map(|a| a.pos);
        self.proposed
            .extend(places.zip(found.into_iter().map(|p| p.tokens)));
        Ok(vec![Proposal::default(); asks.len()])
    }

    fn tap(&self) -> Tap {
        self.inner.tap()
    }

    fn observe(&mut self, seq: SeqId, pos: Pos, t: &[TokenId], f: &[f32]) -> Result<(), Fault> {
        self.inner.observe(seq, pos, t, f)
    }

    fn truncate(&mut self, seq: SeqId, pos: Pos) {
        self.inner.truncate(seq, pos);
    }

    fn close(&mut self, seq: SeqId) {
        self.inner.close(seq);
    }
}

/// For each text: how many candidates were right at each of its positions; and the seconds of a draft.
fn hits(
    pair: &Pair,
    t: &mut CpuTarget,
    list: &[Prompt],
    budget: u32,
    watch: Watch,
) -> (Vec<Vec<usize>>, f64) {
    let (mut all, mut seconds, mut drafts) = (Vec::new(), 0.0, 0);
    for prompt in list {
        let request = request(pair, prompt, budget);
        let mut recorder = Recorder {
            inner: pair.drafter(t),
            proposed: Vec::new(),
            seconds: 0.0,
            watch,
        };
        let config = Config {
            policy: Policy::Fixed(6),
            tap_window: pair.draft.meta.stage.window,
            in_pass: InPass::Keyed,
            ..Config::default()
        };
        let mut s = Speculator::new(t.info(), config);
        let mut sink = Tokens::default();
        let done = dspark_draft::speculate::generate(
            &mut s,
            t,
            Some(&mut recorder),
            request.clone(),
            &mut sink,
        );
        done.unwrap();
        let mut whole = request.prompt;
        whole.extend(&sink.0);
        let right = |(pos, tokens): &(Pos, Vec<TokenId>)| {
            let text = whole.get(*pos as usize + 1..).unwrap_or(&[]);
            tokens.iter().zip(text).take_while(|(a, b)| a == b).count()
        };
        drafts += recorder.proposed.len();
        seconds += recorder.seconds;
        all.push(recorder.proposed.iter().map(right).collect());
    }
    (all, seconds / drafts.max(1) as f64)
}

/// Speed to plain decoding at a fixed width: the recorded hits walked over times of passes. `times[q - 1]`
/// of a pass of q rows, and that of a draft, in any unit.
fn replay(hits: &[Vec<usize>], times: &[f64], draft: f64, width: usize) -> f64 {
    let (mut plain, mut spent) = (0.0, 0.0);
    for text in hits {
        let mut at = 0;
        while at < text.len() {
            let step = 1 + text[at].min(width - 1).min(text.len() - 1 - at);
            plain += step as f64 * times[0];
            spent += draft + times[width - 1];
            at += step;
        }
    }
    plain / spent
}

/// A box that memory bounds, 4.25 bits dense and 2.5 routed, six experts; and 8.5 and 4.25 bits: passes
/// of 1 to 6 rows and the draft, in plain steps (spec/dspark.md 13).
const BOUND: [(&str, [f64; 6], f64); 2] = [
    (
        "memory-bound 4.25/2.5",
        [1.0, 1.37, 1.73, 2.08, 2.42, 2.76],
        0.34,
    ),
    (
        "memory-bound 8.5/4.25",
        [1.0, 1.33, 1.66, 1.97, 2.28, 2.59],
        0.18,
    ),
];

fn main() {
    let args: Vec<usize> = env::args().skip(1).map(|a| a.parse().unwrap()).collect();
    let arg = |at: usize, or: usize| args.get(at).copied().unwrap_or(or);
    let (each, budget, rounds, threads) = (arg(0, 15), arg(1, 200) as u32, arg(2, 4), arg(3, 2));
    let past_end = arg(4, 0) == 1;
    let pair = Pair::load(past_end);
    let watch = match threads {
        0 => Watch::Processor,
        _ => Watch::Wall(Instant::now()),
    };
    let mut t = pair.target(threads.max(1));
    let all = prompts().unwrap();
    let corpus = blake3::hash(&std::fs::read(testkit::prompts::path()).unwrap());
    println!("prompts {}", corpus.to_hex());
    let end = if past_end { "exactly" } else { "at most" };
    println!("{each} prompts a kind, {end} {budget} tokens, {rounds} rounds, {threads} threads");
    let plan = Plan {
        budget,
        rounds,
        fresh: arg(6, 0) == 1,
    };
    if plan.fresh {
        println!("each text by a loop of its own, warmed up");
    }
    let only = arg(5, KINDS.len());
    let by_kind = || {
        let lists = all.chunks(15).map(|list| &list[..each.min(15)]);
        let named = KINDS.iter().zip(lists).enumerate();
        named.filter_map(|(at, kind)| (only >= KINDS.len() || at == only).then_some(kind))
    };
    for (name, list) in by_kind() {
        println!("{name}");
        kind(&pair, &mut t, list, plan, watch);
    }
    let ids: Vec<TokenId> = all.iter().flat_map(|p| p.ids.clone()).take(200).collect();
    let tap = pair.drafter(&t).tap();
    let [bare, tapped] = pass_times(&mut t, &ids, &tap, watch);
    let line = |v: &[f64]| -> String { v.iter().map(|v| format!(" {v:.3}")).collect() };
    println!("ms of a pass of 1..8 rows at 200 positions:{}", line(&bare));
    println!(
        "the same with taps:                        {}",
        line(&tapped)
    );
    for (name, list) in by_kind() {
        let (hits, draft) = hits(&pair, &mut t, list, budget, watch);
        println!(
            "{name}: a draft takes {:.3} ms; replay at widths 2..6:",
            1e3 * draft
        );
        let here = (2..=6).map(|q| replay(&hits, &tapped, 1e3 * draft, q));
        println!("  {:<22}{}", "here", line(&here.collect::<Vec<_>>()));
        for (device, times, draft) in BOUND {
            let there = (2..=6).map(|q| replay(&hits, &times, draft, q));
            println!("  {device:<22}{}", line(&there.collect::<Vec<_>>()));
        }
    }
}
