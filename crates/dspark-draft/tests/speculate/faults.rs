//! Faults: a drafter that dies or talks nonsense, a target whose passes fail, rows without numbers. The
//! text is the plain one as far as it goes, and the state is that of its last token.

use crate::common::drafters::{Known, Script};
use crate::common::toy::Toy;
use crate::common::{
    Recorder, assert_plain, assert_state, drain, fixed, plain, plans, prompt, reason, request,
    step, whole,
};
use dspark_draft::speculate::{
    Config, Failure, Finished, InPass, Reason, Request, Rider, Speculator,
};
use engine_core::{Fault, Out, SeqId, Tap, Target, Want};

struct Bench {
    target: Toy,
    speculator: Speculator,
    drafter: Known,
    sink: Recorder,
    requests: Vec<Request>,
}

impl Bench {
    /// Two requests, a short prompt and one of several chunks.
    fn new(config: Config, script: Script) -> Self {
        let plan = &plans()[1];
        let requests = vec![
            request(prompt(4, 1), 22, plan),
            request(prompt(100, 2), 15, plan),
        ];
        Self::of(config, script, requests)
    }

    fn of(config: Config, script: Script, requests: Vec<Request>) -> Self {
        let mut bench = Self {
            target: Toy::new(),
            speculator: Speculator::new(Toy::new().info(), config),
            drafter: Known::new(script),
            sink: Recorder::default(),
            requests,
        };
        for request in bench.requests.clone() {
            let seq = bench.target.open().unwrap();
            bench.drafter.learn(seq, whole(&request, 4096));
            bench.speculator.admit(&bench.target, seq, request).unwrap();
        }
        bench
    }

    fn drain(&mut self) -> Vec<Finished> {
        let mut done = drain(
            &mut self.speculator,
            &mut self.target,
            &mut self.drafter,
            &mut self.sink,
            40,
        );
        done.sort_by_key(|d| d.seq);
        done
    }

    fn assert_plain(&self, done: &[Finished], what: &str) {
        assert_eq!(done.len(), self.requests.len());
        for (done, request) in done.iter().zip(&self.requests) {
            assert_plain(&self.target, done, request, what);
            assert_eq!(reason(done), "length", "{what}");
        }
    }
}

#[test]
fn a_drafter_that_dies_at_any_call_costs_speed_only() {
    // How many calls there are.
    let mut bench = Bench::new(fixed(5), Script::Often(0.6));
    bench.drain();
    let calls = (bench.drafter.proposals, bench.drafter.observes);
    assert!(calls.0 > 5 && calls.1 > 10);
    for at in 1..=calls.0.max(calls.1) {
        for observing in [false, true] {
            if at > if observing { calls.1 } else { calls.0 } {
                continue;
            }
            let mut bench = Bench::new(fixed(5), Script::Often(0.6));
            if observing {
                bench.drafter.observe_dies = Some(at);
            } else {
                bench.drafter.propose_dies = Some(at);
            }
            let done = bench.drain();
            bench.assert_plain(&done, &format!("call {at}, observing {observing}"));
            assert!(bench.drafter.dead);
            assert!(
                bench
                    .speculator
                    .drafter_lost()
                    .unwrap()
                    .contains("drafter failed")
            );
            assert_eq!(bench.speculator.stats().drafter_faults, 1);
            // Without a drafter nothing is tapped for it.
            if !observing && at == 1 {
                let verified: Vec<_> = bench.target.verified().collect();
                assert!(verified.iter().all(|s| !s.tapped && s.tokens.len() == 1));
            }
        }
    }
}

