//! CUDA: the driver's library and NVRTC, found at run time through `cudarc`.
//!
//! `cudarc` panics at a missing library or symbol, so every name this module calls is asked for first;
//! what is missing is an [`Absent`]. All calls are in `calls`; NVRTC's in `nvrtc`; when kernels
//! may start before the one ahead has ended is in `early`; what not every driver has in
//! `reach`.

mod calls;
mod early;
mod nvrtc;
mod probe;
mod reach;

use std::path::PathBuf;

use crate::fault::Absent;
use crate::runtime::Runtime;
pub use calls::Cuda;

/// Where to look.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// NVRTC's file. If given and wrong, there is no compiler; otherwise the system's search decides.
    pub nvrtc: Option<PathBuf>,
}

/// The driver, if it is here and has a device.
///
/// # Errors
/// What is missing, and why.
pub fn driver(settings: &Settings) -> Result<Cuda, Absent> {
    probe::driver()?;
    Cuda::start(nvrtc::probe(settings.nvrtc.as_deref()))
}

/// The runtime, if it is here and has a device.
///
/// # Errors
/// What is missing, and why.
pub fn runtime(settings: &Settings) -> Result<Runtime<Cuda>, Absent> {
    driver(settings).map(Runtime::new)
}
