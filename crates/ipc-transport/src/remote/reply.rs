//! Replies: the one that is due, a refusal, or what is no reply to what was asked.
//!
//! Must not know: how a request is put together.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use engine_core::Fault;
use engine_core::mutant::mutant;
use engine_core::seams::DraftRows;

use super::ask::Session;
use super::lookout::Look;
use super::step::Outstanding;
use crate::error::LinkError;
use crate::frame::{Entry, Header, Kind, Op, Status};
use crate::handshake::refusal_text;
use crate::link::Message;

impl Session {
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
            // Its payload is under way: it is waited for by the worker's own deadline, not the caller's.
            Ok(message) => self.accept(&message, due),
            Err(LinkError::Deadline { .. }) if Instant::now() < due => {
                return Err(Fault::Deadline);
            }
            Err(error) => self.lose(&error.to_string()),
        }
        Ok(())
    }

    /// The next frame, without its payload. Slept for, but for the time when it is likely.
    pub(super) fn reply(&mut self, until: Instant) -> Result<Message, LinkError> {
        let up = self.life.up_mut().ok_or(LinkError::Closed)?;
        let watch = up.watch.as_ref().map(AsFd::as_fd);
        let near = self.outstanding.as_mut().and_then(Outstanding::near);
        let (message, _) = match near {
            Some(near) => up.link.receive_frame_near(&near, until, watch)?,
            None => up.link.receive_frame(Some(until), watch)?,
        };
        up.link.announced(&message.header)?;
        Ok(message)
    }

    /// Takes the payload of a reply to `to`.
    pub(super) fn payload(
        &self,
        header: &Header,
        to: &mut [u8],
        until: Instant,
    ) -> Result<(), LinkError> {
        let up = self.life.up().ok_or(LinkError::Closed)?;
        let watch = up.watch.as_ref().map(AsFd::as_fd);
        up.link.take_bytes(header, to, Some(until), watch)
    }

    /// Takes a reply: rows, a refusal, or what is no reply to what was asked.
    fn accept(&mut self, message: &Message, until: Instant) {
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
            if outstanding.ticket.is_some() {
                let took = Duration::from_nanos(header.nanos);
                let near = outstanding.near.as_ref();
                match self.lookout.came(took, near, Instant::now()) {
                    Some(Look::Met) => report.met += 1,
                    Some(Look::Vain) => report.vain += 1,
                    None => {}
                }
            }
        }
        // A refusal, and the reply to rows alone, are nothing but a frame.
        let bare = header.status != Status::Ok || outstanding.ticket.is_none();
        if bare && let Err(error) = self.payload(header, &mut [], until) {
            self.outstanding = Some(outstanding);
            return self.lose(&error.to_string());
        }
        if header.status != Status::Ok {
            return self.refused(outstanding, header.status, &refusal_text(&message.body));
        }
        self.refusals = 0;
        let Some(ticket) = outstanding.ticket else {
            return;
        };
        match self.rows(&outstanding, message, until) {
            Ok(rows) => self.answer(ticket, rows),
            Err(error) => {
                self.outstanding = Some(outstanding);
                self.lose(&error.to_string());
            }
        }
    }

    /// The rows of an answer, copied once: from where they came to where they are used.
    fn rows(
        &self,
        asked: &Outstanding,
        message: &Message,
        until: Instant,
    ) -> Result<DraftRows, LinkError> {
        let rows = counts(asked, &Entry::list(&message.body)?)?;
        let values = rows.iter().sum::<usize>() * self.dims().n_embd as usize;
        if message.header.payload != 2 * 4 * values as u64 {
            let (want, got) = (2 * 4 * values, message.header.payload);
            return Err(LinkError::corrupt("bytes of the answer", want, got));
        }
        let up = self.life.up().ok_or(LinkError::Closed)?;
        let watch = up.watch.as_ref().map(AsFd::as_fd);
        let blocks = up
            .link
            .take_blocks(&message.header, values, Some(until), watch)?;
        let [normed, pre_norm] = blocks;
        Ok(DraftRows {
            rows,
            normed,
            pre_norm,
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
}

/// How many rows each ask got; what was not sent got none.
fn counts(asked: &Outstanding, answers: &[Entry]) -> Result<Vec<usize>, LinkError> {
    let mut rows = vec![0; asked.asks];
    if answers.len() != asked.sent.len() {
        let (want, got) = (asked.sent.len(), answers.len());
        return Err(LinkError::corrupt("answers", want, got));
    }
    for ((place, ask), answer) in asked.sent.iter().zip(answers) {
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
    Ok(rows)
}

/// Whether a message is the reply to a request.
pub(super) fn answers(message: &Message, due: (Op, u64)) -> bool {
    message.header.reply && (message.header.op, message.header.number) == due
}

/// Another message came instead.
pub(super) fn stranger(message: &Message, (op, number): (Op, u64)) -> LinkError {
    let got = format!("{:?} {}", message.header.op, message.header.number);
    LinkError::corrupt("reply", format!("{op:?} {number}"), got)
}
