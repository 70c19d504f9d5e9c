//! Requests of a parent, one after the other. A request is checked whole before any of it is done.

use std::collections::HashMap;
use std::time::Instant;

use dspark_draft::on_device::DirectBackbone;
use engine_core::mutant::mutant;
use engine_core::seams::{Ask, DraftRows};
use engine_core::{Epoch, Fault, SeqId};

use super::{End, Layers, Loaded, soon};
use crate::error::LinkError;
use crate::frame::{Entry, Header, Kind, Op, Status};
use crate::handshake::{Dims, refusal};
use crate::link::{Link, Words};

/// A refused request.
struct Refusal {
    status: Status,
    text: String,
}

impl Refusal {
    fn new(status: Status, text: impl ToString) -> Self {
        Self {
            status,
            text: text.to_string(),
        }
    }
}

impl From<LinkError> for Refusal {
    fn from(error: LinkError) -> Self {
        Self::new(Status::BadRequest, error)
    }
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        let status = match &fault {
            Fault::WrongPosition { .. } => Status::WrongPosition,
            Fault::NoSuchSequence(_) => Status::NoSuchSequence,
            Fault::Exhausted { .. } => Status::Exhausted,
            Fault::ContextFull { .. } => Status::ContextFull,
            Fault::BadState { .. } | Fault::Io(_) => Status::BadState,
            Fault::Lost { .. } => Status::Lost,
            _ => Status::Failed,
        };
        Self::new(status, fault)
    }
}

/// What a request brought.
#[derive(Default)]
struct Reply {
    body: Vec<u8>,
    rows: DraftRows,
    saved: Vec<u8>,
    /// Bytes of rows that lie in the region already.
    placed: usize,
}

struct Worker {
    layers: Layers,
    /// Whether the layers' device takes rows of steps from the region and puts them there by itself.
    direct: bool,
    dims: Dims,
    /// The newest use of each sequence.
    epochs: HashMap<u32, u32>,
}

/// Serves until told to end.
pub(super) fn serve(link: &mut Link, loaded: Loaded, direct: bool) -> Result<End, LinkError> {
    let mut worker = Worker {
        layers: loaded.backbone,
        direct,
        dims: loaded.dims,
        epochs: HashMap::new(),
    };
    let mut words = Words::default();
    loop {
        let (message, _) = match link.receive_frame(None, None) {
            Err(LinkError::Closed) => return Ok(End::ParentGone),
            other => other?,
        };
        let header = message.header;
        if header.payload > link.capacity() as u64 {
            // What follows on a stream cannot be told from the next payload: this is the end.
            let error = LinkError::corrupt("payload", link.capacity(), header.payload);
            let text = refusal(&error.to_string());
            link.send(header.answer(Status::TooLarge, 0), &text, &[], soon())?;
            return Err(error);
        }
        // The payload is taken whatever the body says, so that the next request meets its own.
        let (begun, done);
        if header.op != Op::Step {
            link.take(&header, &mut words, soon(), None)?;
            if header.op == Op::Quit {
                return Ok(End::Quit);
            }
            begun = Instant::now();
            done = worker.perform(&header, &message.body, words.bytes());
        } else if worker.direct {
            let bytes = link.placed(&header)?;
            begun = Instant::now();
            done = worker.step_placed(&message.body, bytes);
        } else {
            let values = link.values(&header, &mut words, soon())?;
            begun = Instant::now();
            done = worker.step(&message.body, &header, values);
        }
        // Whatever came of it: behind the reply the region is the parent's again.
        let done = worker.settle().and(done);
        let nanos = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        answer(link, &header, done, nanos)?;
    }
}

fn answer(
    link: &mut Link,
    header: &Header,
    done: Result<Reply, Refusal>,
    nanos: u64,
) -> Result<(), LinkError> {
    match done {
        Ok(Reply { body, placed, .. }) if placed > 0 => {
            let header = Header {
                nanos,
                ..header.answer(Status::Ok, 0)
            };
            link.send_placed(header, &body, placed, soon())
        }
        Ok(Reply {
            body, rows, saved, ..
        }) => {
            let header = Header {
                nanos,
                ..header.answer(Status::Ok, 0)
            };
            let (normed, pre_norm) = match mutant(350) {
                true => (&rows.pre_norm, &rows.normed),
                false => (&rows.normed, &rows.pre_norm),
            };
            let parts = [
                bytemuck::cast_slice(normed.as_slice()),
                bytemuck::cast_slice(pre_norm.as_slice()),
                saved.as_slice(),
            ];
            link.send(header, &body, &parts, soon())
        }
        Err(Refusal { status, text }) => {
            link.send(header.answer(status, 0), &refusal(&text), &[], soon())
        }
    }
}

