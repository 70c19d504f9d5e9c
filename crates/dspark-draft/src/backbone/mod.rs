//! The draft layers in this process, over the context rows of many sequences.
//!
//! Separate from the heads because a backbone may live in a worker, which has neither the target's
//! weights nor a sampler. Features are projected once, when they are committed; a block reads the
//! finished rows (spec/dspark.md 1.2 to 1.6). Must not know: tokens' text, plans, acceptance.

mod blocks;
mod observe;
mod rings;
mod save;

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Instant;

use ds4_kernels::cpu::KV_BLOCK;
use ds4_target::blocks::BlockRunner;
use ds4_target::pool::Pool;
use engine_core::mutant::mutant;
use engine_core::seams::{Ask, Backbone, DraftRows, Resident};
use engine_core::{Fault, Pos, SeqId, Ticket};

pub(crate) use self::blocks::{drafting, drafting_of};
pub use self::observe::Observation;
pub(crate) use self::observe::{PROJECT_ROWS, may_take, rows_of};
use self::rings::Rings;
pub(crate) use self::rings::{Marks, Shape};
pub use self::save::saved_range;
pub(crate) use self::save::{Stamp, load, save};
use crate::config::DraftMeta;
use crate::error::DraftError;
use crate::weights::DraftModel;

/// How to run a backbone.
#[derive(Clone, Debug)]
pub struct Options {
    /// Sequences that may have context rows at once.
    pub n_seq_max: usize,
    /// Widest verify: how many of the newest rows a truncation may take back without the window
    /// becoming shorter.
    pub verify_max: usize,
    /// Whether draft keys get the target's fp8 rounding. Off: of the public ports one says that the
    /// reference does so, and none does it (spec/dspark.md 1.5).
    pub kv_round: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            n_seq_max: 4,
            verify_max: 8,
            kv_round: false,
        }
    }
}

impl Options {
    /// Refuses what no backbone over this model can do.
    pub(crate) fn check(&self, meta: &DraftMeta) -> Result<(), DraftError> {
        let bad = |option, expected: &str, got: usize| DraftError::Option {
            option,
            expected: expected.to_owned(),
            got: got.to_string(),
        };
        if self.n_seq_max == 0 {
            return Err(bad("n_seq_max", "at least 1", 0));
        }
        if self.verify_max > 1 << 16 {
            return Err(bad("verify_max", "at most 65536", self.verify_max));
        }
        let unrotated = meta.stage.head_dim - meta.stage.n_rot;
        if self.kv_round && !unrotated.is_multiple_of(KV_BLOCK) {
            let expected = "unrotated channels in whole blocks of 64";
            return Err(bad("kv_round", expected, unrotated));
        }
        Ok(())
    }

    pub(crate) fn stamp(&self, model: &DraftModel) -> Stamp {
        Stamp {
            fingerprint: model.fingerprint,
            kv_round: self.kv_round,
        }
    }
}

/// Context rows that a backbone keeps of a sequence: what a truncation may still reach back to.
#[must_use]
pub fn ring_rows(meta: &DraftMeta, options: &Options) -> usize {
    shape(meta, options).ring
}

pub(crate) fn shape(meta: &DraftMeta, options: &Options) -> Shape {
    let m = &meta.stage;
    Shape::new(
        m.n_layer,
        m.head_dim,
        m.window,
        meta.block,
        options.verify_max,
    )
}

/// Answers that nobody has taken; older ones are dropped.
pub(crate) const ANSWERS_MAX: usize = 64;

/// A backbone on the CPU of this process.
#[derive(Debug)]
pub struct LocalBackbone {
    model: Arc<DraftModel>,
    options: Options,
    shape: Shape,
    runner: BlockRunner,
    seqs: Vec<Option<Rings>>,
    /// Rings of closed sequences, to be used again.
    spare: Vec<Rings>,
    answers: VecDeque<(Ticket, DraftRows)>,
    tickets: u64,
    scratch: Scratch,
}

