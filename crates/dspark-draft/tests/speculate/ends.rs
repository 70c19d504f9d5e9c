//! Ends: stops, receivers, budgets, contexts, cancellation. Wherever a text ends inside a span, output,
//! reason, counts and state are those of plain decoding.

use crate::common::drafters::{Known, Script};
use crate::common::toy::Toy;
use crate::common::{
    Recorder, assert_plain, assert_state, drain, fixed, plain, plans, prompt, reason, request,
    step, whole,
};
use dspark_draft::speculate::{AdmitError, Finished, Flow, Reason, Request, Speculator};
use engine_core::{Fault, Penalties, SamplePlan, SeqId, Target};
use std::sync::Arc;

/// Runs one request; answers how it ended, and everything it ran on.
fn run(
    width: usize,
    script: Script,
    request: &Request,
    sink: &mut Recorder,
) -> (Finished, Toy, Known, Speculator) {
    run_in(Toy::new(), width, script, request, sink)
}

fn run_in(
    mut target: Toy,
    width: usize,
    script: Script,
    request: &Request,
    sink: &mut Recorder,
) -> (Finished, Toy, Known, Speculator) {
    let n_ctx = target.info().n_ctx as usize;
    let mut speculator = Speculator::new(target.info(), fixed(width));
    let seq = target.open().unwrap();
    let mut drafter = Known::new(script);
    // What would follow an end is text to the drafter too.
    let mut endless = request.clone();
    endless.stops = Arc::from([]);
    drafter.learn(seq, whole(&endless, n_ctx));
    speculator.admit(&target, seq, request.clone()).unwrap();
    let mut done = drain(&mut speculator, &mut target, &mut drafter, sink, 64);
    assert_eq!(done.len(), 1);
    assert_eq!(drafter.shown(seq), target.pos(seq).unwrap() as usize);
    (done.pop().unwrap(), target, drafter, speculator)
}

fn scripts() -> [Script; 4] {
    [
        Script::Right,
        Script::Wrong,
        Script::First(vec![0, 1, 2, 3, 4]),
        Script::Often(0.7),
    ]
}

#[test]
fn a_stop_at_every_place_ends_as_plain_decoding_does() {
    for plan in [&plans()[0], &plans()[2]] {
        let endless = request(prompt(9, 5), 40, plan);
        let text = plain(&endless, 4096);
        let mut places = std::collections::BTreeSet::new();
        for at in 0..32 {
            let mut stopped = endless.clone();
            stopped.stops = Arc::from([text[at]]);
            let first = text.iter().position(|t| *t == text[at]).unwrap();
            places.insert(first);
            for script in scripts() {
                for width in [1, 5, 6, 8] {
                    let what = format!("stop at {first}, width {width}, {script:?}");
                    let mut sink = Recorder::default();
                    let (done, target, _, s) = run(width, script.clone(), &stopped, &mut sink);
                    assert_plain(&target, &done, &stopped, &what);
                    assert!(
                        matches!(done.reason, Reason::Stop(t) if t == text[at]),
                        "{what}"
                    );
                    assert_eq!(done.usage.emitted as usize, first + 1, "{what}: usage");
                    assert_eq!(sink.tokens[&0], text[..=first], "{what}: receiver");
                    assert_eq!(sink.stops.len(), 1, "{what}: the stop is marked");
                    let stats = s.stats();
                    assert_eq!(stats.first_tokens + stats.emitted, first as u64 + 1);
                    assert_eq!(u64::from(done.usage.matched), stats.matched);
                    assert!(stats.matched <= stats.emitted);
                }
            }
        }
        assert!(places.len() > 10, "{places:?}");
    }
}

#[test]
fn a_draft_is_cut_after_its_first_stop() {
    let endless = request(prompt(9, 5), 40, &plans()[0]);
    let text = plain(&endless, 4096);
    for at in 2..30 {
        let mut stopped = endless.clone();
        stopped.stops = Arc::from([text[at]]);
        let (_, target, _, _) = run(8, Script::Right, &stopped, &mut Recorder::default());
        for seen in target.verified() {
            let stop = seen.tokens.iter().position(|t| *t == text[at]);
            assert!(stop.is_none_or(|s| s + 1 == seen.tokens.len()), "{seen:?}");
        }
    }
}

