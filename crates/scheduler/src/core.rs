//! The engine without its thread: sequences, and the tick that moves all of them by one pass.
//! Separate from the thread so that tests can turn it by hand.

use std::sync::Arc;
use std::time::Instant;

use engine_core::seams::{Ask, Proposal, TargetInfo};
use engine_core::{
    Drafter, Fault, Out, Pos, Rows, SamplePlan, SeqId, Span, Tap, Target, TokenId, Want,
};
use sampling::Sampler;

use crate::error::Failure;
use crate::plan::{Budget, Need, shares};
use crate::request::FinishReason;
use crate::sequence::{Ended, Job, Sequence};
use crate::stats::Stats;

/// A sequence's part of a pass.
#[derive(Debug)]
struct Piece {
    /// Index among the active sequences.
    at: usize,
    /// Tokens of the span.
    len: usize,
    /// Candidates in the span, after the seed.
    candidates: usize,
    /// Whether the span's last row gives the next token.
    draws: bool,
}

/// What verification decided for a piece.
#[derive(Debug)]
struct Verdict {
    /// Tokens to deliver: accepted candidates, then the target's own.
    tokens: Vec<TokenId>,
    /// Candidates accepted.
    accepted: usize,
    failure: Option<Failure>,
}

/// Target, drafter and active sequences.
pub(crate) struct Core {
    target: Box<dyn Target + Send>,
    drafter: Option<Box<dyn Drafter + Send>>,
    drafter_lost: Option<String>,
    budget: Budget,
    sampler: Sampler,
    active: Vec<Sequence>,
    /// Ended in this tick, not told yet.
    ended: Vec<Ended>,
    tokens: Vec<TokenId>,
    spans: Vec<Span>,
    pieces: Vec<Piece>,
}

impl Core {
    pub(crate) fn new(
        target: Box<dyn Target + Send>,
        drafter: Option<Box<dyn Drafter + Send>>,
        budget: Budget,
    ) -> Self {
        let sampler = Sampler::new(target.info().n_vocab);
        Self {
            target,
            drafter,
            drafter_lost: None,
            budget,
            sampler,
            active: Vec::new(),
            ended: Vec::new(),
            tokens: Vec::new(),
            spans: Vec::new(),
            pieces: Vec::new(),
        }
    }

    pub(crate) fn info(&self) -> &TargetInfo {
        self.target.info()
    }

    pub(crate) fn active(&self) -> usize {
        self.active.len()
    }

    /// What ended since the last call. The caller delivers it once its counters are published.
    pub(crate) fn take_ended(&mut self) -> Vec<Ended> {
        std::mem::take(&mut self.ended)
    }

    pub(crate) fn drafter_lost(&self) -> Option<&String> {
        self.drafter_lost.as_ref()
    }

    /// Gives a job a sequence. It ends at once when the target has no slot although fewer than its
    /// maximum are ours.
    pub(crate) fn admit(&mut self, job: Job, stats: &mut Stats) {
        match self.target.open() {
            Ok(seq) => {
                let n_ctx = self.info().n_ctx;
                self.active.push(Sequence::new(job, seq, n_ctx));
            }
            Err(fault) => {
                let failure = Failure::Target(Arc::new(fault));
                let ended = job.end(FinishReason::Failed(failure));
                stats.count_end(&ended);
                self.ended.push(ended);
            }
        }
    }

    /// One step of every sequence: propose, one pass, accept, commit, deliver.
    pub(crate) fn tick(&mut self, stats: &mut Stats) {
        stats.ticks += 1;
        for sequence in &mut self.active {
            if sequence.is_cancelled() {
                sequence.close(FinishReason::Cancelled);
            }
        }
        self.retire(stats);
        let proposals = self.propose();
        self.lay_out(&proposals);
        if !self.spans.is_empty() {
            self.pass(stats);
        }
        self.retire(stats);
    }

    /// Ends everything.
    pub(crate) fn cancel_all(&mut self, stats: &mut Stats) {
        for sequence in &mut self.active {
            sequence.close(FinishReason::Cancelled);
        }
        self.retire(stats);
    }

