//! HIP: AMD's runtime and hipRTC, found at run time through a table of our own.
//!
//! Nothing of ROCm is needed to build. Function types and numbers are in `table` and `abi`, each with
//! the place it was read from; `calls` uses them, `reach` those that may be missing. No AMD hardware has executed this yet: what is
//! known is that the table loads and that its calls follow the header.

mod abi;
mod calls;
mod reach;
mod rtc;
mod search;
mod table;

use std::path::PathBuf;

use crate::fault::Absent;
use crate::runtime::Runtime;
pub use calls::Hip;

/// Where to look. A file that is given is the only one tried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The HIP runtime's file.
    pub hip: Option<PathBuf>,
    /// hipRTC's file.
    pub hiprtc: Option<PathBuf>,
}

/// The driver, if it is here and has a device.
///
/// # Errors
/// What is missing, and why.
pub fn driver(settings: &Settings) -> Result<Hip, Absent> {
    Hip::start(settings)
}

/// The runtime, if it is here and has a device.
///
/// # Errors
/// What is missing, and why.
pub fn runtime(settings: &Settings) -> Result<Runtime<Hip>, Absent> {
    driver(settings).map(Runtime::new)
}
