//! The policy of the average reward (spec/dspark.md 14): which candidates pay for their rows at the
//! going rate, and whether drafting pays at all.

use std::collections::VecDeque;

use engine_core::mutant::mutant;
use engine_core::seams::Proposal;

use super::calibrate::Calibration;
use super::copies::Copies;
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
/// acceptance: whoever stops drafting learns no better. A dear draft is judged on the dark side: it has to
/// convince, and its probes do that.
const HOPE: f64 = 0.4;

/// Fewer drafts will do once they have cost so many tokens together.
const CLEAR_LOSS: f64 = 1.05;

/// A draft is dear from this share of a plain pass on. Then doubts are dear too: one draft that lost is
/// enough to stop, and the next one comes when probes are within their share.
const DEAR: f64 = 0.5;

/// A draft below this share of a plain pass took no time: nothing is learned about whether it pays.
const FREE: f64 = 0.02;

/// A loss below this many tokens a step is not worth the switch.
const DEAD_BAND: f64 = 0.003;

/// Measurements of a width before its cost is believed.
const KNOWN: u32 = 2;

/// Widths are tried for this share of the time, and a little more once candidates seem to pay, if none were
/// measured beforehand: plain passes' worth.
const TRIAL_SHARE: f64 = 0.005;
const TRIAL_START: f64 = 2.0;

/// Probes may take this share of the time, dear ones that, though they come at least once in so many steps.
const PROBE_SHARE: f64 = 0.011;
const DEAR_PROBE_SHARE: f64 = 0.004;
const PROBE_LEAST: u32 = 512;

/// Passes made to learn what they take that still meet cold memory: a prompt's, and one more.
const MEASURED_FROM: u64 = 2;

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
}

/// How drafts are judged: by what they cost.
#[derive(Clone, Copy, Debug)]
struct Terms {
    /// Most steps between two probes.
    cap: u32,
    /// Whether a draft is dear.
    dear: bool,
}

impl Terms {
    /// Whether drafts that were worth `gain` on average lose time, as far as `samples` of them can tell.
    fn loses(self, gain: f64, samples: u32) -> bool {
        let enough = if self.dear { 1 } else { GAIN_SAMPLES };
        (samples >= enough && gain < -DEAD_BAND) || -gain * f64::from(samples) > CLEAR_LOSS
    }

    /// Whether a text is to begin without drafts. Where they are dear, others must have shown that they
    /// pay.
    fn doubts(self, habit: Habit) -> bool {
        let shown = habit.samples >= GAIN_SAMPLES && habit.gain > 0.0;
        self.loses(habit.gain, habit.samples) || (self.dear && !shown)
    }

    /// Steps without a draft after the first doubt.
    fn first(self) -> u32 {
        let first = if self.dear { self.cap / 2 } else { PROBE_FIRST };
        first.clamp(1, self.cap.max(1))
    }
}

impl Arm {
    pub(crate) const fn is_on(&self) -> bool {
        self.interval == 0
    }

    /// Begins as the texts before went: a short answer must not pay for learning it again. `since`:
    /// passes since anyone drafted, so that short texts probe together as often as a long one.
    fn begin(&mut self, habit: Habit, since: u64, terms: Terms) {
        self.begun = true;
        if terms.doubts(habit) {
            self.gain = habit.gain.max(GAIN_FLOOR);
            self.samples = GAIN_SAMPLES;
            self.interval = (terms.cap / 2).max(1);
            let since = u32::try_from(since).unwrap_or(u32::MAX);
            self.plain = terms.cap.saturating_sub(since);
        }
    }

