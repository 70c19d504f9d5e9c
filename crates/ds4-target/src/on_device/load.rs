//! Loading: the plan of every device is known to the byte and compared with what is free there before anything is made
//! on any of them.
//!
//! Must not know: passes, sequences.

use std::sync::Arc;

use device::Device;
use device::driver::Driver;
use engine_core::Rows;
use sampling::Sampler;

use super::chain::{Chain, Markov};
use super::draws::Answers;
use super::edge::Edge;
use super::split::{Share, check};
use super::stage::{Planned, Stage};
use super::target::{DeviceTarget, Settings};
use crate::batch::Batch;
use crate::error::LoadError;
use crate::layers::Ropes;
use crate::state::StateShape;
use crate::target::{Model, Options};

impl<R: Driver> DeviceTarget<R> {
    /// Plans, allocates and uploads a model. `options.threads` is not used: the host only prepares passes.
    ///
    /// # Errors
    /// `Option`; `NoKernel` and `BadBlocks` with the tensor; `Kernel` for a shape no kernel takes or a device that
    /// fails; `DeviceMemory` with both numbers. Nothing is allocated before the plan is known to fit.
    pub fn new(
        model: Arc<Model>,
        options: Options,
        device: &Device<R>,
        settings: Settings<'_>,
    ) -> Result<Self, LoadError> {
        Self::with_chains(model, options, None, device, settings)
    }

    /// [`Self::new`] with the matrices of a drafter's chains beside the model's weights, so that they are drawn here.
    ///
    /// # Errors
    /// As [`Self::new`]; also `Option` for matrices of another vocabulary.
    pub fn with_chains(
        model: Arc<Model>,
        options: Options,
        markov: Option<Markov<'_>>,
        device: &Device<R>,
        settings: Settings<'_>,
    ) -> Result<Self, LoadError> {
        let (device, layers) = (device.clone(), 0..model.meta.n_layer);
        let whole = [Share { device, layers }];
        Self::split(model, options, markov, &whole, settings)
    }

    /// [`Self::with_chains`] with the layers shared by several devices of one runtime ([`super::equal_shares`]): the
    /// embedding table on the first, the output matrix and the matrices of chains on the last.
    ///
    /// # Errors
    /// As [`Self::with_chains`]; also `Split`. Nothing is allocated on any device before the plans of all fit.
    pub fn split(
        model: Arc<Model>,
        options: Options,
        markov: Option<Markov<'_>>,
        shares: &[Share<R>],
        settings: Settings<'_>,
    ) -> Result<Self, LoadError> {
        options.check(&model.meta)?;
        check(shares, model.meta.n_layer)?;
        let (stages, chain) = placed(&model, &options, markov, shares, settings)?;
        let m = &model.meta;
        Ok(Self {
            info: options.info(&model),
            ropes: Ropes::new(m),
            sampler: Sampler::new(m.n_vocab),
            seqs: vec![None; options.n_seq_max],
            shape: StateShape::new(m, options.n_ctx, options.verify_max, options.kv_sim),
            stages,
            chain,
            batch: Batch::default(),
            rows: Rows::default(),
            answers: Answers::new(m.n_vocab),
            inputs: Vec::new(),
            in_flight: None,
            passes: 0,
            options,
            model,
        })
    }
}

/// The stages with everything on their devices, and the chain on the last one's.
type Placed<R> = (Vec<Stage<R>>, Option<Chain<R>>);

fn placed<R: Driver>(
    model: &Model,
    options: &Options,
    markov: Option<Markov<'_>>,
    shares: &[Share<R>],
    settings: Settings<'_>,
) -> Result<Placed<R>, LoadError> {
    let m = &model.meta;
    let graph_tokens = settings.graph_tokens;
    let planned = shares.iter().map(|share| {
        let cache = settings.cache.as_ref().map(device::cache::Cache::again);
        let (device, layers) = (&share.device, &share.layers);
        Planned::new(model, options, device, layers, cache, graph_tokens)
    });
    let mut planned = planned.collect::<Result<Vec<_>, _>>()?;
    let chain = match (markov, planned.last_mut()) {
        (Some(markov), Some(last)) => {
            let (plan, scratch) = (&mut last.plan, &mut last.stage.scratch);
            Some(Chain::new(m, markov, plan, scratch, graph_tokens)?)
        }
        _ => None,
    };
    for stage in &mut planned {
        stage.try_shapes(m, options)?;
    }
    if let (Some(chain), Some(Planned { stage, .. })) = (&chain, planned.last_mut())
        && let Some(tail) = &stage.weights.tail
    {
        chain.try_shapes(&mut stage.gpu, &tail.head, &stage.scratch)?;
    }
    planned.iter().try_for_each(Planned::fits)?;
    for stage in &mut planned {
        stage.stage.gpu.compile()?;
    }
    for stage in &mut planned {
        stage.allocate()?;
    }
    send(&mut planned, settings)?;
    let mut stages: Vec<Stage<R>> = planned.into_iter().map(|p| p.stage).collect();
    join(&mut stages)?;
    Ok((stages, chain))
}

/// Sends all weights, one device after the other.
fn send<R: Driver>(
    planned: &mut [Planned<'_, R>],
    settings: Settings<'_>,
) -> Result<(), LoadError> {
    let total = planned.iter().map(|p| p.plan.bytes()).sum();
    let mut before = 0;
    for stage in planned {
        let bytes = stage.plan.bytes();
        let told = &mut |done| (settings.progress)(before + done, total);
        stage.upload(settings.check, told)?;
        before += bytes;
    }
    Ok(())
}

/// Looks for the way from each stage to the next.
fn join<R: Driver>(stages: &mut [Stage<R>]) -> Result<(), LoadError> {
    for at in 1..stages.len() {
        let (from, to) = (stages[at - 1].gpu.device(), stages[at].gpu.device());
        stages[at].edge = Some(Edge::open(from, to)?);
    }
    Ok(())
}
