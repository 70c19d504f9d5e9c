//! What an answer is: its tokens, its end, its counts, and that neither chunking nor company
//! changes it.

mod common;

use std::sync::Arc;

use common::{request, run, start, submit};
use engine_core::seams::Counters;
use engine_core::{Penalties, SamplePlan, TokenId};
use scheduler::{Event, FinishReason, Flow, Limits, Scheduler, Stats, SubmitError};
use testkit::fake::FakeTarget;

#[test]
fn an_answer_has_its_tokens_its_end_and_its_counts() {
    let scheduler = start(FakeTarget::new(100, 64, 2));
    let (tokens, finish) = run(&scheduler, request(&[1, 2, 3], 4));
    assert_eq!(tokens, [4, 5, 6, 7]);
    assert!(matches!(finish.reason, FinishReason::Length));
    let usage = finish.usage;
    assert_eq!((usage.prompt_tokens, usage.completion_tokens), (3, 4));
    assert_eq!((usage.cached_tokens, usage.proposed_tokens), (0, 0));
    let stats = scheduler.stats();
    assert_eq!(
        (stats.submitted, stats.length, stats.in_flight()),
        (1, 1, 0)
    );
    assert_eq!((stats.prompt_tokens, stats.generated_tokens), (3, 4));
    // The last token needs no pass of its own.
    assert_eq!((stats.passes, stats.pass_tokens), (4, 3 + 3));
    assert_eq!(stats.tokens_per_pass(), 1.5);
}

/// C-29: what the target counted leaves it with the engine's own counts, and a target that does not count
/// is not one that counted nothing.
#[test]
fn c_29_the_targets_counters_leave_the_engine() {
    let scheduler = start(FakeTarget::new(100, 64, 2));
    for answers in 1..=2 {
        run(&scheduler, request(&[1, 2, 3], 4));
        let stats = scheduler.stats();
        let expected = Counters {
            weight_bytes: Some(answers * 4 * FakeTarget::PASS_BYTES),
            launches: answers * 4,
            ..Counters::default()
        };
        assert_eq!(stats.target, Some(expected));
        assert_eq!(stats.fallbacks(), []);
    }
    let scheduler = start(FakeTarget::new(100, 64, 2).without_counters());
    run(&scheduler, request(&[1, 2, 3], 4));
    assert_eq!(scheduler.stats().target, None);
}

#[test]
fn c_29_fallbacks_are_named_and_counted() {
    let mut stats = Stats::default();
    assert_eq!(stats.fallbacks(), []);
    stats.target = Some(Counters {
        fallbacks: 3,
        ..Counters::default()
    });
    stats.drafter_lost = Some("gone".to_owned());
    stats.speculation.drafter_faults = 1;
    stats.speculation.pass_faults = 2;
    let expected = [
        ("target", 3),
        ("drafter_lost", 1),
        ("drafter_faults", 1),
        ("pass_faults", 2),
    ];
    assert_eq!(stats.fallbacks(), expected);
}

#[test]
fn a_stop_token_ends_and_is_counted_but_not_delivered() {
    let scheduler = start(FakeTarget::new(100, 64, 2).reciting(9, vec![5, 6], 0));
    let (tokens, finish) = run(&scheduler, request(&[8, 9], 50));
    assert_eq!(tokens, [5, 6]);
    assert!(matches!(finish.reason, FinishReason::StopToken(0)));
    assert_eq!(finish.usage.completion_tokens, 3);
    assert_eq!(scheduler.stats().stopped, 1);
}

#[test]
fn a_satisfied_receiver_costs_no_further_pass() {
    let target = FakeTarget::new(100, 64, 2);
    let watch = target.watch();
    let scheduler = start(target);
    let (told, end) = std::sync::mpsc::channel();
    let mut seen = Vec::new();
    let sink = move |event| match event {
        Event::Token(token) => {
            seen.push(token.id);
            if token.id == 5 {
                Flow::Stop
            } else {
                Flow::Continue
            }
        }
        Event::Finished(finish) => {
            told.send((seen.clone(), finish)).unwrap();
            Flow::Continue
        }
    };
    let _handle = scheduler
        .submit(request(&[1, 2], 50), Box::new(sink))
        .unwrap();
    let (seen, finish) = end.recv().unwrap();
    assert_eq!(seen, [3, 4, 5]);
    assert!(matches!(finish.reason, FinishReason::Satisfied));
    assert_eq!(finish.usage.completion_tokens, 3);
    assert_eq!(watch.passes().len(), 3);
    assert_eq!(watch.open(), 0);
}

