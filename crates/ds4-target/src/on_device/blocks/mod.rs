//! The model's blocks on a device without its state: what a drafter builds its stages from, so that there is one
//! implementation of hyper-connections, attention and experts there too (`crate::blocks` on the CPU).
//!
//! The caller says where each finished key row stands in a store of every block, and which of them a row reads; every
//! row of a group sees those and all rows of its own group, also later ones. Shapes follow from the number of rows
//! alone, so that short passes are replayed as graphs.
//!
//! Must not know: whose rows these are, positions' meaning, sequences.

mod answer;
mod direct;
mod launches;
mod sent;

use std::ops::Range;
use std::sync::Arc;

use device::Device;
use device::driver::Driver;
use ds4_kernels::KernelError;
use ds4_kernels::run::Kernels;
use engine_core::seams::Resident;
use engine_core::{Fault, Pos};

pub use self::answer::Answer;
use self::launches::{context_rows, pass, stages};
use self::sent::{Batch, SentFeatures, SentRows, Slots};
use super::arena::{Layout, Slot};
use super::clock::Clocked;
use super::counts::clear;
use super::draws::Way;
use super::gpu::Gpu;
use super::graphs::{GraphCounts, Graphs, Shape};
use super::retire::DRAFTER;
use super::scratch::Scratch;
use super::state::State;
use super::target::{Settings, fits};
use super::upload;
use super::weights::{Blocks, Plan};
use crate::blocks::Block;
use crate::error::LoadError;
use crate::layers::Ropes;
use crate::meta::{Ds4Meta, Ratio};
use crate::target::Options;
use crate::tensor::Tensor;
use crate::weights::HcSite;

/// The weights of a stack of blocks.
#[derive(Clone, Copy, Debug)]
pub struct BlockParts<'a> {
    /// The blocks, in order: window layers that route by scores.
    pub blocks: &'a [Block],
    /// `[n_embd, width]`: makes context inputs of features.
    pub projection: &'a Tensor,
    /// `[n_embd]`: their norm.
    pub projection_norm: &'a [f32],
    /// Merge of the streams after the last block.
    pub hc_head: &'a HcSite,
    /// `[n_embd]`: the norm behind it.
    pub output_norm: &'a [f32],
}

/// Rows that a device keeps or takes at once; each at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Key rows of a store, one store a block.
    pub store: usize,
    /// Rows of a pass.
    pub rows: usize,
    /// Key rows that a row reads: those of the store and those of its group.
    pub keys: usize,
    /// Features of a call.
    pub features: usize,
}

/// Rows that attend to each other, and the store's rows that they read, oldest first.
#[derive(Clone, Debug)]
pub struct Reads {
    /// Which rows of the batch.
    pub rows: Range<usize>,
    /// Places in the store.
    pub context: Vec<u32>,
}

/// Blocks on a device.
#[derive(Debug)]
pub struct DeviceBlocks<R: Driver> {
    /// Its window is the longest key list.
    meta: Ds4Meta,
    sizes: BlockSizes,
    ropes: Ropes,
    gpu: Gpu<R>,
    weights: Blocks,
    state: State,
    scratch: Scratch,
    slots: Slots,
    /// Graphs of passes and of features.
    passes: Graphs<R>,
    observed: Graphs<R>,
    bytes: Vec<u8>,
    /// Bytes of the arenas: weights, stores, scratch.
    arenas: [u64; 3],
}

