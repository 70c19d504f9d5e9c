use engine_core::seams::Proposal;
use testkit::sim_draft::{COPYING, Device, EASY, PROSE, Process, Sim, best_rate, devices};

use super::*;

fn process(survival: &[f64], spread: f64, skew: (f64, f64)) -> Process {
    Process {
        survival: survival.to_vec(),
        spread,
        skew,
    }
}

/// What a policy did on a simulated device.
#[derive(Debug, Default)]
struct Run {
    /// Expected tokens (of the true survivals) and time.
    tokens: f64,
    time: f64,
    steps: usize,
    rows: usize,
    drafts: usize,
}

impl Run {
    fn rate(&self) -> f64 {
        self.tokens / self.time
    }

    fn mean_width(&self) -> f64 {
        self.rows as f64 / self.steps as f64
    }
}

/// A policy on a device.
struct Bench {
    width: Width,
    seq: SeqWidth,
    sim: Sim,
    device: Device,
    told: bool,
}

impl Bench {
    fn new(policy: Policy, device: &Device, process: Process, seed: u64) -> Self {
        Self {
            width: Width::new(policy),
            seq: SeqWidth::default(),
            sim: Sim::new(process, seed),
            device: device.clone(),
            told: true,
        }
    }

    fn step(&mut self, run: &mut Run) {
        let (device, asked) = (&self.device, self.width.wants_draft(&mut self.seq));
        let draw = self.sim.draw();
        let n = draw.survival.len().min(device.pass.len() - 1);
        let proposal = Proposal {
            tokens: vec![0; n],
            confidence_logits: if self.told {
                draw.logits[..n].to_vec()
            } else {
                vec![]
            },
        };
        let draft = if asked { device.draft } else { 0.0 };
        let drafted = self.sim.jitter(draft);
        self.width.observe_draft(usize::from(asked), drafted);
        let mut choices = [Choice {
            seq: &mut self.seq,
            proposal: asked.then_some(&proposal),
            free: None,
            drafted: asked,
            cap: if asked { n } else { 0 },
            candidates: 9,
        }];
        self.width.choose(&mut choices);
        let candidates = choices[0].candidates;
        assert!(candidates <= if asked { n } else { 0 });
        let matched = draw.matched.min(candidates);
        if asked {
            let settled = draw.matched.min(n);
            self.width
                .observe_verify(&mut self.seq, candidates, matched);
            self.width.observe_outcome(&Outcome {
                logits: proposal.confidence_logits.clone(),
                matched: settled,
                known: n.min(settled + 1),
            });
        }
        let measured = Measured {
            rows: candidates + 1,
            tokens: matched + 1,
            asked: usize::from(asked),
            draft: drafted,
            verify: self.sim.jitter(device.pass[candidates]),
            alone: true,
        };
        self.width.observe_pass(measured);
        run.tokens += 1.0 + draw.survival[..candidates].iter().sum::<f64>();
        run.time += draft + device.pass[candidates];
        run.steps += 1;
        run.rows += candidates + 1;
        run.drafts += usize::from(asked);
    }

    fn run(&mut self, steps: usize) -> Run {
        let mut run = Run::default();
        (0..steps).for_each(|_| self.step(&mut run));
        run
    }
}

fn reward() -> Policy {
    Policy::AverageReward(RewardOptions::default())
}

/// The rate after 200 steps of learning, over the best there is.
fn share(policy: Policy, device: &Device, process: &Process, seed: u64) -> (f64, Run) {
    let mut bench = Bench::new(policy, device, process.clone(), seed);
    bench.run(200);
    let run = bench.run(4000);
    (run.rate() / best_rate(device, process), run)
}