    /// Takes the worth of a draft, and decides about the next steps.
    fn observe(&mut self, gain: f64, terms: Terms) {
        self.samples = self.samples.saturating_add(1);
        let least = if self.is_on() {
            GAIN_WEIGHT
        } else {
            PROBE_WEIGHT
        };
        let weight = (1.0 / f64::from(self.samples)).max(least);
        self.gain += weight * (gain - self.gain);
        let loses = terms.loses(self.gain, self.samples);
        if loses || self.samples >= GAIN_SAMPLES {
            self.gain = self.gain.max(GAIN_FLOOR);
        }
        if !loses {
            self.interval = 0;
            return;
        }
        // Once it is clear it stays known: the floor must not make it look like a guess.
        self.samples = self.samples.max(GAIN_SAMPLES);
        self.interval = (self.interval * 2).clamp(terms.first(), terms.cap.max(1));
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
    /// Seconds it took beyond that, to catch up with what was committed since the last one.
    catch_up: f64,
    /// Seconds of the last draft after a pause, with what it caught up.
    probe: f64,
    /// The pass of the last one.
    drafted: u64,
    habit: Habit,
    calibration: Calibration,
    copies: Copies,
    /// (tokens, seconds) of the last passes.
    recent: VecDeque<(f64, f64)>,
    pass: u64,
    explored: u64,
    /// Seconds of all passes, and those lost by trying widths.
    spent: f64,
    lost: f64,
    survivals: Vec<f64>,
    /// Whether passes are made to learn what they take. The first ones taught nothing.
    measuring: bool,
    /// Whether that was done: what is still unknown lies beyond what was measured, and is not worth a loss.
    measured: bool,
    pub(crate) overlap: Overlap,
}

impl Reward {
    pub(crate) fn new(options: RewardOptions) -> Self {
        Self {
            costs: Costs::seeded(&options.costs),
            draft: 0.0,
            dearest: 0.0,
            catch_up: 0.0,
            probe: 0.0,
            drafted: 0,
            habit: Habit::default(),
            calibration: Calibration::default(),
            copies: Copies::default(),
            recent: VecDeque::new(),
            pass: 0,
            explored: 0,
            spent: 0.0,
            lost: 0.0,
            survivals: Vec::new(),
            measuring: false,
            measured: false,
            overlap: Overlap::default(),
            options,
        }
    }

    pub(crate) const fn costs(&self) -> &Costs {
        &self.costs
    }

    /// From now on passes are made to learn what they take.
    pub(crate) fn measure(&mut self) {
        self.measuring = true;
    }

    /// Keeps prices only. Answers with those of a plain pass and of a draft.
    pub(crate) fn settle(&mut self) -> (Option<f64>, Option<f64>) {
        let (plain, draft) = (self.costs.estimate(1), self.dearest);
        let fresh = Self::new(std::mem::take(&mut self.options));
        let old = std::mem::replace(self, fresh);
        self.overlap = old.overlap;
        self.measured = true;
        if !mutant(269) {
            self.costs = old.costs;
            (self.draft, self.dearest) = (draft, draft);
        }
        (plain, (draft > 0.0).then_some(draft))
    }

    /// Tokens a second over the last passes; 0 before there are any, so that nothing seems dear.
    fn rate(&self) -> f64 {
        let sum = |(t, s): (f64, f64), (tokens, seconds): &(f64, f64)| (t + tokens, s + seconds);
        let (tokens, seconds) = self.recent.iter().fold((0.0, 0.0), sum);
        if seconds > 0.0 { tokens / seconds } else { 0.0 }
    }

    /// What drafts cost beside plain passes.
    fn terms(&self) -> Terms {
        let own = self.options.probe_cap;
        let plain = self.costs.estimate(1).unwrap_or(0.0);
        if plain <= 0.0 {
            return Terms {
                cap: own,
                dear: false,
            };
        }
        let dear = self.dearest > DEAR * plain;
        let share = if dear { DEAR_PROBE_SHARE } else { PROBE_SHARE };
        let steps = self.probe.max(self.dearest) / (share * plain);
        Terms {
            cap: own.max((steps as u32).min(PROBE_LEAST)),
            dear,
        }
    }

    /// Whether this step's draft took no time to speak of, or a time that says nothing of others.
    fn is_unjudged(&self) -> bool {
        self.dearest == 0.0 || self.draft < FREE * self.costs.estimate(1).unwrap_or(0.0)
    }

