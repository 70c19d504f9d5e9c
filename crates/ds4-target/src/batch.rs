//! A pass, checked: spans of many sequences flattened into one list of tokens.

use engine_core::seams::TargetInfo;
use engine_core::{Fault, Out, Pos, Span, TokenId};

/// One span of the flattened pass.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// Slot of the sequence.
    pub slot: usize,
    /// Position of the first token.
    pub pos: usize,
    /// First token in the flattened list.
    pub at: usize,
    /// Tokens.
    pub len: usize,
}

/// The flattened pass; buffers are reused.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batch {
    pub tokens: Vec<TokenId>,
    pub pos: Vec<Pos>,
    pub pieces: Vec<Piece>,
    /// Flattened tokens that give rows, in row order.
    pub out: Vec<usize>,
}

impl Batch {
    pub(crate) fn n(&self) -> usize {
        self.tokens.len()
    }

    /// Checks and flattens a pass. `stands(seq)` gives slot and committed position. On an error the
    /// batch is meaningless and nothing else has changed.
    pub(crate) fn build(
        &mut self,
        tokens: &[TokenId],
        spans: &[Span],
        info: &TargetInfo,
        stands: impl Fn(engine_core::SeqId) -> Option<(usize, Pos)>,
    ) -> Result<(), Fault> {
        self.tokens.clear();
        self.pos.clear();
        self.pieces.clear();
        self.out.clear();
        for span in spans {
            let (slot, pos) = stands(span.seq).ok_or(Fault::NoSuchSequence(span.seq))?;
            check(span, pos, tokens, info)?;
            if self.pieces.iter().any(|p| p.slot == slot) {
                return Err(Fault::DuplicateSpan(span.seq));
            }
            let (at, len) = (self.tokens.len(), span.range.len());
            self.tokens.extend_from_slice(&tokens[span.range.clone()]);
            self.pos.extend(pos..pos + len as Pos);
            self.pieces.push(Piece {
                slot,
                pos: pos as usize,
                at,
                len,
            });
            match span.out {
                Out::None => {}
                Out::Last => self.out.push(at + len - 1),
                Out::All => self.out.extend(at..at + len),
            }
        }
        Ok(())
    }
}

fn check(span: &Span, stands: Pos, tokens: &[TokenId], info: &TargetInfo) -> Result<(), Fault> {
    let seq = span.seq;
    if span.pos != stands {
        return Err(Fault::WrongPosition {
            seq,
            expected: stands,
            got: span.pos,
        });
    }
    let (start, end) = (span.range.start, span.range.end);
    if start >= end || end > tokens.len() {
        return Err(Fault::BadRange {
            seq,
            start,
            end,
            len: tokens.len(),
        });
    }
    if end - start > info.span_max {
        let (wanted, limit) = ((end - start) as u64, info.span_max as u64);
        return Err(Fault::Exhausted {
            what: "tokens of a span",
            wanted,
            limit,
        });
    }
    let wanted = u64::from(stands) + (end - start) as u64;
    if wanted > info.n_ctx {
        return Err(Fault::ContextFull {
            seq,
            wanted,
            limit: info.n_ctx,
        });
    }
    for (i, token) in tokens[start..end].iter().enumerate() {
        if *token as usize >= info.n_vocab && !engine_core::mutant::mutant(31) {
            let n_vocab = info.n_vocab;
            return Err(Fault::BadToken {
                token: *token,
                index: start + i,
                n_vocab,
            });
        }
    }
    Ok(())
}