#[test]
fn the_average_reward_policy_comes_near_the_best_on_every_published_table() {
    for device in devices() {
        for (text, survival) in [("easy", &EASY), ("prose", &PROSE), ("copying", &COPYING)] {
            for spread in [0.0, 0.7] {
                for skew in [(1.0, 0.0), (1.6, 0.8)] {
                    let process = process(survival, spread, skew);
                    let what = format!("{}, {text}, spread {spread}, skew {skew:?}", device.name);
                    for seed in 20..24 {
                        let (share, run) = share(reward(), &device, &process, seed);
                        assert!(share > 0.98, "{what}: {share:.4}, {run:?}");
                        assert!(share < 1.01, "{what}: better than the best: {share:.4}");
                    }
                }
            }
        }
    }
}

#[test]
fn copied_text_is_verified_in_wide_spans() {
    for device in devices() {
        let (_, run) = share(reward(), &device, &process(&COPYING, 0.0, (1.0, 0.0)), 5);
        assert!(run.mean_width() > 4.0, "{}: {run:?}", device.name);
    }
}

#[test]
fn a_losing_draft_is_not_run_but_probed() {
    // Nothing is ever accepted: every draft is lost time.
    let device = &devices()[0];
    let hopeless = process(&[0.02, 0.01, 0.01, 0.01, 0.01], 0.0, (1.0, 0.0));
    let mut bench = Bench::new(reward(), device, hopeless, 3);
    bench.run(200);
    let run = bench.run(3300);
    assert_eq!(run.drafts, 100, "one probe in 33 steps");
    // The text changes: drafting is taken up again within a few probes.
    bench.sim = Sim::new(process(&COPYING, 0.0, (1.0, 0.0)), 4);
    let steps = (1..)
        .find(|_| bench.run(1).drafts > 0 && bench.seq.drafts())
        .unwrap_or(0);
    assert!(steps < 200, "{steps}");
    let run = bench.run(200);
    assert_eq!(run.drafts, 200);
    assert!(run.mean_width() > 2.0, "{run:?}");
}

#[test]
fn a_dear_draft_is_probed_less_often() {
    let mut device = devices()[0].clone();
    device.draft = 1.2 * device.pass[0];
    let hopeless = process(&[0.02, 0.01, 0.01, 0.01, 0.01], 0.0, (1.0, 0.0));
    let mut bench = Bench::new(reward(), &device, hopeless, 3);
    bench.run(400);
    let run = bench.run(5000);
    let share = run.tokens / run.time * device.pass[0];
    assert!(share > 0.98, "{share:.4}, {run:?}");
    assert!(run.drafts >= 15, "{run:?}");
}

/// A device on which a draft takes most of a plain pass and a second row nearly half: the shipped pair
/// on a CPU, in milliseconds.
fn dear() -> Device {
    Device {
        name: "dear",
        pass: vec![0.84, 1.22, 1.60, 1.96, 2.29, 2.57],
        draft: 0.69,
    }
}

/// What survives where drafting on [`dear`] loses: nothing, prose, answers to questions.
const LOSING: [[f64; 5]; 3] = [
    [0.02, 0.01, 0.01, 0.01, 0.01],
    [0.63, 0.34, 0.19, 0.11, 0.05],
    [0.63, 0.45, 0.36, 0.27, 0.20],
];

/// Speed to plain decoding over the first `steps` of 20 processes: the worst, and the mean.
fn from_nothing(survival: &[f64], steps: usize) -> (f64, f64) {
    let speed = |seed| {
        // Steps differ, and the drafter thinks too well of itself.
        let mut bench = Bench::new(reward(), &dear(), process(survival, 0.5, (1.3, 0.5)), seed);
        bench.run(steps).rate() * dear().pass[0]
    };
    let speeds: Vec<f64> = (0..20).map(speed).collect();
    let worst = speeds.iter().copied().fold(f64::MAX, f64::min);
    (worst, speeds.iter().sum::<f64>() / 20.0)
}

#[test]
fn a_dear_draft_that_loses_is_given_up_at_once() {
    for survival in &LOSING {
        for (steps, least, mean) in [(100, 0.93, 0.97), (400, 0.97, 0.98), (2000, 0.98, 0.98)] {
            let got = from_nothing(survival, steps);
            let enough = got.0 > least && got.1 > mean;
            assert!(enough, "{survival:?}, {steps} steps: {got:?}");
        }
    }
    // Widths are not tried before a draft promised anything: one row a step.
    let mut bench = Bench::new(reward(), &dear(), process(&LOSING[0], 0.0, (1.0, 0.0)), 1);
    let run = bench.run(40);
    assert_eq!((run.rows, run.drafts), (40, 2), "{run:?}");
}