/// Whatever is verified: the text says how often it would have been right.
#[test]
fn a_drafter_that_is_hardly_ever_right_raises_an_alarm_and_is_used_on() {
    let run = |script, confidence, width| {
        let requests = vec![request(prompt(4, 1), 260, &plans()[0])];
        let mut bench = Bench::of(fixed(width), script, requests);
        bench.drafter.confidence = confidence;
        let done = bench.drain();
        bench.assert_plain(&done, "alarm");
        (bench.speculator.stats().alarms, bench.speculator.alarm())
    };
    let (raised, why) = run(Script::Wrong, Some(1.0), 2);
    assert_eq!(raised, 1);
    assert!(
        why.unwrap()
            .starts_with("1.00 tokens a draft over the last 200")
    );
    assert_eq!(run(Script::Often(0.4), Some(1.0), 2), (0, None));
    // Without confidences it may be a copy of the text: that knows nothing of the target.
    assert_eq!(run(Script::Wrong, None, 2), (0, None));
}

#[test]
fn a_drafter_that_was_replaced_is_used_again() {
    let mut bench = Bench::new(fixed(5), Script::Right);
    bench.drafter.propose_dies = Some(1);
    for _ in 0..4 {
        step(
            &mut bench.speculator,
            &mut bench.target,
            Some(&mut bench.drafter),
            &mut bench.sink,
            100,
            &[],
        );
    }
    assert!(bench.speculator.drafter_lost().is_some());
    bench.speculator.revive_drafter();
    let mut fresh = Known::new(Script::Right);
    for (seq, request) in [SeqId(0), SeqId(1)].into_iter().zip(&bench.requests) {
        let text = whole(request, 4096);
        fresh.learn(seq, text.clone());
        let (pos, _) = bench.speculator.stands(seq).unwrap();
        engine_core::Drafter::observe(&mut fresh, seq, 0, &text[..pos as usize], &[]).unwrap();
    }
    bench.drafter = fresh;
    let done = bench.drain();
    bench.assert_plain(&done, "replaced");
    assert!(bench.drafter.proposals > 0 && bench.speculator.stats().matched > 10);
}

#[test]
fn nonsense_from_a_drafter_is_cut_and_counted() {
    for (script, misfits) in [
        (Script::Bad(0), true),
        (Script::Bad(3), true),
        (Script::TooMany, true),
        (Script::Nothing, false),
    ] {
        let mut bench = Bench::new(fixed(6), script.clone());
        let done = bench.drain();
        bench.assert_plain(&done, &format!("{script:?}"));
        assert_eq!(bench.speculator.stats().misfits > 0, misfits);
        assert_eq!(
            bench.target.submits,
            bench.target.passes.len(),
            "no pass was refused"
        );
    }
    let mut bench = Bench::new(fixed(6), Script::Right);
    bench.drafter.forgets_one = true;
    let done = bench.drain();
    bench.assert_plain(&done, "fewer proposals than asks");
    let mut bench = Bench::new(fixed(6), Script::Often(0.5));
    bench.drafter.confidence = Some(f32::NAN);
    let done = bench.drain();
    bench.assert_plain(&done, "confidences that are no numbers");
}

#[test]
fn a_pass_that_fails_once_is_run_again_plainly() {
    let mut bench = Bench::new(fixed(5), Script::Often(0.6));
    bench.drain();
    let calls = bench.target.submits;
    for at in 1..=calls {
        let mut bench = Bench::new(fixed(5), Script::Often(0.6));
        bench.target.submits_fail.insert(at);
        let done = bench.drain();
        bench.assert_plain(&done, &format!("submit {at}"));
        assert_eq!(bench.speculator.stats().pass_faults, 1);
        assert_eq!(
            bench.speculator.stats().passes,
            bench.target.passes.len() as u64
        );
        // The pass after it holds nothing but seeds.
        if let Some(pass) = bench.target.passes.get(at - 1) {
            let narrow = |s: &crate::common::toy::Seen| s.out != Out::All || s.tokens.len() == 1;
            assert!(pass.iter().all(narrow), "{pass:?}");
        }
    }
}