/// Buffers of one call.
#[derive(Debug, Default)]
struct Scratch {
    /// `[n, captured layers * n_embd]` normed features, their sequence's place in a call, position.
    features: Vec<f32>,
    owner: Vec<usize>,
    pos: Vec<Pos>,
    /// `[n, n_embd]` projected, then normed.
    raw: Vec<f32>,
    context: Vec<f32>,
    /// `[n, head_dim]`: new rows of one stage, or the context rows of all asks.
    keys: Vec<f32>,
    /// `[asks, block, n_embd]`.
    rows: Vec<f32>,
    pre_norm: Vec<f32>,
    normed: Vec<f32>,
}

impl LocalBackbone {
    /// A backbone over a loaded model, on the threads of `pool`.
    ///
    /// # Errors
    /// `Option`.
    pub fn new(
        model: Arc<DraftModel>,
        pool: Arc<Pool>,
        options: Options,
    ) -> Result<Self, DraftError> {
        options.check(&model.meta)?;
        let m = &model.meta.stage;
        Ok(Self {
            shape: shape(&model.meta, &options),
            runner: BlockRunner::new(m.clone(), pool, options.kv_round),
            seqs: vec![None; options.n_seq_max],
            spare: Vec::new(),
            answers: VecDeque::new(),
            tickets: 0,
            scratch: Scratch::default(),
            options,
            model,
        })
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Arc<DraftModel> {
        &self.model
    }

    /// Positions whose rows the next block of a sequence would see; `None` without any.
    #[must_use]
    pub fn context(&self, seq: SeqId) -> Option<std::ops::Range<Pos>> {
        let rings = self.seqs.get(seq.index())?.as_ref()?;
        (!rings.marks.is_empty()).then(|| rings.marks.live())
    }

    /// The digest of what `save` writes: the hash of a sequence's context.
    ///
    /// # Errors
    /// `NoSuchSequence`.
    pub fn digest(&self, seq: SeqId) -> Result<[u8; 32], Fault> {
        let mut hash = blake3::Hasher::new();
        self.save(seq, &mut hash)?;
        Ok(*hash.finalize().as_bytes())
    }

    /// Bytes of the buffers that all sequences share. They grow with the widest call, not with contexts.
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        let s = &self.scratch;
        let lists = [
            &s.features,
            &s.raw,
            &s.context,
            &s.keys,
            &s.rows,
            &s.pre_norm,
            &s.normed,
        ];
        lists.iter().map(|list| list.capacity() * 4).sum()
    }

    /// Fills every row that is not context with NaN; for tests.
    pub fn poison_stale(&mut self) {
        let rings = self.seqs.iter_mut().flatten().chain(&mut self.spare);
        rings.for_each(Rings::poison_stale);
    }

    /// Which rows a sequence has, `None` if it has none yet.
    fn slot(&self, seq: SeqId) -> Result<Option<Marks>, Fault> {
        slot(&self.seqs, seq, |rings| rings.marks)
    }

    /// A sequence's rings, new ones if it has none. The id was checked by `slot`.
    fn open(&mut self, seq: SeqId) -> &mut Rings {
        let (spare, shape) = (&mut self.spare, self.shape);
        self.seqs[seq.index()].get_or_insert_with(|| {
            let mut rings = spare.pop().unwrap_or_else(|| Rings::new(shape));
            rings.marks.reset();
            rings
        })
    }

    fn block(&self) -> usize {
        self.model.meta.block
    }
}

/// Which rows a sequence has, `None` if it was never seen.
pub(crate) fn slot<T>(
    seqs: &[Option<T>],
    seq: SeqId,
    marks: impl Fn(&T) -> Marks,
) -> Result<Option<Marks>, Fault> {
    match seqs.get(seq.index()) {
        Some(slot) => Ok(slot.as_ref().map(marks)),
        None => Err(Fault::Exhausted {
            what: "draft sequences",
            wanted: seq.index() as u64 + 1,
            limit: seqs.len() as u64,
        }),
    }
}