impl<R: Driver> DeviceBlocks<R> {
    /// Plans, allocates and uploads. `meta`: the shapes of the blocks.
    ///
    /// # Errors
    /// As `DeviceTarget::new`: `Option`, `NoKernel`, `BadBlocks`, `Kernel`, and `DeviceMemory` with both numbers before
    /// anything is allocated.
    pub fn new(
        meta: &Ds4Meta,
        parts: &BlockParts<'_>,
        sizes: BlockSizes,
        device: &Device<R>,
        settings: Settings<'_>,
    ) -> Result<Self, LoadError> {
        check(meta, parts, &sizes)?;
        let meta = Ds4Meta {
            window: sizes.keys,
            n_vocab: 0,
            ..meta.clone()
        };
        let (plan, weights) = Plan::of_blocks(&meta, parts)?;
        let state = State::stores(&meta, sizes.store.saturating_add(sizes.rows))?;
        let mut scratch = Scratch::new(&meta, &scratch_options(&sizes))?;
        let slots = Slots::new(&mut scratch, &meta, parts.projection.k, &sizes)?;
        let mut blocks = Self {
            ropes: Ropes::new(&meta),
            gpu: Gpu::new(Kernels::new(device, settings.cache))?,
            passes: Graphs::new(settings.graph_tokens),
            observed: Graphs::new(settings.graph_tokens),
            bytes: Vec::new(),
            arenas: [&plan.layout, &state.layout, &scratch.layout].map(Layout::bytes),
            meta,
            sizes,
            weights,
            state,
            scratch,
            slots,
        };
        blocks.try_shapes()?;
        fits(device, &plan, &blocks.state, &blocks.scratch)?;
        blocks.gpu.compile()?;
        let layouts = [&plan.layout, &blocks.state.layout, &blocks.scratch.layout];
        let staging = blocks.scratch.staging().max(blocks.slots.sent.len);
        blocks.gpu.allocate(layouts, staging)?;
        upload::run(&mut blocks.gpu, &plan, settings.check, settings.progress)?;
        clear(&blocks.gpu, &blocks.scratch)?;
        Ok(blocks)
    }

    /// Bytes of the device's memory: weights, key rows, scratch.
    #[must_use]
    pub const fn bytes(&self) -> [u64; 3] {
        self.arenas
    }

    /// The device's name.
    #[must_use]
    pub fn device(&self) -> String {
        self.gpu.device().id().to_string()
    }

    /// Launches so far, those of replayed graphs included, and the graphs.
    #[must_use]
    pub fn launches(&self) -> (u64, GraphCounts) {
        let graphs = self.passes.counts.and(self.observed.counts);
        let launched = self.gpu.kernels.counts().launches;
        (launched + graphs.operations, graphs)
    }

    /// What takes memory because the blocks are there.
    #[must_use]
    pub fn residents(&self) -> Vec<Resident> {
        let graphs = self.passes.built() + self.observed.built();
        self.gpu.residents(&DRAFTER, graphs)
    }

    /// Frees all of it once the device is idle. The answer: what could not be freed, and why.
    pub fn retire(self) -> Vec<Resident> {
        let graphs = self.passes.into_graphs();
        let graphs = graphs.chain(self.observed.into_graphs()).collect();
        self.gpu.retire(&DRAFTER, graphs)
    }

    /// From here on launches are made one by one and timed, until [`Self::clocked`].
    ///
    /// # Errors
    /// `Lost`.
    pub fn clock(&mut self) -> Result<(), Fault> {
        self.gpu.start_clock().map_err(|e| self.lost(&e))
    }

    /// Ends the timing: what launches took, by kernel and grid.
    ///
    /// # Errors
    /// `Lost`.
    pub fn clocked(&mut self) -> Result<Vec<Clocked>, Fault> {
        self.gpu.read_clock().map_err(|e| self.lost(&e))
    }

    /// Fills stores and scratch with NaN patterns; for tests.
    ///
    /// # Errors
    /// `Lost`.
    pub fn poison(&mut self) -> Result<(), Fault> {
        let poisoned = self.gpu.poison();
        poisoned
            .and_then(|()| clear(&self.gpu, &self.scratch))
            .map_err(|e| self.lost(&e))
    }

    /// Projects features and puts their finished key rows into every block's store. `features` `[n, width]` f32, n at
    /// most the features of a call; `pos`, `places` `[n]`: positions, and places in the store.
    ///
    /// # Errors
    /// `BadState` for sizes that do not fit, `Lost`.
    pub fn observe(&mut self, features: &[f32], pos: &[Pos], places: &[u32]) -> Result<(), Fault> {
        let (n, width) = (pos.len(), self.weights.projection.k);
        let fits = n <= self.sizes.features && places.len() == n && features.len() == n * width;
        if !fits || self.outside(places) {
            return Err(misfit("features", n, features.len()));
        }
        if n == 0 {
            return Ok(());
        }
        let sent = self.features(n);
        sent.write(&mut self.bytes, &self.ropes, features, pos, places);
        self.send_and_observe(n, &sent).map_err(|e| self.lost(&e))
    }

