//! What the loop measures and what the policy makes of it, on a clock that only the toys move.

use crate::common::drafters::{Known, Script};
use crate::common::toy::{Toy, V};
use crate::common::{Recorder, assert_plain, drain, fixed, plans, prompt, request, whole};
use dspark_draft::speculate::{Config, Speculator};
use dspark_draft::suffix::{Chooser, Suffix};
use dspark_draft::width::{Policy, RewardOptions};
use engine_core::{SamplePlan, Target, TokenId};
use std::sync::Arc;

/// A pass takes 1, and a fifth for each further row.
fn cheap(rows: usize) -> f64 {
    1.0 + 0.2 * (rows as f64 - 1.0)
}

fn reward() -> Config {
    Config {
        policy: Policy::AverageReward(RewardOptions::default()),
        depth: 5,
        ..fixed(1)
    }
}

struct Ran {
    target: Toy,
    drafter: Known,
    speculator: Speculator,
}

/// One long request, on a clock.
fn run(config: Config, script: Script, draft_time: f64, commit_time: fn(usize) -> f64) -> Ran {
    let request = request(prompt(5, 1), 600, &plans()[1]);
    let mut target = Toy::new();
    (target.pass_time, target.commit_time) = (cheap, commit_time);
    let mut drafter = Known::new(script);
    (drafter.clock, drafter.draft_time) = (target.clock.clone(), draft_time);
    let clock = Box::new(target.clock.clone());
    let mut speculator = Speculator::with_clock(target.info(), config, clock);
    let seq = target.open().unwrap();
    drafter.learn(seq, whole(&request, 4096));
    speculator.admit(&target, seq, request.clone()).unwrap();
    let done = drain(
        &mut speculator,
        &mut target,
        &mut drafter,
        &mut Recorder::default(),
        64,
    );
    assert_plain(
        &target,
        &done[0],
        &request,
        "a policy never changes a token",
    );
    Ran {
        target,
        drafter,
        speculator,
    }
}

#[test]
fn phases_are_timed_on_the_given_clock() {
    let ran = run(fixed(4), Script::Right, 0.3, |_| 0.01);
    let (stats, times) = (ran.speculator.stats(), ran.speculator.stats().times);
    assert!((times.draft - 0.3 * stats.drafts as f64).abs() < 1e-6);
    let rows = ran
        .target
        .passes
        .iter()
        .map(|p| cheap(p[0].tokens.len()))
        .sum::<f64>();
    assert!((times.pass - rows).abs() < 1e-6);
    assert!((times.commit - 0.01 * stats.passes as f64).abs() < 1e-6);
    assert_eq!(times.accept + times.observe + times.choose, 0.0);
}

#[test]
fn the_price_of_a_width_includes_its_rollback() {
    let dear = |rejected: usize| rejected as f64 * 0.5;
    let script = || Script::Often(0.75);
    let free = run(reward(), script(), 0.1, |_| 0.0);
    let paid = run(reward(), script(), 0.1, dear);
    let costs = |r: &Ran| r.speculator.width().costs().estimate(6).unwrap();
    assert!((costs(&free) - 2.0).abs() < 1e-6, "{}", costs(&free));
    assert!(costs(&paid) > 2.5, "{}", costs(&paid));
    let width = |r: &Ran| r.speculator.stats().mean_width().unwrap();
    assert!(
        width(&paid) < width(&free) - 0.5,
        "{} {}",
        width(&paid),
        width(&free)
    );
}

#[test]
fn prompts_and_riders_do_not_enter_the_price() {
    let ran = run(reward(), Script::Right, 0.1, |_| 0.0);
    // The prompt's five rows were a pass of their own before anything was known.
    let costs = ran.speculator.width().costs();
    for rows in 1..=6 {
        assert!(
            (costs.estimate(rows).unwrap() - cheap(rows)).abs() < 1e-6,
            "{rows}"
        );
    }
}

