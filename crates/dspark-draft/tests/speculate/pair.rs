//! The shipped pair: text and saved state are those of plain decoding at every commit, whatever drafts
//! and however wide. A few prompts here; all of them, longer, as soak tests.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use ds4_target::CpuTarget;
use dspark_draft::suffix::Suffix;
use dspark_draft::width::Policy;
use engine_core::{Drafter, SamplePlan};
use testkit::prompts::{KINDS, Prompt};

use crate::common::shipped::{
    DEEPEST, Forced, Seen, check, config, pair, plain, plans, prompts, request,
};

/// Every policy that the drafter's block of five can serve.
fn policies() -> Vec<Policy> {
    let mut all: Vec<Policy> = (1..=6).map(Policy::Fixed).collect();
    all.extend([Policy::threshold(), Policy::Ewma]);
    all.push(Policy::AverageReward(Default::default()));
    all
}

/// Candidates that are right, proposal after proposal.
const PATTERNS: [&[usize]; 4] = [&[0], &[1, 0, 2], &[7, 0, 3, 1, 5], &[6, 2, 4]];

/// One prompt through everything.
fn sweep(t: &mut CpuTarget, prompt: &Prompt, plan: &Arc<SamplePlan>, budget: u32) -> Seen {
    let request = request(&prompt.ids, plan, budget);
    let want = plain(t, &request);
    let text = want.whole(&request);
    let mut all = Seen::default();
    let mut one = |t: &mut CpuTarget, drafter: &mut dyn Drafter, policy: Policy, who: &str| {
        let what = format!("{who}, {policy}, {:?}, T {}", prompt.text, plan.temperature);
        let seen = check(t, drafter, config(policy), (&request, &want), &what);
        all.add(seen);
    };
    for policy in policies() {
        let mut drafter = pair().drafter(t);
        one(t, &mut drafter, policy, "backbone");
        assert_eq!(drafter.stats().blind, 0, "every ask had context rows");
    }
    for width in [7, 8] {
        one(t, &mut Suffix::default(), Policy::Fixed(width), "suffix");
        let mut chooser = pair().chooser(t);
        one(t, &mut chooser, Policy::Fixed(width), "auto");
        let mut oracle = Forced::new(text.clone(), &[DEEPEST]);
        one(t, &mut oracle, Policy::Fixed(width), "oracle");
    }
    let mut chooser = pair().chooser(t);
    one(
        t,
        &mut chooser,
        Policy::AverageReward(Default::default()),
        "auto",
    );
    for (right, width) in PATTERNS.iter().zip([3, 4, 8, 6]) {
        let mut forced = Forced::new(text.clone(), right);
        one(t, &mut forced, Policy::Fixed(width), "forced");
    }
    all
}

fn assert_covered(seen: &Seen) {
    assert_eq!(seen.most_passes, 1, "one pass a step");
    assert_eq!(seen.phases_of_four(), (0..4).collect::<BTreeSet<_>>());
    let s = &seen.stats;
    assert!(s.matched > 0 && s.matched < s.offered);
    // Every width from 1 to 8 was verified at every phase of four.
    for (phase, widths) in s.widths.iter().enumerate() {
        let never = (0..8).find(|at| widths[*at] == 0);
        assert_eq!(never, None, "no width so far above 1 at phase {phase}");
    }
}

#[test]
fn greedy_text_and_state_are_those_of_plain_decoding() {
    few(&plans()[0]);
}

#[test]
fn seeded_text_and_state_are_those_of_plain_decoding() {
    few(&plans()[1]);
}

/// One prompt of each kind.
fn few(plan: &Arc<SamplePlan>) {
    let mut t = pair().target();
    let mut seen = Seen::default();
    for prompt in prompts(1) {
        seen.add(sweep(&mut t, &prompt, plan, 60));
    }
    assert_covered(&seen);
}

/// a rejection at every position of a heavy window, at two widths.
#[test]
fn rejections_at_every_phase_leave_nothing_behind() {
    let mut t = pair().target();
    let prompt = &prompts(1)[2];
    let request = request(&prompt.ids, &plans()[0], 150);
    let want = plain(&mut t, &request);
    for (right, width) in [(&[0][..], 3), (&[0, 1], 8)] {
        let mut forced = Forced::new(want.whole(&request), right);
        let config = config(Policy::Fixed(width));
        let seen = check(&mut t, &mut forced, config, (&request, &want), "forced");
        if right.len() == 1 {
            assert_eq!(seen.rejected, (0..128).collect::<BTreeSet<_>>());
            assert_eq!(seen.stats.matched, 0);
        }
        assert_eq!(seen.phases_of_four().len(), 4);
    }
}

