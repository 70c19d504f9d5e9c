//! Text and state are those of plain decoding for every width, policy, drafter, plan and neighbour.

use crate::common::drafters::{Known, Script};
use crate::common::toy::Toy;
use crate::common::{
    Recorder, assert_plain, drain, fixed, plans, prompt, reason, request, step, whole,
};
use dspark_draft::speculate::{Config, Finished, InPass, Request, Speculator, generate};
use dspark_draft::width::{Policy, RewardOptions};
use engine_core::{SamplePlan, SeqId, Target};
use std::sync::Arc;

/// Three requests of different lengths.
fn requests(plan: &Arc<SamplePlan>) -> Vec<Request> {
    [(1, 40), (19, 33), (70, 50)]
        .iter()
        .map(|(n, budget)| request(prompt(*n, *n as u64), *budget, plan))
        .collect()
}

struct Ran {
    done: Vec<Finished>,
    target: Toy,
    drafter: Known,
    speculator: Speculator,
}

/// Runs requests side by side through one loop.
fn run(config: Config, script: Script, requests: &[Request], each: usize) -> Ran {
    let mut target = Toy::new();
    let clock = Box::new(target.clock.clone());
    let mut speculator = Speculator::with_clock(target.info(), config, clock);
    let mut drafter = Known::new(script);
    let n_ctx = target.info().n_ctx as usize;
    for request in requests {
        let seq = target.open().unwrap();
        drafter.learn(seq, whole(request, n_ctx));
        speculator.admit(&target, seq, request.clone()).unwrap();
    }
    let mut sink = Recorder::default();
    let mut done = drain(&mut speculator, &mut target, &mut drafter, &mut sink, each);
    done.sort_by_key(|d| d.seq);
    for d in &done {
        assert_eq!(
            sink.tokens[&d.seq.0], d.tokens,
            "what was emitted is the text"
        );
    }
    Ran {
        done,
        target,
        drafter,
        speculator,
    }
}

fn check(ran: &Ran, requests: &[Request], what: &str) {
    assert_eq!(ran.done.len(), requests.len());
    for (done, request) in ran.done.iter().zip(requests) {
        assert_plain(&ran.target, done, request, what);
        assert_eq!(reason(done), "length", "{what}");
        assert_eq!(
            ran.drafter.shown(done.seq),
            done.pos as usize,
            "{what}: shown what is state"
        );
    }
    let stats = ran.speculator.stats();
    assert_eq!(stats.passes, stats.turns, "{what}: one pass a step");
    assert_eq!(stats.passes as usize, ran.target.passes.len());
    let tokens: usize = ran.done.iter().map(|d| d.tokens.len()).sum();
    assert_eq!(
        (stats.first_tokens + stats.emitted) as usize,
        tokens,
        "{what}"
    );
    assert_eq!(
        stats.emitted,
        stats.steps + stats.matched,
        "{what}: one of its own a span"
    );
    let rows: usize = ran.target.verified().map(|s| s.tokens.len()).sum();
    assert_eq!(stats.rows as usize, rows, "{what}: rows are those chosen");
    assert_eq!(stats.rows, stats.steps + stats.offered);
}

fn scripts() -> Vec<Script> {
    vec![
        Script::Right,
        Script::Wrong,
        Script::Random,
        Script::Often(0.7),
        Script::First(vec![0, 1, 2, 3, 4, 5, 6, 7]),
        Script::First(vec![7, 0, 3, 0, 1]),
        Script::Nothing,
        Script::Bad(0),
        Script::Bad(2),
        Script::TooMany,
    ]
}

#[test]
fn every_width_and_drafter_gives_the_plain_text() {
    for plan in plans() {
        let requests = requests(&plan);
        for script in scripts() {
            for width in 1..=8 {
                let what = format!("width {width}, {script:?}, T = {}", plan.temperature);
                let ran = run(fixed(width), script.clone(), &requests, 64);
                check(&ran, &requests, &what);
                if width == 1 {
                    assert_eq!(ran.drafter.proposals, 0, "width 1 is plain decoding");
                }
            }
        }
    }
}

#[test]
fn every_policy_gives_the_plain_text() {
    let policies = [
        Policy::threshold(),
        Policy::Ewma,
        Policy::AverageReward(RewardOptions::default()),
        Policy::AverageReward(RewardOptions {
            explore: false,
            costs: vec![(1, 1.0), (4, 1.5), (8, 4.0)],
            ..RewardOptions::default()
        }),
    ];
    for plan in plans() {
        let requests = requests(&plan);
        for script in scripts() {
            for policy in &policies {
                let what = format!("{policy:?}, {script:?}, T = {}", plan.temperature);
                let config = Config {
                    policy: policy.clone(),
                    ..fixed(1)
                };
                check(
                    &run(config, script.clone(), &requests, 64),
                    &requests,
                    &what,
                );
            }
        }
    }
}

