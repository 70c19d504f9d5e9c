//! Drafting changes how many passes an answer takes and nothing else, whatever the drafter says and
//! whenever it dies.

#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use common::{request, run, submit};
use engine_core::seams::{Ask, Proposal};
use engine_core::{Drafter, Fault, LayerId, Pos, SamplePlan, SeqId, Tap, Target, TokenId};
use scheduler::{
    Drafting, FinishReason, Limits, Policy, Request, RewardOptions, Scheduler, Speculation,
};
use testkit::fake::FakeTarget;

/// What follows the i-th candidate, or the seed.
type Rule = fn(usize, TokenId) -> TokenId;

/// What a drafter was shown, by sequence.
type Seen = Arc<Mutex<HashMap<SeqId, Vec<TokenId>>>>;

/// Proposes by rule; checks that it is shown every token once, in order, with its features.
struct Scripted {
    next: Rule,
    seen: Seen,
    rounds: usize,
    dies_at: usize,
    taps: bool,
}

impl Drafter for Scripted {
    fn propose(
        &mut self,
        _target: &mut dyn Target,
        asks: &[Ask],
        plans: &[&SamplePlan],
    ) -> Result<Vec<Proposal>, Fault> {
        assert_eq!(asks.len(), plans.len());
        self.rounds += 1;
        if self.rounds == self.dies_at {
            return Err(lost());
        }
        let propose = |ask: &Ask| {
            let known = self.seen.lock().unwrap().get(&ask.seq).map_or(0, Vec::len);
            assert_eq!(known, ask.pos as usize, "all committed tokens were shown");
            let mut last = ask.seed;
            // One more than asked for: what is too long is cut.
            let tokens = (0..=ask.depth as usize).map(|i| {
                last = (self.next)(i, last);
                last
            });
            Proposal {
                tokens: tokens.collect(),
                confidence_logits: Vec::new(),
            }
        };
        Ok(asks.iter().map(propose).collect())
    }

    fn tap(&self) -> Tap {
        let layers: &[LayerId] = if self.taps {
            &[LayerId(2), LayerId(0)]
        } else {
            &[]
        };
        Tap {
            layers: Arc::from(layers),
        }
    }

    fn observe(
        &mut self,
        seq: SeqId,
        pos: Pos,
        tokens: &[TokenId],
        features: &[f32],
    ) -> Result<(), Fault> {
        let mut seen = self.seen.lock().unwrap();
        let known = seen.entry(seq).or_default();
        assert_eq!(known.len(), pos as usize, "no gap, no repetition");
        known.extend_from_slice(tokens);
        let want: Vec<f32> = tokens
            .iter()
            .flat_map(|t| [*t as f32, 2.0, *t as f32, 0.0])
            .collect();
        assert_eq!(features, if self.taps { &want[..] } else { &[] });
        Ok(())
    }

    fn truncate(&mut self, _seq: SeqId, _pos: Pos) {}

    fn close(&mut self, seq: SeqId) {
        self.seen.lock().unwrap().remove(&seq);
    }
}

fn lost() -> Fault {
    Fault::Lost {
        what: "draft worker".to_owned(),
        why: "killed".to_owned(),
    }
}

fn scripted(next: Rule) -> Scripted {
    Scripted {
        next,
        seen: Seen::default(),
        rounds: 0,
        dies_at: 0,
        taps: true,
    }
}

/// All that fits is verified.
fn widest(drafter: Scripted) -> Speculation {
    Speculation {
        policy: Policy::Fixed(8),
        depth: 7,
        ..Speculation::new(Box::new(drafter))
    }
}

fn start(drafter: Option<Scripted>, slots: usize) -> Scheduler {
    start_with(drafter.map(widest), slots)
}

fn start_with(speculation: Option<Speculation>, slots: usize) -> Scheduler {
    // Mostly counts, with an exception at every multiple of 7.
    let target = FakeTarget::new(100, 256, slots).saying(|tokens| {
        let last = tokens[tokens.len() - 1];
        if last % 7 == 0 {
            (last + 3) % 100
        } else {
            (last + 1) % 100
        }
    });
    Scheduler::start(Box::new(target), speculation, Limits::default()).unwrap()
}

