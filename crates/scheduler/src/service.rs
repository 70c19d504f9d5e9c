//! The door to the engine's thread: submission, the bounded queue, orders to park, handles, shutdown.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use engine_core::Target;
use engine_core::seams::TargetInfo;

use crate::error::SubmitError;
use crate::park::{Loaded, Orders, ParkError, Parked, Parking, Phase, UnparkError, Unparked};
use crate::request::{FinishReason, Request, Sink};
use crate::sequence::Job;
use crate::speculation::Speculation;
use crate::stats::Stats;
use crate::thread::Engine;

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
pub(crate) struct Shared {
    pub(crate) queue: Mutex<Queue>,
    pub(crate) wake: Condvar,
    /// As of the last tick; `queued` is filled in on demand.
    pub(crate) stats: Mutex<Stats>,
}

#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) jobs: VecDeque<Job>,
    pub(crate) orders: Orders,
    pub(crate) stop: bool,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An engine: a thread that owns a target. Dropping it cancels everything and waits for the thread.
#[derive(Debug)]
pub struct Scheduler {
    shared: Arc<Shared>,
    info: TargetInfo,
    limits: Limits,
    /// Whether its model can be given up: it can be loaded again.
    parks: bool,
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
    /// Starts the thread over a model that is never given up.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(
        target: Box<dyn Target + Send>,
        speculation: Option<Speculation>,
        limits: Limits,
    ) -> std::io::Result<Self> {
        let loaded = Loaded {
            target,
            speculation,
        };
        Self::start_with(loaded, None, limits)
    }

    /// Starts the thread; with `parking` the model can be given up.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start_with(
        loaded: Loaded,
        parking: Option<Parking>,
        limits: Limits,
    ) -> std::io::Result<Self> {
        let info = loaded.target.info().clone();
        let parks = parking.is_some();
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            wake: Condvar::new(),
            stats: Mutex::default(),
        });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("fourspark-engine".to_owned())
            .spawn(move || {
                let work = || Engine::new(loaded, parking, &limits, &theirs).run(&theirs);
                if catch_unwind(AssertUnwindSafe(work)).is_err() {
                    tracing::error!("the engine stopped unexpectedly");
                }
                theirs.close();
            })?;
        Ok(Self {
            shared,
            info,
            limits,
            parks,
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
            let mut stats = lock(&self.shared.stats);
            stats.submitted += 1;
            let job = Job::new(request, stats.submitted, sink, Arc::clone(&cancel));
            drop(stats);
            queue.jobs.push_back(job);
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
        if stats.phase == Phase::Loaded && !queue.orders.park.is_empty() {
            stats.phase = Phase::Parking;
        }
        stats
    }

    /// Gives the model up and waits for that: requests accepted so far are answered first, later ones wait, and load it
    /// again. Without `wait` it is given up only if no request is in progress.
    ///
    /// # Errors
    /// `Busy`, `Unable`, `Stopped`.
    pub fn park(&self, wait: bool) -> Result<Parked, ParkError> {
        let (reply, answer) = channel();
        {
            let mut queue = lock(&self.shared.queue);
            if queue.stop {
                return Err(ParkError::Stopped);
            }
            if !self.parks {
                return Err(ParkError::Unable);
            }
            let stats = lock(&self.shared.stats);
            let in_progress = queue.jobs.len() + stats.active;
            if !wait && in_progress > 0 {
                return Err(ParkError::Busy { in_progress });
            }
            queue.orders.before = stats.submitted;
            queue.orders.park.push(reply);
        }
        self.shared.wake.notify_all();
        answer.recv().unwrap_or(Err(ParkError::Stopped))
    }

    /// Loads a model that was given up and waits for that.
    ///
    /// # Errors
    /// `Load` with the reason: the model stays given up, and the next try may succeed. `Stopped`.
    pub fn unpark(&self) -> Result<Unparked, UnparkError> {
        let (reply, answer) = channel();
        {
            let mut queue = lock(&self.shared.queue);
            if queue.stop {
                return Err(UnparkError::Stopped);
            }
            queue.orders.unpark.push(reply);
        }
        self.shared.wake.notify_all();
        answer.recv().unwrap_or(Err(UnparkError::Stopped))
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
            // Whoever waits for an order hears that there is nobody to carry it out.
            queue.orders = Orders::default();
            std::mem::take(&mut queue.jobs)
        };
        lock(&self.stats).active = 0;
        self.end_cancelled(jobs.into());
    }

    /// Ends jobs that never ran. Not under a lock: sinks may call the scheduler.
    pub(crate) fn end_cancelled(&self, jobs: Vec<Job>) {
        self.end_all(jobs, &FinishReason::Cancelled);
    }

    /// The same for another reason.
    pub(crate) fn end_all(&self, jobs: Vec<Job>, reason: &FinishReason) {
        for job in jobs {
            let ended = job.end(reason.clone());
            lock(&self.stats).count_end(&ended);
            ended.deliver();
        }
    }
}

pub(crate) fn take_cancelled(jobs: &mut VecDeque<Job>, into: &mut Vec<Job>) {
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
