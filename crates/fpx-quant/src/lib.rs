//! Block formats of weights and activations, and their row kernels: pure functions on bytes.
//!
//! Everything else is checked against the scalar reference here. Must not know: GGUF, devices,
//! models, threads (except `rayon` inside the encoder), files.

pub mod block;
pub mod census;
pub mod codec;
pub mod format;
pub mod mix;
pub mod scale;
pub mod validate;

mod fpx;
mod simd;

pub use codec::{EncodeMode, decode_row, decode_row_lossy, encode_rows};
pub use format::{Format, FormatError, Fp2Dialect, Fp6Endpoint};
pub use validate::validate_row_data;
