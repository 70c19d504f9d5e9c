//! Asking the drafter, and choosing how much of its answer is verified.

use std::sync::Arc;

use engine_core::mutant::mutant;
use engine_core::seams::{Ask, Proposal};
use engine_core::{Drafter, SamplePlan, Target, TokenId};

use super::{Speculator, Turn};
use crate::width::Choice;

/// One sequence's part of a draft.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) at: usize,
    pub(super) proposal: Proposal,
    /// What would have been proposed without the time of a draft.
    free: Option<Proposal>,
    /// Whether that time was spent.
    drafted: bool,
    /// Candidates worth verifying: up to the first that would end the text.
    useful: usize,
    pub(super) chosen: usize,
}

/// What a sequence could use in a step.
struct Wanted {
    at: usize,
    ask: Ask,
    /// Whether a draft's time is to be spent on it.
    draft: bool,
    free: Option<Proposal>,
    proposal: Option<Proposal>,
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
        let mut wanted = self.asks(widest);
        if wanted.is_empty() {
            return 0;
        }
        if self.width.takes_free() {
            let asks: Vec<Ask> = wanted.iter().map(|w| w.ask).collect();
            for (wanted, free) in wanted.iter_mut().zip(drafter.glance(&asks)) {
                wanted.free = (!free.tokens.is_empty()).then_some(free);
            }
        }
        let asked = self.draft(turn.target, drafter, &mut wanted);
        for wanted in wanted {
            self.take(wanted);
        }
        asked
    }

    /// What each sequence that generates could use.
    fn asks(&mut self, widest: usize) -> Vec<Wanted> {
        let mut wanted = Vec::new();
        for (at, sequence) in self.sequences.iter_mut().enumerate() {
            let depth = widest.min(sequence.depth(self.info.n_ctx));
            if depth == 0 || !sequence.may_draft() {
                continue;
            }
            let Some(ask) = sequence.ask(depth) else {
                continue;
            };
            let draft = self.width.wants_draft(&mut sequence.width);
            if draft || self.width.takes_free() {
                let (free, proposal) = (None, None);
                wanted.push(Wanted {
                    at,
                    ask,
                    draft,
                    free,
                    proposal,
                });
            }
        }
        wanted
    }

    /// Asks the drafter for those that are to have a draft; returns for how many.
    fn draft(
        &mut self,
        target: &mut dyn Target,
        drafter: &mut dyn Drafter,
        wanted: &mut [Wanted],
    ) -> usize {
        let mut theirs: Vec<&mut Wanted> = wanted.iter_mut().filter(|w| w.draft).collect();
        if theirs.is_empty() {
            return 0;
        }
        self.stats.drafts += 1;
        self.stats.asked += theirs.len() as u64;
        let asks: Vec<Ask> = theirs.iter().map(|w| w.ask).collect();
        let plan = |w: &&mut Wanted| Arc::clone(&self.sequences[w.at].request.plan);
        let plans: Vec<Arc<SamplePlan>> = theirs.iter().map(plan).collect();
        let plans: Vec<&SamplePlan> = plans.iter().map(|p| &**p).collect();
        match drafter.propose(target, &asks, &plans) {
            Ok(proposals) => {
                for (wanted, proposal) in theirs.iter_mut().zip(proposals) {
                    wanted.proposal = Some(proposal);
                }
            }
            Err(fault) => self.lose_drafter(&fault),
        }
        asks.len()
    }

    /// Takes a proposal, cut to what was asked and exists. Confidences that do not match are dropped.
    fn take(&mut self, wanted: Wanted) {
        let (at, depth) = (wanted.at, wanted.ask.depth as usize);
        let drafted = wanted.proposal.is_some();
        let Some(mut proposal) = wanted.proposal.or_else(|| wanted.free.clone()) else {
            return;
        };
        self.stats.free += u64::from(!drafted);
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
            free: wanted.free,
            drafted,
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
                    free: draft.and_then(|d| d.free.as_ref()),
                    drafted: draft.is_some_and(|d| d.drafted),
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
