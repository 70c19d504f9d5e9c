//! What can be wrong with a draft model before it runs. Faults of a running one cross the seams as
//! `engine_core::Fault`. Each variant names the file, the place, and both values.

use ds4_target::LoadError;

/// A refused draft model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DraftError {
    /// Metadata or a tensor is not what a draft model needs.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A tensor that a draft file must not carry.
    #[error("{file}: tensor {tensor}: expected none in a draft file, got one: {why}")]
    Stray {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// Why it is refused.
        why: &'static str,
    },
    /// The draft model belongs to another target.
    #[error("{file}: {what}: expected {expected} (the target's), got {got}")]
    Target {
        /// The file.
        file: String,
        /// The key that disagrees.
        what: String,
        /// What the target has.
        expected: String,
        /// What the file has.
        got: String,
    },
    /// The options ask for something this model cannot do.
    #[error("{option}: expected {expected}, got {got}")]
    Option {
        /// Which option.
        option: &'static str,
        /// What is possible.
        expected: String,
        /// What was asked.
        got: String,
    },
}