#[test]
fn a_pass_that_fails_while_waiting_leaves_the_state_where_it_was() {
    let calls = {
        let mut bench = Bench::new(fixed(5), Script::Often(0.6));
        bench.drain();
        bench.target.waits
    };
    let mut lost = 0;
    for at in 1..=calls {
        let mut bench = Bench::new(fixed(5), Script::Often(0.6));
        bench.target.waits_fail.insert(at);
        let done = bench.drain();
        assert_eq!(done.len(), 2);
        for (done, request) in done.iter().zip(&bench.requests) {
            if let Reason::Failed(Failure::Pass(fault)) = &done.reason {
                // A chunk wider than the widest verify cannot be taken back.
                assert!(matches!(**fault, Fault::Lost { .. }));
                assert!(done.tokens.is_empty() && done.pos as usize + 8 < request.prompt.len());
                lost += 1;
            } else {
                assert_plain(&bench.target, done, request, &format!("wait {at}"));
            }
        }
    }
    assert_eq!(lost, 3, "the three chunks of the long prompt");
}

#[test]
fn without_retries_a_failed_pass_ends_its_sequences_with_the_fault() {
    let config = Config {
        retries: 0,
        ..fixed(5)
    };
    for at in 1..7 {
        let mut bench = Bench::new(config.clone(), Script::Often(0.6));
        bench.target.submits_fail.insert(at);
        let out = loop {
            assert!(!bench.speculator.is_idle(), "ended before pass {at}");
            let drafter = Some(&mut bench.drafter as &mut dyn engine_core::Drafter);
            let out = step(
                &mut bench.speculator,
                &mut bench.target,
                drafter,
                &mut bench.sink,
                40,
                &[],
            );
            if out.fault.is_some() {
                break out;
            }
        };
        assert!(!out.finished.is_empty() && bench.speculator.is_idle());
        for done in &out.finished {
            let request = &bench.requests[done.seq.index()];
            assert!(matches!(done.reason, Reason::Failed(Failure::Pass(_))));
            let text = plain(request, 4096);
            assert_eq!(done.tokens, text[..done.tokens.len()]);
            assert_eq!(bench.target.pos(done.seq), Some(done.pos));
            if !done.tokens.is_empty() {
                assert_state(&bench.target, done, request, "failed");
            }
        }
    }
}

#[test]
fn retries_are_counted_in_a_row() {
    // One retry each: two failures in a row end it, two apart do not.
    let mut bench = Bench::new(fixed(5), Script::Often(0.6));
    bench.target.submits_fail.extend([4, 6, 8]);
    let done = bench.drain();
    bench.assert_plain(&done, "apart");
    let mut bench = Bench::new(fixed(5), Script::Often(0.6));
    bench.target.submits_fail.extend([6, 7]);
    let done = bench.drain();
    assert!(done.iter().all(|d| reason(d) == "failed"));
}

#[test]
fn a_fault_that_names_a_sequence_ends_that_one_only() {
    let config = Config {
        retries: 0,
        ..fixed(5)
    };
    let mut bench = Bench::new(config, Script::Often(0.6));
    for _ in 0..4 {
        step(
            &mut bench.speculator,
            &mut bench.target,
            Some(&mut bench.drafter),
            &mut bench.sink,
            40,
            &[],
        );
    }
    // Somebody closes it behind the loop's back.
    bench.target.close(SeqId(1));
    let done = bench.drain();
    assert!(
        matches!(&done[1].reason, Reason::Failed(Failure::Pass(f)) if matches!(**f, Fault::NoSuchSequence(SeqId(1)))),
        "{:?}",
        done[1].reason
    );
    assert_plain(&bench.target, &done[0], &bench.requests[0], "the other one");
}

