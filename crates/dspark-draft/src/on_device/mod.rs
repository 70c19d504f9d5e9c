//! The draft layers on a device of any runtime, with the rows and the context of `LocalBackbone`.
//!
//! Weights are uploaded once and every sequence's context rows stay on the device; here is only which rows there are.
//! A block's rows are asked for in `submit` and fetched in `poll`: between the two the device works alone. Must not
//! know: vendors, tokens' text, plans, acceptance.

mod direct;
mod pass;
mod rows;

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Instant;

use device::Device;
use device::driver::Driver;
use ds4_target::on_device::{BlockParts, BlockSizes, DeviceBlocks, Settings};
use engine_core::seams::{Ask, Backbone, DraftRows, Resident};
use engine_core::{Fault, Pos, SeqId, Ticket};

pub use self::direct::DirectBackbone;

use self::direct::Direct;
use self::pass::Flying;
use crate::backbone::{
    Marks, Observation, Options, PROJECT_ROWS, Shape, drafting, load, rows_of, save, shape, slot,
};
use crate::error::DraftError;
use crate::weights::DraftModel;

/// Rows of passes up to which they are replayed as graphs: blocks of several sequences.
pub const GRAPH_ROWS: usize = 32;
/// Rows of a pass, unless one block is longer: more asks take several passes.
const PASS_ROWS: usize = 64;

/// A backbone on a device.
#[derive(Debug)]
pub struct DeviceBackbone<R: Driver> {
    model: Arc<DraftModel>,
    options: Options,
    shape: Shape,
    blocks: DeviceBlocks<R>,
    seqs: Vec<Option<Marks>>,
    answers: VecDeque<(Ticket, DraftRows)>,
    flying: Option<Flying<R>>,
    tickets: u64,
    /// Why the device does not answer any more.
    lost: Option<Fault>,
    /// Memory of the host that rows come and go by.
    direct: Direct<R>,
}

impl<R: Driver> DeviceBackbone<R> {
    /// Plans, allocates and uploads the draft layers of a loaded model.
    ///
    /// # Errors
    /// `Option`: also for `kv_round`, whose rows no kernel keeps in f32. Through `Load` those of `DeviceBlocks::new`:
    /// a format or shape without a kernel, and a plan that does not fit, with both numbers.
    pub fn new(
        model: Arc<DraftModel>,
        options: Options,
        device: &Device<R>,
        settings: Settings<'_>,
    ) -> Result<Self, DraftError> {
        options.check(&model.meta)?;
        if options.kv_round {
            return Err(DraftError::Option {
                option: "kv_round",
                expected: "off on a device".to_owned(),
                got: "on".to_owned(),
            });
        }
        let (shape, block) = (shape(&model.meta, &options), model.meta.block);
        let w = &model.backbone;
        let parts = BlockParts {
            blocks: &w.stages,
            projection: &w.fc,
            projection_norm: &w.hidden_norm,
            hc_head: &w.hc_head,
            output_norm: &w.output_norm,
        };
        let sizes = BlockSizes {
            store: options.n_seq_max.saturating_mul(shape.ring),
            rows: (PASS_ROWS / block).clamp(1, options.n_seq_max) * block,
            keys: shape.window + block,
            features: PROJECT_ROWS,
        };
        let blocks = DeviceBlocks::new(&model.meta.stage, &parts, sizes, device, settings)?;
        Ok(Self {
            seqs: vec![None; options.n_seq_max],
            answers: VecDeque::new(),
            flying: None,
            tickets: 0,
            lost: None,
            direct: Direct::new(device),
            model,
            options,
            shape,
            blocks,
        })
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Arc<DraftModel> {
        &self.model
    }

    /// The layers: what they take, and clocks.
    #[must_use]
    pub fn blocks(&self) -> &DeviceBlocks<R> {
        &self.blocks
    }

    /// The layers, for measurements and tests.
    pub fn blocks_mut(&mut self) -> &mut DeviceBlocks<R> {
        &mut self.blocks
    }

    /// Positions whose rows the next block of a sequence would see; `None` without any.
    #[must_use]
    pub fn context(&self, seq: SeqId) -> Option<std::ops::Range<Pos>> {
        let marks = self.seqs.get(seq.index()).copied().flatten()?;
        (!marks.is_empty()).then(|| marks.live())
    }

    /// The digest of what `save` writes.
    ///
    /// # Errors
    /// `NoSuchSequence`, `Lost`.
    pub fn digest(&self, seq: SeqId) -> Result<[u8; 32], Fault> {
        let mut hash = blake3::Hasher::new();
        self.save(seq, &mut hash)?;
        Ok(*hash.finalize().as_bytes())
    }

    fn slot(&self, seq: SeqId) -> Result<Option<Marks>, Fault> {
        slot(&self.seqs, seq, |marks| *marks)
    }

    /// A sequence's marks, new ones if it has none. The id was checked by `slot`.
    fn open(&mut self, seq: SeqId) -> &mut Marks {
        let shape = self.shape;
        self.seqs[seq.index()].get_or_insert_with(|| Marks::new(shape))
    }

    /// The context goes on with `n` rows for `pos..`.
    fn took(&mut self, seq: SeqId, pos: Pos, n: usize) {
        let marks = self.open(seq);
        if marks.is_empty() {
            marks.begin(pos);
        }
        marks.advance(pos + n as Pos);
    }

    fn place(&self, seq: SeqId, pos: Pos) -> usize {
        seq.index() * self.shape.ring + self.shape.slot(pos)
    }

    /// Remembers that the device is gone.
    fn keep<T>(&mut self, result: Result<T, Fault>) -> Result<T, Fault> {
        if let Err(Fault::Lost { what, why }) = &result {
            let (what, why) = (what.clone(), why.clone());
            self.lost.get_or_insert(Fault::Lost { what, why });
        }
        result
    }
}

impl<R: Driver> Backbone for DeviceBackbone<R> {
    fn observe(&mut self, seq: SeqId, pos: Pos, features: &[f32]) -> Result<(), Fault> {
        self.health()?;
        let o = Observation { seq, pos, features };
        let n = rows_of(&o, self.model.meta.feature_width(), self.slot(seq)?)?;
        if n == 0 {
            return Ok(());
        }
        self.observe_rows(&o, n)?;
        self.took(seq, pos, n);
        Ok(())
    }

