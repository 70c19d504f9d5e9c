//! Why a tool refused. Every variant names the file, the key or tensor, and both values.

use std::path::{Path, PathBuf};

use fpx_quant::{Format, FormatError};

/// A refusal. Outputs are never left half written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolError {
    /// A file cannot be read or written.
    #[error("{}: {what}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A GGUF file was refused.
    #[error(transparent)]
    Gguf(#[from] gguf::Error),
    /// A model was refused by the loader.
    #[error(transparent)]
    Load(#[from] ds4_target::LoadError),
    /// A pass failed.
    #[error(transparent)]
    Fault(#[from] engine_core::Fault),
    /// A safetensors file is damaged.
    #[error("{}: {source}", path.display())]
    Shard {
        /// The file.
        path: PathBuf,
        /// What its parser says.
        source: safetensors::SafeTensorError,
    },
    /// A JSON file is damaged.
    #[error("{}: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What its parser says.
        source: serde_json::Error,
    },
    /// A key of a JSON or GGUF file is missing or holds something else.
    #[error("{}: {key}: expected {expected}, got {got}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// What was expected.
        expected: String,
        /// What was found.
        got: String,
    },
    /// A tensor the model needs is absent.
    #[error("{}: no tensor for {slot}: none of {names:?}", path.display())]
    MissingTensor {
        /// The file or folder.
        path: PathBuf,
        /// The tensor's name in GGUF.
        slot: String,
        /// The names looked for.
        names: Vec<String>,
    },
    /// Tensors that have no place in the model.
    #[error("{}: {count} tensors without a place in the model, first {tensor}", path.display())]
    ExtraTensor {
        /// The file of the first one.
        path: PathBuf,
        /// The first one.
        tensor: String,
        /// How many.
        count: usize,
    },
    /// A tensor of another shape.
    #[error("{}: {tensor}: expected shape {expected:?}, got {got:?} (slowest dimension first)", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Slowest dimension first.
        expected: Vec<u64>,
        /// What the file holds.
        got: Vec<u64>,
    },
    /// A tensor stored in a way that is not read here.
    #[error("{}: {tensor}: expected {expected}, got {got}", path.display())]
    Storage {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// What is read.
        expected: String,
        /// What was found.
        got: String,
    },
    /// An element that cannot be used.
    #[error("{}: {tensor}: element {index}: expected {expected}, got {got}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// Index of the element in the tensor.
        index: u64,
        /// What was expected.
        expected: String,
        /// What was found.
        got: String,
    },
    /// A recipe that cannot be read.
    #[error("recipe: {item:?}: expected {expected}, got {got}")]
    Recipe {
        /// The part of the recipe.
        item: String,
        /// What was expected.
        expected: String,
        /// What was found.
        got: String,
    },
    /// A recipe that gives a role a format it must not have.
    #[error("recipe: {role} = {format}: {why}")]
    RoleFormat {
        /// The role.
        role: String,
        /// The format.
        format: Format,
        /// Why not.
        why: &'static str,
    },
    /// A tensor's rows do not fit the recipe's format and the recipe names no fallback.
    #[error("{tensor} ({role}): {source}; name a fallback in the recipe ({role}={format}|OTHER)")]
    NoFallback {
        /// The tensor.
        tensor: String,
        /// Its role.
        role: String,
        /// The recipe's format.
        format: Format,
        /// Why it does not fit.
        source: Box<FormatError>,
    },
    /// A tensor could not be encoded or decoded.
    #[error("{tensor}: {source}")]
    Format {
        /// The tensor.
        tensor: String,
        /// Why.
        source: FormatError,
    },
    /// A token list that cannot be scored.
    #[error("{what}: expected {expected}, got {got}")]
    Tokens {
        /// What is wrong.
        what: &'static str,
        /// What was expected.
        expected: String,
        /// What was given.
        got: String,
    },
    /// The caller's progress asked to stop.
    #[error("stopped by the caller")]
    Stopped,
}

impl ToolError {
    /// An `Io` error of `path`.
    pub(crate) fn io(path: &Path, what: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io {
            path: path.to_path_buf(),
            what,
            source,
        }
    }

    /// A `Key` error.
    pub(crate) fn key(
        path: &Path,
        key: impl Into<String>,
        expected: impl Into<String>,
        got: impl ToString,
    ) -> Self {
        Self::Key {
            path: path.to_path_buf(),
            key: key.into(),
            expected: expected.into(),
            got: got.to_string(),
        }
    }
}
