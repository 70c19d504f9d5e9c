//! What can be wrong with the parts a tokenizer or a prompt is built from.

use engine_core::TokenId;

/// A refusal. Nothing here is a fault of the engine: each names the part of the input it is about.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// The model file names a pre-tokenizer with other rules than ours.
    #[error("pre-tokenizer {got:?} is not known; known are {known:?}")]
    UnknownPreTokenizer {
        /// The name in the file.
        got: String,
        /// The names this build implements.
        known: &'static [&'static str],
    },
    /// Two lists that run over the vocabulary have different lengths, or the vocabulary is too big.
    #[error("{what}: expected {expected} entries, got {got}")]
    Length {
        /// The list.
        what: &'static str,
        /// Entries it should have.
        expected: usize,
        /// Entries it has.
        got: usize,
    },
    /// Two tokens have the same text.
    #[error("tokens {first} and {second} are both {text:?}")]
    DuplicateToken {
        /// The lower id.
        first: TokenId,
        /// The higher id.
        second: TokenId,
        /// Their text.
        text: String,
    },
    /// No token stands for a byte, so that some text could not be encoded.
    #[error("no token for byte {byte:#04x}")]
    MissingByte {
        /// The byte.
        byte: u8,
    },
    /// A merge that is not two token texts with one space between.
    #[error("merge {index} is {got:?}, expected two tokens and one space")]
    BadMerge {
        /// Its rank.
        index: usize,
        /// Its text.
        got: String,
    },
    /// A merge names or makes a token that is missing, or that ordinary text must never become.
    #[error("merge {index} needs the ordinary token {text:?}, which the vocabulary lacks")]
    MergeToken {
        /// Its rank.
        index: usize,
        /// The token's text.
        text: String,
    },
    /// A special token that the prompt encoding needs is not in the vocabulary.
    #[error("the vocabulary has no special token {text:?}")]
    MissingSpecial {
        /// The token's text.
        text: String,
    },
    /// A token id outside the vocabulary.
    #[error("token {got} is outside the vocabulary of {n_vocab}")]
    BadToken {
        /// The id.
        got: TokenId,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// The schema a reply must follow is not JSON.
    #[error("response format: {0}")]
    BadResponseFormat(#[source] crate::json::JsonError),
}
