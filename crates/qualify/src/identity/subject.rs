//! A target under test: the seam, and what arms ask of a target beside it.
//!
//! Must not know: arms, what is compared.

use std::sync::Arc;

use device::driver::Driver;
use ds4_target::CpuTarget;
use ds4_target::on_device::{Counts, DeviceTarget};
use ds4_target::pool::Pool;
use engine_core::{Fault, SeqId, Target};

use super::arm::Place;

/// What arms need of a target.
pub(crate) trait Subject: Target {
    /// The digest of a sequence's saved rows.
    fn digest(&self, seq: SeqId) -> Result<[u8; 32], Fault>;

    /// Fills all rows of a sequence that are not state with NaN patterns.
    fn poison_stale(&mut self, seq: SeqId) -> Result<(), Fault>;

    /// What a device did; `None` on the processor.
    fn counts(&self) -> Option<Counts>;
}

impl Subject for CpuTarget {
    fn digest(&self, seq: SeqId) -> Result<[u8; 32], Fault> {
        Self::digest(self, seq)
    }

    fn poison_stale(&mut self, seq: SeqId) -> Result<(), Fault> {
        Self::poison_stale(self, seq)
    }

    fn counts(&self) -> Option<Counts> {
        None
    }
}

impl<R: Driver> Subject for DeviceTarget<R> {
    fn digest(&self, seq: SeqId) -> Result<[u8; 32], Fault> {
        Self::digest(self, seq)
    }

    fn poison_stale(&mut self, seq: SeqId) -> Result<(), Fault> {
        Self::poison_stale(self, seq)
    }

    fn counts(&self) -> Option<Counts> {
        Some(Self::counts(self))
    }
}

/// A target in its place, and the host's threads beside it.
pub(crate) struct Seat {
    /// The target.
    pub(crate) target: Box<dyn Subject>,
    /// The threads that a drafter in this process runs on.
    pub(crate) pool: Arc<Pool>,
    /// Where the target is.
    pub(crate) place: Place,
}
