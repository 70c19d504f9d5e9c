//! A conversation as the prompt encodings see it: rich enough for the OpenAI and Anthropic forms,
//! free of either's spelling. The API layer translates into this.

use std::sync::Arc;

use engine_core::TokenId;

use super::effort::Thinking;
use super::tools::ToolDef;

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Instructions. All system messages, wherever they stand, are joined by blank lines and open
    /// the prompt.
    System(String),
    /// Instructions in a turn of their own, like a user's. In thinking mode without tools they are
    /// left out once a later user turn exists. APIs whose `developer` means `system` say `System`.
    Developer(String),
    /// A user's turn. Neighbouring user and tool messages become one turn.
    User {
        /// Texts and tool results in order, joined by blank lines.
        blocks: Vec<Block>,
        /// A classification to answer with instead of a reply.
        task: Option<Task>,
    },
    /// The result of one tool call.
    Tool(ToolResult),
    /// A turn of the model.
    Assistant(Assistant),
    /// A reminder outside the turns.
    LatestReminder(String),
}

impl Message {
    /// A user's turn of one text.
    #[must_use]
    pub fn user(text: impl Into<String>) -> Self {
        Self::User {
            blocks: vec![Block::Text(text.into())],
            task: None,
        }
    }

    /// A turn of the model that is only text.
    #[must_use]
    pub fn assistant(text: impl Into<String>) -> Self {
        Self::Assistant(Assistant {
            text: text.into(),
            ..Assistant::default()
        })
    }
}

/// A part of a user's turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block {
    /// Text.
    Text(String),
    /// A tool result inside a user message (Anthropic's form).
    ToolResult(ToolResult),
    /// Something the model cannot take, named by its type: shown as `[Unsupported TYPE]`.
    Unsupported(String),
}

/// What a tool answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolResult {
    /// Which call it answers; decides its place among results.
    pub call_id: String,
    /// Its text; several texts are joined by blank lines, other parts are named.
    pub content: Vec<Part>,
}

impl ToolResult {
    /// A result of one text.
    #[must_use]
    pub fn text(call_id: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            call_id: call_id.into(),
            content: vec![Part::Text(text.into())],
        }
    }
}

/// A part of a tool result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Text.
    Text(String),
    /// Something else, by its type.
    Unsupported(String),
}

/// A turn of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assistant {
    /// What it thought; absent and empty are the same.
    pub reasoning: Option<String>,
    /// What it said.
    pub text: String,
    /// What it called.
    pub calls: Vec<ToolCall>,
    /// Whether the turn is to be continued: no end of sentence after it.
    pub open: bool,
    /// The tokens the turn was sampled as, from after its opening. Written instead of the parts
    /// above, so that a cached prefix matches; the reasoning is cut where it would be dropped.
    pub sampled: Option<Arc<[TokenId]>>,
}

/// A call in the model's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolCall {
    /// The id its result names.
    pub id: String,
    /// The tool.
    pub name: String,
    /// JSON text of an object. Anything else is passed as one parameter named `arguments`.
    pub arguments: String,
}

/// A one-word classification the model was trained to give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // named as their tokens are
pub enum Task {
    Action,
    Query,
    Authority,
    Domain,
    Title,
    ReadUrl,
}

impl Task {
    /// The token's text.
    #[must_use]
    pub const fn marker(self) -> &'static str {
        match self {
            Self::Action => "<｜action｜>",
            Self::Query => "<｜query｜>",
            Self::Authority => "<｜authority｜>",
            Self::Domain => "<｜domain｜>",
            Self::Title => "<｜title｜>",
            Self::ReadUrl => "<｜read_url｜>",
        }
    }
}

/// All that a prompt is made of.
#[derive(Clone, Debug, Default)]
pub struct Conversation<'a> {
    /// The turns so far.
    pub messages: &'a [Message],
    /// Tools on offer.
    pub tools: &'a [ToolDef],
    /// JSON text of a schema the reply must follow.
    pub response_format: Option<&'a str>,
    /// Whether the model thinks before it answers, and how hard.
    pub thinking: Thinking,
    /// Keep the reasoning of all turns. It is always kept when tools are on offer; otherwise only
    /// the turns since the last user turn keep theirs.
    pub keep_reasoning: bool,
}
