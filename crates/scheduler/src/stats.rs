//! Counters of an engine, for `/props`, metrics and tests.

use std::sync::Arc;
use std::time::Duration;

use dspark_draft::speculate::{Cold, WarmUp};
use engine_core::seams::{Counters, Resident};

use crate::park::Phase;
use crate::request::FinishReason;
use crate::sequence::Ended;

/// A snapshot of an engine's counters. Totals count from the start of the engine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Requests waiting for a slot.
    pub queued: usize,
    /// Requests that hold a sequence.
    pub active: usize,
    /// Requests accepted.
    pub submitted: u64,
    /// Ended by a stop token or by the receiver.
    pub stopped: u64,
    /// Ended by length.
    pub length: u64,
    /// Cancelled, queued ones included.
    pub cancelled: u64,
    /// Failed.
    pub failed: u64,
    /// Turns of the engine that had something to do.
    pub ticks: u64,
    /// Passes of the target.
    pub passes: u64,
    /// Tokens of all passes, candidates included.
    pub pass_tokens: u64,
    /// Prompt tokens computed.
    pub prompt_tokens: u64,
    /// Tokens drawn for answers.
    pub generated_tokens: u64,
    /// Candidates verified, of requests that have ended.
    pub proposed_tokens: u64,
    /// Candidates accepted.
    pub accepted_tokens: u64,
    /// Time spent in steps: drafting, passes and what follows from them.
    pub busy: Duration,
    /// Why drafting is off, if a drafter was given and failed, or what part of it failed.
    pub drafter_lost: Option<String>,
    /// Why the drafter seems not to fit the target, while its proposals are hardly ever right.
    pub drafter_alarm: Option<String>,
    /// What was measured before the first request, or why nothing was; `None` without a drafter.
    pub warm_up: Option<Result<WarmUp, Cold>>,
    /// What the target counted until the last answer ended; `None` if it does not count.
    pub target: Option<Counters>,
    /// Where the model is.
    pub phase: Phase,
    /// What takes memory for it, as of the last answer; while it is parked, what could not be freed.
    pub residents: Arc<[Resident]>,
    /// Times the model was given up.
    pub parks: u64,
    /// Of those, because nobody asked for anything.
    pub idle_parks: u64,
    /// Times it was loaded again.
    pub unparks: u64,
    /// Times that failed.
    pub failed_loads: u64,
    /// Why the last one did; `None` once it was loaded.
    pub load_error: Option<String>,
    /// Requests that waited for it to be loaded.
    pub waited_for_load: u64,
    /// Everything the speculative loop counted.
    pub speculation: dspark_draft::stats::Stats,
    /// Whether the engine has stopped.
    pub dead: bool,
}

impl Stats {
    /// Requests accepted and not ended.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.queued + self.active
    }

    /// Mean number of tokens in a pass; 0 before the first.
    #[must_use]
    pub fn tokens_per_pass(&self) -> f64 {
        if self.passes == 0 {
            return 0.0;
        }
        self.pass_tokens as f64 / self.passes as f64
    }

    /// What was done in another way than asked for, by name, as often as it was; empty if nothing was.
    /// Answers are the same, their cost is not.
    #[must_use]
    pub fn fallbacks(&self) -> Vec<(&'static str, u64)> {
        let loops = &self.speculation;
        let all = [
            ("target", self.target.map_or(0, |t| t.fallbacks)),
            ("drafter_lost", u64::from(self.drafter_lost.is_some())),
            ("drafter_faults", loops.drafter_faults),
            ("pass_faults", loops.pass_faults),
        ];
        all.into_iter().filter(|(_, times)| *times > 0).collect()
    }

    /// Adds another's totals.
    pub(crate) fn add(&mut self, other: &Self) {
        self.stopped += other.stopped;
        self.length += other.length;
        self.cancelled += other.cancelled;
        self.failed += other.failed;
        self.ticks += other.ticks;
        self.passes += other.passes;
        self.pass_tokens += other.pass_tokens;
        self.prompt_tokens += other.prompt_tokens;
        self.generated_tokens += other.generated_tokens;
        self.proposed_tokens += other.proposed_tokens;
        self.accepted_tokens += other.accepted_tokens;
        self.busy += other.busy;
        self.waited_for_load += other.waited_for_load;
    }

    pub(crate) fn count_end(&mut self, ended: &Ended) {
        let usage = ended.usage();
        self.proposed_tokens += u64::from(usage.proposed_tokens);
        self.accepted_tokens += u64::from(usage.accepted_tokens);
        *match ended.reason {
            FinishReason::StopToken(_) | FinishReason::Satisfied => &mut self.stopped,
            FinishReason::Length => &mut self.length,
            FinishReason::Cancelled => &mut self.cancelled,
            FinishReason::Failed(_) => &mut self.failed,
        } += 1;
    }
}