    pub(crate) fn wants_draft(&self, arm: &mut Arm) -> bool {
        // The first passes tell what a row costs without a draft.
        if self.options.explore && self.costs.known(1).0 < KNOWN && self.pass < 8 {
            return false;
        }
        if !arm.begun {
            let since = self.pass - self.drafted;
            arm.begin(self.habit, since, self.terms());
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

    /// Takes candidates that cost no draft, verified in a pass of `base` sequences.
    pub(crate) fn observe_copy(&mut self, base: usize, offered: usize, matched: usize) {
        let price = self.prices(base, offered)[offered];
        self.copies.observe(matched, price);
    }

    /// Takes what this step's draft took, before its widths are chosen.
    pub(crate) fn observe_draft(&mut self, asked: usize, seconds: f64) {
        if asked == 0 {
            return;
        }
        let each = seconds.max(0.0) / asked as f64;
        let unpriced = self.dearest == 0.0;
        let (first, paused) = (self.drafted == 0 && unpriced, self.drafted != self.pass);
        if paused {
            self.probe = each;
        }
        self.drafted = self.pass + 1;
        if first {
            // It took in the whole prompt and met cold memory: what drafts cost is still unknown.
            self.draft = each;
            return;
        }
        self.draft = if unpriced {
            each
        } else if self.measuring {
            each.min(self.dearest)
        } else if paused {
            // It catches up with what was committed meanwhile: the price of the pause, not its own.
            each.min(self.dearest)
        } else {
            each.min(ODD * self.dearest)
        };
        self.catch_up = if paused { each - self.draft } else { 0.0 };
        self.dearest = if self.measuring {
            self.draft
        } else {
            self.draft.max(FADE * self.dearest)
        };
    }

    pub(crate) fn observe_pass(&mut self, m: Measured) {
        self.pass += 1;
        self.spent += m.draft + m.verify;
        if self.measuring {
            if m.alone && self.pass > MEASURED_FROM {
                self.costs.observe_least(m.rows, m.verify);
            }
        } else if m.alone {
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
        let nothing = |c: &Choice<'_>| !c.drafted && c.proposal.is_none_or(|p| p.tokens.is_empty());
        if choices.iter().all(nothing) {
            choices.iter_mut().for_each(|c| c.candidates = 0);
            return;
        }
        let mut all: Vec<(f64, usize)> = Vec::new();
        for (at, choice) in choices.iter_mut().enumerate() {
            let judged = choice.proposal.is_some() && (choice.drafted || mutant(265));
            if judged && !self.is_unjudged() {
                let gain = self.gain(base, choice);
                // A text that goes on earns back what taking in its prompt took, a short one does not.
                let late = if mutant(267) { 0.0 } else { self.catch_up };
                self.habit.observe(gain - self.plain_rate(base) * late);
                choice.seq.arm.observe(gain, self.terms());
            }
            let logits = choice.proposal.map_or(&[][..], |p| &p.confidence_logits);
            self.calibration
                .survival(logits, choice.cap, 0.0, &mut self.survivals);
            if choice.proposal.is_some() && !choice.drafted {
                choice.seq.copied = Some(base);
                let (passes, prices) = (
                    self.spent * self.plain_rate(1),
                    self.prices(base, choice.cap),
                );
                self.copies.allow(passes, &prices, &mut self.survivals);
            }
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

    /// Tokens that could have been made plainly in the time of 0..=n candidates' rows.
    fn prices(&self, base: usize, n: usize) -> Vec<f64> {
        let (times, rate) = (self.times(base, n), self.plain_rate(base));
        times.iter().map(|time| (time - times[0]) * rate).collect()
    }

    /// Tokens that a choice's draft is worth more than its time is at the rate of plain decoding.
    /// Drafting raises the long-run rate above that one if and only if this is positive on average; the
    /// going rate itself is a noisier measure, for it depends on luck. Candidates that would have come
    /// without the draft are none of its merit.
    fn gain(&mut self, base: usize, choice: &Choice<'_>) -> f64 {
        let worth = self.worth(base, choice.proposal, choice.cap);
        let free = self.worth(base, choice.free, choice.cap);
        worth - free - self.plain_rate(base) * self.draft
    }

    /// Tokens a second of a pass that drafts nothing; 0 before there was one.
    fn plain_rate(&self, base: usize) -> f64 {
        let seconds = self.costs.estimate(base).unwrap_or(0.0);
        if seconds > 0.0 {
            base as f64 / seconds
        } else {
            0.0
        }
    }

    /// Tokens that a proposal is worth more than its rows' time is, at the rate of plain decoding.
    fn worth(&mut self, base: usize, proposal: Option<&Proposal>, cap: usize) -> f64 {
        let Some(proposal) = proposal else {
            return 0.0;
        };
        let depth = cap.min(proposal.tokens.len());
        let hope = if self.terms().dear { -HOPE } else { HOPE };
        let logits = &proposal.confidence_logits;
        self.calibration
            .survival(logits, depth, hope, &mut self.survivals);
        let (times, rate) = (self.times(base, depth), self.plain_rate(base));
        let n = best(&self.survivals, &times, rate);
        let tokens: f64 = self.survivals[..n].iter().sum();
        tokens - rate * (times[n] - times[0])
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
        let start = if (chosen > 0 && !self.measured) || mutant(266) {
            TRIAL_START
        } else {
            0.0
        };
        let budget = TRIAL_SHARE * self.spent + start * time(0);
        let fits = self.lost + loss <= budget;
        self.lost += if fits { loss } else { 0.0 };
        fits
    }
}
