//! The engine's operations: CPU implementations that define the bits, and the GPU sources that
//! equal them (`docs/adr/0001-arithmetic.md`, `0005-one-kernel-source.md`).
//!
//! * [`image`]: the GPU sources as text, ready for NVRTC and hipRTC.
//! * [`launch`]: typed launches (what to call, with which grid, on buffers of which size), checked
//!   before any driver sees them; the same for every runtime.
//! * [`cases`]: inputs, references and the comparison, run on whatever executes launches.
//! * [`cpu`]: the Rust implementations.
//! * [`run`]: launches on the devices of any runtime.
//! * `host` (feature `host-exec`): executes launches on the CPU, with checks no GPU makes.
//!
//! `cargo xtask kernels` compiles the same sources ahead of time and watches their resources.
//!
//! Must not know: models, files, scheduling; only [`run`] knows devices.

pub mod cases;
pub mod cpu;
mod error;
#[cfg(feature = "host-exec")]
pub mod host;
pub mod image;
pub mod launch;
pub mod run;

pub use error::KernelError;
