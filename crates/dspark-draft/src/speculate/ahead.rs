//! Drafting on while the target verifies: which sequences it is worth it for, and what came of it.
//!
//! The loop stays the one loop: spans that are about to be verified are shown to the drafter, and the next
//! step asks it as ever. What it makes of that changes when an answer is there, never a token.

use engine_core::Drafter;
use engine_core::seams::Verifying;

use super::{Role, Speculator, Turn};

impl Speculator {
    /// Lets the drafter begin what will be asked if all candidates are accepted.
    pub(super) fn look_ahead(&mut self, turn: &mut Turn<'_>) {
        let Some(drafter) = turn.drafter.as_deref_mut() else {
            return;
        };
        if !self.config.overlap || self.drafter_lost.is_some() {
            return;
        }
        let worth = |at: usize, len: usize| self.goes_on(at, len);
        let pieces = self.spans.iter().zip(&self.pieces);
        let pieces = pieces.filter(|(_, p)| p.role == Role::Verify && worth(p.at, p.len));
        let spans: Vec<Verifying<'_>> = pieces
            .map(|(span, _)| Verifying {
                seq: span.seq,
                pos: span.pos,
                tokens: &self.tokens[span.range.clone()],
            })
            .collect();
        if spans.is_empty() {
            return;
        }
        if let Err(fault) = drafter.ahead(turn.target, &spans) {
            self.lose_drafter(&fault);
        }
    }

    /// Whether a sequence that was drafted for will be again, should all of a span of `len` be accepted.
    fn goes_on(&self, at: usize, len: usize) -> bool {
        let sequence = &self.sequences[at];
        let Some(draft) = self.drafts.iter().find(|d| d.at == at) else {
            return false;
        };
        let last = len
            .checked_sub(2)
            .and_then(|n| draft.proposal.tokens.get(n));
        let ends = last.is_some_and(|t| sequence.request.stops.contains(t));
        let deeper = sequence.depth(self.info.n_ctx) > len;
        sequence.is_live() && sequence.width.drafts() && deeper && !ends
    }

    /// Takes what became of drafts ahead, and shows the policy what one costs that nothing came before.
    pub(super) fn learn_ahead(
        &mut self,
        drafter: Option<&dyn Drafter>,
        asked: usize,
        seconds: f64,
    ) {
        let Some(drafter) = drafter.filter(|_| self.config.overlap) else {
            return;
        };
        let counts = drafter.ahead_counts();
        let none_used = counts.used == self.stats.ahead.used;
        self.stats.ahead = counts;
        let alone = if none_used { asked } else { 0 };
        self.width.observe_ahead(alone, seconds, &counts);
    }
}
