//! What can go wrong between a path and an answer.

use std::path::PathBuf;

use scheduler::{Failure, ParkError, SubmitError, UnparkError};

/// A refusal or failure. The sources say which file, tensor, key or value.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file is not a sound GGUF file.
    #[error(transparent)]
    File(#[from] gguf::Error),
    /// The file is sound, but not a model this engine runs.
    #[error(transparent)]
    Model(#[from] ds4_target::LoadError),
    /// The runtime of the device asked for is not here.
    #[error("the device asked for: {0}")]
    Absent(#[from] device::Absent),
    /// The device asked for cannot be opened.
    #[error(transparent)]
    Device(#[from] device::Fault),
    /// The folder of compiled images cannot be used.
    #[error(transparent)]
    Images(#[from] device::cache::CacheError),
    /// The drafter's file is not a drafter this engine runs, or does not fit the model.
    #[error(transparent)]
    Draft(#[from] dspark_draft::error::DraftError),
    /// A draft worker is required, or its transport was named, and cannot be.
    #[error(transparent)]
    Worker(#[from] ipc_transport::error::StartError),
    /// The file's tokenizer or prompt format is not one this engine knows.
    #[error("{file}: {source}")]
    Text {
        /// The file.
        file: String,
        /// What is wrong.
        source: text::TextError,
    },
    /// The prompt could not be made from the request.
    #[error(transparent)]
    Prompt(#[from] text::TextError),
    /// The model is not given up.
    #[error("the model stays loaded: {0}")]
    Park(#[from] ParkError),
    /// A model that was given up is not loaded.
    #[error(transparent)]
    Unpark(#[from] UnparkError),
    /// The file is not the one that was loaded before.
    #[error("{file} has changed since it was loaded: {field}: expected {expected}, got {got}")]
    Changed {
        /// The file.
        file: String,
        /// What differs.
        field: &'static str,
        /// As it was.
        expected: String,
        /// As it is.
        got: String,
    },
    /// The request was refused.
    #[error(transparent)]
    Refused(#[from] SubmitError),
    /// The answer ended early by a fault.
    #[error("the answer was cut off: {0}")]
    Failed(#[from] Failure),
    /// No model ships with this build, or it cannot be found.
    #[error("no shipped model found; looked at {}", list(.looked))]
    NoShippedModel {
        /// Where it could have been.
        looked: Vec<PathBuf>,
    },
    /// Made-up weights have no tokenizer of their own.
    #[error(
        "{model}: made-up weights have no tokenizer, and the shipped model's has {shipped} tokens instead of {tokens}: \
         such a model can be measured, not asked"
    )]
    NoTokenizer {
        /// The model.
        model: String,
        /// Tokens of its vocabulary.
        tokens: usize,
        /// Tokens of the shipped model's.
        shipped: usize,
    },
    /// The processor lacks the vector instructions asked for, or there are none of that name.
    #[error("cpu.isa = {got}: this processor has auto, {}", .expected.join(", "))]
    NoSuchIsa {
        /// What was asked for.
        got: String,
        /// What there is.
        expected: Vec<&'static str>,
    },
    /// The system refused a thread.
    #[error("cannot start the engine's thread: {0}")]
    Thread(#[source] std::io::Error),
}

fn list(paths: &[PathBuf]) -> String {
    let shown: Vec<String> = paths.iter().map(|p| p.display().to_string()).collect();
    shown.join(", ")
}
