//! Requests about a whole context: saved and loaded where it lies.

use std::time::Instant;

use engine_core::{Fault, SeqId};

use super::ask::Session;
use super::life::{Life, lost};
use super::mirror::Mirror;
use super::reply::{answers, stranger};
use crate::error::LinkError;
use crate::frame::{Entry, Header, Kind, Op, Status};
use crate::handshake::refusal_text;

impl Session {
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
        let reply = reply.and_then(|m| Ok((self.bytes(&m.header, deadline)?, m)));
        let (bytes, message) = match reply {
            Ok(reply) => reply,
            Err(error) => {
                self.lose(&error.to_string());
                return Err(lost(&error.to_string()));
            }
        };
        match message.header.status {
            Status::Ok => Ok(bytes),
            Status::NoSuchSequence => Err(Fault::NoSuchSequence(seq)),
            status => Err(Fault::BadState {
                field: "draft rows",
                expected: "a context of this draft model".to_owned(),
                got: format!("{status:?}: {}", refusal_text(&message.body)),
            }),
        }
    }

    /// The payload of a reply whose size only it says.
    fn bytes(&self, header: &Header, until: Instant) -> Result<Vec<u8>, LinkError> {
        let up = self.life.up().ok_or(LinkError::Closed)?;
        let size = up.link.announced(header)?;
        let mut bytes = vec![0; size];
        self.payload(header, &mut bytes, until)?;
        Ok(bytes)
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