#[test]
fn forced_acceptance_is_counted_exactly() {
    let plan = &plans()[1];
    let request = request(prompt(5, 1), 400, plan);
    for width in 2..=8usize {
        for m in 0..width {
            let ran = run(
                fixed(width),
                Script::First(vec![m]),
                std::slice::from_ref(&request),
                64,
            );
            check(&ran, std::slice::from_ref(&request), "forced");
            let stats = ran.speculator.stats();
            // All but the last few steps, which the budget narrows.
            let whole = (399 / (m as u64 + 1)).saturating_sub(width as u64);
            let full: u64 = (0..4).map(|phase| stats.widths[phase][width - 1]).sum();
            assert!(full >= whole, "width {width}: {full} of {whole}");
            if m > 0 {
                assert_eq!(stats.survival(m - 1), Some(1.0));
            }
            if m + 1 < width {
                assert_eq!(stats.survival(m), Some(0.0));
                assert_eq!(stats.conditional(m), Some(0.0));
                assert_eq!(stats.tried.get(m + 1), Some(&0));
            }
            // No phase of the position narrows a width.
            for phase in 0..4 {
                let at: u64 = stats.widths[phase].iter().sum();
                assert!(
                    stats.widths[phase][width - 1] + 8 > at,
                    "{:?}",
                    stats.widths
                );
            }
        }
    }
}

#[test]
fn chunks_of_prompts_ride_with_verifies_and_change_nothing() {
    let requests = requests(&plans()[2]);
    for each in [1, 3, 16, 17, 64] {
        let ran = run(fixed(4), Script::Often(0.6), &requests, each);
        check(&ran, &requests, &format!("chunks of {each}"));
        // The long prompt was still coming in while others generated.
        let mixed = |p: &&Vec<_>| {
            p.iter()
                .any(|s: &crate::common::toy::Seen| s.out == engine_core::Out::All)
                && p.len() > 1
        };
        assert!(ran.target.passes.iter().filter(mixed).count() > 3);
        for (done, request) in ran.done.iter().zip(&requests) {
            let n = request.prompt.len();
            let bare = ran
                .drafter
                .bare
                .get(&done.seq.0)
                .cloned()
                .unwrap_or_default();
            let from = n.saturating_sub(16) as u32;
            assert_eq!(
                bare,
                (0..from).collect::<Vec<_>>(),
                "no features before the window"
            );
            let tapped = &ran.drafter.tapped[&done.seq.0];
            assert_eq!(*tapped, (from..done.pos).collect::<Vec<_>>());
        }
        // A chunk wholly before the window is not tapped at all.
        let mut chunks = ran
            .target
            .passes
            .iter()
            .flatten()
            .filter(|s| s.seq == SeqId(2));
        let first = chunks.next().unwrap();
        assert_eq!(first.tapped, first.tokens.len() + 16 > 70);
    }
}

#[test]
fn the_drafter_sees_every_ask_with_its_own_epoch_and_room() {
    let request = request(prompt(5, 3), 30, &plans()[0]);
    let ran = run(
        fixed(8),
        Script::Often(0.8),
        std::slice::from_ref(&request),
        64,
    );
    let mut last = 0;
    for ask in &ran.drafter.asks {
        assert!(ask.epoch.0 > last, "epochs grow");
        last = ask.epoch.0;
        // Emitted so far: the positions past the prompt, and the seed.
        let emitted = ask.pos as usize - 5 + 1;
        assert!(ask.depth as usize <= 7.min(30 - emitted - 1), "{ask:?}");
    }
    for seen in ran.target.verified() {
        let emitted = seen.pos as usize - 5 + 1;
        assert!(
            seen.tokens.len() <= 30 - emitted,
            "a span wider than the budget: {seen:?}"
        );
    }
}

