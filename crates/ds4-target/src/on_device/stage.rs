//! A stage: consecutive layers on one device, with their weights, their state, a scratch and graphs of their own. A
//! target is a chain of stages; on one device it is a chain of one.
//!
//! Must not know: spans, sequences, how stages are joined.

use std::ops::Range;
use std::sync::Arc;

use device::Device;
use device::cache::Cache;
use device::driver::Driver;
use ds4_kernels::KernelError;
use ds4_kernels::run::Kernels;

use super::counts::clear;
use super::draws::{Answers, Way};
use super::edge::Edge;
use super::gpu::Gpu;
use super::graphs::{Graphs, Shape};
use super::inputs::{Inputs, Part, Sources, Writer};
use super::layers::{KeysFrom, Pass, Streams, Tapped};
use super::scratch::Scratch;
use super::state::State;
use super::target::fits;
use super::upload;
use super::weights::{Plan, Weights};
use crate::batch::Batch;
use crate::error::LoadError;
use crate::layers::Ropes;
use crate::meta::Ds4Meta;
use crate::state::StateShape;
use crate::target::{Model, Options};

/// What all stages of a part of a pass have in common.
#[derive(Clone, Copy)]
pub(super) struct Work<'a> {
    pub(super) meta: &'a Ds4Meta,
    pub(super) options: &'a Options,
    pub(super) ropes: &'a Ropes,
    pub(super) batch: &'a Batch,
    pub(super) part: &'a Part,
}

/// Layers on a device.
#[derive(Debug)]
pub(super) struct Stage<R: Driver> {
    pub(super) gpu: Gpu<R>,
    pub(super) weights: Weights,
    pub(super) state: State,
    pub(super) scratch: Scratch,
    pub(super) graphs: Graphs<R>,
    /// The way from the stage before; the first has none.
    pub(super) edge: Option<Edge<R>>,
}

/// A stage of which nothing is on its device yet.
#[derive(Debug)]
pub(super) struct Planned<'a, R: Driver> {
    pub(super) plan: Plan<'a>,
    pub(super) stage: Stage<R>,
}

impl<'a, R: Driver> Planned<'a, R> {
    /// Places layers on a device without touching its memory.
    ///
    /// # Errors
    /// `NoKernel`, `Kernel`.
    pub(super) fn new(
        model: &'a Model,
        options: &Options,
        device: &Device<R>,
        layers: &Range<usize>,
        cache: Option<Cache>,
        graph_tokens: usize,
    ) -> Result<Self, LoadError> {
        let m = &model.meta;
        let (plan, weights) = Plan::of(m, &model.weights, layers)?;
        let shape = StateShape::new(m, options.n_ctx, options.verify_max, options.kv_sim);
        let state = State::new(&shape, layers, options.n_seq_max, options.span_max)?;
        let scratch = match weights.tail {
            Some(_) => Scratch::new(m, options)?,
            None => Scratch::without_head(m, options)?,
        };
        let stage = Stage {
            gpu: Gpu::new(Kernels::new(device, cache))?,
            graphs: Graphs::new(graph_tokens),
            edge: None,
            weights,
            state,
            scratch,
        };
        Ok(Self { plan, stage })
    }

    /// Checks every launch of its passes, without making any.
    ///
    /// # Errors
    /// `Shape`, `Format`.
    pub(super) fn try_shapes(&mut self, m: &Ds4Meta, options: &Options) -> Result<(), KernelError> {
        for n in [1, self.stage.scratch.sizes.tokens] {
            self.stage.try_shapes(m, options, n)?;
        }
        Ok(())
    }

    /// Refuses what its device has no room for.
    ///
    /// # Errors
    /// `DeviceMemory` with both numbers, `Kernel`.
    pub(super) fn fits(&self) -> Result<(), LoadError> {
        let s = &self.stage;
        fits(s.gpu.device(), &self.plan, &s.state, &s.scratch)
    }

    /// Makes its arenas.
    ///
    /// # Errors
    /// `Device`.
    pub(super) fn allocate(&mut self) -> Result<(), KernelError> {
        let s = &mut self.stage;
        let layouts = [&self.plan.layout, &s.state.layout, &s.scratch.layout];
        s.gpu.allocate(layouts, s.scratch.staging())
    }

