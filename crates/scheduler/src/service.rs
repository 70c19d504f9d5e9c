//! The engine's thread and the door to it: submission, the bounded queue, handles, shutdown.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use engine_core::Target;
use engine_core::seams::TargetInfo;

use crate::core::Core;
use crate::error::SubmitError;
use crate::plan::Budget;
use crate::request::{FinishReason, Request, Sink};
use crate::sequence::{Ended, Job};
use crate::speculation::Speculation;
use crate::stats::Stats;

/// Bounds of an engine. None of them changes a byte of any answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Requests that may wait for a slot.
    pub queue: usize,
    /// Prompt tokens in a pass while nobody generates; at least 1.
    pub pass_tokens: usize,
    /// Prompt tokens in a pass that others' next tokens wait for; at least 1.
    pub pass_tokens_beside_decode: usize,
    /// Failed passes in a row that a request survives, decoding without candidates after each. 0: the
    /// first fault that names no other request ends it. A pass is retried only where the target can
    /// still take its rows back.
    pub retries: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            queue: 64,
            pass_tokens: 512,
            pass_tokens_beside_decode: 64,
            retries: 0,
        }
    }
}

/// What the thread and the door share.
#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
    /// As of the last tick; `queued` is filled in on demand.
    stats: Mutex<Stats>,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    stop: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An engine: a thread that owns a target. Dropping it cancels everything and waits for the thread.
#[derive(Debug)]
pub struct Scheduler {
    shared: Arc<Shared>,
    info: TargetInfo,
    limits: Limits,
    thread: Option<JoinHandle<()>>,
}

/// Keeps a request alive: dropping it cancels the request, wherever it stands.
#[derive(Debug)]
#[must_use = "dropping the handle cancels the request"]
pub struct Handle {
    cancel: Arc<AtomicBool>,
    shared: Arc<Shared>,
    detached: bool,
}

impl Handle {
    /// Cancels the request. Its sink still receives the end: at once, on this thread, while the
    /// request waits for a slot, else when the pass in progress is over.
    pub fn cancel(&self) {
        self.cancel.store(true, Ordering::Release);
        let mut left = Vec::new();
        take_cancelled(&mut lock(&self.shared.queue).jobs, &mut left);
        self.shared.end_cancelled(left);
        self.shared.wake.notify_all();
    }

    /// Lets the request run to its end without a handle.
    pub fn detach(mut self) {
        self.detached = true;
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if !self.detached {
            self.cancel();
        }
    }
}

