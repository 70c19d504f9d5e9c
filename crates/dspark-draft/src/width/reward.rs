//! The policy of the average reward (spec/dspark.md 14): which candidates pay for their rows at the
//! going rate, and whether drafting pays at all.

use std::collections::VecDeque;

use engine_core::mutant::mutant;

use super::calibrate::Calibration;
use super::cost::Costs;
use super::judge::Outcome;
use super::overlap::Overlap;
use super::rule::best;
use super::{Choice, Measured};

/// Settings of [`super::Policy::AverageReward`].
#[derive(Clone, Debug, PartialEq)]
pub struct RewardOptions {
    /// Times known beforehand: (rows, seconds).
    pub costs: Vec<(usize, f64)>,
    /// Passes over which the going rate is taken.
    pub window: usize,
    /// Most steps without a draft between two probes; more where a draft takes so long that probes would
    /// take more than their share of the time.
    pub probe_cap: u32,
    /// Whether widths of unknown cost are tried. Costs time at the start, never tokens.
    pub explore: bool,
}

impl Default for RewardOptions {
    fn default() -> Self {
        Self {
            costs: Vec::new(),
            window: 64,
            probe_cap: 32,
            explore: true,
        }
    }
}

/// Steps without a draft after the first doubt; doubled at each probe that confirms it.
const PROBE_FIRST: u32 = 4;

/// Gains of a draft are averaged with this weight for a new one, and not judged before so many. The
/// average does not sink below a floor, so that text worth drafting is noticed within a few probes.
const GAIN_WEIGHT: f64 = 0.04;
const GAIN_SAMPLES: u32 = 6;
/// The weight of a probe: probes are rare, and one that errs costs a few drafts.
const PROBE_WEIGHT: f64 = 0.15;
const GAIN_FLOOR: f64 = -0.1;
/// The weight of a draft in what all texts of late were worth.
const HABIT_WEIGHT: f64 = 0.02;

/// Drafting is judged on the bright side by so many standard deviations of what is known about
/// acceptance: whoever stops drafting learns no better.
const HOPE: f64 = 0.4;

/// Fewer drafts will do where each is worth so much less than nothing.
const CLEAR_SAMPLES: u32 = 3;
const CLEAR_LOSS: f64 = -0.35;

/// A loss below this many tokens a step is not worth the switch.
const DEAD_BAND: f64 = 0.003;

/// Measurements of a width before its cost is believed.
const KNOWN: u32 = 2;

/// Widths are tried for this share of the time, and a little more at the start: plain passes' worth.
const TRIAL_SHARE: f64 = 0.01;
const TRIAL_START: f64 = 2.0;

/// Probes may take this share of the time, though they come at least once in so many steps.
const PROBE_SHARE: f64 = 0.0125;
const PROBE_LEAST: u32 = 512;

/// A draft that takes so many times the dearest of late met a page fault or a busy machine.
const ODD: f64 = 3.0;
/// What a step leaves of the dearest.
const FADE: f64 = 0.98;

/// Passes after which a cost is stale, and how often a stale width may be tried.
const STALE: u64 = 1024;
const RETRY: u64 = 64;

/// Whether a sequence drafts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arm {
    /// Tokens that a draft was worth, its time taken off: average and number of samples.
    gain: f64,
    samples: u32,
    /// Steps without a draft still to come.
    plain: u32,
    /// Length of the last such run; 0 while drafting.
    interval: u32,
    /// Whether it has begun: the first decision goes by what other texts showed.
    begun: bool,
}

/// What drafts were worth in all texts of late: where a new one begins.
#[derive(Clone, Copy, Debug, Default)]
struct Habit {
    gain: f64,
    samples: u32,
}

impl Habit {
    fn observe(&mut self, gain: f64) {
        self.samples = self.samples.saturating_add(1);
        let weight = (1.0 / f64::from(self.samples)).max(HABIT_WEIGHT);
        self.gain += weight * (gain - self.gain);
    }

    /// Whether drafting has been losing.
    fn is_bad(self) -> bool {
        loses(self.gain, self.samples)
    }
}

/// Whether drafts that were worth `gain` on average lose time, as far as `samples` of them can tell.
fn loses(gain: f64, samples: u32) -> bool {
    (samples >= GAIN_SAMPLES && gain < -DEAD_BAND)
        || (samples >= CLEAR_SAMPLES && gain < CLEAR_LOSS)
}

impl Arm {
    pub(crate) const fn is_on(&self) -> bool {
        self.interval == 0
    }