#[test]
fn a_stop_beats_the_budget_and_the_receiver() {
    let endless = request(prompt(9, 5), 40, &plans()[0]);
    let text = plain(&endless, 4096);
    for at in 0..12u32 {
        let first = text.iter().position(|t| *t == text[at as usize]).unwrap() as u32;
        let mut both = endless.clone();
        both.stops = Arc::from([text[at as usize]]);
        both.budget = first + 1;
        let mut sink = Recorder {
            answer: Some((first, Flow::Cancel)),
            ..Recorder::default()
        };
        let (done, target, ..) = run(5, Script::Right, &both, &mut sink);
        assert!(matches!(done.reason, Reason::Stop(_)), "{:?}", done.reason);
        assert_plain(&target, &done, &both, "both");
        // A stop beyond the budget is not reached.
        if first > 0 {
            both.budget = first;
            let (done, target, ..) = run(5, Script::Right, &both, &mut Recorder::default());
            assert_eq!(reason(&done), "length");
            assert_plain(&target, &done, &both, "beyond");
        }
    }
}

#[test]
fn a_receiver_ends_the_text_at_any_token() {
    let endless = request(prompt(9, 6), 40, &plans()[1]);
    for (flow, why) in [(Flow::Stop, "satisfied"), (Flow::Cancel, "cancelled")] {
        for at in 0..32 {
            for script in scripts() {
                let mut sink = Recorder {
                    answer: Some((at, flow)),
                    ..Recorder::default()
                };
                let (done, target, _, s) = run(5, script.clone(), &endless, &mut sink);
                let mut short = endless.clone();
                short.budget = at + 1;
                assert_plain(
                    &target,
                    &done,
                    &short,
                    &format!("{why} at {at}, {script:?}"),
                );
                assert_eq!(reason(&done), why);
                assert_eq!(sink.tokens[&0].len(), at as usize + 1);
                assert!(s.is_idle());
            }
        }
    }
}

#[test]
fn every_budget_is_kept_to_the_token() {
    for budget in 1..20 {
        for script in scripts() {
            for width in [1, 2, 5, 8] {
                let request = request(prompt(4, 2), budget, &plans()[1]);
                let (done, target, ..) =
                    run(width, script.clone(), &request, &mut Recorder::default());
                assert_plain(&target, &done, &request, "budget");
                assert_eq!(
                    (done.tokens.len(), reason(&done)),
                    (budget as usize, "length")
                );
            }
        }
    }
}

#[test]
fn a_full_context_ends_the_text_at_its_last_row() {
    for room in 0..12u64 {
        for script in scripts() {
            for width in [1, 5, 8] {
                let request = request(prompt(10, 2), 100, &plans()[1]);
                let target = Toy::with_context(10 + room);
                let (done, target, ..) = run_in(
                    target,
                    width,
                    script.clone(),
                    &request,
                    &mut Recorder::default(),
                );
                assert_plain(
                    &target,
                    &done,
                    &request,
                    &format!("room {room}, width {width}"),
                );
                // One token past the last position: it is drawn, and has no place to stand.
                assert_eq!(done.tokens.len() as u64, room + 1);
                assert_eq!((reason(&done), u64::from(done.pos)), ("context", 10 + room));
            }
        }
    }
}

#[test]
fn cancelled_at_any_poll_the_state_is_what_was_committed() {
    let request = request(prompt(30, 5), 25, &plans()[1]);
    let text = plain(&request, 4096);
    let mut ends = std::collections::BTreeMap::new();
    for after in 0..40 {
        for script in [Script::Right, Script::Often(0.5)] {
            let mut target = Toy::new();
            let mut s = Speculator::new(target.info(), fixed(5));
            let seq = target.open().unwrap();
            let mut drafter = Known::new(script);
            drafter.learn(seq, whole(&request, 4096));
            s.admit(&target, seq, request.clone()).unwrap();
            let mut sink = Recorder {
                cancel_after: Some(after),
                ..Recorder::default()
            };
            let mut done = drain(&mut s, &mut target, &mut drafter, &mut sink, 8);
            let done = done.pop().unwrap();
            *ends.entry(reason(&done)).or_insert(0) += 1;
            assert_eq!(done.tokens, text[..done.tokens.len()], "a part of the text");
            assert_eq!(target.pos(seq), Some(done.pos));
            if !done.tokens.is_empty() {
                assert_state(
                    &target,
                    &done,
                    &request,
                    &format!("cancelled after {after} polls"),
                );
            } else {
                // Still in the prompt: what ran of it is state.
                assert_eq!(target.state(seq), &request.prompt[..done.pos as usize]);
            }
            assert_eq!(drafter.shown(seq), done.pos as usize);
            // The next request on the same slot is what it is alone.
            target.close(seq);
            engine_core::Drafter::close(&mut drafter, seq);
            let again = target.open().unwrap();
            assert_eq!(again, seq);
            s.admit(&target, again, request.clone()).unwrap();
            let mut sink = Recorder::default();
            let done = drain(&mut s, &mut target, &mut drafter, &mut sink, 64);
            assert_plain(&target, &done[0], &request, "after a cancelled one");
        }
    }
    assert!(ends["cancelled"] > 40 && ends["length"] > 0, "{ends:?}");
}