impl Scheduler {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(
        target: Box<dyn Target + Send>,
        speculation: Option<Speculation>,
        limits: Limits,
    ) -> std::io::Result<Self> {
        let info = target.info().clone();
        let budget = Budget {
            alone: limits.pass_tokens.max(1),
            beside_decode: limits.pass_tokens_beside_decode.max(1),
            span_max: info.span_max.max(1),
        };
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            wake: Condvar::new(),
            stats: Mutex::default(),
        });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("fourspark-engine".to_owned())
            .spawn(move || {
                let core = Core::new(target, speculation, budget, limits.retries);
                let work = || run(warmed(core, &theirs), &theirs);
                if catch_unwind(AssertUnwindSafe(work)).is_err() {
                    tracing::error!("the engine stopped unexpectedly");
                }
                theirs.close();
            })?;
        Ok(Self {
            shared,
            info,
            limits,
            thread: Some(thread),
        })
    }

    /// What the target is.
    #[must_use]
    pub fn info(&self) -> &TargetInfo {
        &self.info
    }

    /// The bounds in force.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Queues a request. Its events go to `sink`.
    ///
    /// # Errors
    /// Any [`SubmitError`]; the sink is then dropped unused.
    pub fn submit(&self, request: Request, sink: Sink) -> Result<Handle, SubmitError> {
        self.check(&request)?;
        let cancel = Arc::new(AtomicBool::new(false));
        let mut left = Vec::new();
        {
            let mut queue = lock(&self.shared.queue);
            if queue.stop {
                return Err(SubmitError::Stopped);
            }
            if queue.jobs.len() >= self.limits.queue {
                // Requests nobody waits for must not keep out one that somebody does.
                take_cancelled(&mut queue.jobs, &mut left);
            }
            if queue.jobs.len() >= self.limits.queue.max(1) {
                let limit = self.limits.queue;
                drop(queue);
                self.shared.end_cancelled(left);
                return Err(SubmitError::QueueFull { limit });
            }
            let job = Job::new(request, sink, Arc::clone(&cancel));
            queue.jobs.push_back(job);
            lock(&self.shared.stats).submitted += 1;
        }
        self.shared.wake.notify_all();
        self.shared.end_cancelled(left);
        Ok(Handle {
            cancel,
            shared: Arc::clone(&self.shared),
            detached: false,
        })
    }

    fn check(&self, request: &Request) -> Result<(), SubmitError> {
        let (prompt, limit) = (request.prompt.len() as u64, self.info.n_ctx);
        let n_vocab = self.info.n_vocab;
        if prompt == 0 {
            return Err(SubmitError::EmptyPrompt);
        }
        if prompt >= limit {
            return Err(SubmitError::ContextOverflow { prompt, limit });
        }
        if request.max_tokens == 0 {
            return Err(SubmitError::NothingAsked);
        }
        let bad = request.prompt.iter().position(|t| *t as usize >= n_vocab);
        if let Some(index) = bad {
            return Err(SubmitError::BadToken {
                token: request.prompt[index],
                index,
                n_vocab,
            });
        }
        Ok(sampling::validate(&request.plan, n_vocab)?)
    }

    /// Counters as of now.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let queue = lock(&self.shared.queue);
        let mut stats = lock(&self.shared.stats).clone();
        stats.queued = queue.jobs.len();
        stats.dead = queue.stop;
        stats
    }

    /// Cancels everything and refuses what comes. Returns at once; ends arrive as usual.
    pub fn stop(&self) {
        lock(&self.shared.queue).stop = true;
        self.shared.wake.notify_all();
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take()
            // A sink may hold the last reference: the thread cannot wait for itself.
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

impl Shared {
    /// No more requests: ends those that wait. Also after a panic.
    fn close(&self) {
        let jobs = {
            let mut queue = lock(&self.queue);
            queue.stop = true;
            std::mem::take(&mut queue.jobs)
        };
        lock(&self.stats).active = 0;
        self.end_cancelled(jobs.into());
    }

    /// Ends jobs that never ran. Not under a lock: sinks may call the scheduler.
    fn end_cancelled(&self, jobs: Vec<Job>) {
        for job in jobs {
            let ended = job.end(FinishReason::Cancelled);
            lock(&self.stats).count_end(&ended);
            ended.deliver();
        }
    }
}

fn take_cancelled(jobs: &mut VecDeque<Job>, into: &mut Vec<Job>) {
    for _ in 0..jobs.len() {
        if let Some(job) = jobs.pop_front() {
            if job.is_cancelled() {
                into.push(job);
            } else {
                jobs.push_back(job);
            }
        }
    }
}

/// The engine, warmed up; what that found is there before the first request ends.
fn warmed(mut core: Core, shared: &Shared) -> Core {
    core.warm_up();
    let mut stats = lock(&shared.stats);
    stats.warm_up = core.warmed().cloned();
    stats.drafter_lost = core.drafter_lost().cloned();
    drop(stats);
    core
}

/// The thread: admit, tick, publish counters, sleep when there is nothing to do.
fn run(mut core: Core, shared: &Shared) {
    let mut local = Stats::default();
    loop {
        let (mut cancelled, mut admitted) = (Vec::new(), Vec::new());
        let stop = {
            let mut queue = lock(&shared.queue);
            loop {
                take_cancelled(&mut queue.jobs, &mut cancelled);
                let idle = core.active() == 0 && queue.jobs.is_empty() && cancelled.is_empty();
                if queue.stop || !idle {
                    break;
                }
                queue = shared
                    .wake
                    .wait(queue)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            let free = core.info().n_seq_max.saturating_sub(core.active());
            let free = free.min(queue.jobs.len());
            if !queue.stop {
                admitted.extend(queue.jobs.drain(..free));
                // Counted as active before they leave the queue's count, so that a request never
                // seems to be nowhere.
                lock(&shared.stats).active = core.active() + admitted.len();
            }
            queue.stop
        };
        shared.end_cancelled(cancelled);
        if stop {
            core.cancel_all(&mut local);
            publish(shared, &mut local, &mut core);
            return;
        }
        for job in admitted {
            core.admit(job, &mut local);
        }
        if core.active() > 0 {
            core.tick(&mut local);
        }
        publish(shared, &mut local, &mut core);
    }
}

/// Adds the thread's counts to the shared ones, then tells who has ended.
fn publish(shared: &Shared, local: &mut Stats, core: &mut Core) {
    let add = std::mem::take(local);
    let ended = core.take_ended();
    // A target on a device waits for it to answer: not while it is at work for someone.
    let counters = (!ended.is_empty() || core.active() == 0).then(|| core.counters());
    {
        let mut stats = lock(&shared.stats);
        stats.active = core.active();
        if let Some(counters) = counters {
            stats.target = counters;
        }
        stats.drafter_lost = core.drafter_lost().cloned();
        stats.drafter_alarm = core.drafter_alarm();
        stats.speculation.clone_from(core.speculation());
        stats.add(&add);
    }
    ended.into_iter().for_each(Ended::deliver);
}