#[test]
fn drafters_are_not_asked_where_nothing_can_come_of_it() {
    for (budget, drafts) in [(1, 0), (2, 0), (3, 1)] {
        let request = request(prompt(5, 3), budget, &plans()[0]);
        let ran = run(fixed(4), Script::Wrong, std::slice::from_ref(&request), 64);
        check(&ran, std::slice::from_ref(&request), "short");
        assert_eq!(ran.drafter.proposals, drafts, "budget {budget}");
    }
    let mut quiet = request(prompt(5, 3), 20, &plans()[0]);
    quiet.speculate = false;
    let ran = run(fixed(4), Script::Right, std::slice::from_ref(&quiet), 64);
    check(&ran, std::slice::from_ref(&quiet), "not to be drafted");
    assert_eq!(ran.drafter.proposals, 0);
    assert!(!ran.done[0].usage.drafted);
}

#[test]
fn ids_drawn_in_the_pass_give_the_same_text() {
    for plan in plans() {
        let requests = requests(&plan);
        for in_pass in [InPass::Greedy, InPass::Keyed] {
            let config = Config {
                in_pass,
                ..fixed(5)
            };
            let ran = run(config, Script::Often(0.7), &requests, 64);
            check(&ran, &requests, &format!("{in_pass:?}"));
        }
    }
}

#[test]
fn a_restored_prefix_is_not_run_again() {
    let plan = &plans()[1];
    let request = request(prompt(40, 2), 30, plan);
    for restored in [1usize, 20, 39] {
        let mut target = Toy::new();
        let mut speculator = Speculator::new(target.info(), fixed(4));
        let seq = target.open().unwrap();
        let mut drafter = Known::new(Script::Often(0.5));
        drafter.learn(seq, whole(&request, 4096));
        // The prefix comes into target and drafter by other ways.
        let mut sink = Recorder::default();
        let part = Request::greedy(request.prompt[..restored].to_vec(), 1);
        speculator.admit(&target, seq, part).unwrap();
        drain(&mut speculator, &mut target, &mut drafter, &mut sink, 64);
        assert_eq!(target.pos(seq), Some(restored as u32));
        let before = target.passes.len();
        speculator.admit(&target, seq, request.clone()).unwrap();
        let mut sink = Recorder::default();
        let done = drain(&mut speculator, &mut target, &mut drafter, &mut sink, 64);
        assert_plain(&target, &done[0], &request, "restored");
        assert_eq!(target.passes[before][0].tokens, request.prompt[restored..]);
    }
}

#[test]
fn a_request_leaves_nothing_to_the_next() {
    // B after A, on the same slot and with the same loop and drafter, is B alone: text, state, passes.
    let plan = &plans()[2];
    let a = request(prompt(30, 8), 25, plan);
    let b = request(prompt(11, 9), 60, plan);
    let passes = |requests: &[&Request]| {
        let mut target = Toy::new();
        let mut speculator = Speculator::new(
            target.info(),
            Config {
                policy: Policy::Ewma,
                ..fixed(1)
            },
        );
        let mut drafter = Known::new(Script::Right);
        let mut last = None;
        for request in requests {
            drafter.learn(SeqId(0), whole(request, 4096));
            target.passes.clear();
            let mut sink = Recorder::default();
            let done = generate(
                &mut speculator,
                &mut target,
                Some(&mut drafter),
                (*request).clone(),
                &mut sink,
            )
            .unwrap();
            assert_eq!(done.tokens, crate::common::plain(request, 4096));
            last = Some(done.usage.emitted);
        }
        assert_eq!(target.opens as usize, requests.len());
        assert_eq!(target.pos(SeqId(0)), None, "closed again");
        (last, target.passes)
    };
    assert_eq!(passes(&[&a, &b]), passes(&[&b]));
}

#[test]
fn one_step_repeated_gives_one_result() {
    let request = request(prompt(20, 4), 12, &plans()[1]);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..200 {
        let ran = run(
            fixed(5),
            Script::Often(0.5),
            std::slice::from_ref(&request),
            64,
        );
        seen.insert(format!("{:?} {:?}", ran.done[0].tokens, ran.target.passes));
    }
    assert_eq!(seen.len(), 1);
}

#[test]
fn an_idle_loop_runs_no_pass() {
    let mut target = Toy::new();
    let mut speculator = Speculator::new(target.info(), fixed(4));
    let mut sink = Recorder::default();
    let out = step(&mut speculator, &mut target, None, &mut sink, 64, &[]);
    assert!(out.finished.is_empty() && out.rows == 0 && target.submits == 0);
    // A prompt without a grant waits.
    let seq = target.open().unwrap();
    speculator
        .admit(&target, seq, Request::greedy(vec![1, 2], 3))
        .unwrap();
    step(&mut speculator, &mut target, None, &mut sink, 0, &[]);
    assert_eq!((target.submits, speculator.stats().turns), (0, 0));
}