    /// Candidates for each active sequence; empty ones without a drafter, or when it fails: that
    /// costs speed, never output.
    fn propose(&mut self) -> Vec<Proposal> {
        let mut proposals = vec![Proposal::default(); self.active.len()];
        let Some(drafter) = self.drafter.as_mut() else {
            return proposals;
        };
        let widest = self.target.info().verify_max.saturating_sub(1);
        let (mut asks, mut places): (Vec<Ask>, Vec<usize>) = (Vec::new(), Vec::new());
        for (at, sequence) in self.active.iter_mut().enumerate() {
            if let Some(ask) = sequence.ask(widest) {
                asks.push(ask);
                places.push(at);
            }
        }
        if asks.is_empty() {
            return proposals;
        }
        let plans: Vec<_> = places
            .iter()
            .map(|at| &*self.active[*at].request().plan)
            .collect();
        match drafter.propose(&mut *self.target, &asks, &plans) {
            Ok(found) => {
                for ((at, ask), mut proposal) in places.into_iter().zip(&asks).zip(found) {
                    proposal.tokens.truncate(ask.depth as usize);
                    proposals[at] = proposal;
                }
            }
            Err(fault) => self.lose_drafter(&fault),
        }
        proposals
    }

    fn lose_drafter(&mut self, fault: &Fault) {
        tracing::warn!(%fault, "drafting is off: the drafter failed");
        self.drafter = None;
        self.drafter_lost = Some(fault.to_string());
    }

    /// Fills `tokens`, `spans` and `pieces` for the next pass.
    fn lay_out(&mut self, proposals: &[Proposal]) {
        self.tokens.clear();
        self.spans.clear();
        self.pieces.clear();
        let needs: Vec<Need> = self
            .active
            .iter()
            .zip(proposals)
            .map(|(s, p)| s.need(p.tokens.len()))
            .collect();
        let tap = self.drafter.as_ref().map_or_else(Tap::default, |d| d.tap());
        let shares = shares(&needs, self.budget);
        for (at, (need, len)) in needs.iter().zip(shares).enumerate() {
            if len == 0 {
                continue;
            }
            let sequence = &self.active[at];
            let start = self.tokens.len();
            let (draws, candidates) = match need {
                Need::Decode(_) => {
                    self.tokens.extend(sequence.seed());
                    self.tokens.extend_from_slice(&proposals[at].tokens);
                    (true, len - 1)
                }
                Need::Prefill(_) => {
                    self.tokens.extend_from_slice(sequence.chunk(len));
                    (sequence.is_last_chunk(len), 0)
                }
            };
            let plan = &sequence.request().plan;
            self.spans.push(Span {
                seq: sequence.seq,
                pos: sequence.pos,
                range: start..self.tokens.len(),
                out: match (draws, candidates) {
                    (false, _) => Out::None,
                    (true, 0) => Out::Last,
                    (true, _) => Out::All,
                },
                want: if draws_in_pass(plan) {
                    Want::Ids(Arc::clone(plan))
                } else {
                    Want::Logits
                },
                tap: tap.clone(),
            });
            self.pieces.push(Piece {
                at,
                len,
                candidates,
                draws,
            });
        }
    }

    /// Runs the pass that was laid out.
    fn pass(&mut self, stats: &mut Stats) {
        let start = Instant::now();
        let waited = match self.target.submit(&self.tokens, &self.spans) {
            Ok(ticket) => self.target.wait(ticket, None),
            Err(fault) => Err(fault),
        };
        let rows = match waited {
            Ok(rows) => rows,
            Err(fault) => {
                tracing::error!(%fault, "a pass failed");
                return self.blame(fault);
            }
        };
        let mut verdicts = Vec::with_capacity(self.pieces.len());
        for (index, piece) in self.pieces.iter().enumerate() {
            let sequence = &self.active[piece.at];
            let span = &self.tokens[self.spans[index].range.clone()];
            verdicts.push(verify(
                &mut self.sampler,
                rows,
                index,
                piece,
                sequence,
                span,
            ));
        }
        let observed = match self.drafter.as_mut() {
            Some(d) => observe(
                &mut **d,
                rows,
                &self.spans,
                &self.pieces,
                &verdicts,
                &self.tokens,
            ),
            None => Ok(()),
        };
        stats.busy += start.elapsed();
        stats.passes += 1;
        stats.pass_tokens += self.tokens.len() as u64;
        if let Err(fault) = observed {
            self.lose_drafter(&fault);
        }
        self.settle(verdicts, stats);
    }

    /// Commits what was accepted and delivers it.
    fn settle(&mut self, verdicts: Vec<Verdict>, stats: &mut Stats) {
        for (piece, verdict) in self.pieces.iter().zip(verdicts) {
            let sequence = &mut self.active[piece.at];
            sequence.pos += kept(piece, &verdict) as Pos;
            self.target.commit(sequence.seq, sequence.pos);
            if sequence.seed().is_none() {
                stats.prompt_tokens += piece.len as u64;
            }
            let mut delivered = 0;
            for token in verdict.tokens {
                delivered += 1;
                if !sequence.deliver(token) {
                    break;
                }
            }
            stats.generated_tokens += delivered as u64;
            sequence.count_draft(piece.candidates, verdict.accepted.min(delivered));
            if let Some(failure) = verdict.failure {
                sequence.close(FinishReason::Failed(failure));
            }
        }
    }

