//! The speculative loop over the seams `Target` and `Drafter`: many sequences, one pass a step.
//!
//! A step of a sequence is: propose, verify the seed and some candidates as one span, accept, commit.
//! Without a drafter nothing is proposed and the span is one token wide, which is plain decoding: there
//! is no other path. Prompts go through the same passes in chunks the caller grants, and the caller's
//! own spans may ride along.
//!
//! What the loop keeps true after every step, for a sequence that generates: the target stands at `pos`,
//! the seed is emitted and not in the state, and the drafter was shown exactly the positions below
//! `pos`. Text and state are those of plain decoding for every drafter, width and fault.
//!
//! ```
//! use dspark_draft::speculate::{Config, Emitted, Flow, Grants, Request, Sink, Speculator, Turn};
//! use engine_core::{Drafter, SeqId, Target};
//!
//! struct Print;
//! impl Sink for Print {
//!     fn token(&mut self, emitted: Emitted) -> Flow {
//!         println!("{} {}", emitted.seq, emitted.token);
//!         Flow::Go
//!     }
//! }
//!
//! fn serve(
//!     target: &mut dyn Target,
//!     drafter: &mut (dyn Drafter + Send),
//! ) -> Result<(), Box<dyn std::error::Error>> {
//!     let mut speculator = Speculator::new(target.info(), Config::default());
//!     let seq = target.open()?;
//!     speculator.admit(target, seq, Request::greedy(vec![1, 2, 3], 100))?;
//!     while !speculator.is_idle() {
//!         let out = speculator.step(Turn {
//!             target: &mut *target,
//!             drafter: Some(&mut *drafter),
//!             sink: &mut Print,
//!             grants: Grants::Each(512),
//!             riders: &[],
//!         });
//!         for done in out.finished {
//!             target.close(done.seq);
//!             drafter.close(done.seq);
//!         }
//!     }
//!     println!("{:?} tokens a step", speculator.stats().accepted_length());
//!     Ok(())
//! }
//! ```
//!
//! Must not know: queues, text, processes, what a drafter is made of.

mod ahead;
mod alarm;
mod clock;
mod draft;
mod generate;
mod layout;
mod pass;
mod request;
mod sequence;
mod warm;

use engine_core::mutant::mutant;
use engine_core::seams::TargetInfo;
use engine_core::{Drafter, Fault, Out, Pos, SeqId, Span, Tap, Target, TokenId, Want};
use sampling::Sampler;
use std::sync::Arc;

use crate::stats::Stats;
use crate::width::{Measured, Outcome, Policy, Width};
use alarm::Alarm;
use draft::Draft;

pub use clock::{Clock, Monotonic};
pub use generate::generate;
use request::check;
pub use request::{AdmitError, Emitted, Failure, Finished, Flow, Reason, Request, Sink, Usage};
pub use sequence::Need;
use sequence::Sequence;
pub use warm::{Cold, WarmUp};

/// Which rows the target itself draws tokens from, so that logits need not leave the device. It then
/// answers for NaN: from a row that holds one it must draw a token outside the vocabulary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InPass {
    /// None.
    #[default]
    Never,
    /// Those of plain greedy plans.
    Greedy,
    /// Those of all plans without penalties and bias: the target adds the keyed noise.
    Keyed,
}

/// Settings of the loop.
#[derive(Clone, Debug)]
pub struct Config {
    /// How widths are chosen.
    pub policy: Policy,
    /// Most candidates to ask for: the drafter's block. The target's widest verify and each request's
    /// budget bound it further.
    pub depth: usize,
    /// Positions at the end of a prompt whose features the drafter is shown: its window.
    pub tap_window: usize,
    /// Which tokens are drawn in the pass.
    pub in_pass: InPass,
    /// Whether the drafter begins the next draft while the target verifies.
    pub overlap: bool,
    /// Failed passes a sequence survives in a row, decoding plainly after each.
    pub retries: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            policy: Policy::AverageReward(crate::width::RewardOptions::default()),
            depth: 5,
            tap_window: 128,
            in_pass: InPass::Never,
            overlap: false,
            retries: 1,
        }
    }
}

/// Prompt tokens for a pass.
#[derive(Clone, Copy, Debug)]
pub enum Grants<'a> {
    /// At most so many for each sequence that has a prompt to run.
    Each(usize),
    /// These; others wait.
    Listed(&'a [(SeqId, usize)]),
}

impl Grants<'_> {
    fn of(&self, seq: SeqId) -> usize {
        match self {
            Self::Each(n) => *n,
            Self::Listed(list) => list.iter().find(|(s, _)| *s == seq).map_or(0, |(_, n)| *n),
        }
    }
}

