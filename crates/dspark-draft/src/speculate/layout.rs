//! The pass of a step as spans: seeds with their candidates, chunks of prompts, and what rides along.

use std::sync::Arc;

use engine_core::mutant::mutant;
use engine_core::{Out, Pos, SeqId, Span, Tap, Want};

use super::{InPass, Need, Piece, Role, Speculator, Turn};

impl Speculator {
    /// Fills `tokens`, `spans` and `pieces`.
    pub(super) fn lay_out(&mut self, turn: &Turn<'_>) {
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
        let tapped = if mutant(253) {
            begin < self.config.tap_window
        } else {
            begin + len + self.config.tap_window > whole
        };
        let tap = if tapped { tap.clone() } else { Tap::default() };
        let out = if draws { Out::Last } else { Out::None };
        let (place, want) = ((sequence.seq, sequence.pos), self.want(at));
        self.push((Role::Chunk { draws }, at), place, start, out, want, tap);
    }

    fn want(&self, at: usize) -> Want {
        let plan = &self.sequences[at].request.plan;
        let ids = match self.config.in_pass {
            InPass::Never => false,
            InPass::Greedy => plan.is_plain_greedy(),
            // A bias could ban every token: that must end one request, not the pass of all.
            InPass::Keyed => plan.penalties.is_neutral() && (plan.bias.is_empty() || mutant(260)),
        };
        if ids {
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
}
