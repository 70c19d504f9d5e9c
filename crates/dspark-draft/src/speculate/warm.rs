//! Before the first request: what passes and drafts take here.
//!
//! A process that has just started is slow for a few passes, and a policy that took those for what passes
//! cost would draft where it loses. So a text that nobody asked for is continued for a few steps of each
//! width, and only prices are kept of it. Must not know: what policies do with them.

use engine_core::{Drafter, Target, TokenId};

use super::{Emitted, Flow, Grants, Request, Sink, Speculator, Turn};
use crate::stats::Stats;

/// Tokens of the text's prompt.
const PROMPT: u32 = 8;
/// Passes of each width: the first meets cold memory, the second is where a device captures its graph.
const EACH: usize = 3;

/// What a warm-up found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WarmUp {
    /// Passes of the target.
    pub passes: u64,
    /// Seconds it took in all.
    pub seconds: f64,
    /// Seconds of a pass of one token; `None` if there was no time for one.
    pub plain: Option<f64>,
    /// Seconds of a draft; `None` if there were not two, as the first takes in the prompt.
    pub draft: Option<f64>,
}

/// Why nothing was measured before the first request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Cold {
    /// It was given no time.
    #[error("switched off: it is given no time")]
    Off,
    /// Widths do not follow from measured costs, or these were told.
    #[error("the policy {policy} needs no measured costs")]
    NoPrices {
        /// The policy.
        policy: String,
    },
    /// Its text does not fit.
    #[error("a context of {got} positions, its text takes {expected}")]
    Short {
        /// Positions that it needs.
        expected: u64,
        /// Positions of a sequence.
        got: u64,
    },
    /// A text is being made, or the drafter is lost.
    #[error("the loop is in use, or its drafter lost")]
    Busy,
    /// The target or the loop refused the sequence.
    #[error("its sequence was refused: {0}")]
    Refused(String),
}

/// Nobody listens.
struct Nobody;

impl Sink for Nobody {
    fn token(&mut self, _: Emitted) -> Flow {
        Flow::Go
    }
}

impl Speculator {
    /// Measures passes and drafts on a sequence of its own, for about `seconds` at most: no pass is begun
    /// later. Counters, calibration and texts are as before. A drafter that fails is lost, as in any step.
    ///
    /// # Errors
    /// Why nothing was measured.
    pub fn warm_up(
        &mut self,
        target: &mut dyn Target,
        drafter: &mut dyn Drafter,
        seconds: f64,
    ) -> Result<WarmUp, Cold> {
        let widest = 1 + self.config.depth.min(self.info.verify_max.max(1) - 1);
        let budget = (3 * EACH * (widest + 2)) as u32;
        self.may_warm_up(PROMPT + budget, seconds)?;
        let begin = self.clock.seconds();
        let refused = |error: &dyn std::fmt::Display| Cold::Refused(error.to_string());
        let seq = target.open().map_err(|e| refused(&e))?;
        let prompt = (0..PROMPT).map(|t| t % self.info.n_vocab as TokenId);
        let request = Request::greedy(prompt.collect(), budget);
        if let Err(error) = self.admit(target, seq, request) {
            target.close(seq);
            return Err(refused(&error));
        }
        let before = std::mem::take(&mut self.stats);
        self.measure_widths(target, drafter, begin + seconds, widest);
        self.remove(seq);
        target.close(seq);
        drafter.close(seq);
        drafter.forget();
        let (plain, draft) = self.width.settle(&self.config.policy);
        let passes = self.restore(before);
        let seconds = self.clock.seconds() - begin;
        Ok(WarmUp {
            passes,
            seconds,
            plain,
            draft,
        })
    }

    fn may_warm_up(&self, positions: u32, seconds: f64) -> Result<(), Cold> {
        let (expected, got) = (u64::from(positions), self.info.n_ctx);
        if seconds <= 0.0 {
            return Err(Cold::Off);
        }
        if !self.width.wants_prices() {
            let policy = self.config.policy.to_string();
            return Err(Cold::NoPrices { policy });
        }
        if got < expected {
            return Err(Cold::Short { expected, got });
        }
        if !self.is_idle() || self.drafter_lost.is_some() {
            return Err(Cold::Busy);
        }
        Ok(())
    }

    /// The prompt and a plain step for nothing, plain steps, then drafts of few, of most and of half the
    /// candidates.
    fn measure_widths(
        &mut self,
        target: &mut dyn Target,
        drafter: &mut dyn Drafter,
        until: f64,
        widest: usize,
    ) {
        let middle = usize::midpoint(2, widest.max(2));
        let widths = [1, 2, widest, middle].into_iter();
        let widths = widths.flat_map(|w| [w; EACH]);
        for width in [1, 1].into_iter().chain(widths) {
            self.width.measure(width);
            let out = self.step(Turn {
                target: &mut *target,
                drafter: Some(&mut *drafter),
                sink: &mut Nobody,
                grants: Grants::Each(usize::MAX),
                riders: &[],
            });
            let over = !out.finished.is_empty() || out.fault.is_some();
            if over || self.drafter_lost.is_some() || self.clock.seconds() > until {
                break;
            }
        }
    }

    /// Counters as they were, but for faults; the passes made.
    fn restore(&mut self, before: Stats) -> u64 {
        let made = std::mem::replace(&mut self.stats, before);
        self.stats.drafter_faults += made.drafter_faults;
        self.stats.pass_faults += made.pass_faults;
        self.stats.row_faults += made.row_faults;
        self.alarm = super::alarm::Alarm::default();
        made.passes
    }
}