    /// All block rows are computed, since they see each other; an ask gets its first `depth`.
    fn submit(&mut self, asks: &[Ask], block: &[f32]) -> Result<Ticket, Fault> {
        self.health()?;
        let (b, d) = (self.model.meta.block, self.model.meta.stage.n_embd);
        let live = drafting(asks, block, [b, d], |seq| self.slot(seq))?;
        self.land()?;
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        self.fly(ticket, asks, &live, block)?;
        Ok(ticket)
    }

    fn poll(&mut self, ticket: Ticket, deadline: Option<Instant>) -> Result<DraftRows, Fault> {
        if self.flying.as_ref().is_some_and(|f| f.ticket == ticket) {
            if !self.is_here(deadline)? {
                return Err(Fault::Deadline);
            }
            self.land()?;
        }
        let at = self.answers.iter().position(|(t, _)| *t == ticket);
        at.and_then(|at| self.answers.remove(at))
            .map(|(_, answer)| answer)
            .ok_or(Fault::NoSuchTicket(ticket.0))
    }

    fn truncate(&mut self, seq: SeqId, pos: Pos) {
        if let Some(marks) = self.seqs.get_mut(seq.index()).and_then(Option::as_mut) {
            marks.truncate(pos);
        }
    }

    fn close(&mut self, seq: SeqId) {
        if let Some(marks) = self.seqs.get_mut(seq.index()) {
            *marks = None;
        }
    }

    fn save(&self, seq: SeqId, to: &mut dyn Write) -> Result<(), Fault> {
        let marks = self.seqs.get(seq.index()).copied().flatten();
        let live = marks.ok_or(Fault::NoSuchSequence(seq))?.live();
        let rows = self.pull(seq, &live)?;
        let mut rows = rows.chunks_exact(4 * self.shape.width);
        let stamp = self.options.stamp(&self.model);
        save(live, &self.shape, &stamp, to, |_, _, bytes| {
            bytes.extend(rows.next().unwrap_or_default());
        })
    }

    fn load(&mut self, seq: SeqId, from: &mut dyn Read) -> Result<(), Fault> {
        self.slot(seq)?;
        self.open(seq).reset();
        let stamp = self.options.stamp(&self.model);
        let mut rows = Vec::new();
        let marks = load(&self.shape, &stamp, from, |_, _, row| {
            rows.extend_from_slice(row);
        })?;
        self.push(seq, &marks.live(), &rows)?;
        *self.open(seq) = marks;
        Ok(())
    }

    fn health(&self) -> Result<(), Fault> {
        match &self.lost {
            Some(Fault::Lost { what, why }) => Err(Fault::Lost {
                what: what.clone(),
                why: why.clone(),
            }),
            _ => Ok(()),
        }
    }

    fn residents(&self) -> Vec<Resident> {
        self.blocks.residents()
    }

    fn retire(self: Box<Self>) -> Vec<Resident> {
        let Self { blocks, flying, .. } = *self;
        // Its copy gives its slot back before the ring goes.
        drop(flying);
        blocks.retire()
    }
}
