//! Faults of a sequence, of a pass, of the engine itself: each a typed end, the rest unharmed.

mod common;

use common::{request, run, start, submit};
use engine_core::{Fault, SeqId};
use sampling::SampleError;
use scheduler::{Failure, FinishReason, SubmitError};
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

#[test]
fn a_row_nothing_can_be_drawn_from_ends_the_request() {
    let target = FakeTarget::new(4, 64, 1).with_logits(|tokens| {
        let value = if tokens.len() < 3 { 1.0 } else { f32::NAN };
        vec![value; 4]
    });
    let scheduler = start(target);
    let mut ask = request(&[1], 6);
    ask.stop_tokens = std::sync::Arc::from([]);
    ask.plan = std::sync::Arc::new(engine_core::SamplePlan {
        temperature: 1.0,
        bias: std::sync::Arc::from([(1, 0.5)]),
        ..engine_core::SamplePlan::greedy()
    });
    let (tokens, finish) = run(&scheduler, ask);
    assert_eq!(tokens.len(), 2);
    let FinishReason::Failed(Failure::Sample { pos, error }) = finish.reason else {
        panic!("{:?}", finish.reason);
    };
    assert_eq!((pos, error), (3, SampleError::Nothing));
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
