//! One request at a time: what changed and what is asked, in one frame.
//!
//! Must not know: what comes back.

use std::ops::Range;
use std::time::Instant;

use engine_core::seams::Ask;
use engine_core::{SeqId, Ticket};

use super::ask::Session;
use super::mirror::Mirror;
use crate::frame::{BODY_MAX, ENTRY, Entry, Header, Kind, Op};

/// A request whose reply has not come.
#[derive(Debug)]
pub(super) struct Outstanding {
    pub(super) number: u64,
    pub(super) op: Op,
    /// Whom to answer.
    pub(super) ticket: Option<Ticket>,
    /// All asks of the call.
    pub(super) asks: usize,
    /// The asks that were sent, with their places among all.
    pub(super) sent: Vec<(usize, Entry)>,
    /// The worker is lost if nothing has come by then.
    pub(super) deadline: Instant,
    /// When to be awake for the reply; `None`: not at all.
    pub(super) near: Option<Range<Instant>>,
}

impl Outstanding {
    /// Whom to answer and how many asks with nothing, when the worker is lost.
    pub(super) fn into_unanswered(self) -> Option<(Ticket, usize, usize)> {
        self.ticket.map(|t| (t, self.asks, self.sent.len()))
    }

    /// When to be awake for the reply, if it is not over: then nobody was.
    pub(super) fn near(&mut self) -> Option<Range<Instant>> {
        self.near.take_if(|near| near.end <= Instant::now());
        self.near.clone()
    }
}

/// A sequence's changes take at most so many bytes of a body.
const CHANGE_MAX: usize = 2 * ENTRY;

impl Session {
    /// The deadline of a request that is sent now.
    pub(super) fn deadline(&self) -> Instant {
        let timeouts = self.plan.timeouts;
        let steps = self.watch.lock().steps;
        let first = steps == self.life.steps_before();
        Instant::now() + if first { timeouts.first } else { timeouts.step }
    }

    /// Sends all changes and the asks `live`. A failure loses the worker and answers with nothing.
    pub(super) fn send_asks(
        &mut self,
        ticket: Ticket,
        asks: &[Ask],
        live: &[usize],
        block: &[f32],
    ) {
        let each = self.dims().block_width();
        let room = live.len() * each * 4;
        if !self.make_room(room, live.len() * ENTRY) {
            self.unanswered(ticket, asks.len(), live.len());
            return;
        }
        let entry = |i: &usize| {
            let ask = &asks[*i];
            (*i, ask_entry(ask, self.dims().block))
        };
        let sent: Vec<(usize, Entry)> = live.iter().map(entry).collect();
        let blocks = live.iter().map(|i| &block[i * each..(i + 1) * each]);
        let blocks: Vec<&[f32]> = blocks.collect();
        let outstanding = Outstanding {
            number: 0,
            op: Op::Step,
            ticket: Some(ticket),
            asks: asks.len(),
            sent,
            deadline: self.deadline(),
            near: None,
        };
        self.send_step(outstanding, &blocks, usize::MAX);
    }

    fn unanswered(&mut self, ticket: Ticket, asks: usize, live: usize) {
        self.watch.lock().unanswered += live as u64;
        self.answer_nothing(ticket, asks);
    }

    /// Sends changes ahead until what is left of them fits beside `bytes` and `body`; whether the worker
    /// is still there.
    fn make_room(&mut self, bytes: usize, body: usize) -> bool {
        let Some(capacity) = self.life.up().map(|up| up.link.capacity()) else {
            return false;
        };
        let row = self.dims().feature_width() * 4;
        let ring = self.dims().ring as usize * row;
        // By the most a sequence can need: what it does need is only known when it is sent.
        let fits = |n: usize| {
            n.saturating_mul(ring).saturating_add(bytes) <= capacity
                && n * CHANGE_MAX + body <= BODY_MAX
        };
        if fits(self.mirrors.len()) {
            return true;
        }
        let changed = self.mirrors.values().map(Mirror::rows_to_send);
        let rows: usize = changed.sum();
        if rows * row + bytes <= capacity && self.mirrors.len() * CHANGE_MAX + body <= BODY_MAX {
            return true;
        }
        self.send_changes()
    }