/// Whoever knows the text is believed to the end, and whoever is always wrong changes nothing.
#[test]
fn an_oracle_is_always_right_and_its_opposite_never() {
    let mut t = pair().target();
    let prompt = &prompts(1)[2];
    for plan in &plans() {
        let request = request(&prompt.ids, plan, 400);
        let want = plain(&mut t, &request);
        let text = want.whole(&request);
        let widest = config(Policy::Fixed(DEEPEST + 1));
        let mut oracle = Forced::new(text.clone(), &[DEEPEST]);
        let seen = check(&mut t, &mut oracle, widest, (&request, &want), "oracle").stats;
        assert_eq!((seen.offered, seen.offered - seen.matched), (349, 0));
        for k in 0..DEEPEST {
            assert_eq!(seen.survival(k), Some(1.0), "depth {k}");
        }
        // The first token comes with the prompt; 399 are left for spans of eight.
        assert_eq!(seen.steps, 50);
        let mut wrong = Forced::new(text, &[0]);
        let policy = config(Policy::Fixed(3));
        let seen = check(&mut t, &mut wrong, policy, (&request, &want), "opposite").stats;
        assert_eq!((seen.matched, seen.steps, seen.emitted), (0, 399, 399));
    }
}

/// The drafter's context after a prompt much longer than its window is what it would be had it been shown
/// all of it, and it goes on being right.
#[test]
fn a_prompt_longer_than_the_window_keeps_the_drafter_working() {
    let mut t = pair().target();
    let window = pair().draft.meta.stage.window;
    let mut ids: Vec<u32> = Vec::new();
    for prompt in prompts(15).iter().filter(|p| p.kind == "prose") {
        ids.extend(&prompt.ids);
    }
    ids.truncate(window * 4 + 3);
    assert_eq!(ids.len(), window * 4 + 3, "a long prompt");
    let request = request(&ids, &plans()[0], 80);
    let want = plain(&mut t, &request);
    let mut ran = Vec::new();
    for tap_window in [window, 1 << 20] {
        let mut drafter = pair().drafter(&t);
        let config = dspark_draft::speculate::Config {
            tap_window,
            ..config(Policy::Fixed(6))
        };
        let seen = check(
            &mut t,
            &mut drafter,
            config,
            (&request, &want),
            "long prompt",
        );
        assert_eq!(drafter.stats().blind, 0);
        ran.push((seen.stats.offered, seen.stats.matched, seen.stats.steps));
    }
    assert_eq!(ran[0], ran[1], "same candidates from the window alone");
    let (offered, matched, _) = ran[0];
    assert!(matched * 10 > offered, "{matched} of {offered} accepted");
}

/// All prompts of a kind, long, greedy and seeded, shared out among the processors.
#[allow(clippy::print_stdout, reason = "a soak test's results")]
fn soak(kind: usize) {
    let all = prompts(15);
    let of_kind = all.iter().filter(|p| p.kind == KINDS[kind]);
    let left: Vec<_> = of_kind
        .flat_map(|p| plans().map(|plan| (p, plan)))
        .collect();
    let (left, seen) = (Mutex::new(left), Mutex::new(Seen::default()));
    let next = || left.lock().unwrap().pop();
    let work = || {
        let mut t = pair().target();
        while let Some((prompt, plan)) = next() {
            let one = sweep(&mut t, prompt, &plan, 400);
            seen.lock().unwrap().add(one);
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    // A failed assertion in a thread ends the test when the scope ends.
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let seen = seen.into_inner().unwrap();
    assert_covered(&seen);
    assert_eq!(seen.rejected, (0..128).collect::<BTreeSet<_>>());
    let s = &seen.stats;
    println!(
        "soak: {}: {} steps, {} of {} candidates accepted, rejections at {} of 128 phases",
        KINDS[kind],
        s.steps,
        s.matched,
        s.offered,
        seen.rejected.len()
    );
}

#[test]
#[ignore = "soak: 15 questions, 400 tokens each, through every policy"]
fn all_questions() {
    soak(0);
}

#[test]
#[ignore = "soak: 15 sums, 400 tokens each, through every policy"]
fn all_sums() {
    soak(1);
}

#[test]
#[ignore = "soak: 15 beginnings of prose, 400 tokens each, through every policy"]
fn all_prose() {
    soak(2);
}

#[test]
#[ignore = "soak: 15 texts to copy, 400 tokens each, through every policy"]
fn all_copies() {
    soak(3);
}
