//! What comes into the loop and what goes out of it.

use std::sync::Arc;

use engine_core::seams::TargetInfo;
use engine_core::{Fault, Pos, Rows, SamplePlan, SeqId, TokenId};
use sampling::{PlanError, SampleError};

/// A text to be continued.
#[derive(Clone, Debug)]
pub struct Request {
    /// The whole prompt, from position 0. Positions that are the sequence's state already (a prefix
    /// that was restored) are not run again.
    pub prompt: Vec<TokenId>,
    /// How tokens are chosen.
    pub plan: Arc<SamplePlan>,
    /// Most tokens to emit.
    pub budget: u32,
    /// Tokens that end the text; the one that does is emitted.
    pub stops: Arc<[TokenId]>,
    /// Tokens that penalties count before any is emitted.
    pub history: Vec<TokenId>,
    /// Whether to draft. Off for what this loop cannot check row by row, such as a grammar.
    pub speculate: bool,
}

impl Request {
    /// A greedy continuation of `prompt` by `budget` tokens.
    #[must_use]
    pub fn greedy(prompt: Vec<TokenId>, budget: u32) -> Self {
        Self {
            prompt,
            plan: Arc::new(SamplePlan::greedy()),
            budget,
            stops: Arc::from([]),
            history: Vec::new(),
            speculate: true,
        }
    }
}

/// Why a request is not taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdmitError {
    /// Nothing to continue.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// Nothing to do.
    #[error("no token may be emitted: the budget is 0")]
    NoBudget,
    /// The prompt does not fit.
    #[error("a prompt of {got} tokens, the context holds {expected}")]
    TooLong {
        /// Positions available.
        expected: u64,
        /// Tokens of the prompt.
        got: u64,
    },
    /// The prompt's last token must be run to give a row.
    #[error("sequence {seq} stands at position {got}, the prompt has {expected} tokens")]
    AheadOfPrompt {
        /// The sequence.
        seq: SeqId,
        /// Tokens of the prompt; the sequence must stand below.
        expected: u64,
        /// Where it stands.
        got: Pos,
    },
    /// The sequence runs already.
    #[error("sequence {0} is in the loop already")]
    Running(SeqId),
    /// A token id is outside the vocabulary. One of these would fail the pass of all.
    #[error("token {got} at index {index} of the prompt, the vocabulary has {expected}")]
    BadToken {
        /// Its place.
        index: usize,
        /// The id.
        got: TokenId,
        /// Size of the vocabulary.
        expected: usize,
    },
    /// The plan is not sound.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The target does not know the sequence.
    #[error(transparent)]
    Target(#[from] Fault),
}

/// A token that became text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emitted {
    /// The sequence.
    pub seq: SeqId,
    /// The token.
    pub token: TokenId,
    /// Its place among the emitted ones, from 0.
    pub index: u32,
    /// Whether it is one of the request's stops: the last token, whatever the receiver answers.
    pub stop: bool,
}

/// What the receiver of a token wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// More.
    Go,
    /// No more: a stop string is complete, a form is closed.
    Stop,
    /// No more, and nobody listens.
    Cancel,
}

/// The caller's side of a step.
pub trait Sink {
    /// A token became text. Called in order, before the step commits; the answer ends the text at this
    /// very token.
    fn token(&mut self, emitted: Emitted) -> Flow;

    /// Whether nobody waits for this sequence any more. Asked before drafting, before the pass and
    /// after it.
    fn is_cancelled(&mut self, _seq: SeqId) -> bool {
        false
    }

    /// The pass held rider `index`: its rows are those of span `span`.
    fn ride(&mut self, _index: usize, _rows: &Rows, _span: usize) {}
}

/// What went wrong for a sequence.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// The pass failed.
    #[error("the pass failed: {0}")]
    Pass(Arc<Fault>),
    /// A row gives no token.
    #[error("no token at position {pos}: {error}")]
    Row {
        /// The position the token would have had.
        pos: Pos,
        /// Why.
        error: SampleError,
    },
    /// A row holds NaN: something below is broken, and an argmax would hide it.
    #[error("the logit of token {token} for position {pos} is not a number")]
    NotANumber {
        /// The position the token would have had.
        pos: Pos,
        /// The first such logit.
        token: TokenId,
    },
    /// The target drew a token that does not exist: its way to say that a row has none.
    #[error("the target drew token {got} for position {pos}, the vocabulary has {expected}")]
    NoToken {
        /// The position.
        pos: Pos,
        /// Size of the vocabulary.
        expected: usize,
        /// What it drew.
        got: TokenId,
    },
    /// The pass gave another number of rows than asked.
    #[error("a span of {expected} rows gave {got}")]
    Rows {
        /// Rows asked for.
        expected: usize,
        /// Rows received.
        got: usize,
    },
}

/// Why a text ended.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Reason {
    /// This stop token.
    Stop(TokenId),
    /// The receiver had enough.
    Satisfied,
    /// The budget is used up.
    Length,
    /// The context is full.
    Context,
    /// Nobody listens.
    Cancelled,
    /// A fault; everything emitted before it stands.
    Failed(Failure),
}

/// A sequence's own counts, as a usage report shows them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens emitted.
    pub emitted: u32,
    /// Verified spans.
    pub steps: u32,
    /// Candidates verified.
    pub offered: u32,
    /// Candidates emitted.
    pub matched: u32,
    /// Whether a draft was asked for.
    pub drafted: bool,
}

/// A sequence that has ended. Target and drafter still hold it: the caller saves or closes it there.
#[derive(Debug)]
pub struct Finished {
    /// The sequence.
    pub seq: SeqId,
    /// Why.
    pub reason: Reason,
    /// The committed position: what plain decoding would have left, all but the last emitted token.
    pub pos: Pos,
    /// The text: emitted tokens.
    pub tokens: Vec<TokenId>,
    /// Its counts.
    pub usage: Usage,
}

/// Whether a request can run on a sequence that stands at `pos`.
pub(super) fn check(
    request: &Request,
    seq: SeqId,
    pos: Pos,
    info: &TargetInfo,
) -> Result<(), AdmitError> {
    let n = request.prompt.len() as u64;
    if n == 0 {
        return Err(AdmitError::EmptyPrompt);
    }
    if request.budget == 0 {
        return Err(AdmitError::NoBudget);
    }
    if n > info.n_ctx {
        let expected = info.n_ctx;
        return Err(AdmitError::TooLong { expected, got: n });
    }
    if u64::from(pos) >= n {
        return Err(AdmitError::AheadOfPrompt {
            seq,
            expected: n,
            got: pos,
        });
    }
    let bad = |t: &TokenId| *t as usize >= info.n_vocab;
    if let Some(index) = request.prompt.iter().position(bad) {
        return Err(AdmitError::BadToken {
            index,
            got: request.prompt[index],
            expected: info.n_vocab,
        });
    }
    sampling::validate(&request.plan, info.n_vocab)?;
    Ok(())
}
