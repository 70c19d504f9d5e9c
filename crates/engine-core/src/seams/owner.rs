//! Expert owners: devices that hold some of a layer's routed experts.

use crate::fault::Fault;
use crate::ids::{ExpertId, LayerId};

/// One route of one row. Slot order is the canonical order of the routed sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RouteSlot {
    /// The expert.
    pub expert: ExpertId,
    /// Its weight, applied before the down projection.
    pub weight: f32,
}

/// Completion of work on one device. Between vendors a fence is a host wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fence(pub u64);

/// A device that computes the routed experts it owns.
pub trait Owner {
    /// Which experts of a layer this owner holds.
    fn owns(&self, layer: LayerId, expert: ExpertId) -> bool;

    /// Computes owned routes after `after` completed. `x` `[n, n_embd]` f32, `routes`
    /// `[n, n_used]`, `slots` `[n, n_used, n_embd]` f32: foreign slots receive exact +0, so that
    /// the sum over owners in slot order has the bits of a single owner.
    ///
    /// # Errors
    /// `Lost`.
    fn submit(
        &mut self,
        layer: LayerId,
        x: &[f32],
        routes: &[RouteSlot],
        slots: &mut [f32],
        after: Fence,
    ) -> Result<Fence, Fault>;

    /// Waits for a fence.
    ///
    /// # Errors
    /// `Lost`.
    fn wait(&mut self, fence: Fence) -> Result<(), Fault>;
}