    /// Begins as the texts before went: a short answer must not pay for learning it again. `since`:
    /// passes since anyone drafted, so that short texts probe together as often as a long one.
    fn begin(&mut self, habit: Habit, since: u64, cap: u32) {
        self.begun = true;
        if habit.is_bad() {
            self.gain = habit.gain.max(GAIN_FLOOR);
            self.samples = GAIN_SAMPLES;
            self.interval = (cap / 2).max(1);
            self.plain = cap.saturating_sub(u32::try_from(since).unwrap_or(u32::MAX));
        }
    }

    /// Takes the worth of a draft, and decides about the next steps.
    fn observe(&mut self, gain: f64, cap: u32) {
        self.samples = self.samples.saturating_add(1);
        let least = if self.is_on() {
            GAIN_WEIGHT
        } else {
            PROBE_WEIGHT
        };
        let weight = (1.0 / f64::from(self.samples)).max(least);
        self.gain += weight * (gain - self.gain);
        let loses = loses(self.gain, self.samples);
        if loses || self.samples >= GAIN_SAMPLES {
            self.gain = self.gain.max(GAIN_FLOOR);
        }
        if !loses {
            self.interval = 0;
            return;
        }
        // Once it is clear it stays known: the floor must not make it look like a guess.
        self.samples = self.samples.max(GAIN_SAMPLES);
        self.interval = (self.interval * 2).clamp(PROBE_FIRST.min(cap), cap.max(1));
        self.plain = self.interval;
    }
}

/// What the policy has learned, shared by all sequences.
#[derive(Clone, Debug)]
pub(crate) struct Reward {
    options: RewardOptions,
    costs: Costs,
    /// Seconds of this step's draft, and of the dearest of late: drafters differ from step to step, one
    /// that copies takes no time.
    draft: f64,
    dearest: f64,
    /// Seconds of the last draft after a pause, with what it caught up.
    probe: f64,
    /// The pass of the last one.
    drafted: u64,
    habit: Habit,
    calibration: Calibration,
    /// (tokens, seconds) of the last passes.
    recent: VecDeque<(f64, f64)>,
    pass: u64,
    explored: u64,
    /// Seconds of all passes, and those lost by trying widths.
    spent: f64,
    lost: f64,
    survivals: Vec<f64>,
    pub(crate) overlap: Overlap,
}

impl Reward {
    pub(crate) fn new(options: RewardOptions) -> Self {
        Self {
            costs: Costs::seeded(&options.costs),
            draft: 0.0,
            dearest: 0.0,
            probe: 0.0,
            drafted: 0,
            habit: Habit::default(),
            calibration: Calibration::default(),
            recent: VecDeque::new(),
            pass: 0,
            explored: 0,
            spent: 0.0,
            lost: 0.0,
            survivals: Vec::new(),
            overlap: Overlap::default(),
            options,
        }
    }

    pub(crate) const fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Tokens a second over the last passes; 0 before there are any, so that nothing seems dear.
    fn rate(&self) -> f64 {
        let sum = |(t, s): (f64, f64), (tokens, seconds): &(f64, f64)| (t + tokens, s + seconds);
        let (tokens, seconds) = self.recent.iter().fold((0.0, 0.0), sum);
        if seconds > 0.0 { tokens / seconds } else { 0.0 }
    }

    /// Most steps between two probes.
    fn cap(&self) -> u32 {
        let own = self.options.probe_cap;
        let plain = self.costs.estimate(1).unwrap_or(0.0);
        if plain <= 0.0 {
            return own;
        }
        let steps = self.probe.max(self.dearest) / (PROBE_SHARE * plain);
        own.max((steps as u32).min(PROBE_LEAST))
    }

    pub(crate) fn wants_draft(&self, arm: &mut Arm) -> bool {
        // The first passes tell what a row costs without a draft.
        if self.options.explore && self.costs.known(1).0 < KNOWN && self.pass < 8 {
            return false;
        }
        if !arm.begun {
            let since = self.pass - self.drafted;
            arm.begin(self.habit, since, self.cap());
        }
        if arm.plain > 0 {
            arm.plain -= u32::from(!mutant(248));
            return mutant(247);
        }
        true
    }

    pub(crate) fn observe_outcome(&mut self, outcome: &Outcome) {
        self.calibration
            .observe(&outcome.logits, outcome.matched, outcome.known);
    }

    /// Takes what this step's draft took, before its widths are chosen.
    pub(crate) fn observe_draft(&mut self, asked: usize, seconds: f64) {
        if asked == 0 {
            return;
        }
        let each = seconds.max(0.0) / asked as f64;
        let paused = self.drafted != self.pass;
        if paused {
            self.probe = each;
        }
        self.draft = if self.dearest == 0.0 {
            each
        } else if paused {
            // It catches up with what was committed meanwhile: the price of the pause, not its own.
            each.min(self.dearest)
        } else {
            each.min(ODD * self.dearest)
        };
        self.dearest = self.draft.max(FADE * self.dearest);
        self.drafted = self.pass + 1;
    }

