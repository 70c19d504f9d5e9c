//! Faults of a sequence, of a pass, of the engine itself: each a typed end, the rest unharmed.

#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::sync::Arc;

use common::{request, run, start, submit};
use engine_core::{Fault, SamplePlan, SeqId};
use sampling::SampleError;
use scheduler::{Failure, FinishReason, Limits, Scheduler, SubmitError};
use testkit::fake::FakeTarget;

fn target_fault(reason: &FinishReason) -> String {
    match reason {
        FinishReason::Failed(Failure::Target(fault)) => fault.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_fault_that_names_a_sequence_ends_that_one_alone() {
    let faults: [fn() -> Fault; 4] = [
        || Fault::NoSuchSequence(SeqId(1)),
        || Fault::ContextFull {
            seq: SeqId(1),
            wanted: 9,
            limit: 8,
        },
        || Fault::WrongPosition {
            seq: SeqId(1),
            expected: 1,
            got: 2,
        },
        // Token index 1 of the pass belongs to the second sequence.
        || Fault::BadToken {
            token: 100,
            index: 1,
            n_vocab: 100,
        },
    ];
    for fault in faults {
        let target = FakeTarget::new(100, 64, 2).gated().failing_at(3, fault());
        let watch = target.watch();
        let scheduler = start(target);
        let first = submit(&scheduler, request(&[1], 6));
        watch.await_passes(1);
        let second = submit(&scheduler, request(&[41], 6));
        watch.release();
        let (tokens, finish) = first.finish();
        assert_eq!(tokens, [2, 3, 4, 5, 6, 7], "{fault:?}: nothing is lost");
        assert!(matches!(finish.reason, FinishReason::Length));
        let (tokens, finish) = second.finish();
        assert_eq!(tokens, [42]);
        assert_eq!(target_fault(&finish.reason), fault().to_string());
        assert_eq!(watch.open(), 0);
        let stats = scheduler.stats();
        assert_eq!((stats.failed, stats.length, stats.in_flight()), (1, 1, 0));
    }
}

#[test]
fn a_lost_pass_ends_its_sequences_and_the_engine_stays_up() {
    let faults: [fn() -> Fault; 2] = [
        || Fault::Lost {
            what: "cuda:0".to_owned(),
            why: "unspecified launch failure".to_owned(),
        },
        // A culprit that is not in the pass must not make it fail for ever.
        || Fault::NoSuchSequence(SeqId(77)),
    ];
    for fault in faults {
        let target = FakeTarget::new(100, 64, 2).failing_at(1, fault());
        let watch = target.watch();
        let scheduler = start(target);
        let (tokens, finish) = run(&scheduler, request(&[1], 6));
        assert!(tokens.is_empty());
        assert_eq!(target_fault(&finish.reason), fault().to_string());
        assert_eq!(watch.open(), 0);
        assert_eq!(run(&scheduler, request(&[1], 2)).0, [2, 3]);
    }
}

/// NaN from the third position on, for one of two requests.
fn broken_after_three(tokens: &[u32]) -> Vec<f32> {
    let mut row = vec![1.0; 8];
    row[(tokens.len() + 1) % 7] = 2.0;
    if tokens[0] == 1 && tokens.len() >= 3 {
        row[5] = f32::NAN;
    }
    row
}

#[test]
fn a_row_with_nan_ends_one_request_and_not_the_pass() {
    // Drawn by the target, and by the loop because of the bias.
    for bias in [None, Some((1, 0.5))] {
        let target = FakeTarget::new(8, 64, 2)
            .with_logits(broken_after_three)
            .gated();
        let watch = target.watch();
        let scheduler = start(target);
        let mut ask = request(&[1], 6);
        ask.stop_tokens = Arc::from([]);
        ask.plan = Arc::new(SamplePlan {
            temperature: 1.0,
            bias: bias.into_iter().collect(),
            ..SamplePlan::greedy()
        });
        let mut whole = request(&[2], 6);
        whole.stop_tokens = Arc::from([]);
        let (broken, whole) = (submit(&scheduler, ask), submit(&scheduler, whole));
        watch.release();
        let (tokens, finish) = broken.finish();
        assert_eq!(tokens.len(), 2, "{bias:?}");
        let FinishReason::Failed(Failure::Row(failure)) = finish.reason else {
            panic!("{:?}", finish.reason);
        };
        let want = match bias {
            None => "the target drew token 4294967295 for position 3, the vocabulary has 8",
            Some(_) => "the logit of token 5 for position 3 is not a number",
        };
        assert_eq!(failure.to_string(), want);
        assert_eq!(whole.finish().0, [2, 3, 4, 5, 6, 0], "the other goes on");
        let stats = scheduler.stats();
        assert_eq!((stats.failed, stats.length), (1, 1));
        assert_eq!(stats.speculation.row_faults, 1);
    }
}

#[test]
fn a_bias_that_bans_every_token_ends_its_request() {
    let scheduler = start(FakeTarget::new(4, 64, 1));
    let mut ask = request(&[1], 6);
    let bans = (0..4).map(|t| (t, f32::NEG_INFINITY)).collect();
    ask.plan = Arc::new(SamplePlan {
        bias: bans,
        ..SamplePlan::greedy()
    });
    let (tokens, finish) = run(&scheduler, ask);
    assert!(tokens.is_empty());
    let FinishReason::Failed(Failure::Sample { pos, error }) = finish.reason else {
        panic!("{:?}", finish.reason);
    };
    assert_eq!((pos, error), (1, SampleError::Nothing));
    assert_eq!(run(&scheduler, request(&[1], 1)).0, [2]);
}

#[test]
fn with_retries_a_pass_may_fail_once() {
    let fault = || Fault::Lost {
        what: "cuda:0".to_owned(),
        why: "a passing trouble".to_owned(),
    };
    for (fails, retries, survives) in [(1, 1, true), (2, 1, false), (2, 2, true)] {
        let mut target = FakeTarget::new(100, 64, 1);
        for nth in 0..fails {
            target = target.failing_at(3 + nth, fault());
        }
        let limits = Limits {
            retries,
            ..Limits::default()
        };
        let scheduler = Scheduler::start(Box::new(target), None, limits).unwrap();
        let (tokens, finish) = run(&scheduler, request(&[1], 6));
        if survives {
            assert_eq!(tokens, [2, 3, 4, 5, 6, 7]);
        } else {
            assert_eq!(tokens, [2, 3]);
            assert_eq!(target_fault(&finish.reason), fault().to_string());
        }
        assert_eq!(scheduler.stats().speculation.pass_faults, fails);
    }
}

#[test]
fn a_target_without_a_slot_is_a_typed_end() {
    // It promises two sequences and has one.
    let target = FakeTarget::new(100, 64, 1)
        .with_info(|info| info.n_seq_max = 2)
        .gated();
    let watch = target.watch();
    let scheduler = start(target);
    let first = submit(&scheduler, request(&[1], 3));
    watch.await_passes(1);
    let second = submit(&scheduler, request(&[1], 3));
    watch.release();
    assert_eq!(first.finish().0, [2, 3, 4]);
    assert!(target_fault(&second.end()).starts_with("sequences: 2 wanted"));
}

#[test]
fn after_a_panic_everything_ends_and_is_refused() {
    let target = FakeTarget::new(100, 64, 1).gated().panicking_at(2);
    let watch = target.watch();
    let scheduler = start(target);
    let active = submit(&scheduler, request(&[1], 9));
    watch.await_passes(1);
    let queued = submit(&scheduler, request(&[1], 9));
    watch.release();
    let (tokens, finish) = active.finish();
    assert_eq!(tokens, [2]);
    assert!(matches!(
        finish.reason,
        FinishReason::Failed(Failure::Stopped)
    ));
    assert!(matches!(queued.end(), FinishReason::Cancelled));
    let refused = scheduler.submit(request(&[1], 1), scheduler::channel().0);
    assert!(matches!(refused, Err(SubmitError::Stopped)));
    let stats = scheduler.stats();
    assert!(stats.dead);
    assert_eq!(stats.in_flight(), 0);
}