    /// Sends its weights; `progress` hears of bytes done, of this device.
    ///
    /// # Errors
    /// `BadBlocks`, `Upload`, `Kernel`.
    pub(super) fn upload(
        &mut self,
        check: bool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), LoadError> {
        let s = &mut self.stage;
        upload::run(&mut s.gpu, &self.plan, check, &mut |done, _| progress(done))?;
        Ok(clear(&s.gpu, &s.scratch)?)
    }
}

impl<R: Driver> Stage<R> {
    /// Writes a part's inputs and sends them.
    ///
    /// # Errors
    /// `Device`.
    pub(super) fn send(
        &self,
        work: &Work<'_>,
        answers: &Answers,
        bytes: &mut Vec<u8>,
    ) -> Result<Inputs, KernelError> {
        let inputs = Inputs::new(self.scratch.inputs, work.meta, work.part.tokens.len());
        let sources = Sources {
            meta: work.meta,
            ropes: work.ropes,
            state: &self.state,
            batch: work.batch,
            draws: &answers.draws,
        };
        Writer::fill(&inputs, bytes, &sources, work.part);
        self.gpu.write(bytes, inputs.block)?;
        Ok(inputs)
    }

    /// Runs the layers over a part's tokens, and where the model ends here the output matrix over its wanted rows.
    ///
    /// # Errors
    /// `Shape`, `Device`.
    pub(super) fn run(
        &mut self,
        work: &Work<'_>,
        inputs: &Inputs,
        tapped: &[Tapped],
        answers: &mut Answers,
    ) -> Result<(), KernelError> {
        let part = work.part;
        let (n, most) = (part.tokens.len(), self.scratch.sizes.head);
        let rows = self.weights.tail.as_ref().map_or(0, |_| part.out.len());
        let way = match rows {
            0 => Way::Host,
            _ => answers.draws.way(part.out.clone()),
        };
        let short = self.graphs.take(n) && rows <= most;
        let graph = short && self.gpu.clock.is_none();
        let pos = &work.batch.pos[part.tokens.clone()];
        let bound = match short {
            // A captured launch serves every position; a timed one has its grid.
            true => work.options.n_ctx,
            false => pos.iter().max().map_or(1, |p| *p as usize + 1),
        };
        let stream = Arc::clone(&self.gpu.stream);
        let (weights, graphs) = (&self.weights, &mut self.graphs);
        let mut pass = pass(
            &mut self.gpu,
            work.meta,
            work.options.kv_sim,
            (&self.state, &self.scratch),
            inputs,
            bound,
        );
        if graph {
            let shape = Shape::new(n, rows, way, tapped);
            let replayed = graphs.run(shape, &stream, || {
                let before = pass.gpu.read;
                pass.layers(weights, tapped)?;
                if let Some(tail) = &weights.tail {
                    pass.head(tail, 0, rows, way)?;
                }
                Ok(pass.gpu.read - before)
            })?;
            pass.gpu.read += replayed;
        } else {
            pass.layers(weights, tapped)?;
        }
        let Some(tail) = &weights.tail else {
            return Ok(());
        };
        for first in (0..rows).step_by(most) {
            let n = most.min(rows - first);
            if !graph {
                pass.head(tail, first, n, way)?;
            }
            let row = part.out.start + first;
            answers.collect(pass.gpu, &self.scratch, row, n, way)?;
        }
        Ok(())
    }

    /// Checks every launch of a pass of `n` tokens at the end of the context, without making any.
    fn try_shapes(&mut self, m: &Ds4Meta, o: &Options, n: usize) -> Result<(), KernelError> {
        let inputs = Inputs::new(self.scratch.inputs, m, n);
        let places = (&self.state, &self.scratch);
        let mut pass = pass(&mut self.gpu, m, o.kv_sim, places, &inputs, o.n_ctx);
        pass.layers(&self.weights, &[])?;
        let Some(tail) = &self.weights.tail else {
            return Ok(());
        };
        let rows = n.min(self.scratch.sizes.head);
        pass.head(tail, 0, rows, Way::Plain)?;
        pass.head(tail, 0, rows, Way::Filtered)
    }
}

/// The beginning of a pass.
fn pass<'a, R: Driver>(
    gpu: &'a mut Gpu<R>,
    meta: &'a Ds4Meta,
    kv_sim: bool,
    (state, scratch): (&'a State, &'a Scratch),
    inputs: &'a Inputs,
    bound: usize,
) -> Pass<'a, R> {
    Pass {
        gpu,
        meta,
        state,
        scratch,
        inputs,
        bound,
        kv_sim,
        streams: Streams::default(),
        lists: KeysFrom::Positions(Vec::new()),
    }
}
