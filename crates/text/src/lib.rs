//! Text on its way in and out of the model: the tokenizer, the prompt encodings, the tool-call
//! markup (DSML) in both directions, and stop strings.
//!
//! Separate because everything here is a pure function of text and tokens. Must not know: model
//! files (the loader hands over plain tokens and merges), models, devices, sockets, request
//! formats. No I/O. Numbers and formats: spec/ds4-architecture.md section 8.

#![forbid(unsafe_code)]

pub mod dsml;
pub mod error;
pub mod json;
pub mod prompt;
pub mod stop;
pub mod tokenizer;

pub use dsml::{Answer, AnswerParser, Event};
pub use error::TextError;
pub use prompt::{Conversation, Generation, Message, Prompt, PromptFormat, Thinking, ToolDef};
pub use stop::StopStrings;
pub use tokenizer::{Decoder, Piece, TokenKind, Tokenizer, TokenizerParts};
