//! Up to 17 requests at once, of any length, some of which leave: every answer that ends is the one
//! its request gets alone, every slot comes back.

#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::sync::Arc;

use common::{Running, request, submit};
use engine_core::{SamplePlan, TokenId};
use scheduler::{FinishReason, Limits, Request, Scheduler};
use testkit::fake::FakeTarget;
use testkit::rng::Rng;

/// Logits that depend on every token so far.
fn mixed(tokens: &[TokenId]) -> Vec<f32> {
    let mut state = 0x9e37_79b9u32;
    for token in tokens {
        state = (state ^ token).wrapping_mul(0x85eb_ca6b).rotate_left(13);
    }
    let value = |i: u32| {
        let bits = (state ^ i.wrapping_mul(0xc2b2_ae35)).wrapping_mul(0x27d4_eb2f);
        (bits >> 20) as f32 * 1e-3
    };
    (0..64).map(value).collect()
}

fn start(slots: usize, limits: Limits) -> (Scheduler, Arc<testkit::fake::Watch>) {
    let target = FakeTarget::new(64, 600, slots).with_logits(mixed);
    let watch = target.watch();
    (
        Scheduler::start(Box::new(target), None, limits).unwrap(),
        watch,
    )
}

fn random_request(rng: &mut Rng) -> Request {
    let length = 1 + rng.below(400);
    let prompt: Vec<TokenId> = (0..length).map(|_| rng.below(64) as TokenId).collect();
    let mut ask = request(&prompt, 1 + rng.below(30) as u32);
    let hot = rng.below(2) == 1;
    ask.plan = Arc::new(SamplePlan {
        temperature: if hot { 0.8 } else { 0.0 },
        top_k: rng.below(10) as u32,
        seed: rng.below(1000) as u64,
        ..SamplePlan::greedy()
    });
    ask
}

fn crowd(rounds: u64) {
    let (alone, _) = start(1, Limits::default());
    for round in 0..rounds {
        let mut rng = Rng::named(round, "crowd");
        let limits = Limits {
            pass_tokens: 1 + rng.below(300),
            pass_tokens_beside_decode: 1 + rng.below(40),
            ..Limits::default()
        };
        let (scheduler, watch) = start(1 + rng.below(8), limits);
        let asks: Vec<Request> = (0..=rng.below(17))
            .map(|_| random_request(&mut rng))
            .collect();
        let running: Vec<Running> = asks.iter().map(|a| submit(&scheduler, a.clone())).collect();
        let leaves: Vec<bool> = asks.iter().map(|_| rng.below(4) == 0).collect();
        for (running, _) in running.iter().zip(&leaves).filter(|(_, l)| **l) {
            running.handle.cancel();
        }
        for ((running, ask), left) in running.iter().zip(&asks).zip(leaves) {
            let (tokens, finish) = running.finish();
            let (want, _) = submit(&alone, ask.clone()).finish();
            match finish.reason {
                // It may have been quicker.
                FinishReason::Cancelled => {
                    assert!(left && want.starts_with(&tokens), "round {round}");
                }
                FinishReason::Length | FinishReason::StopToken(_) => {
                    assert_eq!(tokens, want, "round {round}");
                }
                other => panic!("round {round}: {other:?}"),
            }
        }
        assert_eq!(
            (watch.open(), scheduler.stats().in_flight()),
            (0, 0),
            "round {round}"
        );
    }
}

#[test]
fn a_few_crowds() {
    crowd(12);
}

#[test]
#[ignore = "soak: thousands of crowds"]
fn many_crowds() {
    crowd(5000);
}