/// A span of the caller's own, of a sequence that is not in the loop. The caller commits it.
#[derive(Clone, Debug)]
pub struct Rider {
    /// The sequence.
    pub seq: SeqId,
    /// Where it stands.
    pub pos: Pos,
    /// The span's tokens.
    pub tokens: Vec<TokenId>,
    /// Which positions give rows.
    pub out: Out,
    /// What they carry.
    pub want: Want,
    /// Features wanted.
    pub tap: Tap,
}

/// What a step borrows.
pub struct Turn<'a> {
    /// The target.
    pub target: &'a mut dyn Target,
    /// The drafter; the same one every time, or none.
    pub drafter: Option<&'a mut dyn Drafter>,
    /// Receives tokens.
    pub sink: &'a mut dyn Sink,
    /// Prompt tokens for this pass.
    pub grants: Grants<'a>,
    /// Spans that ride along.
    pub riders: &'a [Rider],
}

impl std::fmt::Debug for Turn<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Turn({:?}, {} riders)", self.grants, self.riders.len())
    }
}

/// What a step did.
#[derive(Debug, Default)]
pub struct StepOut {
    /// Sequences that ended; they have left the loop.
    pub finished: Vec<Finished>,
    /// The pass failed: nothing was committed. Sequences with retries left go on.
    pub fault: Option<Arc<Fault>>,
    /// Rows of the pass; 0 if there was none.
    pub rows: usize,
}

/// Part of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// A seed and its candidates.
    Verify,
    /// Part of a prompt; whether its last row gives the first token.
    Chunk { draws: bool },
    /// The caller's.
    Ride,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    role: Role,
    /// Index among the sequences, or among the riders.
    at: usize,
    /// Tokens.
    len: usize,
    /// Tokens that become state; decided after the pass.
    keep: usize,
}

/// The loop.
pub struct Speculator {
    config: Config,
    info: TargetInfo,
    width: Width,
    sampler: Sampler,
    clock: Box<dyn Clock + Send>,
    sequences: Vec<Sequence>,
    stats: Stats,
    /// Why the drafter is not used any more.
    drafter_lost: Option<String>,
    alarm: Alarm,
    drafts: Vec<Draft>,
    tokens: Vec<TokenId>,
    spans: Vec<Span>,
    pieces: Vec<Piece>,
    settled: Vec<Outcome>,
}

impl std::fmt::Debug for Speculator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Speculator({} sequences, {:?})",
            self.sequences.len(),
            self.config
        )
    }
}

impl Speculator {
    /// A loop for one target.
    #[must_use]
    pub fn new(info: &TargetInfo, config: Config) -> Self {
        Self::with_clock(info, config, Box::new(Monotonic::default()))
    }

    /// The same with another clock: costs are measured on it and on nothing else.
    #[must_use]
    pub fn with_clock(info: &TargetInfo, config: Config, clock: Box<dyn Clock + Send>) -> Self {
        Self {
            width: Width::new(config.policy.clone()).overlapping(config.overlap),
            sampler: Sampler::new(info.n_vocab),
            info: info.clone(),
            config,
            clock,
            sequences: Vec::new(),
            stats: Stats::default(),
            drafter_lost: None,
            alarm: Alarm::default(),
            drafts: Vec::new(),
            tokens: Vec::new(),
            spans: Vec::new(),
            pieces: Vec::new(),
            settled: Vec::new(),
        }
    }

    /// Takes a request for an open sequence of the target, which may hold a prefix of the prompt. What
    /// the drafter knows of that prefix is the caller's: a context that starts later is a worse draft,
    /// never another text.
    ///
    /// # Errors
    /// Any [`AdmitError`]; nothing changes then.
    pub fn admit(
        &mut self,
        target: &dyn Target,
        seq: SeqId,
        request: Request,
    ) -> Result<(), AdmitError> {
        let pos = target.pos(seq).ok_or(Fault::NoSuchSequence(seq))?;
        if self.sequences.iter().any(|s| s.seq == seq) {
            return Err(AdmitError::Running(seq));
        }
        check(&request, seq, pos, &self.info)?;
        self.sequences
            .push(Sequence::new(seq, pos, request, self.config.retries));
        Ok(())
    }

    /// Sequences in the loop, with what they could use of the next pass.
    pub fn needs(&self) -> impl Iterator<Item = (SeqId, Need)> {
        self.sequences.iter().map(|s| (s.seq, s.need()))
    }

