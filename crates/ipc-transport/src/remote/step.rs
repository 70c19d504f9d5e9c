//! One request at a time: what changed and what is asked in one frame, and the reply to it.

use std::os::fd::AsFd;
use std::time::Instant;

use engine_core::mutant::mutant;
use engine_core::seams::{Ask, DraftRows};
use engine_core::{Fault, SeqId, Ticket};

use super::ask::Session;
use super::life::{Life, lost};
use super::mirror::Mirror;
use crate::copy::copied;
use crate::error::LinkError;
use crate::frame::{BODY_MAX, ENTRY, Entry, Header, Kind, Op, Status};
use crate::handshake::refusal_text;
use crate::link::Message;

/// A request whose reply has not come.
#[derive(Debug)]
pub(super) struct Outstanding {
    number: u64,
    op: Op,
    /// Whom to answer.
    ticket: Option<Ticket>,
    /// All asks of the call.
    asks: usize,
    /// The asks that were sent, with their places among all.
    sent: Vec<(usize, Entry)>,
    /// The worker is lost if nothing has come by then.
    deadline: Instant,
}

impl Outstanding {
    /// Whom to answer and how many asks with nothing, when the worker is lost.
    pub(super) fn into_unanswered(self) -> Option<(Ticket, usize, usize)> {
        self.ticket.map(|t| (t, self.asks, self.sent.len()))
    }
}

/// A sequence's changes take at most so many bytes of a body.
const CHANGE_MAX: usize = 2 * ENTRY;