fn asks() -> Vec<Request> {
    let mut asks: Vec<Request> = (1..7).map(|n| request(&[n * 11, n * 13], 40)).collect();
    for (n, ask) in asks.iter_mut().enumerate() {
        ask.plan = Arc::new(SamplePlan {
            temperature: if n % 2 == 0 { 0.0 } else { 30.0 },
            seed: n as u64,
            ..SamplePlan::greedy()
        });
    }
    asks
}

#[test]
fn no_drafter_changes_an_answer() {
    let plain = start(None, 3);
    let want: Vec<_> = asks().into_iter().map(|a| run(&plain, a).0).collect();
    let plain_passes = plain.stats().passes;
    let drafters: [(Rule, bool); 4] = [
        (|_, last| (last + 1) % 100, true), // right but for multiples of 7
        (|_, last| (last + 50) % 100, false), // always wrong
        (|i, last| (last + if i < 2 { 1 } else { 2 }) % 100, true), // right at first
        (
            |_, last| {
                if last % 7 == 0 {
                    (last + 3) % 100
                } else {
                    (last + 1) % 100
                }
            },
            true,
        ),
    ];
    for (next, helps) in drafters {
        for taps in [true, false] {
            let drafter = Scripted {
                taps,
                ..scripted(next)
            };
            let seen = Arc::clone(&drafter.seen);
            let scheduler = start(Some(drafter), 3);
            let running: Vec<_> = asks().into_iter().map(|a| submit(&scheduler, a)).collect();
            let ends: Vec<_> = running.iter().map(common::Running::finish).collect();
            let got: Vec<_> = ends.iter().map(|(tokens, _)| tokens.clone()).collect();
            assert_eq!(got, want);
            let stats = scheduler.stats();
            assert!(stats.proposed_tokens > 0);
            // Where tokens are drawn with noise, a wrong guess may be right by chance.
            let by_chance = stats.proposed_tokens / 10;
            assert_eq!(stats.accepted_tokens > by_chance, helps);
            assert!(stats.passes < plain_passes, "three sequences a pass");
            assert!(stats.accepted_tokens <= stats.proposed_tokens);
            let usage: u32 = ends.iter().map(|(_, f)| f.usage.accepted_tokens).sum();
            assert_eq!(u64::from(usage), stats.accepted_tokens);
            assert!(seen.lock().unwrap().is_empty(), "every sequence was closed");
        }
    }
}

#[test]
fn a_right_drafter_saves_passes() {
    let scheduler = start(Some(scripted(|_, last| (last + 1) % 100)), 1);
    let (tokens, finish) = run(&scheduler, request(&[1], 6));
    assert_eq!(tokens, [2, 3, 4, 5, 6, 7]);
    // The prompt's pass, then one verify of the seed and four candidates, of which no more than
    // that could be delivered.
    assert_eq!(scheduler.stats().passes, 2);
    assert_eq!(
        (finish.usage.proposed_tokens, finish.usage.accepted_tokens),
        (4, 4)
    );
}

#[test]
fn an_end_within_accepted_candidates_cuts_them() {
    let mut ask = request(&[20], 30);
    ask.stop_tokens = Arc::from([24]);
    let scheduler = start(Some(scripted(|_, last| (last + 1) % 100)), 1);
    let (tokens, finish) = run(&scheduler, ask);
    assert_eq!(tokens, [21]);
    assert!(matches!(finish.reason, FinishReason::StopToken(24)));
    assert_eq!(finish.usage.completion_tokens, 2);
    assert!(finish.usage.accepted_tokens <= 2);
}

#[test]
fn a_drafter_that_dies_costs_nothing_but_speed() {
    let plain = start(None, 3);
    let want: Vec<_> = asks().into_iter().map(|a| run(&plain, a).0).collect();
    for dies_at in [1, 2, 5] {
        let drafter = Scripted {
            dies_at,
            ..scripted(|_, last| (last + 1) % 100)
        };
        let scheduler = start(Some(drafter), 3);
        let running: Vec<_> = asks().into_iter().map(|a| submit(&scheduler, a)).collect();
        let ends: Vec<_> = running.iter().map(common::Running::finish).collect();
        let got: Vec<_> = ends.iter().map(|(tokens, _)| tokens.clone()).collect();
        assert_eq!(got, want, "dies in round {dies_at}");
        // Whoever ends after the loss is told of it.
        let told = ends.iter().map(|(_, f)| f.usage.drafting);
        let told: Vec<Drafting> = told.collect();
        assert!(!told.contains(&Drafting::Off), "{told:?}");
        assert_eq!(told.last(), Some(&Drafting::Lost), "{told:?}");
        let reason = scheduler.stats().drafter_lost;
        assert_eq!(reason.as_deref(), Some("draft worker failed: killed"));
    }
}

