//! How many candidates a step verifies (spec/dspark.md 8 and 14).
//!
//! A policy costs or saves time and never changes a token: acceptance is exact for every width. What it
//! knows is what the drafter says (confidences), what the text later proved (`judge`), and what passes
//! cost (`cost`), measured on the run's own clock. Widths are chosen before the pass; a candidate that
//! is not chosen is not in it.
//!
//! [`Policy::AverageReward`] maximises tokens over time in the long run: with the going rate r, a step
//! is worth its expected tokens minus r times its duration, and that is maximised, not the step's own
//! ratio. Whether to draft at all is the same sum with the draft's time in it.
//!
//! Must not know: targets, drafters, tokens' meaning.

mod calibrate;
mod copies;
mod cost;
mod judge;
mod name;
mod overlap;
mod reward;
mod rule;

use engine_core::seams::{AheadCounts, Proposal};

pub use calibrate::Calibration;
pub use cost::Costs;
pub(crate) use judge::{Judge, Outcome};
pub use name::PolicyNameError;
pub use overlap::step_time;
pub use reward::RewardOptions;
use reward::{Arm, Reward};
pub use rule::{best, hull, left_to_right};

/// How widths are chosen.
#[derive(Clone, Debug, PartialEq)]
pub enum Policy {
    /// Always this verify width; 1 never drafts.
    Fixed(usize),
    /// Two candidates if the product of the first two confidences reaches `second`, three if that of
    /// three reaches `third` too, else one.
    Threshold {
        /// For a second candidate.
        second: f64,
        /// For a third.
        third: f64,
    },
    /// One more than a moving average of accepted candidates, rounded down. Needs no confidences.
    Ewma,
    /// Largest rate of tokens, from measured costs.
    AverageReward(RewardOptions),
}

impl Policy {
    /// The constants published for a gfx1151 (spec/dspark.md 8.2).
    #[must_use]
    pub const fn threshold() -> Self {
        Self::Threshold {
            second: 0.40,
            third: 0.30,
        }
    }
}

/// A sequence's part of the policy's memory.
#[derive(Clone, Debug)]
pub struct SeqWidth {
    /// Moving average of accepted candidates.
    accepted: f64,
    arm: Arm,
    /// Sequences of the pass, if its candidates of this step cost no draft.
    copied: Option<usize>,
}

impl SeqWidth {
    /// Whether it drafts, apart from probes.
    #[must_use]
    pub fn drafts(&self) -> bool {
        self.arm.is_on()
    }
}

impl Default for SeqWidth {
    fn default() -> Self {
        Self {
            accepted: EWMA_START,
            arm: Arm::default(),
            copied: None,
        }
    }
}

/// spec/dspark.md 8.3: start and weight of a new step.
const EWMA_START: f64 = 1.5;
const EWMA_WEIGHT: f64 = 0.3;

/// One sequence's choice in a step.
#[derive(Debug)]
pub struct Choice<'a> {
    /// Its memory.
    pub seq: &'a mut SeqWidth,
    /// What was proposed; `None` if nobody asked.
    pub proposal: Option<&'a Proposal>,
    /// What would have been proposed without the time of a draft.
    pub free: Option<&'a Proposal>,
    /// Whether the time of a draft was spent on it: only then it tells what drafting is worth.
    pub drafted: bool,
    /// Most candidates that may be verified: proposed, within the budget, the context and the target.
    pub cap: usize,
    /// Out: how many are.
    pub candidates: usize,
}

/// What a pass took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Rows of sequences that generate.
    pub rows: usize,
    /// Tokens they emitted.
    pub tokens: usize,
    /// Sequences asked for candidates.
    pub asked: usize,
    /// Seconds of drafting.
    pub draft: f64,
    /// Seconds of everything else, from the pass to the commit.
    pub verify: f64,
    /// Whether the pass held nothing else: only then its time tells what a row costs.
    pub alone: bool,
}

/// A policy with what it has learned.
#[derive(Clone, Debug)]
pub struct Width {
    policy: Policy,
    reward: Reward,
}