#[test]
fn a_dear_draft_that_pays_is_kept() {
    let mild = [0.9, 0.8, 0.7, 0.6, 0.5];
    let limit = best_rate(&dear(), &process(&mild, 0.5, (1.3, 0.5))) * dear().pass[0];
    assert!(limit > 1.15);
    let (worst, mean) = from_nothing(&mild, 400);
    assert!(worst > 1.0 && mean > 0.98 * limit, "{worst} {mean} {limit}");
}

/// Drafts of `texts` texts of `steps` steps, each with a prompt that its first draft has to take in.
fn drafts_of(texts: usize, steps: usize) -> usize {
    let mild = process(&[0.9, 0.8, 0.7, 0.6, 0.5], 0.0, (1.0, 0.0));
    let mut bench = Bench::new(reward(), &dear(), mild, 9);
    let mut drafts = 0;
    for _ in 0..texts {
        bench.seq = SeqWidth::default();
        bench.width.observe_pass(Measured {
            rows: 0,
            tokens: 0,
            asked: 0,
            draft: 0.0,
            verify: 3.0,
            alone: false,
        });
        bench.device.draft = dear().draft + 4.0;
        for _ in 0..steps {
            let drafted = bench.run(1).drafts;
            drafts += drafted;
            if drafted > 0 {
                bench.device.draft = dear().draft;
            }
        }
    }
    drafts
}

#[test]
fn short_texts_are_not_drafted_where_taking_in_the_prompt_costs_more_than_they_gain() {
    let (short, long) = (drafts_of(200, 6), drafts_of(4, 300));
    assert!(short < 100, "{short} drafts in 1200 steps of short texts");
    assert!(long > 1000, "{long} drafts in 1200 steps of long texts");
}

#[test]
fn candidates_that_cost_no_draft_do_not_speak_for_the_drafter() {
    let mut bench = Bench::new(reward(), &dear(), process(&LOSING[0], 0.0, (1.0, 0.0)), 1);
    bench.run(100);
    let copy = Proposal {
        tokens: vec![0; 5],
        confidence_logits: vec![4.0; 5],
    };
    let (mut drafts, mut verified) = (0, 0);
    for _ in 0..600 {
        let asked = bench.width.wants_draft(&mut bench.seq);
        bench
            .width
            .observe_draft(usize::from(asked), if asked { dear().draft } else { 0.0 });
        let mut choices = [Choice {
            seq: &mut bench.seq,
            proposal: Some(&copy),
            free: Some(&copy),
            drafted: asked,
            cap: 5,
            candidates: 0,
        }];
        bench.width.choose(&mut choices);
        let rows = choices[0].candidates + 1;
        drafts += usize::from(asked);
        verified += rows - 1;
        bench.width.observe_pass(Measured {
            rows,
            tokens: rows,
            asked: usize::from(asked),
            draft: if asked { dear().draft } else { 0.0 },
            verify: dear().pass[rows - 1],
            alone: true,
        });
    }
    // The copies are used, and the model that adds nothing to them is only probed.
    assert!(verified > 2500, "{verified}");
    assert!((2..=12).contains(&drafts), "{drafts}");
}

#[test]
fn short_texts_do_not_learn_each_for_itself_that_drafting_loses() {
    let device = &devices()[0];
    let hopeless = process(&[0.02, 0.01, 0.01, 0.01, 0.01], 0.0, (1.0, 0.0));
    let mut bench = Bench::new(reward(), device, hopeless, 3);
    bench.run(200);
    let texts = |bench: &mut Bench, n: usize| -> usize {
        let one = |_| {
            bench.seq = SeqWidth::default();
            bench.run(8).drafts
        };
        (0..n).map(one).sum()
    };
    let drafts = texts(&mut bench, 100);
    assert!((10..=40).contains(&drafts), "{drafts} drafts in 800 steps");
    // They find out together, too, that it pays again.
    bench.sim = Sim::new(process(&COPYING, 0.0, (1.0, 0.0)), 4);
    texts(&mut bench, 60);
    assert_eq!(texts(&mut bench, 20), 160, "every step drafts");
}

