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
//! Must not know: queues, text, processes, what a drafter is made of.

mod clock;
mod pass;
mod request;
mod sequence;

use engine_core::mutant::mutant;
use engine_core::seams::{Proposal, TargetInfo};
use engine_core::{Drafter, Fault, Out, Pos, SamplePlan, SeqId, Span, Tap, Target, TokenId, Want};
use sampling::Sampler;
use std::sync::Arc;

use crate::stats::Stats;
use crate::width::{Choice, Measured, Outcome, Policy, Width};

pub use clock::{Clock, Monotonic};
pub use request::{AdmitError, Emitted, Failure, Finished, Flow, Reason, Request, Sink, Usage};
pub use sequence::Need;
use sequence::Sequence;

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
    /// Whether plain greedy rows are drawn in the pass, so that logits need not leave the device. The
    /// target then answers for NaN: it must draw a token outside the vocabulary.
    pub ids_for_greedy: bool,
    /// Failed passes a sequence survives in a row, decoding plainly after each.
    pub retries: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            policy: Policy::AverageReward(crate::width::RewardOptions::default()),
            depth: 5,
            tap_window: 128,
            ids_for_greedy: false,
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

/// One sequence's part of a draft.
#[derive(Debug)]
struct Draft {
    at: usize,
    proposal: Proposal,
    /// Candidates worth verifying: up to the first that would end the text.
    useful: usize,
    chosen: usize,
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
            width: Width::new(config.policy.clone()),
            sampler: Sampler::new(info.n_vocab),
            info: info.clone(),
            config,
            clock,
            sequences: Vec::new(),
            stats: Stats::default(),
            drafter_lost: None,
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
        self.choose();
        self.lay_out(&turn);
        let laid_out = self.clock.seconds();
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

    /// Fills `drafts`; returns how many sequences were asked for.
    fn propose(&mut self, turn: &mut Turn<'_>) -> usize {
        self.drafts.clear();
        let Some(drafter) = turn.drafter.as_deref_mut() else {
            return 0;
        };
        if self.drafter_lost.is_some() {
            return 0;
        }
        let widest = self
            .config
            .depth
            .min(self.info.verify_max.saturating_sub(1));
        let (mut asks, mut plans, mut places) =
            (Vec::new(), Vec::<Arc<SamplePlan>>::new(), Vec::new());
        for (at, sequence) in self.sequences.iter_mut().enumerate() {
            let depth = widest.min(sequence.depth(self.info.n_ctx));
            if depth == 0 || !sequence.may_draft() || !self.width.wants_draft(&mut sequence.width) {
                continue;
            }
            if let Some(ask) = sequence.ask(depth) {
                asks.push(ask);
                plans.push(Arc::clone(&sequence.request.plan));
                places.push(at);
            }
        }
        if asks.is_empty() {
            return 0;
        }
        self.stats.drafts += 1;
        self.stats.asked += asks.len() as u64;
        let plans: Vec<&SamplePlan> = plans.iter().map(|p| &**p).collect();
        match drafter.propose(turn.target, &asks, &plans) {
            Ok(proposals) => {
                for ((at, ask), proposal) in places.iter().zip(&asks).zip(proposals) {
                    self.take(*at, ask.depth as usize, proposal);
                }
            }
            Err(fault) => self.lose_drafter(&fault),
        }
        asks.len()
    }

    /// Takes a proposal, cut to what was asked and exists. Confidences that do not match are dropped.
    fn take(&mut self, at: usize, depth: usize, mut proposal: Proposal) {
        let n_vocab = self.info.n_vocab;
        let whole = proposal.tokens.len();
        let known = |t: &TokenId| (*t as usize) < n_vocab;
        let sound = proposal.tokens.iter().take_while(|t| known(t)).count();
        proposal.tokens.truncate(sound.min(depth));
        self.stats.misfits += u64::from(proposal.tokens.len() < whole);
        if proposal.confidence_logits.len() < proposal.tokens.len() {
            proposal.confidence_logits.clear();
        }
        proposal.confidence_logits.truncate(proposal.tokens.len());
        self.stats.proposed += proposal.tokens.len() as u64;
        let sequence = &mut self.sequences[at];
        sequence.judge.propose(sequence.pos + 1, &proposal);
        let stops = &sequence.request.stops;
        let first = proposal.tokens.iter().position(|t| stops.contains(t));
        let useful = match first {
            Some(stop) if !mutant(240) => stop + 1,
            _ => proposal.tokens.len(),
        };
        self.drafts.push(Draft {
            at,
            proposal,
            useful,
            chosen: 0,
        });
    }

    fn lose_drafter(&mut self, fault: &Fault) {
        self.stats.drafter_faults += 1;
        if !mutant(243) {
            self.drafter_lost = Some(fault.to_string());
        }
    }

    /// Decides the width of every sequence that generates.
    fn choose(&mut self) {
        let (mut choices, mut places) = (Vec::new(), Vec::new());
        let mut drafts = self.drafts.iter().peekable();
        for (at, sequence) in self.sequences.iter_mut().enumerate() {
            let draft = drafts.next_if(|d| d.at == at);
            if sequence.is_live() && sequence.seed.is_some() {
                places.push(at);
                choices.push(Choice {
                    seq: &mut sequence.width,
                    proposal: draft.map(|d| &d.proposal),
                    cap: draft.map_or(0, |d| d.useful),
                    candidates: 0,
                });
            }
        }
        self.width.choose(&mut choices);
        let chosen: Vec<usize> = choices.iter().map(|c| c.candidates).collect();
        for draft in &mut self.drafts {
            let place = places.iter().position(|at| *at == draft.at);
            draft.chosen = place.map_or(0, |p| chosen[p]);
            if mutant(238) {
                let phase = self.sequences[draft.at].pos as usize % 4;
                draft.chosen = draft.chosen.min(3 - phase);
            }
        }
    }

