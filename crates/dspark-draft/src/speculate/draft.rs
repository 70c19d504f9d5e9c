//! Asking the drafter, and choosing how much of its answer is verified.

use std::sync::Arc;

use engine_core::SamplePlan;
use engine_core::TokenId;
use engine_core::mutant::mutant;
use engine_core::seams::Proposal;

use super::{Speculator, Turn};
use crate::width::Choice;

/// One sequence's part of a draft.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) at: usize,
    pub(super) proposal: Proposal,
    /// Candidates worth verifying: up to the first that would end the text.
    useful: usize,
    pub(super) chosen: usize,
}

impl Speculator {
    /// Fills `drafts`; returns how many sequences were asked for.
    pub(super) fn propose(&mut self, turn: &mut Turn<'_>) -> usize {
        self.drafts.clear();
        let Some(drafter) = turn.drafter.as_deref_mut() else {
            return 0;
        };
        if self.drafter_lost.is_some() || mutant(321) {
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

    /// Decides the width of every sequence that generates.
    pub(super) fn choose(&mut self) {
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
}
