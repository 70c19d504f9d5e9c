//! The engine's thread: it admits, ticks, publishes counters, gives the model up and loads it again, and sleeps when there
//! is nothing to do.
//!
//! Must not know: who submits, what a model is made of.

use std::ops::Range;
use std::sync::{Condvar, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use engine_core::seams::{Counters, Resident, TargetInfo};

use crate::core::Core;
use crate::error::Failure;
use crate::park::{
    LoadFailure, Loaded, ParkReply, Parked, Parking, Phase, UnparkError, UnparkReply, Unparked,
    same,
};
use crate::plan::Budget;
use crate::request::FinishReason;
use crate::sequence::{Ended, Job};
use crate::service::{Limits, Queue, Shared, lock, take_cancelled};
use crate::stats::Stats;

/// What the thread has.
pub(crate) struct Engine {
    /// `None`: given up.
    core: Option<Core>,
    parking: Option<Parking>,
    info: TargetInfo,
    budget: Budget,
    retries: u32,
    /// Counts of models that were given up.
    past: Past,
    /// What could not be freed of the last one.
    left: Vec<Resident>,
    /// When the model was loaded again: who came before its end waited for it.
    load: Option<Range<Instant>>,
    /// Since when there is nothing to do.
    idle: Instant,
    local: Stats,
}

#[derive(Default)]
struct Past {
    speculation: dspark_draft::stats::Stats,
    counters: Option<Counters>,
}

/// What there is to do.
enum Next {
    Stop,
    Work {
        cancelled: Vec<Job>,
        admitted: Vec<Job>,
    },
    /// For these; for nobody: because nothing was asked for.
    Park(Vec<ParkReply>),
    Load,
}

impl Engine {
    /// The engine, warmed up; what that found is there before the first request ends.
    pub(crate) fn new(
        loaded: Loaded,
        parking: Option<Parking>,
        limits: &Limits,
        shared: &Shared,
    ) -> Self {
        let info = loaded.target.info().clone();
        let mut this = Self {
            core: None,
            parking,
            budget: Budget {
                alone: limits.pass_tokens.max(1),
                beside_decode: limits.pass_tokens_beside_decode.max(1),
                span_max: info.span_max.max(1),
            },
            info,
            retries: limits.retries,
            past: Past::default(),
            left: Vec::new(),
            load: None,
            idle: Instant::now(),
            local: Stats::default(),
        };
        this.begin(loaded, shared);
        this
    }

    pub(crate) fn run(mut self, shared: &Shared) {
        loop {
            match self.next(shared) {
                Next::Stop => break,
                Next::Work {
                    cancelled,
                    admitted,
                } => self.work(cancelled, admitted, shared),
                Next::Park(replies) => self.park(&replies, shared),
                Next::Load => self.load(shared),
            }
        }
        if let Some(core) = &mut self.core {
            core.cancel_all(&mut self.local);
        }
        self.publish(shared);
        if let Some(core) = self.core.take() {
            release(core);
        }
    }

    fn active(&self) -> usize {
        self.core.as_ref().map_or(0, Core::active)
    }

    /// Sleeps until there is something to do.
    fn next(&self, shared: &Shared) -> Next {
        let mut cancelled = Vec::new();
        let mut queue = lock(&shared.queue);
        loop {
            take_cancelled(&mut queue.jobs, &mut cancelled);
            if queue.stop {
                drop(queue);
                shared.end_cancelled(cancelled);
                return Next::Stop;
            }
            let admitted = self.take(&mut queue, shared);
            if !(cancelled.is_empty() && admitted.is_empty() && self.active() == 0) {
                return Next::Work {
                    cancelled,
                    admitted,
                };
            }
            if !queue.orders.park.is_empty() {
                return begin_park(&mut queue, shared);
            }
            let waited_for = !queue.orders.unpark.is_empty();
            if waited_for || (self.core.is_none() && !queue.jobs.is_empty()) {
                return Next::Load;
            }
            match self.rest() {
                Some(Duration::ZERO) => return begin_park(&mut queue, shared),
                rest => queue = sleep(&shared.wake, queue, rest),
            }
        }
    }

    /// How long nothing may be asked for until the model is given up; `None`: it is, or never is.
    fn rest(&self) -> Option<Duration> {
        self.core.as_ref()?;
        let idle = self.parking.as_ref()?.idle?;
        Some(idle.saturating_sub(self.idle.elapsed()))
    }

    /// Requests that get a slot now.
    fn take(&self, queue: &mut Queue, shared: &Shared) -> Vec<Job> {
        let Some(core) = &self.core else {
            return Vec::new();
        };
        let free = self.info.n_seq_max.saturating_sub(core.active());
        let first = queue.jobs.iter().take(free);
        let n = first.take_while(|job| queue.orders.admits(job.number));
        let n = n.count();
        let admitted: Vec<Job> = queue.jobs.drain(..n).collect();
        // Counted as active before they leave the queue's count, so that a request never seems to be
        // nowhere.
        lock(&shared.stats).active = core.active() + admitted.len();
        admitted
    }

    fn work(&mut self, cancelled: Vec<Job>, admitted: Vec<Job>, shared: &Shared) {
        shared.end_cancelled(cancelled);
        let Some(core) = &mut self.core else { return };
        for mut job in admitted {
            if self.load.clone().is_some_and(|load| job.waited_for(load)) {
                self.local.waited_for_load += 1;
            }
            core.admit(job, &mut self.local);
        }
        if core.active() > 0 {
            core.tick(&mut self.local);
        }
        self.idle = Instant::now();
        self.publish(shared);
    }

    /// Gives the model up.
    fn park(&mut self, replies: &[ParkReply], shared: &Shared) {
        let mut parked = Parked {
            already: self.core.is_none(),
            ..Parked::default()
        };
        if let Some(core) = self.core.take() {
            let start = Instant::now();
            parked.before = core.residents();
            self.past.add(&core);
            self.left = release(core);
            parked.took = start.elapsed();
            tracing::info!(took = ?parked.took, "parked");
        }
        self.publish_parked(!parked.already, replies.is_empty(), shared);
        parked.left.clone_from(&self.left);
        for reply in replies {
            // Whoever does not wait any more need not hear of it.
            let _ = reply.send(Ok(parked.clone()));
        }
    }

    fn publish_parked(&self, now: bool, by_itself: bool, shared: &Shared) {
        let mut stats = lock(&shared.stats);
        stats.parks += u64::from(now);
        stats.idle_parks += u64::from(now && by_itself);
        stats.residents = self.left.as_slice().into();
        stats.drafter_lost = None;
        stats.drafter_alarm = None;
        stats.phase = Phase::Parked;
    }

    /// Loads the model unless it is there. Whoever waits for it hears of the result.
    fn load(&mut self, shared: &Shared) {
        let already = self.core.is_some();
        let start = Instant::now();
        let result = if already {
            Ok(())
        } else {
            self.load_now(shared)
        };
        let unparked = Unparked {
            already,
            now: lock(&shared.stats).residents.to_vec(),
            took: if already {
                Duration::ZERO
            } else {
                start.elapsed()
            },
        };
        let (replies, failed) = self.waiting(shared, result.is_err());
        if let Err(failure) = &result {
            let reason = FinishReason::Failed(Failure::Load(failure.clone()));
            shared.end_all(failed, &reason);
        }
        for reply in replies {
            let _ = reply.send(match &result {
                Ok(()) => Ok(unparked.clone()),
                Err(failure) => Err(UnparkError::Load(failure.clone())),
            });
        }
    }

    /// Who waits for a load that has ended, and the requests that it was for if it failed.
    fn waiting(&self, shared: &Shared, failed: bool) -> (Vec<UnparkReply>, Vec<Job>) {
        let mut queue = lock(&shared.queue);
        let replies = std::mem::take(&mut queue.orders.unpark);
        let jobs = if failed {
            std::mem::take(&mut queue.jobs).into()
        } else {
            Vec::new()
        };
        (replies, jobs)
    }

    fn load_now(&mut self, shared: &Shared) -> Result<(), LoadFailure> {
        let Some(parking) = &mut self.parking else {
            // Only what can be loaded again is given up.
            return Ok(());
        };
        lock(&shared.stats).phase = Phase::Loading;
        let start = Instant::now();
        let loaded = (parking.load)();
        let loaded = loaded.and_then(|l| same(&self.info, l.target.info()).map(|()| l));
        match loaded {
            Ok(loaded) => {
                self.begin(loaded, shared);
                self.load = Some(start..self.idle);
                let mut stats = lock(&shared.stats);
                stats.unparks += 1;
                stats.load_error = None;
                tracing::info!(took = ?start.elapsed(), "loaded again");
                Ok(())
            }
            Err(failure) => {
                let mut stats = lock(&shared.stats);
                stats.failed_loads += 1;
                stats.load_error = Some(failure.to_string());
                stats.phase = Phase::Parked;
                tracing::warn!(%failure, "the model could not be loaded again");
                Err(failure)
            }
        }
    }

    /// Takes a model into use.
    fn begin(&mut self, loaded: Loaded, shared: &Shared) {
        let mut core = Core::new(loaded, self.budget, self.retries);
        core.warm_up();
        self.idle = Instant::now();
        self.left = Vec::new();
        let mut stats = lock(&shared.stats);
        stats.warm_up = core.warmed().cloned();
        stats.drafter_lost = core.drafter_lost().cloned();
        stats.residents = core.residents().into();
        stats.phase = Phase::Loaded;
        drop(stats);
        self.core = Some(core);
    }

    /// Adds the thread's counts to the shared ones, then tells who has ended.
    fn publish(&mut self, shared: &Shared) {
        let add = std::mem::take(&mut self.local);
        let Some(core) = &mut self.core else {
            lock(&shared.stats).add(&add);
            return;
        };
        let ended = core.take_ended();
        // A target on a device waits for it to answer: not while it is at work for someone.
        let at_rest = !ended.is_empty() || core.active() == 0;
        let seen = at_rest.then(|| (self.past.counters(core), core.residents()));
        {
            let mut stats = lock(&shared.stats);
            stats.active = core.active();
            if let Some((counters, residents)) = seen {
                stats.target = counters;
                stats.residents = residents.into();
            }
            stats.drafter_lost = core.drafter_lost().cloned();
            stats.drafter_alarm = core.drafter_alarm();
            stats.speculation = self.past.speculation(core);
            stats.add(&add);
        }
        ended.into_iter().for_each(Ended::deliver);
    }
}

fn release(core: Core) -> Vec<Resident> {
    let left = core.release();
    for left in &left {
        tracing::warn!(%left, "this could not be freed");
    }
    left
}

/// Orders to give the model up are taken out; until it is, the phase says so.
fn begin_park(queue: &mut Queue, shared: &Shared) -> Next {
    lock(&shared.stats).phase = Phase::Parking;
    Next::Park(std::mem::take(&mut queue.orders.park))
}

fn sleep<'a>(
    wake: &Condvar,
    queue: MutexGuard<'a, Queue>,
    rest: Option<Duration>,
) -> MutexGuard<'a, Queue> {
    match rest {
        None => wake.wait(queue).unwrap_or_else(PoisonError::into_inner),
        Some(rest) => {
            let woken = wake.wait_timeout(queue, rest);
            woken.unwrap_or_else(PoisonError::into_inner).0
        }
    }
}

impl Past {
    /// Keeps the counts of a model that is given up.
    fn add(&mut self, core: &Core) {
        self.counters = self.counters(core);
        self.speculation.merge(core.speculation());
    }

    fn speculation(&self, core: &Core) -> dspark_draft::stats::Stats {
        let mut all = self.speculation.clone();
        all.merge(core.speculation());
        all
    }

    fn counters(&self, core: &Core) -> Option<Counters> {
        // Asked once: a target on a device waits for it.
        let now = core.counters();
        let (Some(past), Some(now)) = (self.counters, now) else {
            return self.counters.or(now);
        };
        let bytes = past.weight_bytes.zip(now.weight_bytes);
        Some(Counters {
            weight_bytes: bytes.map(|(past, now)| past + now),
            launches: past.launches + now.launches,
            fallbacks: past.fallbacks + now.fallbacks,
            stalls: past.stalls + now.stalls,
        })
    }
}