    /// Fills `tokens`, `spans` and `pieces`.
    fn lay_out(&mut self, turn: &Turn<'_>) {
        self.tokens.clear();
        self.spans.clear();
        self.pieces.clear();
        let lost = self.drafter_lost.is_some();
        let tap = turn
            .drafter
            .as_ref()
            .filter(|_| !lost)
            .map_or_else(Tap::default, |d| d.tap());
        for at in 0..self.sequences.len() {
            match (self.sequences[at].is_live(), self.sequences[at].need()) {
                (false, _) => {}
                (true, Need::Decode) => self.lay_out_verify(at, &tap),
                (true, Need::Prompt(left)) => {
                    let granted = turn.grants.of(self.sequences[at].seq);
                    self.lay_out_chunk(at, left.min(granted).min(self.info.span_max), &tap);
                }
            }
        }
        for (at, rider) in turn.riders.iter().enumerate() {
            let start = self.tokens.len();
            self.tokens.extend_from_slice(&rider.tokens);
            let piece = (Role::Ride, at);
            let (out, want) = (rider.out, rider.want.clone());
            self.push(
                piece,
                (rider.seq, rider.pos),
                start,
                out,
                want,
                rider.tap.clone(),
            );
        }
    }

    fn lay_out_verify(&mut self, at: usize, tap: &Tap) {
        let sequence = &self.sequences[at];
        let start = self.tokens.len();
        self.tokens.extend(sequence.seed);
        if let Some(draft) = self.drafts.iter().find(|d| d.at == at) {
            let n = if mutant(237) {
                draft.proposal.tokens.len()
            } else {
                draft.chosen
            };
            self.tokens.extend_from_slice(&draft.proposal.tokens[..n]);
        }
        let (place, want) = ((sequence.seq, sequence.pos), self.want(at));
        self.push(
            (Role::Verify, at),
            place,
            start,
            Out::All,
            want,
            tap.clone(),
        );
    }

    fn lay_out_chunk(&mut self, at: usize, len: usize, tap: &Tap) {
        if len == 0 {
            return;
        }
        let sequence = &self.sequences[at];
        let (begin, whole) = (sequence.pos as usize, sequence.request.prompt.len());
        let start = self.tokens.len();
        self.tokens
            .extend_from_slice(&sequence.request.prompt[begin..begin + len]);
        let draws = begin + len == whole;
        // Only the end of a prompt is in the drafter's window.
        let tapped = begin + len + self.config.tap_window > whole;
        let tap = if tapped { tap.clone() } else { Tap::default() };
        let out = if draws { Out::Last } else { Out::None };
        let (place, want) = ((sequence.seq, sequence.pos), self.want(at));
        self.push((Role::Chunk { draws }, at), place, start, out, want, tap);
    }

    fn want(&self, at: usize) -> Want {
        let plan = &self.sequences[at].request.plan;
        if self.config.ids_for_greedy && plan.is_plain_greedy() {
            Want::Ids(Arc::clone(plan))
        } else {
            Want::Logits
        }
    }

    fn push(
        &mut self,
        (role, at): (Role, usize),
        (seq, pos): (SeqId, Pos),
        start: usize,
        out: Out,
        want: Want,
        tap: Tap,
    ) {
        let len = self.tokens.len() - start;
        self.pieces.push(Piece {
            role,
            at,
            len,
            keep: 0,
        });
        self.spans.push(Span {
            seq,
            pos,
            range: start..self.tokens.len(),
            out,
            want,
            tap,
        });
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

/// Runs one request to its end on a sequence of its own, which is closed again.
///
/// # Errors
/// Those of [`Speculator::admit`], and the target's when it has no room.
pub fn generate(
    speculator: &mut Speculator,
    target: &mut dyn Target,
    mut drafter: Option<&mut dyn Drafter>,
    request: Request,
    sink: &mut dyn Sink,
) -> Result<Finished, AdmitError> {
    let seq = target.open()?;
    if let Err(error) = speculator.admit(target, seq, request) {
        target.close(seq);
        return Err(error);
    }
    let finished = loop {
        let turn = Turn {
            target: &mut *target,
            drafter: match drafter.as_mut() {
                Some(drafter) => Some(&mut **drafter),
                None => None,
            },
            sink: &mut *sink,
            grants: Grants::Each(usize::MAX),
            riders: &[],
        };
        if let Some(finished) = speculator.step(turn).finished.pop() {
            break finished;
        }
    };
    target.close(seq);
    if let Some(drafter) = drafter {
        drafter.close(seq);
    }
    Ok(finished)
}

fn check(request: &Request, seq: SeqId, pos: Pos, info: &TargetInfo) -> Result<(), AdmitError> {
    let n = request.prompt.len() as u64;
    if n == 0 {
        return Err(AdmitError::EmptyPrompt);
    }
    if request.budget == 0 {
        return Err(AdmitError::NoBudget);
    }
    if n > info.n_ctx {
        let expected = info.n_ctx;
        return Err(AdmitError::TooLong { expected, got: n });
    }
    if u64::from(pos) >= n {
        return Err(AdmitError::AheadOfPrompt {
            seq,
            expected: n,
            got: pos,
        });
    }
    let bad = |t: &TokenId| *t as usize >= info.n_vocab;
    if let Some(index) = request.prompt.iter().position(bad) {
        return Err(AdmitError::BadToken {
            index,
            got: request.prompt[index],
            expected: info.n_vocab,
        });
    }
    sampling::validate(&request.plan, info.n_vocab)?;
    Ok(())
}
