//! Captured work that is launched as one thing.

use std::sync::Arc;

use crate::driver::Driver;
use crate::fault::DeviceId;
use crate::owned::Recorded;

/// A captured graph. It holds every buffer and kernel its operations use; retiring it before a buffer
/// is freed is therefore the only order there is.
#[derive(Debug)]
pub struct Graph<R: Driver>(pub(crate) Arc<Recorded<R>>);

impl<R: Driver> Graph<R> {
    /// Its device.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.0.device.id
    }

    /// How many operations were captured.
    #[must_use]
    pub fn operations(&self) -> usize {
        self.0.operations
    }
}
