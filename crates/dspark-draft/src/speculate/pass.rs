//! The pass of a step and what follows from its rows: draws, the drafter's view, the commit.

use std::sync::Arc;

use engine_core::mutant::mutant;
use engine_core::{Drafter, Fault, Pos, Rows, SeqId, Span, Target, TokenId};
use sampling::{SampleError, Sampler};

use super::request::{Failure, Reason, Sink};
use super::sequence::Sequence;
use super::{Role, Speculator, Turn};
use crate::accept::{Next, exact};
use crate::stats::Verified;

/// Why a pass came to nothing.
pub(super) struct Broken {
    fault: Fault,
    /// Whether the target had taken it: then rows beyond the committed positions were written.
    taken: bool,
}

impl Speculator {
    /// Runs the pass that was laid out, and moves every sequence of it. Answers when the target was
    /// done.
    pub(super) fn pass(&mut self, turn: &mut Turn<'_>) -> Result<f64, Broken> {
        let begin = self.clock.seconds();
        let broken = |taken| move |fault| Broken { fault, taken };
        let ticket = turn
            .target
            .submit(&self.tokens, &self.spans)
            .map_err(broken(false))?;
        let rows = turn.target.wait(ticket, None).map_err(broken(true))?;
        self.stats.passes += 1;
        let passed = self.clock.seconds();
        for index in 0..self.pieces.len() {
            let piece = self.pieces[index];
            self.pieces[index].keep = match piece.role {
                Role::Ride => {
                    turn.sink.ride(piece.at, rows, index);
                    0
                }
                Role::Chunk { draws } => self.settle_chunk(rows, index, draws, turn.sink),
                Role::Verify => self.settle_verify(rows, index, turn.sink),
            };
        }
        let accepted = self.clock.seconds();
        if let Some(drafter) = turn.drafter.as_deref_mut()
            && self.drafter_lost.is_none()
            && let Err(fault) = self.show(drafter, rows)
        {
            self.lose_drafter(&fault);
        }
        let shown = self.clock.seconds();
        self.commit(turn.target);
        let times = &mut self.stats.times;
        times.pass += passed - begin;
        times.accept += accepted - passed;
        times.observe += shown - accepted;
        times.commit += self.clock.seconds() - shown;
        Ok(passed)
    }

    /// A chunk becomes state whole; the last one gives the first token.
    fn settle_chunk(
        &mut self,
        rows: &Rows,
        index: usize,
        draws: bool,
        sink: &mut dyn Sink,
    ) -> usize {
        let piece = self.pieces[index];
        self.stats.prompt_tokens += piece.len as u64;
        let sequence = &mut self.sequences[piece.at];
        sequence.recovered();
        if !draws {
            return piece.len;
        }
        if sink.is_cancelled(sequence.seq) {
            sequence.end(Reason::Cancelled);
            return piece.len;
        }
        let pos = self.spans[index].pos + piece.len as Pos;
        let drawn = row_of(rows, index, 1)
            .and_then(|first| draw(&mut self.sampler, sequence, rows, first, pos));
        match drawn {
            Ok(token) => {
                self.stats.first_tokens += 1;
                sequence.seed = Some(token);
                if let Some(reason) = sequence.emit(token, pos, sink, &mut self.settled) {
                    sequence.end(reason);
                }
            }
            Err(failure) => {
                self.stats.row_faults += 1;
                sequence.end(Reason::Failed(failure));
            }
        }
        piece.len
    }

    /// Walks a verified span; answers how many of its tokens become state: one for each token emitted,
    /// the last of which is the new seed.
    fn settle_verify(&mut self, rows: &Rows, index: usize, sink: &mut dyn Sink) -> usize {
        let Self {
            sequences,
            pieces,
            spans,
            tokens,
            sampler,
            settled,
            ..
        } = self;
        let (piece, span) = (pieces[index], &spans[index]);
        let sequence = &mut sequences[piece.at];
        sequence.recovered();
        if sink.is_cancelled(sequence.seq) {
            sequence.end(Reason::Cancelled);
            return if mutant(244) { piece.len } else { 0 };
        }
        let candidates = &tokens[span.range.clone()][1..];
        let first = match row_of(rows, index, piece.len) {
            Ok(first) => first,
            Err(failure) => {
                self.stats.row_faults += 1;
                sequence.end(Reason::Failed(failure));
                return 0;
            }
        };
        let walk = exact(candidates, |row| {
            let pos = span.pos + 1 + row as Pos;
            match draw(sampler, sequence, rows, first + row, pos) {
                Ok(token) => {
                    sequence.seed = Some(token);
                    match sequence.emit(token, pos, sink, settled) {
                        Some(reason) => Next::Last(token, reason),
                        None => Next::Go(token),
                    }
                }
                Err(failure) => Next::None(Reason::Failed(failure)),
            }
        });
        let verified = Verified {
            pos: span.pos,
            offered: candidates.len(),
            matched: walk.matched,
            emitted: walk.emitted,
        };
        self.count(piece.at, verified, walk.end);
        match walk.emitted {
            _ if mutant(230) => piece.len,
            emitted if mutant(231) => (emitted + 1).min(piece.len),
            emitted => emitted,
        }
    }

