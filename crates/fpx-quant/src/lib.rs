//! Block formats of weights and activations, and their row kernels: pure functions on bytes.
//!
//! Everything else is checked against the scalar reference here. Must not know: GGUF, devices,
//! models, threads (except `rayon` inside the encoder), files.

pub mod block;
pub mod format;
pub mod scale;

pub use format::{Format, FormatError, Fp2Dialect, Fp6Endpoint};
