//! DSML, the markup of tool calls (spec/ds4-architecture.md 8.4): writing the calls of the history
//! and, as a stream, reading those the model makes.

mod call;
mod event;
mod lead;
mod parser;
mod structure;
mod tag;
mod write;

pub use event::{Answer, Call, End, Event, Finish, Summary};
pub use parser::{AnswerParser, Phase};
pub(crate) use write::write_calls;
