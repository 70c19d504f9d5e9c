//! One request on its way: the job as submitted, and the sequence it becomes once it has a slot.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use dspark_draft::speculate as draft;
use engine_core::SeqId;

use crate::error::Failure;
use crate::request::{Drafting, Event, Finish, FinishReason, Flow, Request, Sink, Token, Usage};

/// An accepted request. Whatever happens to it, its sink receives exactly one end: dropping a job
/// that has not ended delivers a failure.
pub(crate) struct Job {
    pub(crate) request: Request,
    /// Counts the engine's requests.
    pub(crate) number: u64,
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
    pub(crate) fn new(request: Request, number: u64, sink: Sink, cancel: Arc<AtomicBool>) -> Self {
        let usage = Usage {
            prompt_tokens: request.prompt.len() as u32,
            ..Usage::default()
        };
        Self {
            request,
            number,
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

    /// The request as the loop takes it: no longer than the context holds.
    pub(crate) fn to_loop(&self, n_ctx: u64) -> draft::Request {
        let room = n_ctx.saturating_sub(self.request.prompt.len() as u64);
        draft::Request {
            prompt: self.request.prompt.clone(),
            plan: Arc::clone(&self.request.plan),
            budget: u64::from(self.request.max_tokens).min(room) as u32,
            stops: Arc::clone(&self.request.stop_tokens),
            // Penalties count the answer: the prompt is not the model's own text.
            history: Vec::new(),
            speculate: true,
        }
    }

    /// Notes what of a load it waited for; whether it did.
    pub(crate) fn waited_for(&mut self, load: Range<Instant>) -> bool {
        let waited = load
            .end
            .saturating_duration_since(load.start.max(self.submitted));
        self.usage.loading = waited;
        !waited.is_zero()
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

/// A job with a sequence of the target. Where it stands is the loop's.
#[derive(Debug)]
pub(crate) struct Sequence {
    job: Job,
    pub(crate) seq: SeqId,
    admitted: Instant,
    first_token: Option<Instant>,
}

impl Sequence {
    pub(crate) fn new(mut job: Job, seq: SeqId) -> Self {
        let admitted = Instant::now();
        job.usage.queued = admitted - job.submitted;
        Self {
            job,
            seq,
            admitted,
            first_token: None,
        }
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.job.is_cancelled()
    }

    /// Counts a token and delivers it, unless it is the stop token.
    fn deliver(&mut self, emitted: draft::Emitted) -> draft::Flow {
        self.first_token.get_or_insert_with(Instant::now);
        self.job.usage.completion_tokens = emitted.index + 1;
        if emitted.stop {
            return draft::Flow::Stop;
        }
        let (id, index) = (emitted.token, emitted.index);
        match (self.job.sink)(Event::Token(Token { id, index })) {
            Flow::Continue => draft::Flow::Go,
            Flow::Stop => draft::Flow::Stop,
            Flow::Cancel => draft::Flow::Cancel,
        }
    }

    /// Takes the end out, with what it took.
    pub(crate) fn end(
        mut self,
        reason: FinishReason,
        loops: draft::Usage,
        drafting: Drafting,
    ) -> Ended {
        let now = Instant::now();
        let first = self.first_token.unwrap_or(now);
        let usage = &mut self.job.usage;
        usage.prefill = first - self.admitted;
        usage.decode = now - first;
        usage.proposed_tokens = loops.offered;
        usage.accepted_tokens = loops.matched;
        usage.verify_steps = loops.steps;
        usage.drafting = drafting;
        self.job.end(reason)
    }
}

/// The loop's way to the receivers.
pub(crate) struct Delivery<'a>(pub(crate) &'a mut [Sequence]);

impl Delivery<'_> {
    fn of(&mut self, seq: SeqId) -> Option<&mut Sequence> {
        self.0.iter_mut().find(|s| s.seq == seq)
    }
}

impl draft::Sink for Delivery<'_> {
    fn token(&mut self, emitted: draft::Emitted) -> draft::Flow {
        match self.of(emitted.seq) {
            Some(sequence) => sequence.deliver(emitted),
            None => draft::Flow::Cancel,
        }
    }

    fn is_cancelled(&mut self, seq: SeqId) -> bool {
        self.of(seq).is_none_or(|s| s.is_cancelled())
    }
}