    pub(crate) fn observe_pass(&mut self, m: Measured) {
        self.pass += 1;
        self.spent += m.draft + m.verify;
        if m.alone {
            self.costs.observe(m.rows, m.verify, self.pass);
            self.recent.push_back((m.tokens as f64, m.draft + m.verify));
            while self.recent.len() > self.options.window.max(1) {
                self.recent.pop_front();
            }
        }
    }

    /// Fills the choices' candidates: the best n of all sequences' candidates by survival, n chosen by
    /// [`best`]. Survival falls with depth, so each sequence gets a prefix of its own.
    pub(crate) fn choose(&mut self, choices: &mut [Choice<'_>]) {
        let base = choices.len();
        let mut all: Vec<(f64, usize)> = Vec::new();
        for (at, choice) in choices.iter_mut().enumerate() {
            let logits = choice.proposal.map_or(&[][..], |p| &p.confidence_logits);
            self.calibration
                .survival(logits, choice.cap, HOPE, &mut self.survivals);
            if choice.proposal.is_some() {
                let gain = self.gain(base, &self.survivals);
                self.habit.observe(gain);
                choice.seq.arm.observe(gain, self.cap());
            }
            self.calibration
                .survival(logits, choice.cap, 0.0, &mut self.survivals);
            all.extend(self.survivals.iter().map(|a| (*a, at)));
            choice.candidates = 0;
        }
        // Stable: of equals the shallower candidate, then the earlier sequence, comes first.
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        let sorted: Vec<f64> = all.iter().map(|(a, _)| *a).collect();
        let rate = self.rate();
        let mut times = self.times(base, sorted.len());
        self.overlap.extend(&mut times, base, &all);
        let n = best(&sorted, &times, rate);
        for (_, at) in &all[..n] {
            choices[*at].candidates += 1;
        }
        if let [only] = choices {
            self.explore(only);
        }
    }

    /// Seconds of passes with 0..=n candidates beside `base` seeds.
    fn times(&self, base: usize, n: usize) -> Vec<f64> {
        (base..=base + n)
            .map(|rows| self.costs.estimate(rows).unwrap_or(0.0))
            .collect()
    }

    /// Tokens that a draft of these survivals is worth more than its time is at the rate of plain
    /// decoding. Drafting raises the long-run rate above that one if and only if this is positive on
    /// average; the going rate itself is a noisier measure, for it depends on luck.
    fn gain(&self, base: usize, survival: &[f64]) -> f64 {
        let times = self.times(base, survival.len());
        let rate = if times[0] > 0.0 {
            base as f64 / times[0]
        } else {
            0.0
        };
        let n = best(survival, &times, rate);
        let tokens: f64 = survival[..n].iter().sum();
        tokens - rate * (times[n] - times[0] + self.draft)
    }

    /// Replaces the width by one whose cost is unknown or stale, if there is time to spare.
    fn explore(&mut self, choice: &mut Choice<'_>) {
        if !self.options.explore || choice.cap == 0 {
            return;
        }
        let unknown = (1..=choice.cap + 1).find(|rows| self.costs.known(*rows).0 < KNOWN);
        if let Some(rows) = unknown {
            if self.affords(choice.candidates, rows - 1) {
                choice.candidates = rows - 1;
            }
            return;
        }
        let oldest = (2..=choice.cap + 1).min_by_key(|rows| self.costs.known(*rows).1);
        if let Some(rows) = oldest
            && self.costs.known(rows).1 + STALE < self.pass
            && self.explored + RETRY < self.pass
            && self.affords(choice.candidates, rows - 1)
        {
            self.explored = self.pass;
            choice.candidates = rows - 1;
        }
    }

    /// Whether trying `other` candidates instead of `chosen` is within the share of time for that; takes
    /// it if so.
    fn affords(&mut self, chosen: usize, other: usize) -> bool {
        let time = |n: usize| self.costs.estimate(n + 1).unwrap_or(0.0);
        let tokens = |n: usize| self.survivals.iter().take(n).sum::<f64>();
        let rate = self.rate();
        let worth = if rate > 0.0 {
            (tokens(other) - tokens(chosen)) / rate
        } else {
            0.0
        };
        let loss = (time(other) - time(chosen) - worth).max(0.0);
        let budget = TRIAL_SHARE * self.spent + TRIAL_START * time(0);
        let fits = self.lost + loss <= budget;
        self.lost += if fits { loss } else { 0.0 };
        fits
    }
}
