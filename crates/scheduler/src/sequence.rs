//! One request on its way: the job as submitted, and the sequence it becomes once it has a slot.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use engine_core::seams::Ask;
use engine_core::{Epoch, Pos, SeqId, TokenId};

use crate::error::Failure;
use crate::plan::Need;
use crate::request::{Event, Finish, FinishReason, Flow, Request, Sink, Token, Usage};

/// An accepted request. Whatever happens to it, its sink receives exactly one end: dropping a job
/// that has not ended delivers a failure.
pub(crate) struct Job {
    pub(crate) request: Request,
    sink: Sink,
    cancel: Arc<AtomicBool>,
    submitted: Instant,
    usage: Usage,
    ended: bool,
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Job({} prompt tokens)", self.request.prompt.len())
    }
}

impl Job {
    pub(crate) fn new(request: Request, sink: Sink, cancel: Arc<AtomicBool>) -> Self {
        let usage = Usage {
            prompt_tokens: request.prompt.len() as u32,
            ..Usage::default()
        };
        Self {
            request,
            sink,
            cancel,
            submitted: Instant::now(),
            usage,
            ended: false,
        }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Acquire)
    }

    /// Decides the end; the sink hears of it when the result is delivered.
    pub(crate) const fn end(self, reason: FinishReason) -> Ended {
        Ended { job: self, reason }
    }

    fn deliver_end(&mut self, reason: FinishReason) {
        self.ended = true;
        let usage = self.usage;
        (self.sink)(Event::Finished(Finish { reason, usage }));
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if !self.ended {
            self.deliver_end(FinishReason::Failed(Failure::Stopped));
        }
    }
}

/// A job that has ended and whose sink does not know yet. Between the two its slot is freed and the
/// counters are brought up to date, so that whoever hears of the end finds both in order.
#[derive(Debug)]
#[must_use]
pub(crate) struct Ended {
    job: Job,
    pub(crate) reason: FinishReason,
}

impl Ended {
    pub(crate) const fn usage(&self) -> &Usage {
        &self.job.usage
    }

    pub(crate) fn deliver(mut self) {
        self.job.deliver_end(self.reason);
    }
}

/// A job with a sequence of the target.
#[derive(Debug)]
pub(crate) struct Sequence {
    job: Job,
    pub(crate) seq: SeqId,
    /// Counts this sequence's rounds, so that a late draft is recognised.
    epoch: u32,
    /// Committed positions.
    pub(crate) pos: Pos,
    /// Tokens drawn so far, delivered or about to be.
    generated: Vec<TokenId>,
    admitted: Instant,
    first_token: Option<Instant>,
    /// Set once; the sequence is closed at the end of the tick.
    ended: Option<FinishReason>,
}

impl Sequence {
    pub(crate) fn new(mut job: Job, seq: SeqId, n_ctx: u64) -> Self {
        let room = n_ctx.saturating_sub(job.request.prompt.len() as u64);
        job.request.max_tokens = u64::from(job.request.max_tokens).min(room) as u32;
        let admitted = Instant::now();
        job.usage.queued = admitted - job.submitted;
        Self {
            job,
            seq,
            epoch: 0,
            pos: 0,
            generated: Vec::new(),
            admitted,
            first_token: None,
            ended: None,
        }
    }

    pub(crate) fn request(&self) -> &Request {
        &self.job.request
    }

    /// What of the next pass it could use, with `candidates` proposed.
    pub(crate) fn need(&self, candidates: usize) -> Need {
        match self.generated.last() {
            Some(_) => Need::Decode(1 + candidates),
            None => Need::Prefill(self.request().prompt.len() - self.pos as usize),
        }
    }

    /// Prompt tokens of the next chunk of `len`.
    pub(crate) fn chunk(&self, len: usize) -> &[TokenId] {
        &self.request().prompt[self.pos as usize..][..len]
    }

    /// Whether a chunk of `len` ends the prompt.
    pub(crate) fn is_last_chunk(&self, len: usize) -> bool {
        self.pos as usize + len == self.request().prompt.len()
    }

    /// The last drawn token, whose row is not in the state yet; `None` during prefill.
    pub(crate) fn seed(&self) -> Option<TokenId> {
        self.generated.last().copied()
    }

    /// Tokens drawn so far: what penalties count. The prompt is not the model's own text.
    pub(crate) fn history(&self) -> &[TokenId] {
        &self.generated
    }

    /// Asks a drafter for candidates: at most `widest`, and no more than could be delivered.
    pub(crate) fn ask(&mut self, widest: usize) -> Option<Ask> {
        let seed = self.seed()?;
        let left = self.job.request.max_tokens as usize - self.generated.len();
        let depth = widest.min(left.saturating_sub(1)) as u32;
        self.epoch += 1;
        (depth > 0).then_some(Ask {
            seq: self.seq,
            epoch: Epoch(self.epoch),
            pos: self.pos,
            seed,
            depth,
        })
    }

    /// Delivers a drawn token; whether the sequence goes on.
    pub(crate) fn deliver(&mut self, id: TokenId) -> bool {
        self.first_token.get_or_insert_with(Instant::now);
        let index = self.generated.len() as u32;
        self.generated.push(id);
        self.job.usage.completion_tokens = index + 1;
        if self.request().stop_tokens.contains(&id) {
            return self.close(FinishReason::StopToken(id));
        }
        match (self.job.sink)(Event::Token(Token { id, index })) {
            Flow::Stop => self.close(FinishReason::Satisfied),
            Flow::Cancel => self.close(FinishReason::Cancelled),
            Flow::Continue if index + 1 >= self.request().max_tokens => {
                self.close(FinishReason::Length)
            }
            Flow::Continue => true,
        }
    }

    pub(crate) fn count_draft(&mut self, proposed: usize, accepted: usize) {
        self.job.usage.proposed_tokens += proposed as u32;
        self.job.usage.accepted_tokens += accepted as u32;
    }

    /// Marks the end; the first reason stays.
    pub(crate) fn close(&mut self, reason: FinishReason) -> bool {
        self.ended.get_or_insert(reason);
        false
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.job.is_cancelled()
    }

    /// Takes the end out, with the times it took.
    pub(crate) fn end(mut self) -> Ended {
        let now = Instant::now();
        let first = self.first_token.unwrap_or(now);
        self.job.usage.prefill = first - self.admitted;
        self.job.usage.decode = now - first;
        let reason = self.ended.take();
        self.job
            .end(reason.unwrap_or(FinishReason::Failed(Failure::Stopped)))
    }
}