impl Worker {
    /// What is no step.
    fn perform(&mut self, header: &Header, body: &[u8], bytes: &[u8]) -> Result<Reply, Refusal> {
        match header.op {
            Op::Save => {
                let entry = self.whole(body)?;
                self.is_current(&entry)?;
                let mut saved = Vec::new();
                self.layers.backbone().save(SeqId(entry.seq), &mut saved)?;
                Ok(Reply {
                    saved,
                    ..Reply::default()
                })
            }
            Op::Load => {
                let entry = self.whole(body)?;
                self.is_new(&entry)?;
                let (seq, mut bytes) = (SeqId(entry.seq), bytes);
                self.layers.backbone().load(seq, &mut bytes)?;
                Ok(Reply::default())
            }
            Op::Ping | Op::Quit => Ok(Reply::default()),
            Op::Step | Op::Hello | Op::Configure | Op::Ready | Op::Failed => {
                let text = format!("{:?} at the wrong place", header.op);
                Err(Refusal::new(Status::BadRequest, text))
            }
        }
    }

    fn whole(&self, body: &[u8]) -> Result<Entry, Refusal> {
        match Entry::list(body)?.as_slice() {
            [entry] if entry.kind == Kind::Whole => Ok(*entry),
            other => {
                let text = format!("expected one entry of kind Whole, got {other:?}");
                Err(Refusal::new(Status::BadRequest, text))
            }
        }
    }

    /// An entry that begins another use of a sequence must be newer than the last.
    fn is_new(&mut self, entry: &Entry) -> Result<(), Refusal> {
        let known = self.epochs.get(&entry.seq).copied();
        if let Some(known) = known.filter(|known| *known >= entry.epoch && !mutant(349)) {
            return Err(stale(entry, &format!("above {known}")));
        }
        self.epochs.insert(entry.seq, entry.epoch);
        Ok(())
    }

    /// An entry that goes on must be of the use that is known.
    fn is_current(&self, entry: &Entry) -> Result<(), Refusal> {
        match self.epochs.get(&entry.seq) {
            Some(known) if *known == entry.epoch || mutant(349) => Ok(()),
            Some(known) => Err(stale(entry, &known.to_string())),
            None => Err(stale(entry, "a sequence that was begun")),
        }
    }

    /// Rows of features and blocks that the entries announce, compared with the payload.
    fn sizes(&self, entries: &[Entry], values: usize) -> Result<(), Refusal> {
        let (mut total, mut asking) = (0usize, false);
        for entry in entries {
            let in_order = match entry.kind {
                Kind::Ask => true,
                Kind::Observe | Kind::Truncate | Kind::Close => !asking,
                Kind::Answer | Kind::Whole => false,
            };
            if !in_order {
                let text = format!("an entry of kind {:?} at the wrong place", entry.kind);
                return Err(Refusal::new(Status::BadRequest, text));
            }
            asking |= entry.kind == Kind::Ask;
            let more = match entry.kind {
                Kind::Observe => (entry.rows as usize).checked_mul(self.dims.feature_width()),
                Kind::Ask => Some(self.dims.block_width()),
                _ => Some(0),
            };
            total = more
                .and_then(|n| total.checked_add(n))
                .unwrap_or(usize::MAX);
        }
        if total == values {
            return Ok(());
        }
        let text = format!("the entries say {total} values of payload, there are {values}");
        Err(Refusal::new(Status::BadRequest, text))
    }

    /// Waits until the device is done with the region.
    fn settle(&mut self) -> Result<(), Refusal> {
        match &mut self.layers {
            Layers::Device(there) if self.direct => Ok(there.settle()?),
            _ => Ok(()),
        }
    }

    /// A step whose rows are copied from `values` by the backbone.
    fn step(&mut self, body: &[u8], header: &Header, values: &[f32]) -> Result<Reply, Refusal> {
        let entries = Entry::list(body)?;
        whole_values(header.payload)?;
        self.sizes(&entries, values.len())?;
        let mut at = 0;
        let mut asks = Vec::new();
        for entry in &entries {
            let seq = SeqId(entry.seq);
            match entry.kind {
                Kind::Close | Kind::Truncate => self.change(entry)?,
                Kind::Observe => {
                    self.is_current(entry)?;
                    let n = entry.rows as usize * self.dims.feature_width();
                    self.layers
                        .backbone()
                        .observe(seq, entry.pos, &values[at..at + n])?;
                    at += n;
                }
                _ => {
                    self.is_current(entry)?;
                    asks.push(*entry);
                }
            }
        }
        self.draft(&asks, &values[at..])
    }

