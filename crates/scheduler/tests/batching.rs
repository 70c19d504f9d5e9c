//! Who runs in which pass: decoding is never starved, chunks are bounded, short prompts overtake.

mod common;

use std::sync::Arc;

use common::{request, submit};
use engine_core::{Out, Penalties, Pos, SamplePlan};
use scheduler::{Limits, Scheduler};
use testkit::fake::{FakeTarget, SeenSpan};

fn shape(pass: &[SeenSpan]) -> Vec<(Pos, usize, Out)> {
    pass.iter()
        .map(|s| (s.pos, s.tokens.len(), s.out))
        .collect()
}

#[test]
fn a_long_prompt_does_not_stop_those_who_generate() {
    let target = FakeTarget::new(100, 4000, 3).gated();
    let watch = target.watch();
    let limits = Limits {
        pass_tokens: 512,
        pass_tokens_beside_decode: 40,
        ..Limits::default()
    };
    let scheduler = Scheduler::start(Box::new(target), None, limits).unwrap();
    let talker = submit(&scheduler, request(&[1], 30));
    watch.await_passes(1);
    let long = submit(&scheduler, request(&[7; 1000], 2));
    let short = submit(&scheduler, request(&[9; 5], 2));
    watch.release();
    assert_eq!(short.finish().0, [10, 11]);
    assert_eq!(talker.finish().0.len(), 30);
    assert_eq!(long.finish().0, [8, 9]);
    let passes = watch.passes();
    assert_eq!(shape(&passes[0]), [(0, 1, Out::Last)]);
    // The talker's seed, what the short prompt leaves of 40, the short prompt whole.
    let second = [(1, 1, Out::All), (0, 35, Out::None), (0, 5, Out::Last)];
    assert_eq!(shape(&passes[1]), second);
    // Both generate now; the long prompt has the budget to itself.
    let third = [(2, 1, Out::All), (35, 40, Out::None), (5, 1, Out::All)];
    assert_eq!(shape(&passes[2]), third);
    let with_talker = passes.iter().filter(|p| p[0].tokens.len() == 1).count();
    assert!(with_talker >= 29, "one token in every pass");
    // The last pass of the talker's, then chunks grow to the whole budget: the span limit.
    let biggest = passes.iter().flatten().map(|s| s.tokens.len()).max();
    assert_eq!(biggest, Some(40), "1000 tokens went beside the talker's 29");
    assert_eq!(scheduler.stats().passes, passes.len() as u64);
}

#[test]
fn alone_a_prompt_runs_in_the_longest_spans() {
    let target = FakeTarget::new(100, 4000, 1);
    let watch = target.watch();
    let limits = Limits {
        pass_tokens: 700,
        ..Limits::default()
    };
    let scheduler = Scheduler::start(Box::new(target), None, limits).unwrap();
    let running = submit(&scheduler, request(&[7; 1100], 1));
    assert_eq!(running.finish().0, [8]);
    let passes: Vec<_> = watch.passes().iter().map(|p| shape(p)).collect();
    let want = [
        vec![(0, 512, Out::None)],
        vec![(512, 512, Out::None)],
        vec![(1024, 76, Out::Last)],
    ];
    assert_eq!(passes, want);
}

#[test]
fn tokens_are_drawn_in_the_pass_unless_history_or_bias_matter() {
    let target = FakeTarget::new(100, 64, 1);
    let watch = target.watch();
    let scheduler = Scheduler::start(Box::new(target), None, Limits::default()).unwrap();
    let greedy = SamplePlan::greedy();
    let hot = SamplePlan {
        temperature: 1.0,
        ..SamplePlan::greedy()
    };
    let penalised = SamplePlan {
        penalties: Penalties {
            presence: 1.0,
            window: 8,
            ..Penalties::default()
        },
        ..SamplePlan::greedy()
    };
    let biased = SamplePlan {
        bias: Arc::from([(5, 1.0)]),
        ..SamplePlan::greedy()
    };
    for plan in [greedy, hot, penalised, biased] {
        let mut ask = request(&[1], 1);
        ask.plan = Arc::new(plan);
        assert_eq!(submit(&scheduler, ask).finish().0, [2]);
    }
    let draws: Vec<_> = watch.passes().iter().map(|p| p[0].draws).collect();
    assert_eq!(draws, [true, true, false, false]);
}