impl Width {
    /// A policy that has learned nothing.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        let options = match &policy {
            Policy::AverageReward(options) => options.clone(),
            _ => RewardOptions::default(),
        };
        Self {
            policy,
            reward: Reward::new(options),
        }
    }

    /// The same where the next draft may be begun while the target verifies.
    #[must_use]
    pub fn overlapping(mut self, on: bool) -> Self {
        self.reward.overlap.on = on;
        self
    }

    /// With overlap: seconds of a draft that nothing preceded, and the worth of a draft ahead beside it, as
    /// far as they are known.
    #[must_use]
    pub fn overlap(&self) -> (Option<f64>, Option<f64>) {
        self.reward.overlap.known()
    }

    /// The policy.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Measured times of passes.
    #[must_use]
    pub const fn costs(&self) -> &Costs {
        self.reward.costs()
    }

    /// Whether candidates that cost no draft are wanted in steps without one.
    #[must_use]
    pub const fn takes_free(&self) -> bool {
        matches!(self.policy, Policy::AverageReward(_))
    }

    /// Whether to ask the drafter for this sequence in this step. To be called once a step.
    pub fn wants_draft(&self, seq: &mut SeqWidth) -> bool {
        match &self.policy {
            Policy::Fixed(width) => *width > 1,
            Policy::Threshold { .. } | Policy::Ewma => true,
            Policy::AverageReward(_) => self.reward.wants_draft(&mut seq.arm),
        }
    }

    /// Chooses for all sequences of a pass.
    pub fn choose(&mut self, choices: &mut [Choice<'_>]) {
        if matches!(self.policy, Policy::AverageReward(_)) {
            self.reward.choose(choices);
        }
        for choice in choices {
            let wanted = match &self.policy {
                Policy::Fixed(width) => width.saturating_sub(1),
                Policy::Threshold { second, third } => {
                    let logits = choice.proposal.map_or(&[][..], |p| &p.confidence_logits);
                    by_threshold(logits, *second, *third)
                }
                Policy::Ewma => choice.seq.accepted as usize + 1,
                Policy::AverageReward(_) => choice.candidates,
            };
            choice.candidates = wanted.min(choice.cap);
        }
    }

    /// Takes what a verified span showed.
    pub fn observe_verify(&mut self, seq: &mut SeqWidth, offered: usize, matched: usize) {
        if offered > 0 {
            seq.accepted += EWMA_WEIGHT * (matched as f64 - seq.accepted);
        }
        if let Some(base) = seq.copied.take() {
            self.reward.observe_copy(base, offered, matched);
        }
    }

    /// Takes what this step's draft took, for all sequences asked for; to be called before `choose`.
    pub fn observe_draft(&mut self, asked: usize, seconds: f64) {
        self.reward.observe_draft(asked, seconds);
    }

    /// Takes what became of drafts ahead; `asked` sequences were drafted for with nothing ahead, in
    /// `seconds`.
    pub fn observe_ahead(&mut self, asked: usize, seconds: f64, counts: &AheadCounts) {
        self.reward.overlap.observe(asked, seconds, counts);
    }

    /// Takes what a pass took.
    pub fn observe_pass(&mut self, measured: Measured) {
        self.reward.observe_pass(measured);
    }

    /// Whether it goes by measured times.
    pub(crate) const fn wants_prices(&self) -> bool {
        matches!(&self.policy, Policy::AverageReward(o) if o.explore)
    }

    /// Always `width` rows from now on, to learn what they take.
    pub(crate) fn measure(&mut self, width: usize) {
        self.policy = Policy::Fixed(width);
        self.reward.measure();
    }

    /// Goes back to `policy` with the prices measured, and with nothing else of what was seen. Answers with
    /// the seconds of a plain pass and of a draft, where they are known.
    pub(crate) fn settle(&mut self, policy: &Policy) -> (Option<f64>, Option<f64>) {
        self.policy = policy.clone();
        self.reward.settle()
    }

    /// Takes what the text proved about a proposal, verified or not.
    pub(crate) fn observe_outcome(&mut self, outcome: &Outcome) {
        self.reward.observe_outcome(outcome);
    }
}

/// Candidates by products of confidences; without confidences the one that is always verified.
fn by_threshold(logits: &[f32], second: f64, third: f64) -> usize {
    let product = |n: usize| {
        let logits = logits.get(..n)?;
        Some(
            logits
                .iter()
                .map(|l| calibrate::sigmoid(f64::from(*l)))
                .product::<f64>(),
        )
    };
    match (product(2), product(3)) {
        (Some(two), Some(three)) if two >= second && three >= third => 3,
        (Some(two), _) if two >= second => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests;