impl Scratch {
    fn clear(&mut self) {
        self.features.clear();
        self.owner.clear();
        self.pos.clear();
    }
}

impl Backbone for LocalBackbone {
    fn observe(&mut self, seq: SeqId, pos: Pos, features: &[f32]) -> Result<(), Fault> {
        self.observe_many(&[Observation { seq, pos, features }])
    }

    /// All block rows are computed, since they see each other; an ask gets its first `depth`.
    fn submit(&mut self, asks: &[Ask], block: &[f32]) -> Result<Ticket, Fault> {
        let (b, d) = (self.block(), self.model.meta.stage.n_embd);
        let live = drafting(asks, block, [b, d], |seq| self.slot(seq))?;
        let mut answer = DraftRows {
            rows: vec![0; asks.len()],
            ..DraftRows::default()
        };
        if !live.is_empty() {
            self.run_blocks(asks, &live, block);
            for (block, i) in live.iter().enumerate() {
                let n = (asks[*i].depth as usize).min(b);
                answer.rows[*i] = n;
                let rows = block * b * d..(block * b + n) * d;
                answer
                    .normed
                    .extend_from_slice(&self.scratch.normed[rows.clone()]);
                answer
                    .pre_norm
                    .extend_from_slice(&self.scratch.pre_norm[rows]);
            }
        }
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        if self.answers.len() == ANSWERS_MAX {
            self.answers.pop_front();
        }
        self.answers.push_back((ticket, answer));
        Ok(ticket)
    }

    fn poll(&mut self, ticket: Ticket, _deadline: Option<Instant>) -> Result<DraftRows, Fault> {
        let at = self.answers.iter().position(|(t, _)| *t == ticket);
        at.and_then(|at| self.answers.remove(at))
            .map(|(_, answer)| answer)
            .ok_or(Fault::NoSuchTicket(ticket.0))
    }

    fn truncate(&mut self, seq: SeqId, pos: Pos) {
        if let Some(rings) = self.seqs.get_mut(seq.index()).and_then(Option::as_mut)
            && !mutant(217)
        {
            rings.marks.truncate(pos);
        }
    }

    fn close(&mut self, seq: SeqId) {
        if let Some(rings) = self.seqs.get_mut(seq.index()).and_then(Option::take) {
            self.spare.push(rings);
        }
    }

    fn save(&self, seq: SeqId, to: &mut dyn Write) -> Result<(), Fault> {
        let rings = self.seqs.get(seq.index()).and_then(Option::as_ref);
        let rings = rings.ok_or(Fault::NoSuchSequence(seq))?;
        let live = rings.marks.live();
        save(
            live,
            &self.shape,
            &self.options.stamp(&self.model),
            to,
            |stage, pos, bytes| {
                let row = rings.row(stage, pos).iter();
                bytes.extend(row.flat_map(|v| v.to_le_bytes()));
            },
        )
    }

    fn load(&mut self, seq: SeqId, from: &mut dyn Read) -> Result<(), Fault> {
        self.slot(seq)?;
        let (shape, stamp) = (self.shape, self.options.stamp(&self.model));
        let rings = self.open(seq);
        rings.marks.reset();
        rings.marks = load(&shape, &stamp, from, |stage, pos, bytes| {
            let words = bytes.as_chunks::<4>().0;
            for (v, word) in rings.row_mut(stage, pos).iter_mut().zip(words) {
                *v = f32::from_le_bytes(*word);
            }
        })?;
        Ok(())
    }

    fn health(&self) -> Result<(), Fault> {
        Ok(())
    }

    /// Weights are those of the file they were bound from, which the backbone does not know.
    fn residents(&self) -> Vec<Resident> {
        let made = self.spare.len() + self.seqs.iter().flatten().count();
        let bytes = made as u64 * self.shape.bytes();
        vec![Resident::new("drafter caches", "host", bytes)]
    }
}
