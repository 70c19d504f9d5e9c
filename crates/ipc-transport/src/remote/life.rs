//! A worker's life as the parent sees it: up, being started again, replaced, gone.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};

use engine_core::Fault;
use engine_core::seams::Backbone;

use super::Plan;
use super::ask::Session;
use super::keeper::{Keeper, Started, Up};
use crate::error::{StartError, Step};
use crate::frame::{Header, Op};
use crate::launch::Launch;
use crate::report::{Reach, Standing, State, Watch};

const ENDED: &str = "the keeper ended";

/// Where the worker stands.
pub(super) enum Life {
    /// It answers; requests counted before it came up.
    Up(Box<Up>, u64),
    /// It was lost, and another one is being started.
    Starting(Receiver<Started>),
    /// There is no worker any more: this process drafts.
    InProcess(Box<dyn Backbone + Send>),
    /// There is no worker any more, and why.
    Gone(String),
}

impl Life {
    pub(super) const fn is_up(&self) -> bool {
        matches!(self, Self::Up(..))
    }

    pub(super) fn up(&self) -> Option<&Up> {
        match self {
            Self::Up(up, _) => Some(up),
            _ => None,
        }
    }

    pub(super) fn up_mut(&mut self) -> Option<&mut Up> {
        match self {
            Self::Up(up, _) => Some(up),
            _ => None,
        }
    }

    /// Requests that were counted before this worker came up.
    pub(super) const fn steps_before(&self) -> u64 {
        match self {
            Self::Up(_, steps) => *steps,
            _ => 0,
        }
    }
}

/// The fault of a worker that is gone.
pub(super) fn lost(why: &str) -> Fault {
    Fault::Lost {
        what: "draft worker".to_owned(),
        why: why.to_owned(),
    }
}

impl Session {
    pub(super) fn start(plan: Arc<Plan>, launch: Box<dyn Launch>) -> Result<Self, StartError> {
        let watch = Watch::default();
        let keeper = Keeper::new(launch, Arc::clone(&plan), watch.clone())?;
        let (up, _) = keeper
            .start(&[Duration::ZERO])
            .recv()
            .map_err(|_| StartError::at(Step::Spawn)(ENDED))??;
        Ok(Self::new(plan, keeper, Life::Up(up, 0), watch))
    }

    /// Moves a start on, without waiting.
    pub(super) fn turn(&mut self) {
        if let Life::Starting(answer) = &self.life {
            match answer.try_recv() {
                Err(TryRecvError::Empty) => {}
                Ok(started) => self.started(started),
                Err(TryRecvError::Disconnected) => self.give_up(ENDED),
            }
        }
    }

    fn started(&mut self, started: Started) {
        match started {
            Ok((up, failed)) => {
                let steps = {
                    let mut report = self.watch.lock();
                    report.restarts += 1;
                    report.steps
                };
                let now = Instant::now();
                self.losses.extend(std::iter::repeat_n(now, failed));
                self.refusals = 0;
                self.life = Life::Up(up, steps);
            }
            Err(error) => {
                self.watch.lock().lost += 1;
                self.give_up(&error.to_string());
            }
        }
    }

    pub(super) fn wait_until_settled(&mut self, deadline: Instant) {
        let Life::Starting(answer) = &self.life else {
            return;
        };
        let left = deadline.saturating_duration_since(Instant::now());
        match answer.recv_timeout(left) {
            Ok(started) => self.started(started),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => self.give_up(ENDED),
        }
    }

    /// The worker is not used any more. What is asked gets no rows; another start follows unless there
    /// were too many.
    pub(super) fn lose(&mut self, why: &str) {
        tracing::warn!(why, "the draft worker is lost");
        let now = Instant::now();
        let Self { losses, plan, .. } = self;
        losses.retain(|t| now.saturating_duration_since(*t) < plan.restarts.within);
        let waits = plan.restarts.delays.get(losses.len()..).unwrap_or_default();
        losses.push_back(now);
        {
            // Before the start is ordered: the keeper says when it is up again.
            let mut report = self.watch.lock();
            report.lost += 1;
            report.state = State::Restarting;
            (report.pid, report.reason) = (None, Some(why.to_owned()));
        }
        let over = waits.is_empty();
        // The channel first: a worker on a thread ends by that alone.
        self.life = Life::Gone(why.to_owned());
        self.life = Life::Starting(self.keeper.start(waits));
        self.answer_all();
        self.mirrors.values_mut().for_each(|m| m.distrust(true));
        if over {
            self.give_up(why);
        }
    }

    /// Everything that is asked gets no rows.
    fn answer_all(&mut self) {
        let due = self.outstanding.take();
        let due = due.and_then(super::step::Outstanding::into_unanswered);
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let waiting = waiting.map(|w| (w.ticket, w.asks.len(), w.asks.len()));
        for (ticket, asks, live) in due.into_iter().chain(waiting) {
            self.watch.lock().unanswered += live as u64;
            self.answer_nothing(ticket, asks);
        }
    }

    /// No worker any more: drafting goes on here, with the rows that are kept, or ends.
    fn give_up(&mut self, why: &str) {
        self.life = Life::Gone(why.to_owned());
        self.answer_all();
        let local = self.fallback.take().map(|make| make());
        let mut report = self.watch.lock();
        report.transport = None;
        report.reach = Reach::default();
        report.awake = Standing::default();
        report.reason = Some(why.to_owned());
        match local.map(|made| made.and_then(|local| self.fill(local))) {
            Some(Ok(local)) => {
                report.state = State::InProcess;
                report.fallbacks += 1;
                self.life = Life::InProcess(local);
            }
            Some(Err(fault)) => {
                report.state = State::Lost;
                report.reason = Some(format!("{why}; and in this process: {fault}"));
            }
            None => report.state = State::Lost,
        }
    }

    fn fill(&self, mut local: Box<dyn Backbone + Send>) -> Result<Box<dyn Backbone + Send>, Fault> {
        for (seq, mirror) in &self.mirrors {
            let (from, runs) = mirror.kept();
            let rows = runs.concat();
            if !rows.is_empty() {
                local.observe(*seq, from, &rows)?;
            }
        }
        Ok(local)
    }

    /// The fault of a call that needs the worker while there is none.
    pub(super) fn away(&self) -> Fault {
        let why = self.watch.report().reason;
        lost(why.as_deref().unwrap_or("it is not up"))
    }

    pub(super) fn health(&self) -> Result<(), Fault> {
        match &self.life {
            Life::Up(..) => Ok(()),
            Life::InProcess(local) => local.health(),
            Life::Gone(why) => Err(lost(why)),
            Life::Starting(_) => Err(self.away()),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Asked to end, and its channel closed; the keeper sees to the rest.
        if let Some(up) = self.life.up_mut() {
            let header = Header::request(Op::Quit, self.number + 1, 0);
            let soon = Instant::now() + self.plan.timeouts.grace.quit;
            if let Err(error) = up.link.send(header, &[], &[], Some(soon)) {
                tracing::debug!(%error, "the draft worker could not be asked to end");
            }
        }
        self.life = Life::Gone("ended".to_owned());
    }
}
