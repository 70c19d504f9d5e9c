//! The crate's error type.

use std::path::PathBuf;

/// What can be wrong with a model, a configuration or a run given to the test kit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A tensor the configuration requires is absent.
    #[error("tensor {name} is missing")]
    MissingTensor {
        /// Canonical name.
        name: String,
    },
    /// A tensor the configuration has no place for.
    #[error("tensor {name} is not part of this model")]
    UnknownTensor {
        /// Name as found.
        name: String,
    },
    /// A tensor has another shape than the configuration requires.
    #[error("tensor {name}: expected shape {expected:?}, got {got:?}")]
    Shape {
        /// Canonical name.
        name: String,
        /// Slowest dimension first.
        expected: Vec<usize>,
        /// Slowest dimension first.
        got: Vec<usize>,
    },
    /// A tensor is stored in a type the loader does not read.
    #[error("tensor {name}: stored as {got}, expected F32, F16, BF16, U8, I32 or I64")]
    Dtype {
        /// Name as found.
        name: String,
        /// The type found.
        got: String,
    },
    /// A configuration value is absent, of the wrong type or contradicts another.
    #[error("configuration: {key}: {why}")]
    Config {
        /// The key.
        key: &'static str,
        /// What is wrong.
        why: String,
    },
    /// A token id outside the vocabulary.
    #[error("token {token} at position {pos}: the vocabulary has {n_vocab} ids")]
    Token {
        /// Its position.
        pos: usize,
        /// The id.
        token: u32,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// An expert id of a hash table outside the model.
    #[error("tensor {name}: token {token}: expert id {got} outside 0..{n_expert}")]
    ExpertId {
        /// Canonical name of the table.
        name: String,
        /// Row of the table.
        token: u32,
        /// The value found.
        got: f32,
        /// Number of experts.
        n_expert: usize,
    },
    /// A row index beyond the run.
    #[error("row {row} of {rows}")]
    Row {
        /// The index.
        row: usize,
        /// Rows there are.
        rows: usize,
    },
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A safetensors file could not be parsed.
    #[error("{path}: {source}")]
    SafeTensors {
        /// The file.
        path: PathBuf,
        /// Why.
        source: safetensors::SafeTensorError,
    },
    /// A JSON file could not be parsed.
    #[error("{path}: {source}")]
    Json {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// A value the storage format asked for cannot hold exactly.
    #[error("tensor {name}: element {index}: {value:e} is not exact in {format}")]
    Inexact {
        /// Canonical name.
        name: String,
        /// Which element.
        index: usize,
        /// The value.
        value: f32,
        /// The format.
        format: String,
    },
    /// A GGUF file could not be written.
    #[cfg(feature = "gguf")]
    #[error(transparent)]
    Gguf(#[from] gguf::Error),
}
