//! Calls of the seam on a worker: checked here, answered from what has arrived.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use engine_core::seams::{Ask, DraftRows};
use engine_core::{Fault, Pos, SeqId, Ticket};

use super::life::Life;
use super::lookout::Lookout;
use super::mirror::Mirror;
use super::step::Outstanding;
use super::{Fallback, Plan, keeper::Keeper};
use crate::handshake::Dims;
use crate::report::Watch;

/// Answers that nobody has taken; older ones are dropped. As in a backbone of this process.
const ANSWERS_MAX: usize = 64;

/// Asks that wait until an earlier answer has come.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) ticket: Ticket,
    pub(super) asks: Vec<Ask>,
    pub(super) block: Vec<f32>,
}

/// Everything on the parent's side.
pub(super) struct Session {
    pub(super) plan: Arc<Plan>,
    pub(super) life: Life,
    pub(super) mirrors: BTreeMap<SeqId, Mirror>,
    /// Of sequences that are gone, to be used again.
    pub(super) spare: Vec<Mirror>,
    /// The newest epoch given out.
    pub(super) epoch: u32,
    /// The newest request.
    pub(super) number: u64,
    pub(super) outstanding: Option<Outstanding>,
    pub(super) waiting: VecDeque<Waiting>,
    answers: VecDeque<(Ticket, DraftRows)>,
    tickets: u64,
    /// The body of the newest frame, kept for its room.
    pub(super) body: Vec<u8>,
    pub(super) watch: Watch,
    /// When to be awake for a reply.
    pub(super) lookout: Lookout,
    /// Refused steps in a row.
    pub(super) refusals: u32,
    /// When the worker was lost, lately.
    pub(super) losses: VecDeque<Instant>,
    pub(super) fallback: Option<Fallback>,
    // Last: what is above has let go of the worker when its keeper ends it.
    pub(super) keeper: Keeper,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Session({}, {} sequences)",
            self.watch,
            self.mirrors.len()
        )
    }
}

