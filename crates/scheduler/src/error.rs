//! Why a request is refused, and why an accepted one may fail.

use std::sync::Arc;

use dspark_draft::speculate::{AdmitError, Failure as LoopFailure};
use engine_core::{Fault, TokenId};
use sampling::{PlanError, SampleError};

use crate::park::LoadFailure;

/// A refused request: nothing was queued.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The prompt leaves no position for an answer.
    #[error("the prompt has {prompt} tokens, the context holds {limit}")]
    ContextOverflow {
        /// Tokens of the prompt.
        prompt: u64,
        /// Positions of a sequence, the answer's included.
        limit: u64,
    },
    /// The prompt has no tokens: there is nothing to continue.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// No tokens are asked for.
    #[error("at least one token must be asked for, got 0")]
    NothingAsked,
    /// A token of the prompt is outside the vocabulary.
    #[error("token {token} at index {index} of the prompt is outside the vocabulary of {n_vocab}")]
    BadToken {
        /// The id.
        token: TokenId,
        /// Its place in the prompt.
        index: usize,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// The sampling plan is not sound.
    #[error("sampling plan: {0}")]
    Plan(#[from] PlanError),
    /// Too many requests wait already.
    #[error("{limit} requests are waiting already")]
    QueueFull {
        /// The most that may wait.
        limit: usize,
    },
    /// The engine has stopped, or is stopping.
    #[error("the engine has stopped")]
    Stopped,
}

/// What ended a request before its time.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The target refused or lost a pass or a sequence. Shared by all requests it hit.
    #[error("{0}")]
    Target(Arc<Fault>),
    /// No token could be drawn from a row.
    #[error("position {pos}: {error}")]
    Sample {
        /// The position the token would have had.
        pos: u32,
        /// Why.
        error: SampleError,
    },
    /// A row of the pass is no row: it holds NaN, no token exists, or rows are missing.
    #[error("{0}")]
    Row(LoopFailure),
    /// The loop refused a request that had been accepted.
    #[error("{0}")]
    Refused(Arc<AdmitError>),
    /// The model had been given up and could not be loaded again. The next request tries anew.
    #[error("the model could not be loaded: {0}")]
    Load(LoadFailure),
    /// The engine stopped by a fault of its own.
    #[error("the engine stopped unexpectedly")]
    Stopped,
}

impl From<LoopFailure> for Failure {
    fn from(failure: LoopFailure) -> Self {
        match failure {
            LoopFailure::Pass(fault) => Self::Target(fault),
            LoopFailure::Row { pos, error } => Self::Sample { pos, error },
            other => Self::Row(other),
        }
    }
}