#[test]
fn a_row_without_numbers_ends_the_text_before_it() {
    let request = request(prompt(5, 3), 20, &plans()[1]);
    let text = plain(&request, 4096);
    for ids in [false, true] {
        let request = Request {
            plan: if ids {
                plans()[0].clone()
            } else {
                request.plan.clone()
            },
            ..request.clone()
        };
        let text = if ids {
            plain(&request, 4096)
        } else {
            text.clone()
        };
        for at in 5..24u32 {
            for (width, script) in [
                (1, Script::Nothing),
                (5, Script::Right),
                (5, Script::Often(0.5)),
            ] {
                let mut target = Toy::new();
                target.nan_at = Some(at);
                let config = Config {
                    in_pass: if ids { InPass::Keyed } else { InPass::Never },
                    ..fixed(width)
                };
                let mut s = Speculator::new(target.info(), config);
                let seq = target.open().unwrap();
                let mut drafter = Known::new(script);
                drafter.learn(seq, whole(&request, 4096));
                s.admit(&target, seq, request.clone()).unwrap();
                let mut sink = Recorder::default();
                let done = drain(&mut s, &mut target, &mut drafter, &mut sink, 64)
                    .pop()
                    .unwrap();
                match &done.reason {
                    Reason::Failed(Failure::NotANumber { pos, token }) if !ids => {
                        assert_eq!((*pos, *token), (at, 11));
                    }
                    Reason::Failed(Failure::NoToken { pos, .. }) if ids => assert_eq!(*pos, at),
                    other => panic!("{other:?}"),
                }
                assert_eq!(
                    done.tokens,
                    text[..at as usize - 5],
                    "what came before stands"
                );
                if at > 5 {
                    assert_state(&target, &done, &request, "nan");
                }
                assert_eq!(s.stats().row_faults, 1);
            }
        }
    }
}

#[test]
fn a_pass_with_too_few_rows_is_a_fault_of_its_own() {
    let mut bench = Bench::new(fixed(5), Script::Right);
    for _ in 0..3 {
        step(
            &mut bench.speculator,
            &mut bench.target,
            Some(&mut bench.drafter),
            &mut bench.sink,
            100,
            &[],
        );
    }
    bench.target.short = true;
    let done = bench.drain();
    for (done, request) in done.iter().zip(&bench.requests) {
        assert!(
            matches!(
                done.reason,
                Reason::Failed(Failure::Rows {
                    expected: 5,
                    got: 4
                })
            ),
            "{:?}",
            done.reason
        );
        assert_state(&bench.target, done, request, "short");
    }
}

#[test]
fn riders_share_the_pass_and_disturb_nobody() {
    let mut bench = Bench::new(fixed(5), Script::Often(0.6));
    let own = bench.target.open().unwrap();
    let tokens = prompt(12, 9);
    let rider = |pos: usize| Rider {
        seq: own,
        pos: pos as u32,
        tokens: tokens[pos..pos + 2].to_vec(),
        out: Out::Last,
        want: Want::Logits,
        tap: Tap::default(),
    };
    for pos in (0..12).step_by(2) {
        let passes = bench.target.passes.len();
        step(
            &mut bench.speculator,
            &mut bench.target,
            Some(&mut bench.drafter),
            &mut bench.sink,
            40,
            &[rider(pos)],
        );
        assert_eq!(bench.target.passes.len(), passes + 1, "one pass for all");
        let (index, row) = bench.sink.rides.pop().unwrap();
        assert_eq!(
            (index, row),
            (0, crate::common::toy::logits(&tokens[..pos + 2]))
        );
        assert_eq!(
            bench.target.pos(own),
            Some(pos as u32),
            "the caller commits its own"
        );
        bench.target.commit(own, pos as u32 + 2);
    }
    assert_eq!(bench.target.state(own), tokens);
    let done = bench.drain();
    bench.assert_plain(&done, "beside riders");
    // Alone, a rider is a pass too.
    let more = Rider {
        pos: 12,
        ..rider(0)
    };
    step(
        &mut bench.speculator,
        &mut bench.target,
        None,
        &mut bench.sink,
        40,
        &[more],
    );
    assert_eq!(bench.sink.rides.len(), 1);
}
