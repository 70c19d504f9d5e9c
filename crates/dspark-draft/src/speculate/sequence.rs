//! One sequence of the loop.

use engine_core::mutant::mutant;
use engine_core::seams::Ask;
use engine_core::{Epoch, Pos, SeqId, TokenId};

use super::request::{Emitted, Failure, Finished, Flow, Reason, Request, Sink, Usage};
use crate::width::{Judge, Outcome, SeqWidth};

/// What of the next pass a sequence could use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// It has this many prompt tokens to go.
    Prompt(usize),
    /// It generates: a seed and its candidates.
    Decode,
}

#[derive(Debug)]
pub(crate) struct Sequence {
    pub(crate) seq: SeqId,
    pub(crate) request: Request,
    /// Committed position.
    pub(crate) pos: Pos,
    /// The last emitted token, whose row is not in the state yet; `None` while the prompt runs.
    pub(crate) seed: Option<TokenId>,
    /// What penalties count: the request's history, then emitted tokens.
    pub(crate) history: Vec<TokenId>,
    pub(crate) width: SeqWidth,
    pub(crate) judge: Judge,
    pub(crate) usage: Usage,
    pub(crate) ended: Option<Reason>,
    epoch: u32,
    /// Passes that may still fail in a row.
    retries: u32,
    retries_max: u32,
    /// Decodes plainly until a pass succeeds.
    wary: bool,
}

impl Sequence {
    pub(crate) fn new(seq: SeqId, pos: Pos, mut request: Request, retries: u32) -> Self {
        let history = std::mem::take(&mut request.history);
        Self {
            seq,
            pos,
            seed: None,
            history,
            width: SeqWidth::default(),
            judge: Judge::default(),
            usage: Usage::default(),
            ended: None,
            epoch: 0,
            retries,
            retries_max: retries,
            wary: false,
            request,
        }
    }

    pub(crate) fn need(&self) -> Need {
        match self.seed {
            Some(_) => Need::Decode,
            None => Need::Prompt(self.request.prompt.len() - self.pos as usize),
        }
    }

    pub(crate) const fn is_live(&self) -> bool {
        self.ended.is_none()
    }

    pub(crate) fn remaining(&self) -> usize {
        self.request.budget.saturating_sub(self.usage.emitted) as usize
    }

    /// Most candidates that could be emitted: with the target's own token they are the whole budget,
    /// and their rows must fit the context.
    pub(crate) fn depth(&self, n_ctx: u64) -> usize {
        let room = n_ctx.saturating_sub(u64::from(self.pos) + 1);
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        let left = self.remaining();
        let left = if mutant(239) {
            left + 4
        } else {
            left.saturating_sub(1)
        };
        left.min(room)
    }

    pub(crate) fn may_draft(&self) -> bool {
        self.is_live() && self.seed.is_some() && self.request.speculate && !self.wary
    }

    pub(crate) fn ask(&mut self, depth: usize) -> Option<Ask> {
        let seed = self.seed?;
        let depth = u32::try_from(depth).unwrap_or(u32::MAX);
        self.epoch += u32::from(!mutant(255));
        self.usage.drafted = true;
        Some(Ask {
            seq: self.seq,
            epoch: Epoch(self.epoch),
            pos: self.pos,
            ahead: 0,
            seed,
            depth,
        })
    }

    /// Takes a drawn token as text at `pos`: output, receiver, then the rules that end a text. A stop
    /// token ends it whatever the receiver says, and before the budget does.
    pub(crate) fn emit(
        &mut self,
        token: TokenId,
        pos: Pos,
        sink: &mut dyn Sink,
        settled: &mut Vec<Outcome>,
    ) -> Option<Reason> {
        let index = self.usage.emitted;
        self.usage.emitted += 1;
        self.history.push(token);
        self.judge.token(pos, token, settled);
        let stop = self.request.stops.contains(&token);
        let seq = self.seq;
        let flow = sink.token(Emitted {
            seq,
            token,
            index,
            stop,
        });
        match flow {
            _ if stop => Some(Reason::Stop(token)),
            Flow::Stop => Some(Reason::Satisfied),
            Flow::Cancel => Some(Reason::Cancelled),
            Flow::Go if self.remaining() == 0 => Some(Reason::Length),
            Flow::Go => None,
        }
    }

    /// Marks the end; the first reason stays.
    pub(crate) fn end(&mut self, reason: Reason) {
        self.ended.get_or_insert(reason);
    }

    /// Its pass failed with nothing of it done.
    pub(crate) fn failed(&mut self, failure: Failure) {
        if self.retries == 0 {
            return self.end(Reason::Failed(failure));
        }
        self.retries -= 1;
        self.wary = true;
    }

    /// Its pass succeeded.
    pub(crate) fn recovered(&mut self) {
        self.retries = self.retries_max;
        self.wary = false;
    }

    pub(crate) fn finish(mut self) -> Option<Finished> {
        let reason = self.ended.take()?;
        let emitted = self.usage.emitted as usize;
        let start = self.history.len() - emitted.min(self.history.len());
        Some(Finished {
            seq: self.seq,
            reason,
            pos: self.pos,
            tokens: self.history.split_off(start),
            usage: self.usage,
        })
    }
}
