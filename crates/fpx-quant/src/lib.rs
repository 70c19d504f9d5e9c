//! Block formats of weights and activations, and their row kernels: pure functions on bytes.
//!
//! Everything else is checked against the scalar reference here. Must not know: GGUF, devices,
//! models, threads (except `rayon` inside the encoder), files.

pub mod a8;
pub mod block;
pub mod census;
pub mod codec;
pub mod format;
pub mod mix;
pub mod native;
pub mod rows;
pub mod scale;
pub mod validate;

mod fpx;
mod simd;

pub use a8::{A8Block, A8Row, A8Rows, A8Writer};
pub use codec::{EncodeMode, decode_row, decode_row_lossy, encode_rows};
pub use format::{Format, FormatError, Fp2Dialect, Fp6Endpoint};
pub use rows::{Isa, Matrix, Out, OutQueue, dot_row_a8, dot_row_f32, matmul_a8, matmul_f32};
pub use validate::validate_row_data;
