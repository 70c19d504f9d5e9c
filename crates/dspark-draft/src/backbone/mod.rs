//! The draft layers in this process, over the context rows of many sequences.
//!
//! Separate from the heads because a backbone may live in a worker, which has neither the target's
//! weights nor a sampler. Features are projected once, when they are committed; a block reads the
//! finished rows (spec/dspark.md 1.2 to 1.6). Must not know: tokens' text, plans, acceptance.

mod rings;
mod save;

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Instant;

use ds4_kernels::cpu::{KV_BLOCK, rms_norm, rms_unit};
use ds4_target::blocks::{BlockRunner, Group};
use ds4_target::pool::Pool;
use engine_core::mutant::mutant;
use engine_core::seams::{Ask, Backbone, DraftRows};
use engine_core::{Fault, Pos, SeqId, Ticket};

use self::rings::{Rings, Shape};
use self::save::Stamp;
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

/// New rows of one sequence: its features `[n, captured layers, n_embd]` for positions `pos..`.
#[derive(Clone, Copy, Debug)]
pub struct Observation<'a> {
    /// The sequence.
    pub seq: SeqId,
    /// Position of the first row.
    pub pos: Pos,
    /// The rows.
    pub features: &'a [f32],
}

/// Answers that nobody has taken; older ones are dropped.
const ANSWERS_MAX: usize = 64;

