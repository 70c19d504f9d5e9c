//! Launches on devices: a [`Call`] bound to memory of a runtime and put on one of its streams.
//!
//! * [`Kernels`]: the kernels of one device, compiled or found by name once.
//! * [`Runner`]: the case lists ([`crate::cases`]) on any runtime.
//! * `module` (feature `host-exec`): the host build of the kernels as the image of the CPU and of the
//!   fake device.
//!
//! Must not know: models, layers, when something is launched.

mod kernels;
#[cfg(feature = "host-exec")]
pub mod module;
mod runner;

pub use kernels::{Counts, Kernels};
pub use runner::Runner;

#[cfg(doc)]
use crate::launch::Call;
