//! Drafts begun while the target verifies what they follow, and what became of them.
//!
//! Such a draft is the block behind the last candidate, over a context that ends before the seed: the rows
//! under verification are not there yet. If every candidate is accepted, the target's own next token is
//! known and stands where the block's first row would have guessed it; the rows behind that one are the
//! next proposal, and the chain over them starts at the true token. In any other case the draft lapses and
//! the next one is drafted as without it. Must not know: who computes, widths.

use std::collections::HashMap;

use engine_core::mutant::mutant;
use engine_core::seams::{AheadCounts, Ask, Proposal, Verifying};
use engine_core::{Epoch, Pos, SeqId, Ticket, TokenId};

use super::Text;
use crate::width::Judge;

/// What a draft took for granted of a sequence.
#[derive(Debug)]
struct Run {
    seq: SeqId,
    /// Position of the first of `tokens`: a seed and its candidates.
    pos: Pos,
    tokens: Vec<TokenId>,
    /// Its ask among the flight's.
    place: usize,
}

impl Run {
    /// Whether the draft of this run is one for `ask`: the text went on as was taken for granted.
    fn fits(&self, ask: &Ask, text: Option<&Text>) -> bool {
        let end = u64::from(self.pos) + self.tokens.len() as u64;
        let same = || text.is_some_and(|t| t.holds(self.pos, &self.tokens));
        self.seq == ask.seq && end == u64::from(ask.pos) && (mutant(360) || same())
    }
}

/// A draft that is being computed.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) ticket: Ticket,
    pub(super) asks: Vec<Ask>,
    runs: Vec<Run>,
}

/// What is known of drafts ahead.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    flight: Option<Flight>,
    /// Answers that nobody will use, until they have come.
    stale: Vec<Ticket>,
    pub(super) counts: AheadCounts,
    epoch: u32,
    /// Proposals of each sequence, those that nothing preceded first.
    judges: HashMap<SeqId, [Judge; 2]>,
}

impl Ahead {
    /// The asks of blocks behind `spans`.
    pub(super) fn asks(&mut self, spans: &[Verifying<'_>], depth: u32) -> Vec<Ask> {
        let mut ask = |span: &Verifying<'_>| {
            let (seed, before) = span.tokens.split_last()?;
            self.epoch = self.epoch.wrapping_add(1);
            let ahead = u32::try_from(before.len()).ok()?;
            Some(Ask {
                seq: span.seq,
                epoch: Epoch(self.epoch),
                pos: span.pos.checked_add(ahead)?,
                ahead,
                seed: *seed,
                depth,
            })
        };
        spans.iter().filter_map(&mut ask).collect()
    }

    /// Takes a draft that was begun for `asks`, made of `spans`.
    pub(super) fn begin(&mut self, ticket: Ticket, asks: Vec<Ask>, spans: &[Verifying<'_>]) {
        let place = |seq| asks.iter().position(|a| a.seq == seq);
        let run = |span: &Verifying<'_>| {
            Some(Run {
                seq: span.seq,
                pos: span.pos,
                tokens: span.tokens.to_vec(),
                place: place(span.seq)?,
            })
        };
        let runs: Vec<Run> = spans.iter().filter_map(run).collect();
        self.counts.begun += runs.len() as u64;
        self.flight = Some(Flight { ticket, asks, runs });
    }

    /// The draft that was begun, with each ask's place in it, if it is one for any of them.
    pub(super) fn land(
        &mut self,
        asks: &[Ask],
        texts: &HashMap<SeqId, Text>,
    ) -> Option<(Flight, Vec<Option<usize>>)> {
        let flight = self.flight.take()?;
        let fitting = |ask: &Ask| {
            let fits = |run: &&Run| run.fits(ask, texts.get(&ask.seq));
            let run = flight.runs.iter().find(fits).filter(|_| ask.depth > 0)?;
            Some(run.place)
        };
        let places: Vec<Option<usize>> = asks.iter().map(fitting).collect();
        let used = places.iter().flatten().count();
        self.counts.used += used as u64;
        self.counts.lapsed += (flight.runs.len() - used.min(flight.runs.len())) as u64;
        if used == 0 {
            self.stale.push(flight.ticket);
            return None;
        }
        Some((flight, places))
    }

    /// Gives up the draft that was begun, if any.
    pub(super) fn lapse(&mut self) {
        if let Some(flight) = self.flight.take() {
            self.counts.lapsed += flight.runs.len() as u64;
            self.stale.push(flight.ticket);
        }
    }

    /// An answer came too late to be used.
    pub(super) fn is_late(&mut self, ticket: Ticket) {
        self.stale.push(ticket);
    }

    /// Keeps the tickets of which `waits` says that nothing has come; whether none is left.
    pub(super) fn sweep(&mut self, waits: impl FnMut(&Ticket) -> bool) -> bool {
        self.stale.retain(waits);
        self.stale.is_empty()
    }

    /// The sequence is not what it was: nothing that was begun for it holds.
    pub(super) fn forget(&mut self, seq: SeqId) {
        self.judges.remove(&seq);
        if let Some(flight) = self.flight.as_mut().filter(|_| !mutant(361)) {
            let before = flight.runs.len();
            flight.runs.retain(|run| run.seq != seq);
            self.counts.lapsed += (before - flight.runs.len()) as u64;
        }
    }

    /// Takes a proposal whose first candidate would stand at `pos`; at most `depth` candidates count, so
    /// that both kinds are compared at the same depths.
    pub(super) fn propose(
        &mut self,
        (seq, pos): (SeqId, Pos),
        proposal: &Proposal,
        ahead: bool,
        depth: usize,
    ) {
        // Nobody compares the kinds where there is one.
        if self.counts.begun == 0 {
            return;
        }
        let tokens = proposal.tokens.iter().take(depth).copied().collect();
        let cut = Proposal {
            tokens,
            confidence_logits: Vec::new(),
        };
        self.judges.entry(seq).or_default()[usize::from(ahead)].propose(pos, &cut);
    }

    /// Takes what the text became.
    pub(super) fn observe(&mut self, seq: SeqId, pos: Pos, tokens: &[TokenId]) {
        let Some(judges) = self.judges.get_mut(&seq) else {
            return;
        };
        let counts = &mut self.counts;
        let sums = [
            (&mut counts.alone_judged, &mut counts.alone_right),
            (&mut counts.judged, &mut counts.right),
        ];
        let mut settled = Vec::new();
        for (judge, (judged, right)) in judges.iter_mut().zip(sums) {
            for (at, token) in (pos..).zip(tokens) {
                judge.token(at, *token, &mut settled);
            }
            *judged += settled.len() as u64;
            *right += settled.drain(..).map(|o| o.matched as u64).sum::<u64>();
        }
    }
}