#[test]
fn drafters_without_confidences_are_learned_by_depth() {
    for device in devices() {
        for survival in [&EASY, &PROSE, &COPYING] {
            let process = process(survival, 0.0, (1.0, 0.0));
            for seed in 0..4 {
                let mut bench = Bench::new(reward(), &device, process.clone(), seed);
                bench.told = false;
                bench.run(200);
                let share = bench.run(4000).rate() / best_rate(&device, &process);
                assert!(share > 0.975, "{}, seed {seed}: {share:.4}", device.name);
            }
        }
    }
}

#[test]
fn rejections_that_cost_time_lower_the_width() {
    let cheap = devices()[2].clone();
    let mut dear = cheap.clone();
    // A rollback that takes half a plain step for each candidate, on average over what is rejected.
    for (n, time) in dear.pass.iter_mut().enumerate() {
        *time += 0.25 * n as f64;
    }
    let widths = [cheap, dear].map(|d| {
        share(reward(), &d, &process(&EASY, 0.0, (1.0, 0.0)), 2)
            .1
            .mean_width()
    });
    assert!(widths[1] < widths[0] - 0.5, "{widths:?}");
}

#[test]
fn simple_policies_do_as_published() {
    let logit = |p: f64| (p / (1.0 - p)).ln() as f32;
    let proposal = |c: &[f64]| Proposal {
        tokens: vec![1; c.len()],
        confidence_logits: c.iter().map(|p| logit(*p)).collect(),
    };
    let choose = |policy: Policy, seq: &mut SeqWidth, proposal: &Proposal, cap| {
        let mut choices = [Choice {
            seq,
            proposal: Some(proposal),
            free: None,
            drafted: true,
            cap,
            candidates: 0,
        }];
        Width::new(policy).choose(&mut choices);
        choices[0].candidates
    };
    let seq = &mut SeqWidth::default();
    // Products 0.5, 0.39; 0.5, 0.41, 0.29; 0.5, 0.41, 0.33.
    for (c, want) in [
        (&[0.5, 0.78, 0.9, 0.9][..], 1),
        (&[0.5, 0.82, 0.7, 0.9], 2),
        (&[0.5, 0.82, 0.8, 0.9], 3),
        (&[0.99, 0.99], 2),
        (&[0.99], 1),
        (&[], 0),
    ] {
        assert_eq!(
            choose(Policy::threshold(), seq, &proposal(c), c.len()),
            want,
            "{c:?}"
        );
    }
    assert_eq!(choose(Policy::Fixed(1), seq, &proposal(&[0.9; 5]), 5), 0);
    assert_eq!(choose(Policy::Fixed(4), seq, &proposal(&[0.9; 5]), 5), 3);
    assert_eq!(choose(Policy::Fixed(9), seq, &proposal(&[0.9; 5]), 5), 5);
    // 1.5, then 0.7 * 1.5 + 0.3 * 4 = 2.25, then 1.575, ..
    let mut width = Width::new(Policy::Ewma);
    assert_eq!(choose(Policy::Ewma, seq, &proposal(&[0.9; 5]), 5), 2);
    width.observe_verify(seq, 4, 4);
    assert_eq!(choose(Policy::Ewma, seq, &proposal(&[0.9; 5]), 5), 3);
    width.observe_verify(seq, 4, 0);
    width.observe_verify(seq, 0, 0);
    assert_eq!(choose(Policy::Ewma, seq, &proposal(&[0.9; 5]), 5), 2);
    assert!(!Width::new(Policy::Fixed(1)).wants_draft(seq));
}