impl Session {
    pub(super) fn new(plan: Arc<Plan>, keeper: Keeper, life: Life, watch: Watch) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let (lookout, awake) = Lookout::new(processors, plan.shape.busy());
        watch.lock().awake = awake;
        Self {
            plan,
            life,
            keeper,
            watch,
            lookout,
            mirrors: BTreeMap::new(),
            spare: Vec::new(),
            epoch: 0,
            number: 0,
            outstanding: None,
            waiting: VecDeque::new(),
            answers: VecDeque::new(),
            tickets: 0,
            body: Vec::new(),
            refusals: 0,
            losses: VecDeque::new(),
            fallback: None,
        }
    }

    pub(super) fn dims(&self) -> Dims {
        self.plan.shape.dims
    }

    pub(super) fn known(&self, seq: SeqId) -> Result<(), Fault> {
        let limit = u64::from(self.dims().n_seq_max);
        let wanted = u64::from(seq.0) + 1;
        if wanted <= limit {
            return Ok(());
        }
        let what = "draft sequences";
        Err(Fault::Exhausted {
            what,
            wanted,
            limit,
        })
    }

    /// A sequence's mirror, a new one if it has none.
    pub(super) fn open(&mut self, seq: SeqId) -> &mut Mirror {
        let (spare, dims) = (&mut self.spare, self.plan.shape.dims);
        let fresh = || Mirror::new(dims.ring as usize, dims.feature_width());
        self.mirrors
            .entry(seq)
            .or_insert_with(|| spare.pop().unwrap_or_else(fresh))
    }

    pub(super) fn observe(&mut self, seq: SeqId, pos: Pos, features: &[f32]) -> Result<(), Fault> {
        if let Life::InProcess(local) = &mut self.life {
            return local.observe(seq, pos, features);
        }
        self.known(seq)?;
        self.open(seq).observe(seq, pos, features)?;
        if self.plan.eager && self.life.is_up() {
            self.finish_outstanding();
            self.send_changes();
        }
        Ok(())
    }

    pub(super) fn truncate(&mut self, seq: SeqId, pos: Pos) {
        if let Life::InProcess(local) = &mut self.life {
            local.truncate(seq, pos);
        } else if let Some(mirror) = self.mirrors.get_mut(&seq) {
            mirror.truncate(pos);
        }
    }

    pub(super) fn close(&mut self, seq: SeqId) {
        if let Life::InProcess(local) = &mut self.life {
            return local.close(seq);
        }
        let Some(mirror) = self.mirrors.get_mut(&seq) else {
            return;
        };
        mirror.close();
        if mirror.is_gone() {
            self.spare.extend(self.mirrors.remove(&seq));
        }
    }

    /// Which asks have context to draft from, as a backbone of this process decides it.
    pub(super) fn drafting(&self, asks: &[Ask]) -> Result<Vec<usize>, Fault> {
        let mut live = Vec::with_capacity(asks.len());
        for (i, ask) in asks.iter().enumerate() {
            self.known(ask.seq)?;
            let Some(mirror) = self.mirrors.get(&ask.seq).filter(|m| !m.is_empty()) else {
                continue;
            };
            let (seq, got) = (ask.seq, ask.pos);
            let expected = mirror.end().saturating_add(ask.ahead);
            if expected != got {
                return Err(Fault::WrongPosition { seq, expected, got });
            }
            let wanted = u64::from(got) + u64::from(self.dims().block);
            let limit = u64::from(Pos::MAX);
            if wanted > limit {
                return Err(Fault::ContextFull { seq, wanted, limit });
            }
            if ask.depth > 0 {
                live.push(i);
            }
        }
        Ok(live)
    }

    pub(super) fn submit(&mut self, asks: &[Ask], block: &[f32]) -> Result<Ticket, Fault> {
        let (dims, each) = (self.dims(), self.dims().block_width());
        if block.len() != asks.len() * each {
            let (b, d) = (dims.block, dims.n_embd);
            return Err(Fault::BadState {
                field: "block rows",
                expected: format!("{} asks of {b} rows of {d}", asks.len()),
                got: format!("{} values", block.len()),
            });
        }
        self.turn();
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        match &mut self.life {
            Life::InProcess(local) => {
                let theirs = local.submit(asks, block)?;
                let rows = local.poll(theirs, None)?;
                self.answer(ticket, rows);
                return Ok(ticket);
            }
            Life::Gone(why) => return Err(super::life::lost(why)),
            _ => {}
        }
        let live = self.drafting(asks)?;
        let (wanted, limit) = (live.len() as u64, u64::from(dims.n_seq_max));
        if wanted > limit {
            let what = "draft asks";
            return Err(Fault::Exhausted {
                what,
                wanted,
                limit,
            });
        }
        if live.is_empty() {
            self.answer_nothing(ticket, asks.len());
        } else if !self.life.is_up() {
            self.watch.lock().unanswered += live.len() as u64;
            self.answer_nothing(ticket, asks.len());
        } else if self.outstanding.is_some() {
            // One request at a time: this one goes when the answer before it has come.
            if self.waiting.len() == ANSWERS_MAX {
                self.waiting.pop_front();
            }
            let (asks, block) = (asks.to_vec(), block.to_vec());
            self.waiting.push_back(Waiting {
                ticket,
                asks,
                block,
            });
        } else {
            self.send_asks(ticket, asks, &live, block);
        }
        Ok(ticket)
    }

    pub(super) fn answer_nothing(&mut self, ticket: Ticket, asks: usize) {
        let rows = DraftRows {
            rows: vec![0; asks],
            ..DraftRows::default()
        };
        self.answer(ticket, rows);
    }

    pub(super) fn answer(&mut self, ticket: Ticket, rows: DraftRows) {
        if self.answers.len() == ANSWERS_MAX {
            self.answers.pop_front();
        }
        self.answers.push_back((ticket, rows));
    }

    pub(super) fn poll(
        &mut self,
        ticket: Ticket,
        deadline: Option<Instant>,
    ) -> Result<DraftRows, Fault> {
        loop {
            if let Some(at) = self.answers.iter().position(|(t, _)| *t == ticket)
                && let Some((_, rows)) = self.answers.remove(at)
            {
                return Ok(rows);
            }
            if self.outstanding.is_some() {
                self.receive(deadline)?;
            } else if let Some(next) = self.waiting.pop_front() {
                self.send_waiting(next);
            } else {
                return Err(Fault::NoSuchTicket(ticket.0));
            }
        }
    }

    /// Asks that waited are sent if they still start where their sequences end.
    fn send_waiting(&mut self, next: Waiting) {
        let Waiting {
            ticket,
            asks,
            block,
        } = next;
        match self.drafting(&asks) {
            Ok(live) if !live.is_empty() && self.life.is_up() => {
                self.send_asks(ticket, &asks, &live, &block);
            }
            _ => {
                self.watch.lock().unanswered += asks.len() as u64;
                self.answer_nothing(ticket, asks.len());
            }
        }
    }
}
