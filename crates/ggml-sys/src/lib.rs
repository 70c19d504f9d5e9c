//! ggml's type system and GGUF reader, behind safe functions: types this project has no code for,
//! and an oracle for those it has.
//!
//! Separate because it is C++ that takes minutes to build and needs libclang: with the feature
//! `build` off (the default) the crate is empty. See `docs/adr/0003-role-of-ggml.md`. ggml aborts
//! the process on wrong arguments, so every function checks them first. Must not know: this
//! project's formats (`crates/gguf/tests/ggml.rs` compares). Source of everything: ggml 0.26.0 inside `llama-cpp-sys-2` 0.1.161.

#[cfg(feature = "build")]
mod native;

#[cfg(feature = "build")]
pub use native::{
    Error, File, Tensor, block_bytes, block_elems, dequantize_row, needs_weights, quantize_rows,
    type_count, type_name, version,
};
