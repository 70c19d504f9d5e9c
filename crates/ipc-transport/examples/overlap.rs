//! Whether it pays here to begin the next draft while the target verifies: the shipped pair with its drafter
//! in a worker process, serial and overlapping by turns, for fixed widths and for the default policy.
//!
//! `cargo run --release -p ipc-transport --example overlap [TOKENS] [ROUNDS]`. Prints tokens a second (median
//! of the rounds), and for the overlapping runs how many drafts were of use and what they were worth beside
//! others. Texts must be equal; times are not asserted.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a program that prints a table"
)]

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("workers need Linux");
}

#[cfg(target_os = "linux")]
mod common;

#[cfg(target_os = "linux")]
fn main() {
    linux::main();
}

#[cfg(target_os = "linux")]
mod linux {
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::time::Instant;

    use ds4_target::{CpuTarget, GgufSource, Model, Options};
    use dspark_draft::backbone;
    use dspark_draft::drafter::DsparkDrafter;
    use dspark_draft::speculate::{Config, Emitted, Flow, Request, Sink, Speculator, generate};
    use dspark_draft::weights::DraftModel;
    use dspark_draft::width::Policy;
    use engine_core::seams::AheadCounts;
    use engine_core::{Target, TokenId};
    use gguf::{Gguf, OpenOptions};
    use ipc_transport::remote::{Choice, RemoteBackbone};
    use ipc_transport::worker;

    use crate::common::{process, remote, served};

    fn source(name: &str) -> (PathBuf, GgufSource) {
        let models = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../models");
        let path = models.join(name);
        let file = Gguf::open(&path, &OpenOptions::default()).unwrap();
        (path, GgufSource::new(file))
    }

    fn target() -> CpuTarget {
        let options = Options {
            n_ctx: 2048,
            n_seq_max: 4,
            threads: 1,
            ..Options::default()
        };
        let model = Arc::new(Model::load(&source("tiny.gguf").1).unwrap());
        CpuTarget::new(model, options).unwrap()
    }

    fn drafter(target: &CpuTarget) -> DsparkDrafter<RemoteBackbone> {
        let (file, source) = source("tiny-draft.gguf");
        let model = Arc::new(DraftModel::load(&source).unwrap());
        let dims = worker::dims(&model, &backbone::Options::default());
        let remote = remote(dims, file, Choice::Shared, process());
        DsparkDrafter::new(model, remote, target.info(), Arc::clone(target.pool())).unwrap()
    }

    struct Taker(Vec<TokenId>);

    impl Sink for Taker {
        fn token(&mut self, emitted: Emitted) -> Flow {
            self.0.push(emitted.token);
            Flow::Go
        }
    }

    /// What a run over all prompts showed.
    struct Ran {
        text: Vec<TokenId>,
        rate: f64,
        /// Microseconds of a draft and of a pass, by the loop's own clock.
        draft: f64,
        pass: f64,
    }

    fn run(
        target: &mut CpuTarget,
        drafter: &mut DsparkDrafter<RemoteBackbone>,
        policy: &Policy,
        overlap: bool,
        tokens: u32,
    ) -> Ran {
        let config = Config {
            policy: policy.clone(),
            overlap,
            ..Config::default()
        };
        let mut speculator = Speculator::new(target.info(), config);
        let mut taker = Taker(Vec::new());
        let begin = Instant::now();
        for prompt in testkit::prompts::prompts().unwrap().iter().step_by(9) {
            let request = Request::greedy(prompt.ids.clone(), tokens);
            generate(&mut speculator, target, Some(drafter), request, &mut taker).unwrap();
        }
        let seconds = begin.elapsed().as_secs_f64();
        let (stats, rate) = (speculator.stats(), taker.0.len() as f64 / seconds);
        Ran {
            rate,
            draft: 1e6 * stats.times.draft / stats.drafts.max(1) as f64,
            pass: 1e6 * stats.times.pass / stats.passes.max(1) as f64,
            text: taker.0,
        }
    }

    fn median(mut values: Vec<f64>) -> f64 {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    }

    fn since(now: AheadCounts, before: AheadCounts) -> AheadCounts {
        AheadCounts {
            begun: now.begun - before.begun,
            used: now.used - before.used,
            judged: now.judged - before.judged,
            right: now.right - before.right,
            alone_judged: now.alone_judged - before.alone_judged,
            alone_right: now.alone_right - before.alone_right,
            ..AheadCounts::default()
        }
    }

    pub(super) fn main() {
        let args: Vec<String> = std::env::args().skip(1).collect();
        if served(&args, worker::load) {
            return;
        }
        let number = |at: usize, default: u32| args.get(at).map_or(default, |n| n.parse().unwrap());
        let (tokens, rounds) = (number(0, 64), number(1, 5));
        let mut target = target();
        let mut drafter = drafter(&target);
        let mut policies: Vec<Policy> = (1..=6).map(Policy::Fixed).collect();
        policies.push(Policy::AverageReward(Default::default()));
        println!(
            "policy: tokens/s serial, overlap; us of a draft and a pass, serial, overlap; used of begun; kappa"
        );
        for policy in &policies {
            let (mut serial, mut ahead) = (Vec::new(), Vec::new());
            let before = engine_core::Drafter::ahead_counts(&drafter);
            for _ in 0..rounds {
                serial.push(run(&mut target, &mut drafter, policy, false, tokens));
                ahead.push(run(&mut target, &mut drafter, policy, true, tokens));
            }
            let first = &serial[0].text;
            assert!(serial.iter().chain(&ahead).all(|r| r.text == *first));
            let of = |all: &[Ran], f: fn(&Ran) -> f64| median(all.iter().map(f).collect());
            let counts = since(engine_core::Drafter::ahead_counts(&drafter), before);
            println!(
                "{:<8} {:>8.0} {:>8.0}; {:>6.0} {:>6.0}, {:>6.0} {:>6.0}; {} of {}; {:?}",
                policy.to_string(),
                of(&serial, |r| r.rate),
                of(&ahead, |r| r.rate),
                of(&serial, |r| r.draft),
                of(&serial, |r| r.pass),
                of(&ahead, |r| r.draft),
                of(&ahead, |r| r.pass),
                counts.used,
                counts.begun,
                counts.kappa(1).map(|k| (k * 100.0).round() / 100.0),
            );
        }
    }
}