/// Feature rows projected at once: bounds the buffers of a long prompt.
const PROJECT_ROWS: usize = 256;

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
        let m = &model.meta.stage;
        let bad = |option, expected: &str, got: usize| DraftError::Option {
            option,
            expected: expected.to_owned(),
            got: got.to_string(),
        };
        if options.n_seq_max == 0 {
            return Err(bad("n_seq_max", "at least 1", 0));
        }
        if options.verify_max > 1 << 16 {
            return Err(bad("verify_max", "at most 65536", options.verify_max));
        }
        let unrotated = m.head_dim - m.n_rot;
        if options.kv_round && !unrotated.is_multiple_of(KV_BLOCK) {
            let expected = "unrotated channels in whole blocks of 64";
            return Err(bad("kv_round", expected, unrotated));
        }
        let block = model.meta.block;
        Ok(Self {
            shape: Shape::new(m.n_layer, m.head_dim, m.window, block, options.verify_max),
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
        (!rings.is_empty()).then(|| rings.live())
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

    /// Fills every row that is not context with NaN; for tests.
    pub fn poison_stale(&mut self) {
        let rings = self.seqs.iter_mut().flatten().chain(&mut self.spare);
        rings.for_each(Rings::poison_stale);
    }

    /// [`Backbone::observe`] for many sequences with one pass over the weights. Refused as a whole:
    /// a fault changes nothing.
    ///
    /// # Errors
    /// As [`Backbone::observe`]; `DuplicateSpan` if a sequence is named twice, `Exhausted`.
    pub fn observe_many(&mut self, list: &[Observation<'_>]) -> Result<(), Fault> {
        let mut counts = Vec::with_capacity(list.len());
        for (i, o) in list.iter().enumerate() {
            if list[..i].iter().any(|other| other.seq == o.seq) {
                return Err(Fault::DuplicateSpan(o.seq));
            }
            counts.push(self.check(o)?);
        }
        for (o, n) in list.iter().zip(&counts) {
            if *n > 0 && self.open(o.seq).is_empty() {
                self.open(o.seq).begin(o.pos);
            }
        }
        self.project(list, &counts);
        for (o, n) in list.iter().zip(&counts) {
            if *n > 0 {
                self.open(o.seq).advance(o.pos + *n as Pos);
            }
        }
        Ok(())
    }

    /// How many rows an observation has, if it may be taken.
    fn check(&self, o: &Observation<'_>) -> Result<usize, Fault> {
        let width = self.model.meta.feature_width();
        let n = o.features.len() / width;
        if o.features.len() != n * width {
            return Err(Fault::BadState {
                field: "features",
                expected: format!("rows of {width}"),
                got: format!("{} values", o.features.len()),
            });
        }
        let slot = self.slot(o.seq)?;
        let wanted = u64::from(o.pos) + n as u64;
        let limit = u64::from(Pos::MAX);
        if wanted > limit {
            let seq = o.seq;
            return Err(Fault::ContextFull { seq, wanted, limit });
        }
        match slot {
            Some(r) if n > 0 && !r.is_empty() && r.end() != o.pos => Err(Fault::WrongPosition {
                seq: o.seq,
                expected: r.end(),
                got: o.pos,
            }),
            _ => Ok(n),
        }
    }

    /// A sequence's rings, `None` if it has none yet.
    fn slot(&self, seq: SeqId) -> Result<Option<&Rings>, Fault> {
        let limit = self.options.n_seq_max as u64;
        match self.seqs.get(seq.index()) {
            Some(slot) => Ok(slot.as_ref()),
            None => Err(Fault::Exhausted {
                what: "draft sequences",
                wanted: seq.index() as u64 + 1,
                limit,
            }),
        }
    }

    /// A sequence's rings, new ones if it has none. The id was checked by `slot`.
    fn open(&mut self, seq: SeqId) -> &mut Rings {
        let (spare, shape) = (&mut self.spare, self.shape);
        self.seqs[seq.index()].get_or_insert_with(|| {
            let mut rings = spare.pop().unwrap_or_else(|| Rings::new(shape));
            rings.reset();
            rings
        })
    }

    /// Projects the rows of a call that a ring will still hold at its end.
    fn project(&mut self, list: &[Observation<'_>], counts: &[usize]) {
        self.scratch.clear();
        let width = self.model.meta.feature_width();
        for (owner, (o, n)) in list.iter().zip(counts).enumerate() {
            let mut skip = n.saturating_sub(self.shape.ring);
            if mutant(215) {
                skip = n.saturating_sub(1);
            }
            for (i, row) in o.features.chunks_exact(width).enumerate().skip(skip) {
                self.scratch.features.extend_from_slice(row);
                self.scratch.owner.push(owner);
                self.scratch.pos.push(o.pos + i as Pos);
                if self.scratch.pos.len() == PROJECT_ROWS {
                    self.project_rows(list);
                }
            }
        }
        self.project_rows(list);
    }

    /// Projects the rows gathered in the scratch into their rings and empties it.
    fn project_rows(&mut self, list: &[Observation<'_>]) {
        let Self {
            model,
            runner,
            scratch: s,
            seqs,
            ..
        } = self;
        let (w, m) = (&model.backbone, &model.meta.stage);
        let (n, d, hd) = (s.pos.len(), m.n_embd, m.head_dim);
        if n == 0 {
            return;
        }
        // Features are about a thousand; a norm follows the projection, so only eps sees the scale.
        if !mutant(207) {
            for row in s.features.chunks_exact_mut(model.meta.feature_width()) {
                rms_unit(row, m.rms_eps);
            }
        }
        s.raw.resize(n * d, 0.0);
        s.context.resize(n * d, 0.0);
        runner.product(&w.fc, &s.features, &mut s.raw);
        for (row, out) in s.raw.chunks_exact(d).zip(s.context.chunks_exact_mut(d)) {
            rms_norm(row, &w.hidden_norm, m.rms_eps, out);
        }
        s.keys.resize(n * hd, 0.0);
        for (stage, block) in w.stages.iter().enumerate() {
            if mutant(213) {
                for (raw, out) in s.raw.chunks_exact_mut(d).zip(s.context.chunks_exact(d)) {
                    rms_norm(out, &block.attn.norm, m.rms_eps, raw);
                }
                runner.key_rows(&block.attn, &s.raw, &s.pos, &mut s.keys);
            } else {
                runner.key_rows(&block.attn, &s.context, &s.pos, &mut s.keys);
            }
            for ((owner, pos), key) in s.owner.iter().zip(&s.pos).zip(s.keys.chunks_exact(hd)) {
                if let Some(rings) = seqs[list[*owner].seq.index()].as_mut() {
                    rings.row_mut(stage, *pos).copy_from_slice(key);
                }
            }
        }
        s.clear();
    }

    /// Which asks have context to draft from. Others get no rows: a block that sees only itself has
    /// nothing to say.
    fn drafting(&self, asks: &[Ask]) -> Result<Vec<usize>, Fault> {
        let mut live = Vec::with_capacity(asks.len());
        for (i, ask) in asks.iter().enumerate() {
            let Some(rings) = self.slot(ask.seq)?.filter(|r| !r.is_empty()) else {
                continue;
            };
            let (seq, expected, got) = (ask.seq, rings.end(), ask.pos);
            if expected != got {
                return Err(Fault::WrongPosition { seq, expected, got });
            }
            let (wanted, limit) = (u64::from(got) + self.block() as u64, u64::from(Pos::MAX));
            if wanted > limit {
                return Err(Fault::ContextFull { seq, wanted, limit });
            }
            if ask.depth > 0 {
                live.push(i);
            }
        }
        Ok(live)
    }

    fn block(&self) -> usize {
        self.model.meta.block
    }

    /// Runs the blocks of the asks `live` and leaves their rows in the scratch.
    fn run_blocks(&mut self, asks: &[Ask], live: &[usize], block: &[f32]) {
        let (b, d, hd) = (self.block(), self.model.meta.stage.n_embd, self.shape.width);
        let Self {
            model,
            runner,
            scratch: s,
            seqs,
            shape,
            ..
        } = self;
        s.clear();
        s.rows.clear();
        for i in live {
            s.rows.extend_from_slice(&block[i * b * d..(i + 1) * b * d]);
            let first = if mutant(202) {
                asks[*i].pos - 1
            } else {
                asks[*i].pos
            };
            s.pos.extend((first..).take(b));
        }
        runner.begin(&s.rows, &s.pos);
        for (stage, weights) in model.backbone.stages.iter().enumerate() {
            s.keys.clear();
            let mut ends = Vec::with_capacity(live.len());
            for i in live {
                if let Some(rings) = seqs[asks[*i].seq.index()].as_ref() {
                    for pos in seen(rings, shape) {
                        s.keys.extend_from_slice(rings.row(stage, pos));
                    }
                }
                ends.push(s.keys.len() / hd);
            }
            runner.block(weights, &groups(&s.keys, &ends, b, hd));
        }
        let n = live.len() * b;
        s.pre_norm.resize(n * d, 0.0);
        s.normed.resize(n * d, 0.0);
        let w = &model.backbone;
        runner.head(&w.hc_head, &w.output_norm, &mut s.pre_norm, &mut s.normed);
    }
}

/// Positions whose rows a block sees.
fn seen(rings: &Rings, shape: &Shape) -> std::ops::Range<Pos> {
    let live = rings.live();
    if mutant(211) && live.len() == shape.window {
        return live.start + 1..live.end;
    }
    if mutant(212) && live.start > rings.low() {
        return live.start - 1..live.end;
    }
    live
}

/// One group a block: its context rows end at `ends[block]`.
fn groups<'a>(keys: &'a [f32], ends: &[usize], b: usize, hd: usize) -> Vec<Group<'a>> {
    let mut from = 0;
    let mut groups = Vec::with_capacity(ends.len());
    for (i, end) in ends.iter().enumerate() {
        let context = &keys[from * hd..end * hd];
        from = *end;
        if mutant(210) {
            groups.extend((i * b..(i + 1) * b).map(|row| Group {
                rows: row..row + 1,
                context,
            }));
        } else {
            let rows = i * b..(i + 1) * b;
            groups.push(Group { rows, context });
        }
    }
    groups
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
        if block.len() != asks.len() * b * d {
            return Err(Fault::BadState {
                field: "block rows",
                expected: format!("{} asks of {b} rows of {d}", asks.len()),
                got: format!("{} values", block.len()),
            });
        }
        let live = self.drafting(asks)?;
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
            rings.truncate(pos);
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
        save::save(rings, &self.shape, &self.stamp(), to)
    }

    fn load(&mut self, seq: SeqId, from: &mut dyn Read) -> Result<(), Fault> {
        self.slot(seq)?;
        let (shape, stamp) = (self.shape, self.stamp());
        save::load(self.open(seq), &shape, &stamp, from)
    }

    fn health(&self) -> Result<(), Fault> {
        Ok(())
    }
}

impl LocalBackbone {
    fn stamp(&self) -> Stamp {
        Stamp {
            fingerprint: self.model.fingerprint,
            kv_round: self.options.kv_round,
        }
    }
}
