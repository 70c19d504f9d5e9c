//! From a conversation to a prompt, in the format the model was trained with
//! (spec/ds4-architecture.md 8.2 to 8.4). The published encoders of both generations are the
//! reference; `tests/data/prompts` holds what they give. Three departures, each on purpose:
//!
//! - Nothing that came from outside can become a special token, whatever it spells.
//! - System messages after the first are joined to it by blank lines instead of standing unseparated
//!   where they were sent.
//! - A conversation of system messages alone still ends with an opening for the model's turn.

mod build;
mod effort;
pub(crate) mod markers;
mod message;
mod render;
mod tools;
mod turns;

pub(crate) use build::Builder;
pub use build::Prompt;
pub use effort::{Effort, Generation, Thinking};
pub use message::{Assistant, Block, Conversation, Message, Part, Task, ToolCall, ToolResult};
pub use render::PromptFormat;
pub use tools::ToolDef;