#[test]
fn a_cancel_after_the_pass_takes_the_span_back() {
    let request = request(prompt(3, 5), 25, &plans()[0]);
    let mut target = Toy::new();
    let mut s = Speculator::new(target.info(), fixed(5));
    let seq = target.open().unwrap();
    let mut drafter = Known::new(Script::Right);
    drafter.learn(seq, whole(&request, 4096));
    s.admit(&target, seq, request.clone()).unwrap();
    let mut sink = Recorder::default();
    step(&mut s, &mut target, Some(&mut drafter), &mut sink, 64, &[]);
    step(&mut s, &mut target, Some(&mut drafter), &mut sink, 64, &[]);
    let (pos, emitted) = (target.pos(seq), sink.tokens[&0].len());
    // Before drafting and before the pass nobody cancels; after it somebody does.
    sink.cancel_after = Some(sink.polls + 2);
    let passes = target.passes.len();
    let out = step(&mut s, &mut target, Some(&mut drafter), &mut sink, 64, &[]);
    assert_eq!(target.passes.len(), passes + 1, "the pass ran");
    assert_eq!(target.passes[passes][0].tokens.len(), 5);
    assert_eq!(
        (target.pos(seq), sink.tokens[&0].len()),
        (pos, emitted),
        "and nothing came of it"
    );
    assert_eq!(reason(&out.finished[0]), "cancelled");
    assert_state(&target, &out.finished[0], &request, "taken back");
}

#[test]
fn a_sequence_can_be_taken_out() {
    let request = request(prompt(3, 5), 25, &plans()[0]);
    let mut target = Toy::new();
    let mut s = Speculator::new(target.info(), fixed(5));
    let seq = target.open().unwrap();
    s.admit(&target, seq, request.clone()).unwrap();
    let mut sink = Recorder::default();
    for _ in 0..4 {
        step(&mut s, &mut target, None, &mut sink, 64, &[]);
    }
    let stands = s.stands(seq).unwrap();
    let done = s.remove(seq).unwrap();
    assert_eq!((done.pos, done.tokens.last().copied()), stands);
    assert_state(&target, &done, &request, "taken out");
    assert!(s.is_idle() && s.remove(seq).is_none() && s.stands(seq).is_none());
}

#[test]
fn requests_that_cannot_run_are_refused_by_name() {
    let mut target = Toy::with_context(20);
    let mut s = Speculator::new(target.info(), fixed(5));
    let seq = target.open().unwrap();
    let ask = |s: &mut Speculator, target: &Toy, seq, request: Request| {
        s.admit(target, seq, request).unwrap_err()
    };
    let good = || Request::greedy(vec![1, 2, 3], 5);
    let error = ask(&mut s, &target, seq, Request::greedy(vec![], 5));
    assert!(matches!(error, AdmitError::EmptyPrompt));
    let error = ask(&mut s, &target, seq, Request::greedy(vec![1], 0));
    assert!(matches!(error, AdmitError::NoBudget));
    let error = ask(&mut s, &target, seq, Request::greedy(vec![1; 21], 5));
    assert!(matches!(
        error,
        AdmitError::TooLong {
            expected: 20,
            got: 21
        }
    ));
    let error = ask(&mut s, &target, seq, Request::greedy(vec![1, 99, 2], 5));
    assert!(matches!(
        error,
        AdmitError::BadToken {
            index: 1,
            got: 99,
            expected: 23
        }
    ));
    let error = ask(&mut s, &target, SeqId(6), good());
    assert!(matches!(
        error,
        AdmitError::Target(Fault::NoSuchSequence(SeqId(6)))
    ));
    let mut odd = good();
    odd.plan = Arc::new(SamplePlan {
        penalties: Penalties {
            repeat: -1.0,
            ..Penalties::default()
        },
        ..SamplePlan::greedy()
    });
    assert!(matches!(
        ask(&mut s, &target, seq, odd),
        AdmitError::Plan(_)
    ));
    assert!(s.is_idle());
    s.admit(&target, seq, good()).unwrap();
    assert!(matches!(
        ask(&mut s, &target, seq, good()),
        AdmitError::Running(SeqId(0))
    ));
    let mut sink = Recorder::default();
    let mut done = Vec::new();
    while done.is_empty() {
        done = step(&mut s, &mut target, None, &mut sink, 64, &[]).finished;
    }
    assert_eq!(reason(&done[0]), "length");
    // The prompt's last token must still be run.
    let error = ask(&mut s, &target, seq, good());
    assert!(
        matches!(
            error,
            AdmitError::AheadOfPrompt {
                expected: 3,
                got: 7,
                ..
            }
        ),
        "{error}"
    );
}