    /// Ends the sequences a fault is about; all of the pass when it names none.
    fn blame(&mut self, fault: Fault) {
        let culprit = match &fault {
            Fault::NoSuchSequence(seq)
            | Fault::DuplicateSpan(seq)
            | Fault::WrongPosition { seq, .. }
            | Fault::BadRange { seq, .. }
            | Fault::ContextFull { seq, .. } => Some(*seq),
            Fault::BadToken { index, .. } => self
                .spans
                .iter()
                .find(|s| s.range.contains(index))
                .map(|s| s.seq),
            _ => None,
        };
        let hit = |seq: SeqId| culprit.is_none_or(|c| c == seq);
        let known = self.spans.iter().any(|s| hit(s.seq));
        let failure = Failure::Target(Arc::new(fault));
        for piece in &self.pieces {
            let sequence = &mut self.active[piece.at];
            // A culprit outside the pass would leave the same pass to fail for ever.
            if hit(sequence.seq) || !known {
                sequence.close(FinishReason::Failed(failure.clone()));
            }
        }
    }

    /// Closes and ends what has ended.
    fn retire(&mut self, stats: &mut Stats) {
        let mut at = 0;
        while at < self.active.len() {
            if !self.active[at].has_ended() {
                at += 1;
                continue;
            }
            let sequence = self.active.remove(at);
            self.target.close(sequence.seq);
            if let Some(drafter) = self.drafter.as_mut() {
                drafter.close(sequence.seq);
            }
            let ended = sequence.end();
            stats.count_end(&ended);
            self.ended.push(ended);
        }
    }
}

/// Whether the target may draw: without the history that penalties count. A bias could ban every
/// token, which must end one request and not the pass it shares with others.
fn draws_in_pass(plan: &SamplePlan) -> bool {
    plan.penalties.is_neutral() && plan.bias.is_empty()
}

/// Positions of a piece that become state.
fn kept(piece: &Piece, verdict: &Verdict) -> usize {
    piece.len - piece.candidates + verdict.accepted
}

/// Draws from the rows of a span: candidate after candidate as long as they are what the target
/// draws itself, then one more token.
fn verify(
    sampler: &mut Sampler,
    rows: &Rows,
    index: usize,
    piece: &Piece,
    sequence: &Sequence,
    span: &[TokenId],
) -> Verdict {
    let mut verdict = Verdict {
        tokens: Vec::new(),
        accepted: 0,
        failure: None,
    };
    if !piece.draws {
        return verdict;
    }
    let plan = &*sequence.request().plan;
    let first_row = rows.span_rows[index].start;
    let mut history = Vec::new();
    if !plan.penalties.is_neutral() {
        history.extend_from_slice(sequence.history());
    }
    for row in 0..=piece.candidates {
        let pos = sequence.pos + (piece.len - piece.candidates + row) as Pos;
        let drawn = match rows.logits(first_row + row) {
            Some(logits) => sampler.draw(plan, logits, pos, &history),
            None => Ok(rows.ids[first_row + row]),
        };
        let token = match drawn {
            Ok(token) => token,
            Err(error) => {
                verdict.failure = Some(Failure::Sample { pos, error });
                return verdict;
            }
        };
        verdict.tokens.push(token);
        history.push(token);
        if span.get(piece.len - piece.candidates + row) != Some(&token) {
            return verdict;
        }
        verdict.accepted += 1;
    }
    verdict
}

/// Shows the drafter what becomes state.
fn observe(
    drafter: &mut dyn Drafter,
    rows: &Rows,
    spans: &[Span],
    pieces: &[Piece],
    verdicts: &[Verdict],
    tokens: &[TokenId],
) -> Result<(), Fault> {
    for (index, (piece, verdict)) in pieces.iter().zip(verdicts).enumerate() {
        let span = &spans[index];
        let kept = kept(piece, verdict);
        let features = &rows.features[rows.span_features[index].clone()];
        let width = features.len() / piece.len;
        let start = span.range.start;
        drafter.observe(
            span.seq,
            span.pos,
            &tokens[start..start + kept],
            &features[..kept * width],
        )?;
    }
    Ok(())
}