#[test]
fn no_policy_changes_an_answer_and_the_loops_counts_come_through() {
    let plain = start(None, 3);
    let want: Vec<_> = asks().into_iter().map(|a| run(&plain, a)).collect();
    for (_, finish) in &want {
        let usage = finish.usage;
        assert_eq!(usage.drafting, Drafting::Off);
        // The first token comes with the prompt.
        assert_eq!(usage.verify_steps, usage.completion_tokens - 1);
    }
    let policies = [
        Policy::Fixed(1),
        Policy::Fixed(3),
        Policy::threshold(),
        Policy::Ewma,
        Policy::AverageReward(RewardOptions::default()),
    ];
    for policy in policies {
        let speculation = Speculation {
            policy: policy.clone(),
            ..widest(scripted(|_, last| (last + 1) % 100))
        };
        let scheduler = start_with(Some(speculation), 3);
        let running: Vec<_> = asks().into_iter().map(|a| submit(&scheduler, a)).collect();
        let ends: Vec<_> = running.iter().map(common::Running::finish).collect();
        for ((got, finish), (want, _)) in ends.iter().zip(&want) {
            assert_eq!(got, want, "{policy:?}");
            assert_eq!(finish.usage.drafting, Drafting::On);
        }
        let stats = scheduler.stats();
        let loops = &stats.speculation;
        assert_eq!(loops.passes, stats.passes, "one pass a step: {policy:?}");
        assert_eq!(loops.turns, stats.passes);
        assert_eq!(loops.offered, stats.proposed_tokens);
        assert_eq!(loops.matched, stats.accepted_tokens);
        assert_eq!(loops.first_tokens + loops.emitted, stats.generated_tokens);
        let steps: u32 = ends.iter().map(|(_, f)| f.usage.verify_steps).sum();
        assert_eq!(u64::from(steps), loops.steps);
        // What a policy that goes by measured times offers is its own affair.
        if !matches!(policy, Policy::AverageReward(_)) {
            assert_eq!(loops.offered > 0, policy != Policy::Fixed(1), "{policy:?}");
        }
    }
}

/// Counts up, but for a model that failed while a part of it goes on.
struct Half(Scripted);

impl Drafter for Half {
    fn propose(
        &mut self,
        target: &mut dyn Target,
        asks: &[Ask],
        plans: &[&SamplePlan],
    ) -> Result<Vec<Proposal>, Fault> {
        self.0.propose(target, asks, plans)
    }

    fn tap(&self) -> Tap {
        self.0.tap()
    }

    fn observe(&mut self, seq: SeqId, pos: Pos, t: &[TokenId], f: &[f32]) -> Result<(), Fault> {
        self.0.observe(seq, pos, t, f)
    }

    fn truncate(&mut self, _seq: SeqId, _pos: Pos) {}

    fn close(&mut self, seq: SeqId) {
        self.0.close(seq);
    }

    fn lost(&self) -> Option<&str> {
        (self.0.rounds > 1).then_some("the model half failed")
    }
}

#[test]
fn a_drafter_that_loses_a_part_is_reported_and_goes_on() {
    let half = Half(scripted(|_, last| (last + 1) % 100));
    let speculation = Speculation {
        policy: Policy::Fixed(3),
        ..Speculation::new(Box::new(half))
    };
    let scheduler = start_with(Some(speculation), 1);
    let (tokens, finish) = run(&scheduler, request(&[1], 6));
    assert_eq!(tokens, [2, 3, 4, 5, 6, 7]);
    assert_eq!(finish.usage.drafting, Drafting::Lost);
    let stats = scheduler.stats();
    assert_eq!(stats.drafter_lost.as_deref(), Some("the model half failed"));
    // Five tokens after the first in two spans of three rows: it drafted to the end.
    assert_eq!((stats.passes, stats.accepted_tokens), (3, 3));
}