#[test]
fn the_context_bounds_prompt_and_answer_together() {
    let scheduler = start(FakeTarget::new(100, 8, 1));
    let (tokens, finish) = run(&scheduler, request(&[1; 5], 1000));
    assert_eq!((tokens.len(), finish.usage.completion_tokens), (3, 3));
    assert!(matches!(finish.reason, FinishReason::Length));
    // One position left: one token, whose own row is never needed.
    assert_eq!(run(&scheduler, request(&[1; 7], 1000)).0, [2]);
    // A prompt of exactly the context, and of one more.
    for n in [8usize, 9] {
        let (sink, events) = scheduler::channel();
        let refused = scheduler.submit(request(&vec![1; n], 1), sink);
        let Err(SubmitError::ContextOverflow { prompt, limit }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!((prompt, limit), (n as u64, 8));
        assert!(events.recv().is_err(), "a refused request has no events");
    }
    assert_eq!(scheduler.stats().submitted, 2);
}

#[test]
fn requests_that_cannot_be_meant_are_refused_by_name() {
    let scheduler = start(FakeTarget::new(100, 8, 1));
    let refused = |request| {
        let error = scheduler
            .submit(request, scheduler::channel().0)
            .unwrap_err();
        error.to_string()
    };
    assert_eq!(refused(request(&[], 1)), "the prompt is empty");
    assert_eq!(
        refused(request(&[1], 0)),
        "at least one token must be asked for, got 0"
    );
    assert_eq!(
        refused(request(&[1, 100], 1)),
        "token 100 at index 1 of the prompt is outside the vocabulary of 100"
    );
    let mut hot = request(&[1], 1);
    hot.plan = Arc::new(SamplePlan {
        temperature: f32::NAN,
        ..SamplePlan::greedy()
    });
    assert!(refused(hot).starts_with("sampling plan: temperature is NaN"));
}

/// Logits that depend on all tokens so far, so that any slip of position or history shows.
fn mixed(tokens: &[TokenId]) -> Vec<f32> {
    let mut state = 0x9e37_79b9u32;
    for token in tokens {
        state = (state ^ token).wrapping_mul(0x85eb_ca6b).rotate_left(13);
    }
    let value =
        |i: u32| ((state ^ i.wrapping_mul(0xc2b2_ae35)).wrapping_mul(0x27d4_eb2f) >> 20) as f32;
    (0..50).map(|i| value(i) * 1e-3).collect()
}

fn plans() -> Vec<SamplePlan> {
    let sampled = SamplePlan {
        temperature: 0.9,
        top_k: 20,
        top_p: 0.95,
        seed: 7,
        ..SamplePlan::greedy()
    };
    let penalised = SamplePlan {
        penalties: Penalties {
            repeat: 1.5,
            presence: 0.5,
            frequency: 0.5,
            window: 16,
        },
        ..sampled.clone()
    };
    vec![SamplePlan::greedy(), sampled, penalised]
}

#[test]
fn neither_chunks_nor_company_change_an_answer() {
    let prompts: Vec<Vec<TokenId>> = (1..9)
        .map(|n| (0..n * 7).map(|i| i % 50).collect())
        .collect();
    let asks = |n: usize| {
        let mut ask = request(&prompts[n], 20);
        ask.plan = Arc::new(plans()[n % 3].clone());
        ask.stop_tokens = Arc::from([]);
        ask
    };
    let target = |slots| Box::new(FakeTarget::new(50, 256, slots).with_logits(mixed));
    let alone = Scheduler::start(target(1), None, Limits::default()).unwrap();
    let want: Vec<_> = (0..8).map(|n| run(&alone, asks(n)).0).collect();
    assert!(want.iter().all(|t| t.len() == 20));
    for (slots, pass_tokens, beside) in [(1, 1, 1), (3, 5, 2), (8, 64, 1), (8, 512, 512)] {
        let limits = Limits {
            pass_tokens,
            pass_tokens_beside_decode: beside,
            ..Limits::default()
        };
        let together = Scheduler::start(target(slots), None, limits).unwrap();
        let running: Vec<_> = (0..8).map(|n| submit(&together, asks(n))).collect();
        let got: Vec<_> = running.iter().map(|r| r.finish().0).collect();
        assert_eq!(
            got, want,
            "{slots} slots, chunks of {pass_tokens} and {beside}"
        );
    }
}

#[test]
fn penalties_count_the_answer_and_not_the_prompt() {
    // Token 3 is always a little ahead of token 4.
    let target = FakeTarget::new(8, 64, 1).with_logits(|_| vec![0., 0., 0., 1.0, 0.9, 0., 0., 0.]);
    let scheduler = start(target);
    let mut ask = request(&[3, 3, 3, 3], 4);
    ask.plan = Arc::new(SamplePlan {
        penalties: Penalties {
            presence: 0.5,
            window: 64,
            ..Penalties::default()
        },
        ..SamplePlan::greedy()
    });
    // 3 as if it were new; then 4, since 3 is known; then both are known and 3 leads again.
    assert_eq!(run(&scheduler, ask).0, [3, 4, 3, 3]);
}