    /// A step whose rows stay in the region until the device takes them.
    fn step_placed(&mut self, body: &[u8], bytes: usize) -> Result<Reply, Refusal> {
        let entries = Entry::list(body)?;
        whole_values(bytes as u64)?;
        self.sizes(&entries, bytes / 4)?;
        let width = 4 * self.dims.feature_width() as u64;
        let (mut at, mut asks) = (0, Vec::new());
        for entry in &entries {
            match entry.kind {
                Kind::Observe => {
                    self.is_current(entry)?;
                    let (seq, n) = (SeqId(entry.seq), entry.rows as usize);
                    self.there()?.observe_at(seq, entry.pos, at, n)?;
                    at += n as u64 * width;
                }
                Kind::Close | Kind::Truncate => self.change(entry)?,
                _ => {
                    self.is_current(entry)?;
                    asks.push(*entry);
                }
            }
        }
        if asks.is_empty() {
            return Ok(Reply::default());
        }
        let wanted: Vec<Ask> = asks.iter().map(ask_of).collect();
        let rows = self.there()?.draft_at(&wanted, at, 0)?;
        let n: usize = rows.iter().sum();
        Ok(Reply {
            body: answers(&asks, &rows),
            placed: 8 * n * self.dims.n_embd as usize,
            ..Reply::default()
        })
    }

    /// The layers on a device.
    fn there(&mut self) -> Result<&mut dyn DirectBackbone, Refusal> {
        match &mut self.layers {
            Layers::Device(there) => Ok(&mut **there),
            Layers::Here(_) => Err(Refusal::new(Status::Failed, crate::reach::THERE)),
        }
    }

    /// An entry that forgets rows.
    fn change(&mut self, entry: &Entry) -> Result<(), Refusal> {
        self.is_new(entry)?;
        let (seq, backbone) = (SeqId(entry.seq), self.layers.backbone());
        match entry.kind {
            Kind::Close => backbone.close(seq),
            _ => backbone.truncate(seq, entry.pos),
        }
        Ok(())
    }

    fn draft(&mut self, asked: &[Entry], block: &[f32]) -> Result<Reply, Refusal> {
        if asked.is_empty() {
            return Ok(Reply::default());
        }
        let asks: Vec<Ask> = asked.iter().map(ask_of).collect();
        let ticket = self.layers.backbone().submit(&asks, block)?;
        let rows = self.layers.backbone().poll(ticket, None)?;
        let n: usize = rows.rows.iter().sum();
        let wide = n * self.dims.n_embd as usize;
        if rows.rows.len() != asks.len() || rows.normed.len() != wide || rows.pre_norm.len() != wide
        {
            let text = format!("the backbone gave {:?} rows of other sizes", rows.rows);
            return Err(Refusal::new(Status::Lost, text));
        }
        Ok(Reply {
            body: answers(asked, &rows.rows),
            rows,
            ..Reply::default()
        })
    }
}

fn whole_values(bytes: u64) -> Result<(), Refusal> {
    if bytes.is_multiple_of(4) {
        return Ok(());
    }
    let text = format!("{bytes} bytes are no values of 4");
    Err(Refusal::new(Status::BadRequest, text))
}

fn ask_of(entry: &Entry) -> Ask {
    Ask {
        seq: SeqId(entry.seq),
        epoch: Epoch(entry.tag),
        pos: entry.pos,
        // The worker knows no token: the block holds its embedding.
        ahead: if mutant(364) { 0 } else { entry.ahead },
        seed: 0,
        depth: entry.rows,
    }
}

/// The body of an answer: what each ask got.
fn answers(asked: &[Entry], rows: &[usize]) -> Vec<u8> {
    let mut body = Vec::with_capacity(asked.len() * crate::frame::ENTRY);
    for (entry, rows) in asked.iter().zip(rows) {
        let answer = Entry {
            kind: Kind::Answer,
            rows: *rows as u32,
            ..*entry
        };
        answer.put(&mut body);
    }
    body
}

fn stale(entry: &Entry, expected: &str) -> Refusal {
    let Entry { seq, epoch, .. } = entry;
    let text = format!("epoch of sequence {seq}: expected {expected}, got {epoch}");
    Refusal::new(Status::WrongEpoch, text)
}
