//! A backbone whose answers show every row it was given, in order: sums that no other order gives. Small
//! and exact, with the rules of the real one about positions.

use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Write};
use std::time::Instant;

use engine_core::seams::{Ask, Backbone, DraftRows};
use engine_core::{Fault, Pos, SeqId, Ticket};
use ipc_transport::handshake::Dims;

/// Rows a draft sees.
const WINDOW: u32 = 8;

pub(crate) fn dims() -> Dims {
    Dims {
        n_embd: 6,
        captures: 3,
        block: 3,
        ring: 16,
        n_seq_max: 8,
        fingerprint: [7; 32],
    }
}

#[derive(Clone, Debug, Default)]
struct Context {
    low: Pos,
    end: Pos,
    rows: BTreeMap<Pos, Vec<f32>>,
}

#[derive(Debug)]
pub(crate) struct Toy {
    dims: Dims,
    of: BTreeMap<SeqId, Context>,
    answers: VecDeque<(Ticket, DraftRows)>,
    tickets: u64,
    /// Lies about its answers: a row more than was asked for.
    pub(crate) one_row_more: bool,
}

impl Toy {
    pub(crate) fn new(dims: Dims) -> Self {
        Self {
            dims,
            of: BTreeMap::new(),
            answers: VecDeque::new(),
            tickets: 0,
            one_row_more: false,
        }
    }

    fn known(&self, seq: SeqId) -> Result<(), Fault> {
        let (wanted, limit) = (u64::from(seq.0) + 1, u64::from(self.dims.n_seq_max));
        let what = "draft sequences";
        if wanted > limit {
            return Err(Fault::Exhausted {
                what,
                wanted,
                limit,
            });
        }
        Ok(())
    }

    fn draft(&self, ask: &Ask, block: &[f32], out: &mut DraftRows) {
        let context = &self.of[&ask.seq];
        let d = self.dims.n_embd as usize;
        let low = context.low.max(context.end.saturating_sub(WINDOW));
        let mut sum = vec![ask.pos as f32; d];
        for (pos, row) in context.rows.range(low..context.end) {
            for (i, v) in row.iter().enumerate() {
                sum[i % d] = sum[i % d] * 0.75 + v * (1.0 + *pos as f32);
            }
        }
        let n = (ask.depth as usize).min(self.dims.block as usize) + usize::from(self.one_row_more);
        for row in block.chunks(d).cycle().take(n) {
            let pre: Vec<f32> = row.iter().zip(&sum).map(|(b, s)| b * 3.0 + s).collect();
            out.normed.extend(pre.iter().map(|v| v * 0.5 - 1.0));
            out.pre_norm.extend(pre);
        }
        out.rows.push(n);
    }
}

impl Backbone for Toy {
    fn observe(&mut self, seq: SeqId, pos: Pos, features: &[f32]) -> Result<(), Fault> {
        self.known(seq)?;
        let (width, ring) = (self.dims.feature_width(), self.dims.ring);
        let context = self.of.entry(seq).or_default();
        if context.low == context.end {
            (context.low, context.end) = (pos, pos);
        }
        if context.end != pos {
            let (expected, got) = (context.end, pos);
            return Err(Fault::WrongPosition { seq, expected, got });
        }
        for (at, row) in (pos..).zip(features.chunks_exact(width)) {
            context.rows.insert(at, row.to_vec());
            context.end = at + 1;
        }
        context.low = context.low.max(context.end.saturating_sub(ring));
        Ok(())
    }

    fn submit(&mut self, asks: &[Ask], block: &[f32]) -> Result<Ticket, Fault> {
        let mut out = DraftRows::default();
        for (ask, block) in asks.iter().zip(block.chunks(self.dims.block_width())) {
            self.known(ask.seq)?;
            match self.of.get(&ask.seq).filter(|c| c.low < c.end) {
                None => out.rows.push(0),
                Some(c) if c.end.saturating_add(ask.ahead) != ask.pos => {
                    let (seq, got) = (ask.seq, ask.pos);
                    let expected = c.end.saturating_add(ask.ahead);
                    return Err(Fault::WrongPosition { seq, expected, got });
                }
                Some(_) => self.draft(ask, block, &mut out),
            }
        }
        self.tickets += 1;
        self.answers.push_back((Ticket(self.tickets), out));
        Ok(Ticket(self.tickets))
    }

    fn poll(&mut self, ticket: Ticket, _: Option<Instant>) -> Result<DraftRows, Fault> {
        let at = self.answers.iter().position(|(t, _)| *t == ticket);
        let found = at.and_then(|at| self.answers.remove(at));
        found.map(|(_, a)| a).ok_or(Fault::NoSuchTicket(ticket.0))
    }

    fn truncate(&mut self, seq: SeqId, pos: Pos) {
        if let Some(c) = self.of.get_mut(&seq) {
            if pos <= c.low {
                (c.low, c.end) = (pos, pos);
            } else {
                c.end = c.end.min(pos);
            }
        }
    }

    fn close(&mut self, seq: SeqId) {
        self.of.remove(&seq);
    }

    fn save(&self, seq: SeqId, to: &mut dyn Write) -> Result<(), Fault> {
        let c = self.of.get(&seq).ok_or(Fault::NoSuchSequence(seq))?;
        let low = c.low.max(c.end.saturating_sub(WINDOW));
        to.write_all(&low.to_le_bytes())?;
        to.write_all(&c.end.to_le_bytes())?;
        for row in c.rows.range(low..c.end).flat_map(|(_, row)| row) {
            to.write_all(&row.to_le_bytes())?;
        }
        Ok(())
    }

    fn load(&mut self, seq: SeqId, from: &mut dyn Read) -> Result<(), Fault> {
        self.known(seq)?;
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes)?;
        let range = saved_range(&bytes).ok_or(Fault::Unsupported("such bytes"))?;
        let values = bytes[8..].as_chunks::<4>().0.iter();
        let values: Vec<f32> = values.map(|b| f32::from_le_bytes(*b)).collect();
        self.close(seq);
        self.observe(seq, range.start, &values)
    }

    fn health(&self) -> Result<(), Fault> {
        Ok(())
    }
}

pub(crate) fn saved_range(bytes: &[u8]) -> Option<std::ops::Range<Pos>> {
    let (head, _) = bytes.as_chunks::<4>();
    let word = |i: usize| head.get(i).map(|b| u32::from_le_bytes(*b));
    Some(word(0)?..word(1)?)
}
