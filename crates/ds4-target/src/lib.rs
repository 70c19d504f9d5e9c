//! The DeepSeek V4 target, on the CPU ([`CpuTarget`]) and on devices ([`on_device`]): loading, one pass for prefill, decode and verify, and the
//! position-addressed state of many sequences.
//!
//! Must not know: drafters, processes, HTTP, tokenizers, vendors. The layers are usable by a drafter
//! (`layers`), which brings its own keys.

mod batch;
pub mod blocks;
pub mod error;
pub mod fingerprint;
mod gguf_source;
mod layers;
mod linear;
mod made;
pub mod meta;
pub mod on_device;
pub mod pool;
pub mod profile;
pub mod source;
pub mod state;
pub mod synth;
mod target;
pub mod tensor;
pub mod weights;

pub use error::LoadError;
pub use gguf_source::GgufSource;
pub use meta::{Ds4Meta, Ratio};
pub use target::{CpuTarget, Model, Options};
