//! The engine without its thread: jobs with a sequence, and the tick that moves all of them by one pass
//! of the speculative loop. Separate from the thread so that tests can turn it by hand.

use std::sync::Arc;
use std::time::Instant;

use dspark_draft::speculate::{
    Cold, Config, Finished, Grants, InPass, Reason, Speculator, Turn, WarmUp,
};
use engine_core::mutant::mutant;
use engine_core::seams::{Counters, Resident, TargetInfo};
use engine_core::{Drafter, SeqId, Target};

use crate::error::Failure;
use crate::park::Loaded;
use crate::plan::{Budget, shares};
use crate::request::{Drafting, FinishReason};
use crate::sequence::{Delivery, Ended, Job, Sequence};
use crate::stats::Stats;

/// Target, drafter, loop and active jobs.
pub(crate) struct Core {
    target: Box<dyn Target + Send>,
    drafter: Option<Box<dyn Drafter + Send>>,
    /// Why the drafter, or a part of it, is not used any more.
    drafter_lost: Option<String>,
    /// Alarms told.
    alarms: u64,
    budget: Budget,
    /// Seconds for a warm-up, and what it found.
    warm_up: f64,
    warmed: Option<Result<WarmUp, Cold>>,
    speculator: Speculator,
    /// In the order of the loop's sequences.
    active: Vec<Sequence>,
    /// Ended in this tick, not told yet.
    ended: Vec<Ended>,
    grants: Vec<(SeqId, usize)>,
}

impl Core {
    pub(crate) fn new(loaded: Loaded, budget: Budget, retries: u32) -> Self {
        let Loaded {
            target,
            speculation,
        } = loaded;
        let base = Config {
            in_pass: InPass::Keyed,
            retries,
            ..Config::default()
        };
        let warm_up = speculation.as_ref().map_or(0.0, |s| s.warm_up);
        let (drafter, config) = match speculation {
            Some(s) => {
                let config = Config {
                    policy: s.policy,
                    depth: s.depth,
                    tap_window: s.tap_window,
                    overlap: s.overlap,
                    ..base
                };
                (Some(s.drafter), config)
            }
            None => (None, base),
        };
        Self {
            speculator: Speculator::new(target.info(), config),
            target,
            drafter,
            drafter_lost: None,
            alarms: 0,
            budget,
            warm_up,
            warmed: None,
            active: Vec::new(),
            ended: Vec::new(),
            grants: Vec::new(),
        }
    }

    /// Measures what passes and drafts take, before anybody asks for something.
    pub(crate) fn warm_up(&mut self) {
        let Some(drafter) = self.drafter.as_mut() else {
            return;
        };
        let found = self
            .speculator
            .warm_up(&mut *self.target, &mut **drafter, self.warm_up);
        match &found {
            Ok(found) => tracing::info!(?found, "warmed up"),
            Err(why @ Cold::Refused(_)) => tracing::warn!(%why, "no warm-up"),
            Err(why) => tracing::info!(%why, "no warm-up"),
        }
        self.warmed = Some(found);
        self.look_after_drafter();
    }

    pub(crate) const fn warmed(&self) -> Option<&Result<WarmUp, Cold>> {
        self.warmed.as_ref()
    }

    pub(crate) fn info(&self) -> &TargetInfo {
        self.target.info()
    }

    /// What takes memory for target and drafter.
    pub(crate) fn residents(&self) -> Vec<Resident> {
        let mut all = self.target.residents();
        all.extend(self.drafter.iter().flat_map(|d| d.residents()));
        all
    }

    /// Frees target and drafter. The answer: what could not be freed, and why.
    pub(crate) fn release(self) -> Vec<Resident> {
        // The drafter first: what it draws with lies beside the target's weights.
        let drafter = self.drafter.map(|d| d.retire());
        let mut left = drafter.unwrap_or_default();
        left.extend(self.target.retire());
        left
    }

    /// What the target counted.
    pub(crate) fn counters(&self) -> Option<Counters> {
        self.target.counters().filter(|_| !mutant(322))
    }

    pub(crate) fn active(&self) -> usize {
        self.active.len()
    }

    /// What ended since the last call. The caller delivers it once its counters are published.
    pub(crate) fn take_ended(&mut self) -> Vec<Ended> {
        std::mem::take(&mut self.ended)
    }

    pub(crate) fn drafter_lost(&self) -> Option<&String> {
        self.drafter_lost.as_ref()
    }

    pub(crate) fn drafter_alarm(&self) -> Option<String> {
        self.speculator.alarm()
    }

    pub(crate) const fn speculation(&self) -> &dspark_draft::stats::Stats {
        self.speculator.stats()
    }

    /// Gives a job a sequence. It ends at once when the target has no slot although fewer than its
    /// maximum are ours.
    pub(crate) fn admit(&mut self, job: Job, stats: &mut Stats) {
        let failure = match self.target.open() {
            Ok(seq) => {
                let request = job.to_loop(self.info().n_ctx);
                match self.speculator.admit(&*self.target, seq, request) {
                    Ok(()) => return self.active.push(Sequence::new(job, seq)),
                    Err(error) => {
                        self.target.close(seq);
                        Failure::Refused(Arc::new(error))
                    }
                }
            }
            Err(fault) => Failure::Target(Arc::new(fault)),
        };
        let ended = job.end(FinishReason::Failed(failure));
        stats.count_end(&ended);
        self.ended.push(ended);
    }