    /// Whether no sequence is in the loop.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.sequences.is_empty()
    }

    /// The committed position and the seed of a sequence in the loop.
    #[must_use]
    pub fn stands(&self, seq: SeqId) -> Option<(Pos, Option<TokenId>)> {
        let found = self.sequences.iter().find(|s| s.seq == seq)?;
        Some((found.pos, found.seed))
    }

    /// Takes a sequence out without finishing it. The target stands at its committed position.
    pub fn remove(&mut self, seq: SeqId) -> Option<Finished> {
        let at = self.sequences.iter().position(|s| s.seq == seq)?;
        let mut sequence = self.sequences.remove(at);
        sequence.end(Reason::Cancelled);
        sequence.finish()
    }

    /// Counters since the start.
    #[must_use]
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The policy and what it has learned.
    #[must_use]
    pub const fn width(&self) -> &Width {
        &self.width
    }

    /// Why drafting stopped, if the drafter failed.
    #[must_use]
    pub fn drafter_lost(&self) -> Option<&str> {
        self.drafter_lost.as_deref()
    }

    /// Why the drafter seems not to fit the target, while its last proposals were hardly ever right.
    #[must_use]
    pub fn alarm(&self) -> Option<String> {
        self.alarm.reason()
    }

    /// Uses the drafter again: it was replaced.
    pub fn revive_drafter(&mut self) {
        self.drafter_lost = None;
    }

    /// One step of every sequence: propose, one pass, accept, commit.
    pub fn step(&mut self, mut turn: Turn<'_>) -> StepOut {
        let mut out = StepOut::default();
        self.poll(turn.sink);
        let (begin, asked) = (self.clock.seconds(), self.propose(&mut turn));
        let drafted = self.clock.seconds();
        self.poll(turn.sink);
        self.width.observe_draft(asked, drafted - begin);
        self.learn_ahead(turn.drafter.as_deref(), asked, drafted - begin);
        self.choose();
        self.lay_out(&turn);
        let laid_out = self.clock.seconds();
        self.look_ahead(&mut turn);
        self.stats.times.draft += self.clock.seconds() - laid_out;
        self.stats.times.draft += drafted - begin;
        self.stats.times.choose += laid_out - drafted;
        if !self.spans.is_empty() {
            self.stats.turns += 1;
            out.rows = self.tokens.len();
            let emitted = self.stats.emitted;
            match self.pass(&mut turn) {
                Ok(passed) => {
                    // To the end of the commit: what a rollback takes is part of a width's price.
                    let end = if mutant(245) {
                        passed
                    } else {
                        self.clock.seconds()
                    };
                    let tokens = (self.stats.emitted - emitted) as usize;
                    self.measure(asked, drafted - begin, end - drafted, tokens);
                }
                Err(broken) => out.fault = Some(self.blame(turn.target, broken)),
            }
        }
        self.learn();
        self.retire(&mut out.finished);
        out
    }

    fn poll(&mut self, sink: &mut dyn Sink) {
        for sequence in self.sequences.iter_mut().filter(|s| s.is_live()) {
            if sink.is_cancelled(sequence.seq) {
                sequence.end(Reason::Cancelled);
            }
        }
    }

    fn lose_drafter(&mut self, fault: &Fault) {
        self.stats.drafter_faults += 1;
        if !mutant(243) {
            self.drafter_lost = Some(fault.to_string());
        }
    }

    /// Shows the policy what the pass took.
    fn measure(&mut self, asked: usize, draft: f64, verify: f64, tokens: usize) {
        let verified = |p: &&Piece| p.role == Role::Verify;
        let rows = self.pieces.iter().filter(verified).map(|p| p.len).sum();
        let alone = self.pieces.iter().all(|p| p.role == Role::Verify);
        self.width.observe_pass(Measured {
            rows,
            tokens,
            asked,
            draft,
            verify,
            alone,
        });
    }

    /// Shows policy and counters what the text proved.
    fn learn(&mut self) {
        for outcome in self.settled.drain(..) {
            self.width.observe_outcome(&outcome);
            self.stats
                .observe_outcome(&outcome.logits, outcome.matched, outcome.known);
            if !outcome.logits.is_empty() {
                self.stats.alarms += u64::from(self.alarm.observe(outcome.matched));
            }
        }
    }

    /// Moves ended sequences out.
    fn retire(&mut self, finished: &mut Vec<Finished>) {
        let mut at = 0;
        while at < self.sequences.len() {
            if self.sequences[at].is_live() {
                at += 1;
            } else {
                finished.extend(self.sequences.remove(at).finish());
            }
        }
    }
}
