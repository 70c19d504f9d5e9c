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
use super::target::DeviceTarget;

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
        let kernels = self.gpu.kernels.counts();
        let chain = self.chain.as_ref();
        let drafts = chain.map_or(GraphCounts::default(), |c| c.graphs.counts);
        Counts {
            passes: self.passes,
            launches: kernels.launches,
            images: kernels.images,
            graphs: self.graphs.counts.and(drafts),
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
        self.words(self.scratch.routed)
    }

    /// A slot of u64.
    fn words(&self, slot: Slot) -> Result<Vec<u64>, Fault> {
        let bytes = self.gpu.read(slot).map_err(|e| self.lost(&e))?;
        let (words, _) = bytes.as_chunks::<8>();
        Ok(words.iter().map(|w| u64::from_le_bytes(*w)).collect())
    }

    /// Bytes of weights that products read since the start: each matrix of a pass once, of each layer's experts
    /// those that the pass visited. Waits for the device.
    pub(super) fn weight_bytes(&self) -> Result<u64, Fault> {
        let visits = self.words(self.scratch.visits)?;
        let experts = self.model.meta.n_expert as u64;
        let layers = self.weights.layers.iter().zip(visits);
        let routed = layers.map(|(layer, visits)| {
            let stacks = [&layer.moe.gate, &layer.moe.up, &layer.moe.down];
            visits * (stacks.iter().map(|w| w.bytes).sum::<u64>() / experts)
        });
        Ok(self.gpu.read + routed.sum::<u64>())
    }
}

/// Counters begin at 0.
pub(super) fn clear<R: Driver>(gpu: &Gpu<R>, scratch: &Scratch) -> Result<(), KernelError> {
    gpu.fill_slot(scratch.routed, 0)?;
    gpu.fill_slot(scratch.visits, 0)
}