    /// One step of every sequence: propose, one pass, accept, deliver, commit.
    pub(crate) fn tick(&mut self, stats: &mut Stats) {
        stats.ticks += 1;
        self.drop_cancelled(stats);
        if self.active.is_empty() {
            return;
        }
        self.divide();
        let start = Instant::now();
        let before = Counted::of(self.speculator.stats());
        let out = self.speculator.step(Turn {
            target: &mut *self.target,
            drafter: match self.drafter.as_mut() {
                Some(drafter) => Some(&mut **drafter),
                None => None,
            },
            sink: &mut Delivery(&mut self.active),
            grants: Grants::Listed(&self.grants),
            riders: &[],
        });
        stats.busy += start.elapsed();
        let did = Counted::of(self.speculator.stats());
        stats.passes += did.passes - before.passes;
        stats.prompt_tokens += did.prompt_tokens - before.prompt_tokens;
        stats.generated_tokens += did.generated_tokens - before.generated_tokens;
        match out.fault {
            Some(fault) => tracing::error!(%fault, "a pass failed"),
            None => stats.pass_tokens += out.rows as u64,
        }
        self.look_after_drafter();
        for finished in out.finished {
            self.retire(finished, stats);
        }
    }

    /// Ends everything.
    pub(crate) fn cancel_all(&mut self, stats: &mut Stats) {
        while let Some(sequence) = self.active.first() {
            let seq = sequence.seq;
            self.remove(seq, stats);
        }
    }

    /// Takes out what nobody waits for before the pass is divided among the others.
    fn drop_cancelled(&mut self, stats: &mut Stats) {
        let left = self.active.iter().filter(|s| s.is_cancelled());
        let left: Vec<SeqId> = left.map(|s| s.seq).collect();
        for seq in left {
            self.remove(seq, stats);
        }
    }

    fn remove(&mut self, seq: SeqId, stats: &mut Stats) {
        match self.speculator.remove(seq) {
            Some(finished) => self.retire(finished, stats),
            // Not in the loop: it cannot go on, whatever the reason.
            None => self.active.retain(|s| s.seq != seq),
        }
    }

    /// Prompt tokens of the next pass for each sequence.
    fn divide(&mut self) {
        let (seqs, needs): (Vec<SeqId>, Vec<_>) = self.speculator.needs().unzip();
        self.grants.clear();
        self.grants
            .extend(seqs.into_iter().zip(shares(&needs, self.budget)));
    }

    /// A drafter that failed is let go of; of one that lost a part the rest goes on. One that seems not to
    /// fit is used on: it costs time, nothing else.
    fn look_after_drafter(&mut self) {
        let alarms = self.speculator.stats().alarms;
        if alarms > self.alarms {
            self.alarms = alarms;
            let why = self.speculator.alarm();
            tracing::warn!(why, "the drafter is hardly ever right");
        }
        let lost = self.speculator.drafter_lost();
        let gone = lost.is_some();
        let partly = self.drafter.as_ref().and_then(|d| d.lost());
        let partly = partly.filter(|_| !mutant(262));
        let Some(why) = lost.or(partly) else { return };
        if self.drafter_lost.as_deref() != Some(why) {
            tracing::warn!(why, "the drafter failed");
            self.drafter_lost = Some(why.to_owned());
        }
        if gone {
            self.drafter = None;
        }
    }

    /// Closes what has ended.
    fn retire(&mut self, finished: Finished, stats: &mut Stats) {
        let seq = finished.seq;
        self.target.close(seq);
        if let Some(drafter) = self.drafter.as_mut() {
            drafter.close(seq);
        }
        let Some(at) = self.active.iter().position(|s| s.seq == seq) else {
            return;
        };
        let drafting = match (&self.drafter_lost, &self.drafter) {
            (Some(_), _) => Drafting::Lost,
            (None, Some(_)) => Drafting::On,
            (None, None) => Drafting::Off,
        };
        let sequence = self.active.remove(at);
        let ended = sequence.end(reason(finished.reason), finished.usage, drafting);
        stats.count_end(&ended);
        self.ended.push(ended);
    }
}

/// Counts of the loop that are counts of the engine.
struct Counted {
    passes: u64,
    prompt_tokens: u64,
    generated_tokens: u64,
}

impl Counted {
    const fn of(stats: &dspark_draft::stats::Stats) -> Self {
        Self {
            passes: stats.passes,
            prompt_tokens: stats.prompt_tokens,
            generated_tokens: stats.first_tokens + stats.emitted,
        }
    }
}

fn reason(reason: Reason) -> FinishReason {
    match reason {
        Reason::Stop(token) => FinishReason::StopToken(token),
        Reason::Satisfied => FinishReason::Satisfied,
        Reason::Length | Reason::Context => FinishReason::Length,
        Reason::Cancelled => FinishReason::Cancelled,
        Reason::Failed(failure) => FinishReason::Failed(failure.into()),
        // The loop's reasons may grow; an unknown one is no answer.
        _ => FinishReason::Failed(Failure::Stopped),
    }
}