    /// Sends all changes by themselves and waits for the replies; whether the worker is still there.
    pub(super) fn send_changes(&mut self) -> bool {
        let seqs: Vec<SeqId> = self.mirrors.keys().copied().collect();
        for seq in seqs {
            if !self.life.is_up() {
                return false;
            }
            let outstanding = Outstanding {
                number: 0,
                op: Op::Step,
                ticket: None,
                asks: 0,
                sent: Vec::new(),
                deadline: self.deadline(),
                near: None,
            };
            self.send_step(outstanding, &[], seq.index());
            self.finish_outstanding();
        }
        self.life.is_up()
    }

    /// Sends a step with the changes of sequence `only`, of all if it is none.
    fn send_step(&mut self, mut outstanding: Outstanding, blocks: &[&[f32]], only: usize) {
        let Self {
            life,
            mirrors,
            epoch,
            number,
            watch,
            body,
            ..
        } = self;
        let Some(up) = life.up_mut() else { return };
        body.clear();
        let (mut parts, mut rows) = (
            Vec::<&[u8]>::with_capacity(2 * mirrors.len() + blocks.len()),
            0,
        );
        let mut epochs = Vec::with_capacity(mirrors.len());
        for (seq, mirror) in mirrors.iter_mut() {
            if only != usize::MAX && seq.index() != only {
                continue;
            }
            *epoch += 1;
            let change = mirror.change(*seq, *epoch);
            epochs.push((seq.0, change.epoch));
            for entry in change.entries.into_iter().flatten() {
                entry.put(body);
                rows += u64::from(entry.rows);
            }
            parts.extend(change.rows.map(bytemuck::cast_slice));
        }
        if body.is_empty() && outstanding.sent.is_empty() {
            return;
        }
        for (_, entry) in &mut outstanding.sent {
            let known = epochs.iter().find(|(seq, _)| *seq == entry.seq);
            entry.epoch = known.map_or(0, |(_, epoch)| *epoch);
            entry.put(body);
        }
        parts.extend(blocks.iter().copied().map(bytemuck::cast_slice));
        *number += 1;
        outstanding.number = *number;
        let direct = u64::from(up.reach.pinned_there.is_yes());
        let header = Header::request(Op::Step, *number, 0);
        let result = up
            .link
            .send(header, body, &parts, Some(outstanding.deadline));
        {
            let mut report = watch.lock();
            report.steps += 1;
            report.direct += direct;
            report.rows += rows;
            report.bytes_out += parts.iter().map(|p| p.len() as u64).sum::<u64>();
        }
        // Rows alone are no measure for a draft.
        if outstanding.ticket.is_some() {
            outstanding.near = self.lookout.next(Instant::now());
        }
        self.outstanding = Some(outstanding);
        self.forget_gone();
        if let Err(error) = result {
            self.lose(&error.to_string());
        }
    }

    /// Mirrors of sequences that neither side has are put aside.
    fn forget_gone(&mut self) {
        let gone = self.mirrors.iter().filter(|(_, m)| m.is_gone());
        let gone: Vec<SeqId> = gone.map(|(seq, _)| *seq).collect();
        for seq in gone {
            self.spare.extend(self.mirrors.remove(&seq));
        }
    }
}

/// An ask as it is sent; its epoch follows when the changes before it are known.
fn ask_entry(ask: &Ask, block: u32) -> Entry {
    Entry {
        kind: Kind::Ask,
        seq: ask.seq.0,
        epoch: 0,
        pos: ask.pos,
        rows: ask.depth.min(block),
        tag: ask.epoch.0,
        ahead: ask.ahead,
    }
}
