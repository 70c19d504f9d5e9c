//! Faults a seam may answer with. A fault names the expectation and both values.

use crate::ids::{Pos, SeqId, TokenId};

/// Why a call across a seam was refused or failed. State is unchanged unless a variant says so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The sequence is not open.
    #[error("sequence {0} is not open")]
    NoSuchSequence(SeqId),
    /// A span does not start where the sequence stands.
    #[error("span of sequence {seq} starts at position {got}, the sequence stands at {expected}")]
    WrongPosition {
        /// The sequence.
        seq: SeqId,
        /// Where it stands.
        expected: Pos,
        /// Where the span starts.
        got: Pos,
    },
    /// One pass names a sequence twice.
    #[error("sequence {0} has two spans in one pass")]
    DuplicateSpan(SeqId),
    /// A span is empty or reaches outside the token array.
    #[error("span of sequence {seq} covers tokens {start}..{end} of {len}")]
    BadRange {
        /// The sequence.
        seq: SeqId,
        /// First token.
        start: usize,
        /// One past the last token.
        end: usize,
        /// Tokens given.
        len: usize,
    },
    /// A token id is outside the vocabulary.
    #[error("token {token} at index {index} is outside the vocabulary of {n_vocab}")]
    BadToken {
        /// The id.
        token: TokenId,
        /// Its place in the token array.
        index: usize,
        /// Vocabulary size.
        n_vocab: usize,
    },
    /// The context is full.
    #[error("sequence {seq} would reach position {wanted}, the context holds {limit}")]
    ContextFull {
        /// The sequence.
        seq: SeqId,
        /// Position after the span.
        wanted: u64,
        /// Positions available.
        limit: u64,
    },
    /// No sequence slot or row is left.
    #[error("{what}: {wanted} wanted, {limit} available")]
    Exhausted {
        /// What ran out.
        what: &'static str,
        /// How many were wanted.
        wanted: u64,
        /// How many there are.
        limit: u64,
    },
    /// A capability this implementation does not have.
    #[error("{0} is not supported here")]
    Unsupported(&'static str),
    /// Saved state does not fit this target or is damaged.
    #[error("saved state: {field}: expected {expected}, got {got}")]
    BadState {
        /// Which field.
        field: &'static str,
        /// What was expected.
        expected: String,
        /// What was found.
        got: String,
    },
    /// Reading or writing saved state failed.
    #[error("saved state: {0}")]
    Io(#[from] std::io::Error),
    /// The ticket is unknown, or was waited for already.
    #[error("ticket {0} is not in flight")]
    NoSuchTicket(u64),
    /// The deadline passed; the work may still complete and the ticket stays valid.
    #[error("deadline passed")]
    Deadline,
    /// A device or worker failed; sequences it held are lost.
    #[error("{what} failed: {why}")]
    Lost {
        /// The device or worker.
        what: String,
        /// Its own words.
        why: String,
    },
}