    /// Runs all blocks over a batch and begins to fetch what comes out. `input` `[n, n_embd]` f32, n at most the rows of
    /// a pass; `pos` `[n]`; `groups` cover all rows in order.
    ///
    /// # Errors
    /// `BadState` for sizes that do not fit, `Lost`.
    pub fn run(
        &mut self,
        input: &[f32],
        pos: &[Pos],
        groups: &[Reads],
    ) -> Result<Answer<R>, Fault> {
        let (n, d) = (pos.len(), self.meta.n_embd);
        if !self.covers(n, groups) || input.len() != n * d {
            return Err(misfit("rows", n, input.len()));
        }
        let sent = SentRows::new(self.slots.sent, &self.meta, n);
        let batch = Batch { input, pos, groups };
        let shapes = (&self.meta, &self.ropes);
        sent.write(&mut self.bytes, shapes, self.sizes.store, &batch);
        self.send_and_run(n, &sent).map_err(|e| self.lost(&e))
    }

    /// Rows of a block's store, `[count, head_dim]` f32 in little-endian bytes.
    ///
    /// # Errors
    /// `Lost`.
    pub fn read(&self, block: usize, place: usize, count: usize) -> Result<Vec<u8>, Fault> {
        let slot = self.stored(block, place, count);
        self.gpu.read(slot).map_err(|e| self.lost(&e))
    }

    /// Puts rows into a block's store, as [`Self::read`] gives them.
    ///
    /// # Errors
    /// `Lost`.
    pub fn write(&mut self, block: usize, place: usize, rows: &[u8]) -> Result<(), Fault> {
        let count = rows.len() / (4 * self.meta.head_dim);
        let slot = self.stored(block, place, count);
        self.gpu.write(rows, slot).map_err(|e| self.lost(&e))
    }

    fn stored(&self, block: usize, place: usize, count: usize) -> Slot {
        self.state.layers[block]
            .raw
            .rows(place, count, 4 * self.meta.head_dim)
    }

    /// Whether groups cover all of some rows that fit, and read what there is.
    fn covers(&self, n: usize, groups: &[Reads]) -> bool {
        let covered = groups.iter().try_fold(0, |at, g| {
            let most = g.context.len() + g.rows.len();
            let fits = g.rows.start == at && !g.rows.is_empty() && most <= self.sizes.keys;
            (fits && !self.outside(&g.context)).then_some(g.rows.end)
        });
        n > 0 && n <= self.sizes.rows && covered == Some(n)
    }

    fn outside(&self, places: &[u32]) -> bool {
        places.iter().any(|p| *p as usize >= self.sizes.store)
    }

    fn lost(&self, why: &KernelError) -> Fault {
        Fault::Lost {
            what: self.device(),
            why: why.to_string(),
        }
    }

    fn features(&self, n: usize) -> SentFeatures {
        let width = self.weights.projection.k;
        SentFeatures::new(self.slots.sent, &self.meta, width, n)
    }

    fn send_and_observe(&mut self, n: usize, sent: &SentFeatures) -> Result<(), KernelError> {
        self.gpu.write(&self.bytes, sent.block)?;
        self.project(n, sent)
    }

    /// Makes key rows of the features that were sent.
    fn project(&mut self, n: usize, sent: &SentFeatures) -> Result<(), KernelError> {
        let graph = self.observed.take(n) && self.gpu.clock.is_none();
        let stream = Arc::clone(&self.gpu.stream);
        let (gpu, weights, slots) = (&mut self.gpu, &self.weights, &self.slots);
        let (meta, state) = (&self.meta, &self.state);
        let mut work = || context_rows(gpu, meta, weights, state, slots, sent, n);
        if !graph {
            return work();
        }
        let shape = Shape::new(n, 0, Way::Host, &[]);
        self.observed.run(shape, &stream, || work().map(|()| 0))?;
        Ok(())
    }