impl Session {
    /// The deadline of a request that is sent now.
    fn deadline(&self) -> Instant {
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
            ..
        } = self;
        let Some(up) = life.up_mut() else { return };
        let (mut body, mut parts, mut rows) = (Vec::new(), Vec::<&[u8]>::new(), 0);
        let mut epochs = Vec::with_capacity(mirrors.len());
        for (seq, mirror) in mirrors.iter_mut() {
            if only != usize::MAX && seq.index() != only {
                continue;
            }
            *epoch += 1;
            let change = mirror.change(*seq, *epoch);
            epochs.push((seq.0, change.epoch));
            for entry in &change.entries {
                entry.put(&mut body);
                rows += u64::from(entry.rows);
            }
            parts.extend(change.rows.into_iter().map(bytemuck::cast_slice));
        }
        if body.is_empty() && outstanding.sent.is_empty() {
            return;
        }
        for (_, entry) in &mut outstanding.sent {
            let known = epochs.iter().find(|(seq, _)| *seq == entry.seq);
            entry.epoch = known.map_or(0, |(_, epoch)| *epoch);
            entry.put(&mut body);
        }
        parts.extend(blocks.iter().copied().map(bytemuck::cast_slice));
        *number += 1;
        outstanding.number = *number;
        let header = Header::request(Op::Step, *number, 0);
        let result = up
            .link
            .send(header, &body, &parts, Some(outstanding.deadline));
        {
            let mut report = watch.lock();
            report.steps += 1;
            report.rows += rows;
            report.bytes_out += parts.iter().map(|p| p.len() as u64).sum::<u64>();
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

    /// Waits for the reply that is due, however long it may take by the worker's own deadline.
    pub(super) fn finish_outstanding(&mut self) {
        while self.outstanding.is_some() {
            if self.receive(None).is_err() {
                return;
            }
        }
    }

    /// Waits for the reply that is due until `deadline`.
    ///
    /// # Errors
    /// `Deadline`; the reply may still come.
    pub(super) fn receive(&mut self, deadline: Option<Instant>) -> Result<(), Fault> {
        let Some(due) = self.outstanding.as_ref().map(|o| o.deadline) else {
            return Ok(());
        };
        let until = deadline.map_or(due, |d| d.min(due));
        match self.reply(until) {
            Ok(message) => self.accept(&message),
            Err(LinkError::Deadline { .. }) if Instant::now() < due => {
                return Err(Fault::Deadline);
            }
            Err(error) => self.lose(&error.to_string()),
        }
        Ok(())
    }

    fn reply(&mut self, until: Instant) -> Result<Message, LinkError> {
        let up = self.life.up_mut().ok_or(LinkError::Closed)?;
        let watch = up.watch.as_ref().map(AsFd::as_fd);
        up.link.receive(&mut self.words, Some(until), watch)
    }

    /// Takes a reply: rows, a refusal, or what is no reply to what was asked.
    fn accept(&mut self, message: &Message) {
        let Some(outstanding) = self.outstanding.take() else {
            return;
        };
        let header = &message.header;
        let due = (outstanding.op, outstanding.number);
        let right = answers(message, due) || (header.reply && mutant(354));
        if !right {
            self.outstanding = Some(outstanding);
            return self.lose(&stranger(message, due).to_string());
        }
        {
            let mut report = self.watch.lock();
            report.bytes_in += header.payload;
            report.worker_nanos += header.nanos;
        }
        if header.status != Status::Ok {
            return self.refused(outstanding, header.status, &refusal_text(&message.body));
        }
        self.refusals = 0;
        let Some(ticket) = outstanding.ticket else {
            return;
        };
        match self.rows(&outstanding, &message.body) {
            Ok(rows) => self.answer(ticket, rows),
            Err(error) => {
                self.outstanding = Some(outstanding);
                self.lose(&error.to_string());
            }
        }
    }

    fn rows(&self, asked: &Outstanding, body: &[u8]) -> Result<DraftRows, LinkError> {
        let answers = Entry::list(body)?;
        let mut rows = vec![0; asked.asks];
        if answers.len() != asked.sent.len() {
            let (want, got) = (asked.sent.len(), answers.len());
            return Err(LinkError::corrupt("answers", want, got));
        }
        for ((place, ask), answer) in asked.sent.iter().zip(&answers) {
            let same = Entry {
                kind: Kind::Answer,
                rows: answer.rows,
                ..*ask
            };
            if *answer != same || answer.rows > ask.rows {
                let want = format!("at most {} rows for {ask:?}", ask.rows);
                return Err(LinkError::corrupt("answer", want, format!("{answer:?}")));
            }
            rows[*place] = answer.rows as usize;
        }
        let values = rows.iter().sum::<usize>() * self.dims().n_embd as usize;
        let floats = self.words.floats();
        if self.words.bytes().len() != 2 * values * 4 {
            let (want, got) = (2 * values * 4, self.words.bytes().len());
            return Err(LinkError::corrupt("bytes of the answer", want, got));
        }
        let (normed, pre_norm) = floats.split_at(values);
        Ok(DraftRows {
            rows,
            normed: copied(normed),
            pre_norm: copied(pre_norm),
        })
    }

    /// A step that was refused goes without drafts; several in a row are as good as a loss.
    fn refused(&mut self, outstanding: Outstanding, status: Status, why: &str) {
        const PATIENCE: u32 = 3;
        let why = format!("a step was refused, {status:?}: {why}");
        tracing::warn!(why, "draft worker");
        self.refusals += 1;
        {
            let mut report = self.watch.lock();
            report.refused += 1;
            report.unanswered += outstanding.sent.len() as u64;
            report.reason = Some(why.clone());
        }
        if let Some(ticket) = outstanding.ticket {
            self.answer_nothing(ticket, outstanding.asks);
        }
        // What it did of the step is not known.
        self.mirrors.values_mut().for_each(|m| m.distrust(false));
        if self.refusals >= PATIENCE || status == Status::Lost || status == Status::TooLarge {
            self.lose(&why);
        }
    }

    /// A request about one sequence, and the payload of its reply.
    fn whole(&mut self, op: Op, seq: SeqId, epoch: u32, part: &[u8]) -> Result<Vec<u8>, Fault> {
        let deadline = self.deadline();
        self.number += 1;
        let number = self.number;
        let entry = Entry {
            kind: Kind::Whole,
            seq: seq.0,
            epoch,
            pos: 0,
            rows: 0,
            tag: 0,
            ahead: 0,
        };
        let mut body = Vec::new();
        entry.put(&mut body);
        let header = Header::request(op, number, 0);
        let Some(up) = self.life.up_mut() else {
            return Err(self.away());
        };
        if part.len() > up.link.capacity() {
            return Err(Fault::BadState {
                field: "length",
                expected: format!("at most {} bytes", up.link.capacity()),
                got: part.len().to_string(),
            });
        }
        let sent = up.link.send(header, &body, &[part], Some(deadline));
        let reply = sent.and_then(|()| self.reply(deadline));
        let reply = reply.and_then(|m| match answers(&m, (op, number)) {
            true => Ok(m),
            false => Err(stranger(&m, (op, number))),
        });
        let message = match reply {
            Ok(message) => message,
            Err(error) => {
                self.lose(&error.to_string());
                return Err(lost(&error.to_string()));
            }
        };
        match message.header.status {
            Status::Ok => Ok(self.words.bytes().to_vec()),
            Status::NoSuchSequence => Err(Fault::NoSuchSequence(seq)),
            status => Err(Fault::BadState {
                field: "draft rows",
                expected: "a context of this draft model".to_owned(),
                got: format!("{status:?}: {}", refusal_text(&message.body)),
            }),
        }
    }

    pub(super) fn save(&mut self, seq: SeqId) -> Result<Vec<u8>, Fault> {
        if let Life::InProcess(local) = &self.life {
            let mut saved = Vec::new();
            local.save(seq, &mut saved)?;
            return Ok(saved);
        }
        if self.mirrors.get(&seq).is_none_or(Mirror::is_empty) {
            return Err(Fault::NoSuchSequence(seq));
        }
        self.turn();
        self.finish_outstanding();
        if !self.send_changes() {
            return Err(self.away());
        }
        let epoch = self.mirrors.get(&seq).map_or(0, |m| m.epoch());
        self.whole(Op::Save, seq, epoch, &[])
    }

    pub(super) fn load(&mut self, seq: SeqId, bytes: &[u8]) -> Result<(), Fault> {
        if let Life::InProcess(local) = &mut self.life {
            return local.load(seq, &mut &bytes[..]);
        }
        let Some(range) = (self.plan.saved_range)(bytes) else {
            return Err(Fault::BadState {
                field: "header",
                expected: "a saved context".to_owned(),
                got: format!("{} other bytes", bytes.len()),
            });
        };
        self.known(seq)?;
        self.turn();
        self.finish_outstanding();
        self.epoch += 1;
        let epoch = self.epoch;
        self.open(seq).close();
        let done = self.whole(Op::Load, seq, epoch, bytes);
        let mirror = self.open(seq);
        match done {
            Ok(_) => mirror.loaded(range.start, range.end, epoch),
            // The worker's rows of it, if any, are unknown.
            Err(_) => mirror.distrust(false),
        }
        done.map(|_| ())
    }
}

/// Whether a message is the reply to a request.
fn answers(message: &Message, due: (Op, u64)) -> bool {
    message.header.reply && (message.header.op, message.header.number) == due
}

/// Another message came instead.
fn stranger(message: &Message, (op, number): (Op, u64)) -> LinkError {
    let got = format!("{:?} {}", message.header.op, message.header.number);
    LinkError::corrupt("reply", format!("{op:?} {number}"), got)
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