#[test]
fn the_published_thresholds_follow_from_the_staircase() {
    // spec/dspark.md 14: at 28 tokens a second, q = 3 needs a_2 > 0.70, q = 4 a_3 > 0.62, q = 5 almost
    // nothing; on the hull q = 5 is taken iff the three average above 0.45.
    let time = [0.075, 0.100, 0.122, 0.123];
    for (a, want) in [
        ([0.70, 0.40, 0.24], 0),
        ([0.70, 0.41, 0.26], 3),
        ([0.46, 0.46, 0.46], 3),
        ([0.44, 0.44, 0.44], 0),
        ([0.95, 0.20, 0.15], 1),
    ] {
        assert_eq!(best(&a, &time, 28.0), want, "{a:?}");
    }
    let hull = hull(&time);
    for (got, want) in hull.iter().zip([0.075, 0.091, 0.107, 0.123]) {
        assert!((got - want).abs() < 1e-12, "{hull:?}");
    }
    assert_eq!(left_to_right(&[0.46, 0.46, 0.46], &time, 28.0), 3);
    assert_eq!(left_to_right(&[0.90, 0.44, 0.44], &time, 28.0), 1);
    assert_eq!(left_to_right(&[0.44, 0.44, 0.44], &time, 28.0), 0);
}

#[test]
fn rules_agree_with_a_search_of_all_widths() {
    let mut rng = testkit::rng::Rng::new(8);
    for _ in 0..2000 {
        let mut a: Vec<f64> = (0..6).map(|_| rng.unit()).collect();
        a.sort_by(|x, y| y.total_cmp(x));
        let time: Vec<f64> = (0..7).map(|n| n as f64 * 0.2 + rng.unit()).collect();
        let rate = rng.unit() * 3.0;
        let worth = |n: usize| a[..n].iter().sum::<f64>() - rate * time[n];
        let n = best(&a, &time, rate);
        assert!((0..=6).all(|other| worth(other) <= worth(n)));
        let h = hull(&time);
        assert!(h.iter().zip(&time).all(|(h, t)| *h <= t + 1e-12));
        let convex = h.windows(3).all(|w| w[1] - w[0] <= w[2] - w[1] + 1e-9);
        assert!(
            convex && h[0] == time[0] && h[6] == time[6],
            "{h:?} of {time:?}"
        );
    }
}

#[test]
fn a_pass_of_many_sequences_takes_the_best_candidates_of_all() {
    let options = RewardOptions {
        // Rows 1 to 3 cost 1, 2, 3; from there a row costs next to nothing until 6.
        costs: vec![(1, 1.0), (2, 2.0), (3, 3.0), (6, 3.1), (9, 9.0)],
        explore: false,
        ..RewardOptions::default()
    };
    let mut width = Width::new(Policy::AverageReward(options));
    let logit = |p: f64| (p / (1.0 - p)).ln() as f32;
    let good = Proposal {
        tokens: vec![1; 3],
        confidence_logits: vec![logit(0.95); 3],
    };
    let bad = Proposal {
        tokens: vec![1; 3],
        confidence_logits: vec![logit(0.3); 3],
    };
    width.observe_pass(Measured {
        rows: 2,
        tokens: 2,
        asked: 0,
        draft: 0.0,
        verify: 2.0,
        alone: true,
    });
    let mut seqs = [(); 3].map(|()| SeqWidth::default());
    let [a, b, c] = &mut seqs;
    let choice = |seq, proposal: Option<&'static Proposal>| Choice {
        seq,
        cap: proposal.map_or(0, |p| p.tokens.len()),
        drafted: proposal.is_some(),
        free: None,
        proposal,
        candidates: 0,
    };
    let (good, bad) = (&*Box::leak(Box::new(good)), &*Box::leak(Box::new(bad)));
    let mut choices = [choice(a, Some(bad)), choice(b, Some(good)), choice(c, None)];
    width.choose(&mut choices);
    let chosen: Vec<_> = choices.iter().map(|c| c.candidates).collect();
    // Three rows stand; up to six are nearly free: the three good ones take them.
    assert_eq!(chosen, [0, 3, 0]);
}