#[test]
fn right_drafts_are_verified_whole_and_wrong_ones_not_at_all() {
    let right = run(reward(), Script::Right, 0.1, |_| 0.0);
    let stats = right.speculator.stats();
    assert!(
        stats.accepted_length().unwrap() > 4.0,
        "{:?}",
        stats.accepted_length()
    );
    let wrong = run(reward(), Script::Wrong, 0.3, |_| 0.0);
    let stats = wrong.speculator.stats();
    // 599 steps: learning, then a probe every 33.
    assert_eq!(stats.steps, 599);
    assert!(stats.drafts < 60, "{}", stats.drafts);
    assert!(stats.drafts > 25, "it goes on probing: {}", stats.drafts);
    assert_eq!(stats.drafts as usize, wrong.drafter.proposals);
    // Never slower than plain decoding by more than the probes.
    let spent = wrong.target.passes[1..]
        .iter()
        .map(|p| cheap(p[0].tokens.len()))
        .sum::<f64>();
    assert!(spent + 0.3 * stats.drafts as f64 <= 599.0 * 1.06, "{spent}");
}

#[test]
fn copies_are_verified_while_the_model_is_not_worth_asking() {
    // Two tokens to choose from: the text has to repeat itself.
    let banned = (2..V as TokenId).map(|token| (token, f32::NEG_INFINITY));
    let plan = SamplePlan {
        bias: banned.collect(),
        ..SamplePlan::greedy()
    };
    let request = request(prompt(5, 1), 600, &Arc::new(plan));
    let mut target = Toy::new();
    target.pass_time = cheap;
    let mut model = Known::new(Script::Wrong);
    (model.clock, model.draft_time) = (target.clock.clone(), 0.8);
    let clock = Box::new(target.clock.clone());
    let mut speculator = Speculator::with_clock(target.info(), reward(), clock);
    let seq = target.open().unwrap();
    model.learn(seq, whole(&request, 4096));
    let mut chooser = Chooser::new(model, 5, Suffix::default());
    speculator.admit(&target, seq, request.clone()).unwrap();
    let done = drain(
        &mut speculator,
        &mut target,
        &mut chooser,
        &mut Recorder::default(),
        64,
    );
    assert_plain(&target, &done[0], &request, "copies");
    let stats = speculator.stats();
    assert!(stats.free > 50, "{stats:?}");
    assert!(stats.matched > 60, "{} of {}", stats.matched, stats.offered);
    assert_eq!(stats.drafts as usize, stats.asked as usize);
    assert!(
        stats.drafts < stats.steps / 4,
        "{} of {}",
        stats.drafts,
        stats.steps
    );
    // Every copy was judged once: what was handed out is what was counted.
    let (of_model, copies, _) = chooser.counts();
    assert!(of_model + copies <= stats.drafts + stats.free);
    assert!(copies >= stats.free);
}

#[test]
fn predictions_are_checked_against_the_text() {
    let ran = run(fixed(2), Script::Often(0.8), 0.1, |_| 0.0);
    let stats = ran.speculator.stats();
    // Only one candidate is verified a step; all are judged.
    assert_eq!(stats.reached[1], 0);
    for depth in 0..4 {
        let (predicted, observed) = stats.confidence[depth].means().unwrap();
        assert!(
            (predicted - 0.731).abs() < 0.001,
            "the drafter's word: {predicted}"
        );
        assert!((observed - 0.8).abs() < 0.12, "depth {depth}: {observed}");
    }
    let (_, observed) = stats.product[3].means().unwrap();
    assert!((observed - 0.8f64.powi(4)).abs() < 0.1, "{observed}");
}

#[test]
fn two_loops_in_one_process_know_nothing_of_each_other() {
    let alone = run(reward(), Script::Often(0.7), 0.1, |_| 0.0);
    let others: Vec<Ran> = [1, 4, 8]
        .iter()
        .map(|w| run(fixed(*w), Script::Wrong, 0.1, |_| 0.0))
        .collect();
    assert_eq!(others.len(), 3);
    let again = run(reward(), Script::Often(0.7), 0.1, |_| 0.0);
    assert_eq!(alone.speculator.stats(), again.speculator.stats());
    assert_eq!(alone.target.passes, again.target.passes);
}
