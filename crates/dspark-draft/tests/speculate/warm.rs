//! What a warm-up learns, on a clock that only the toys move, and what it leaves as it was.

use std::cell::Cell;

use crate::common::drafters::{Known, Script};
use crate::common::toy::Toy;
use crate::common::{Recorder, assert_plain, drain, fixed, plans, prompt, request, whole};
use dspark_draft::speculate::{Clock, Cold, Config, Request, Speculator, WarmUp};
use dspark_draft::stats::Stats;
use dspark_draft::width::{Policy, RewardOptions};
use engine_core::{SamplePlan, SeqId, Target, TokenId};
use std::sync::Arc;

thread_local! {
    /// Passes of the toy.
    static PASSES: Cell<u32> = const { Cell::new(0) };
}

/// A pass takes 1, and a third for each further row; the first two five times as long.
fn starting(rows: usize) -> f64 {
    let n = PASSES.get();
    PASSES.set(n + 1);
    warm(rows) * if n < 2 { 5.0 } else { 1.0 }
}

fn warm(rows: usize) -> f64 {
    1.0 + (rows as f64 - 1.0) / 3.0
}

fn reward() -> Config {
    Config {
        policy: Policy::AverageReward(RewardOptions::default()),
        depth: 5,
        ..fixed(1)
    }
}

struct Run {
    target: Toy,
    drafter: Known,
    speculator: Speculator,
}

/// A loop whose drafts take `draft`.
fn run(config: Config, script: Script, draft: f64) -> Run {
    PASSES.set(0);
    let mut target = Toy::new();
    target.pass_time = starting;
    let mut drafter = Known::new(script);
    (drafter.clock, drafter.draft_time) = (target.clock.clone(), draft);
    let clock = Box::new(target.clock.clone());
    let speculator = Speculator::with_clock(target.info(), config, clock);
    Run {
        target,
        drafter,
        speculator,
    }
}

impl Run {
    fn warm_up(&mut self, seconds: f64) -> Result<WarmUp, Cold> {
        // The text it makes, so that the drafter can play its part.
        let prompt: Vec<TokenId> = (0..8).collect();
        let text = whole(&Request::greedy(prompt, 64), 4096);
        let seq = self.target.open().unwrap();
        self.target.close(seq);
        for at in 0..8 {
            self.drafter.learn(SeqId(at), text.clone());
        }
        let Self {
            target,
            drafter,
            speculator,
        } = self;
        speculator.warm_up(target, drafter, seconds)
    }

    /// A text of `budget` tokens; the seconds of its passes and drafts.
    fn text(&mut self, budget: u32) -> f64 {
        let asked = request(prompt(5, 1), budget, &plans()[1]);
        let seq = self.target.open().unwrap();
        self.drafter.learn(seq, whole(&asked, 4096));
        let admitted = self.speculator.admit(&self.target, seq, asked.clone());
        admitted.unwrap();
        let begin = self.target.clock.seconds();
        let mut sink = Recorder::default();
        let done = drain(
            &mut self.speculator,
            &mut self.target,
            &mut self.drafter,
            &mut sink,
            64,
        );
        assert_plain(&self.target, &done[0], &asked, "a warm-up changes no token");
        self.target.clock.seconds() - begin
    }
}

#[test]
fn prices_are_known_before_the_first_request() {
    let mut run = run(reward(), Script::Often(0.5), 0.75);
    let found = run.warm_up(1e9).unwrap();
    // The prompt, a pass for nothing, three of each of four widths.
    assert_eq!(found.passes, 14);
    assert_eq!((found.plain, found.draft), (Some(1.0), Some(0.75)));
    let costs = run.speculator.width().costs();
    for rows in 1..=6 {
        let got = costs.estimate(rows).unwrap();
        assert!((got - warm(rows)).abs() < 1e-9, "{rows} rows: {got}");
    }
    assert_eq!(*run.speculator.stats(), Stats::default());
    assert!(run.speculator.is_idle() && run.target.open().is_ok());
}

#[test]
fn a_short_first_text_does_not_pay_for_a_dear_draft() {
    let mut cold = run(reward(), Script::Often(0.4), 0.75);
    let mut warmed = run(reward(), Script::Often(0.4), 0.75);
    PASSES.set(0);
    let without = cold.text(48);
    PASSES.set(0);
    warmed.warm_up(1e9).unwrap();
    let with = warmed.text(48);
    // A prompt and 47 plain passes, none of them cold.
    assert!((with - (warm(5) + 47.0)).abs() < 1e-9, "{with}");
    assert_eq!(warmed.speculator.stats().drafts, 0);
    assert!(cold.speculator.stats().drafts > 0 && without > with + 5.0);
}

#[test]
fn a_cheap_draft_that_pays_is_used_from_the_first_step() {
    let mut run = run(reward(), Script::Right, 0.05);
    run.warm_up(1e9).unwrap();
    run.text(48);
    let stats = run.speculator.stats();
    // All but the last, which has one token to make.
    assert_eq!(stats.drafts + 1, stats.steps);
    // Wider only as what it says of itself is believed.
    assert!(stats.accepted_length().unwrap() > 2.5);
}

#[test]
fn time_is_kept_to_and_what_needs_no_prices_measures_none() {
    let mut short = run(reward(), Script::Right, 0.05);
    // The prompt's pass alone takes longer.
    let found = short.warm_up(1.0).unwrap();
    assert_eq!((found.passes, found.plain, found.draft), (1, None, None));
    let cold = |config: Config, seconds: f64| {
        let mut run = run(config, Script::Right, 0.05);
        run.warm_up(seconds).unwrap_err()
    };
    let needless = |name: &str| Cold::NoPrices {
        policy: name.to_owned(),
    };
    assert_eq!(cold(reward(), 0.0), Cold::Off);
    assert_eq!(cold(fixed(4), 1e9), needless("fixed:4"));
    let seeded = Policy::AverageReward(RewardOptions {
        explore: false,
        ..RewardOptions::default()
    });
    let told = Config {
        policy: seeded,
        ..reward()
    };
    assert_eq!(cold(told, 1e9), needless("reward"));
}

#[test]
fn a_drafter_that_fails_in_a_warm_up_is_lost_and_plain_steps_go_on() {
    let mut run = run(reward(), Script::Right, 0.05);
    run.drafter.propose_dies = Some(1);
    let found = run.warm_up(1e9).unwrap();
    assert_eq!((found.plain, found.draft), (Some(1.0), None));
    assert!(run.speculator.drafter_lost().is_some());
    assert_eq!(run.speculator.stats().drafter_faults, 1);
    let seq = run.target.open().unwrap();
    let plan = Arc::new(SamplePlan::greedy());
    let asked = request(prompt(5, 1), 20, &plan);
    run.speculator.admit(&run.target, seq, asked).unwrap();
    assert_eq!(run.speculator.stats().drafts, 0);
}