    fn send_and_run(&mut self, n: usize, sent: &SentRows) -> Result<Answer<R>, KernelError> {
        self.gpu.write(&self.bytes, sent.block)?;
        self.pass_of(n, sent)?;
        self.begin(n)
    }

    /// Begins to fetch what came out of a pass of `n` rows.
    fn begin(&self, n: usize) -> Result<Answer<R>, KernelError> {
        let values = 2 * n * self.meta.n_embd;
        let out = self.slots.out.part(0, 4 * values as u64);
        Ok(Answer {
            download: self.gpu.begin_fetch(out)?,
            device: self.device(),
            values,
        })
    }

    /// Runs the blocks over the rows that were sent.
    fn pass_of(&mut self, n: usize, sent: &SentRows) -> Result<(), KernelError> {
        let graph = self.passes.take(n) && self.gpu.clock.is_none();
        let stream = Arc::clone(&self.gpu.stream);
        self.place_lists(sent);
        let (gpu, weights, slots) = (&mut self.gpu, &self.weights, &self.slots);
        let mut pass = pass(gpu, &self.meta, &self.state, &self.scratch, &sent.inputs);
        let mut work = || stages(&mut pass, weights, slots, sent.rows);
        if graph {
            let shape = Shape::new(n, 0, Way::Host, &[]);
            self.passes.run(shape, &stream, || work().map(|()| 0))?;
            return Ok(());
        }
        work()
    }

    /// The lists of a pass stand in what was sent.
    fn place_lists(&mut self, sent: &SentRows) {
        for list in &mut self.scratch.lists {
            (list.keys, list.counts) = (sent.keys, sent.counts);
        }
    }

    /// Checks every launch, without making any.
    fn try_shapes(&mut self) -> Result<(), KernelError> {
        for n in [1, self.sizes.rows] {
            let sent = SentRows::new(self.slots.sent, &self.meta, n);
            self.place_lists(&sent);
            let (gpu, weights, slots) = (&mut self.gpu, &self.weights, &self.slots);
            let mut pass = pass(gpu, &self.meta, &self.state, &self.scratch, &sent.inputs);
            stages(&mut pass, weights, slots, sent.rows)?;
        }
        for n in [1, self.sizes.features] {
            let sent = self.features(n);
            let (gpu, weights, slots) = (&mut self.gpu, &self.weights, &self.slots);
            context_rows(gpu, &self.meta, weights, &self.state, slots, &sent, n)?;
        }
        Ok(())
    }
}

/// Blocks that this file can run: window layers that route by scores, of some size.
fn check(m: &Ds4Meta, parts: &BlockParts<'_>, sizes: &BlockSizes) -> Result<(), LoadError> {
    let bad = |option, expected: &str, got: String| LoadError::Option {
        option,
        expected: expected.to_owned(),
        got,
    };
    let windows = m.ratios.iter().all(|r| *r == Ratio::None) && m.n_hash == 0;
    if !windows || m.ratios.len() != parts.blocks.len() || m.n_layer != parts.blocks.len() {
        let got = format!("{} of {:?}", parts.blocks.len(), m.ratios);
        return Err(bad("blocks", "window layers that route by scores", got));
    }
    let BlockSizes {
        store,
        rows,
        keys,
        features,
    } = *sizes;
    if [store, rows, keys, features].contains(&0) || store.saturating_add(rows) > 1 << 31 {
        let got = format!("{sizes:?}");
        return Err(bad("sizes of blocks", "rows of each, at most 2^31", got));
    }
    Ok(())
}

/// A target's options whose scratch is that of a pass of rows.
fn scratch_options(sizes: &BlockSizes) -> Options {
    Options {
        n_ctx: sizes.keys,
        n_seq_max: 1,
        verify_max: 1,
        span_max: sizes.rows,
        kv_sim: false,
        threads: 1,
    }
}

fn misfit(field: &'static str, n: usize, values: usize) -> Fault {
    Fault::BadState {
        field,
        expected: "what the blocks were made for".to_owned(),
        got: format!("{n} rows, {values} values"),
    }
}
