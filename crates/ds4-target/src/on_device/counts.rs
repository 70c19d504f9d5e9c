//! What a target on a device counted: on the host by what it launched, on the device by what routing chose.
//!
//! Must not know: how a pass is run.

use device::driver::Driver;
use ds4_kernels::KernelError;
use engine_core::Fault;

use super::arena::Slot;
use super::gpu::Gpu;
use super::graphs::GraphCounts;
use super::scratch::Scratch;
use super::stage::Stage;
use super::target::{DeviceTarget, lost};

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Passes.
    pub passes: u64,
    /// Launches of kernels, those captured counted once.
    pub launches: u64,
    /// Images loaded.
    pub images: u64,
    /// Graphs.
    pub graphs: GraphCounts,
    /// Times a part's streams went straight from one device's memory to the next one's.
    pub straight: u64,
    /// Times they went through the host, as these devices do not reach each other.
    pub staged: u64,
    /// Rows that were drawn on the device.
    pub device_draws: u64,
    /// Rows that wanted a token only and were drawn on the host: their plan has a bias.
    pub host_draws: u64,
    /// Candidates of chains that were drawn on the device.
    pub device_chains: u64,
    /// Candidates of chains that were left to the host although the matrices of a chain are here: their plan has a bias
    /// or penalties.
    pub host_chains: u64,
}

impl<R: Driver> DeviceTarget<R> {
    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let launched = self.stages.iter().map(|s| s.gpu.kernels.counts());
        let (launches, images) = launched.fold((0, 0), |(l, i), k| (l + k.launches, i + k.images));
        let graphs = self.stages.iter().map(|s| s.graphs.counts);
        let edges = self.stages.iter().filter_map(|s| s.edge.as_ref());
        let (straight, staged) = edges.fold((0, 0), |(a, b), e| {
            (a + e.counts.straight, b + e.counts.staged)
        });
        let chain = self.chain.as_ref();
        let drafts = chain.map_or(GraphCounts::default(), |c| c.graphs.counts);
        Counts {
            passes: self.passes,
            launches,
            images,
            graphs: graphs.fold(drafts, GraphCounts::and),
            straight,
            staged,
            device_draws: self.answers.draws.drawn,
            host_draws: self.answers.draws.fallbacks,
            device_chains: chain.map_or(0, |c| c.drawn),
            host_chains: chain.map_or(0, |c| c.fallbacks),
        }
    }

    /// How often each expert was chosen since the start, all layers together; `[n_expert]`.
    ///
    /// # Errors
    /// `Lost`.
    pub fn routed(&self) -> Result<Vec<u64>, Fault> {
        let mut sum = vec![0; self.model.meta.n_expert];
        for stage in &self.stages {
            let here = words(stage, stage.scratch.routed)?;
            sum.iter_mut().zip(here).for_each(|(a, b)| *a += b);
        }
        Ok(sum)
    }

    /// Bytes of weights that products read since the start: each matrix of a pass once, of each layer's experts
    /// those that the pass visited. Waits for the devices.
    pub(super) fn weight_bytes(&self) -> Result<u64, Fault> {
        let experts = self.model.meta.n_expert as u64;
        let mut sum = 0;
        for stage in &self.stages {
            let visits = words(stage, stage.scratch.visits)?;
            let layers = stage.weights.layers.iter().zip(visits);
            let routed = layers.map(|(layer, visits)| {
                let stacks = [&layer.moe.gate, &layer.moe.up, &layer.moe.down];
                visits * (stacks.iter().map(|w| w.bytes).sum::<u64>() / experts)
            });
            sum += stage.gpu.read + routed.sum::<u64>();
        }
        Ok(sum)
    }
}

/// A slot of u64.
fn words<R: Driver>(stage: &Stage<R>, slot: Slot) -> Result<Vec<u64>, Fault> {
    let bytes = stage.gpu.read(slot).map_err(|e| lost(&stage.gpu, &e))?;
    let (words, _) = bytes.as_chunks::<8>();
    Ok(words.iter().map(|w| u64::from_le_bytes(*w)).collect())
}

/// Counters begin at 0.
pub(super) fn clear<R: Driver>(gpu: &Gpu<R>, scratch: &Scratch) -> Result<(), KernelError> {
    gpu.fill_slot(scratch.routed, 0)?;
    gpu.fill_slot(scratch.visits, 0)
}
