//! Proposals waiting for the text to prove them right or wrong.
//!
//! Exact acceptance makes the text independent of what was verified, so a candidate that was never
//! verified is judged as well as one that was: it is right if the text later reads so. Calibration thus
//! sees every depth at every step, without trying widths for its own sake.

use std::collections::VecDeque;

use engine_core::mutant::mutant;
use engine_core::seams::Proposal;
use engine_core::{Pos, TokenId};

/// What became of a proposal.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    /// Its confidences; empty if it had none.
    pub(crate) logits: Vec<f32>,
    /// Candidates that the text agrees with, from the first.
    pub(crate) matched: usize,
    /// Candidates judged: one more, or all.
    pub(crate) known: usize,
}

#[derive(Clone, Debug)]
struct Open {
    /// Position of the first candidate.
    pos: Pos,
    proposal: Proposal,
    matched: usize,
}

/// The open proposals of one sequence, oldest first. At most one per depth stays open.
#[derive(Clone, Debug, Default)]
pub(crate) struct Judge {
    open: VecDeque<Open>,
}

impl Judge {
    /// Takes a proposal whose first candidate would stand at `pos`, the next token's position.
    pub(crate) fn propose(&mut self, pos: Pos, proposal: &Proposal) {
        if !proposal.tokens.is_empty() {
            self.open.push_back(Open {
                pos,
                proposal: proposal.clone(),
                matched: 0,
            });
        }
    }

    /// Whether no proposal waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Takes the text's token at `pos`; tokens come in order. Adds what it settles to `settled`.
    pub(crate) fn token(&mut self, pos: Pos, token: TokenId, settled: &mut Vec<Outcome>) {
        self.open.retain_mut(|open| {
            let Some(at) = pos.checked_sub(open.pos) else {
                return true;
            };
            let at = if mutant(257) { 0 } else { at as usize };
            let right = open.proposal.tokens.get(at) == Some(&token);
            open.matched += usize::from(right);
            let all = open.proposal.tokens.len();
            if right && open.matched < all {
                return true;
            }
            settled.push(Outcome {
                logits: std::mem::take(&mut open.proposal.confidence_logits),
                matched: open.matched,
                known: all.min(open.matched + 1),
            });
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposal(tokens: &[TokenId]) -> Proposal {
        Proposal {
            tokens: tokens.to_vec(),
            confidence_logits: vec![0.5; tokens.len()],
        }
    }

    #[test]
    fn proposals_are_judged_by_the_text_whatever_was_verified() {
        let mut judge = Judge::default();
        judge.propose(10, &proposal(&[7, 8, 9]));
        judge.propose(11, &proposal(&[8, 4]));
        judge.propose(11, &proposal(&[]));
        judge.propose(12, &proposal(&[1, 2]));
        let mut settled = Vec::new();
        judge.token(10, 7, &mut settled);
        assert_eq!(settled, []);
        judge.token(11, 8, &mut settled);
        judge.token(12, 9, &mut settled);
        let seen: Vec<_> = settled.iter().map(|o| (o.matched, o.known)).collect();
        // All three of the first; one of the second; none of the last.
        assert_eq!(seen, [(3, 3), (1, 2), (0, 1)]);
        assert!(settled.iter().all(|o| !o.logits.is_empty()));
        assert!(judge.open.is_empty());
    }
}