    fn count(&mut self, at: usize, verified: Verified, end: Option<Reason>) {
        let sequence = &mut self.sequences[at];
        let (offered, matched) = (verified.offered, verified.matched);
        sequence.usage.steps += 1;
        sequence.usage.offered += offered as u32;
        sequence.usage.matched += matched as u32;
        self.width
            .observe_verify(&mut sequence.width, offered, matched);
        self.stats.observe_verify(verified);
        if let Some(reason) = end {
            self.stats.row_faults += u64::from(matches!(reason, Reason::Failed(_)));
            sequence.end(reason);
        }
    }

    /// Shows the drafter what becomes state, and nothing else. Of a prompt only its end has features.
    fn show(&self, drafter: &mut dyn Drafter, rows: &Rows) -> Result<(), Fault> {
        for (index, (span, piece)) in self.spans.iter().zip(&self.pieces).enumerate() {
            let keep = match piece.role {
                Role::Ride => continue,
                Role::Verify if mutant(235) => piece.keep.min(1),
                Role::Verify if mutant(236) => piece.len,
                _ => piece.keep,
            };
            if keep == 0 {
                continue;
            }
            let tokens = &self.tokens[span.range.start..][..keep];
            let features = &rows.features[rows.span_features[index].clone()];
            let width = features.len() / piece.len;
            let skip = match piece.role {
                Role::Chunk { .. } if width > 0 => {
                    let whole = self.sequences[piece.at].request.prompt.len();
                    let from = whole.saturating_sub(self.config.tap_window);
                    from.saturating_sub(span.pos as usize).min(keep)
                }
                _ => 0,
            };
            if skip > 0 {
                drafter.observe(span.seq, span.pos, &tokens[..skip], &[])?;
            }
            if skip < keep {
                let from = if mutant(258) { 0 } else { skip * width };
                let features = &features[from..][..(keep - skip) * width];
                let pos = span.pos + skip as Pos;
                drafter.observe(span.seq, pos, &tokens[skip..], features)?;
            }
        }
        Ok(())
    }

    fn commit(&mut self, target: &mut dyn Target) {
        for (span, piece) in self.spans.iter().zip(&self.pieces) {
            if piece.role == Role::Ride {
                continue;
            }
            let sequence = &mut self.sequences[piece.at];
            sequence.pos = span.pos + piece.keep as Pos;
            target.commit(span.seq, sequence.pos);
            if u64::from(sequence.pos) >= self.info.n_ctx && sequence.seed.is_some() {
                sequence.end(Reason::Context);
            }
        }
    }

    /// After a failed pass: every sequence of it stands where it stood, with its seed pending. Those the
    /// fault is about, all if it names none, use up a retry.
    pub(super) fn blame(&mut self, target: &mut dyn Target, broken: Broken) -> Arc<Fault> {
        self.stats.pass_faults += 1;
        let culprit = self.culprit(&broken.fault);
        let known = self.spans.iter().any(|s| Some(s.seq) == culprit);
        let fault = Arc::new(broken.fault);
        for (span, piece) in self.spans.iter().zip(&self.pieces) {
            if piece.role == Role::Ride {
                continue;
            }
            let sequence = &mut self.sequences[piece.at];
            let failure = Failure::Pass(Arc::clone(&fault));
            if broken.taken && piece.len > self.info.verify_max {
                // Its rows may have overwritten rows that the old position needs.
                sequence.end(Reason::Failed(failure));
                continue;
            }
            if broken.taken {
                target.commit(span.seq, span.pos);
            }
            // A culprit outside the pass would leave the same pass to fail for ever.
            if !known || Some(span.seq) == culprit {
                sequence.failed(failure);
            }
        }
        fault
    }

    fn culprit(&self, fault: &Fault) -> Option<SeqId> {
        match fault {
            Fault::NoSuchSequence(seq)
            | Fault::DuplicateSpan(seq)
            | Fault::WrongPosition { seq, .. }
            | Fault::BadRange { seq, .. }
            | Fault::ContextFull { seq, .. } => Some(*seq),
            Fault::BadToken { index, .. } => {
                let held = |s: &&Span| s.range.contains(index);
                self.spans.iter().find(held).map(|s| s.seq)
            }
            _ => None,
        }
    }
}

/// The first row of a span that asked for `expected`.
fn row_of(rows: &Rows, index: usize, expected: usize) -> Result<usize, Failure> {
    let range = rows.span_rows.get(index).cloned().unwrap_or(0..0);
    let got = range.len();
    if got == expected {
        Ok(range.start)
    } else {
        Err(Failure::Rows { expected, got })
    }
}

/// The token of row `row` for position `pos`, from its logits if it has them.
fn draw(
    sampler: &mut Sampler,
    sequence: &Sequence,
    rows: &Rows,
    row: usize,
    pos: Pos,
) -> Result<TokenId, Failure> {
    let expected = rows.n_vocab;
    let Some(logits) = rows.logits(row) else {
        let got = rows.ids.get(row).copied().unwrap_or(TokenId::MAX);
        let exists = (got as usize) < expected;
        return exists
            .then_some(got)
            .ok_or(Failure::NoToken { pos, expected, got });
    };
    if let Some(token) = logits.iter().position(|l| l.is_nan())
        && !mutant(256)
    {
        let token = token as TokenId;
        return Err(Failure::NotANumber { pos, token });
    }
    let history = match &sequence.history {
        h if mutant(242) => &h[..h.len().saturating_sub(1)],
        h => h,
    };
    let keyed = if mutant(241) { sequence.pos + 1 } else { pos };
    sampler
        .draw(&sequence.request.plan, logits, keyed, history)
        .map_err(|error: SampleError| Failure::Row { pos, error })
}
