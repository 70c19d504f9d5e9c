//! DSML, the markup of tool calls (spec/ds4-architecture.md 8.4): writing the calls of the history
//! and, as a stream, reading those the model makes.

mod write;

pub(crate) use write::write_calls;
