//! Requests, and prompts made ready for the engine.

use std::sync::Arc;

use engine_core::{SamplePlan, TokenId};
use text::{Message, Thinking, ToolDef};

/// How to answer: sampling, length, stop strings.
#[derive(Clone, Debug)]
pub struct Generate {
    /// How tokens are drawn; greedy by default.
    pub plan: Arc<SamplePlan>,
    /// The most tokens to draw; `None`: as many as the context holds.
    pub max_tokens: Option<u32>,
    /// Strings that end the answer. They are looked for in its text, not in reasoning or tool
    /// calls, and are not part of it.
    pub stop: Vec<String>,
    /// End the answer after its first complete tool call.
    pub one_call: bool,
}

impl Default for Generate {
    fn default() -> Self {
        Self {
            plan: Arc::new(SamplePlan::greedy()),
            max_tokens: None,
            stop: Vec::new(),
            one_call: false,
        }
    }
}

/// A conversation to continue.
#[derive(Clone, Debug, Default)]
pub struct ChatRequest {
    /// The turns so far.
    pub messages: Vec<Message>,
    /// Tools on offer.
    pub tools: Vec<ToolDef>,
    /// Whether the model thinks first.
    pub thinking: Thinking,
    /// How to answer.
    pub generate: Generate,
}

/// A prompt as tokens, and how its answer is to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// The tokens.
    pub tokens: Vec<TokenId>,
    /// How to read what follows.
    pub(crate) reading: Reading,
}

/// How tokens of an answer become events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// As plain text.
    Plain,
    /// As a turn of the model.
    Turn {
        /// Whether it begins with reasoning.
        in_reasoning: bool,
        /// Whether tools were offered.
        tools: bool,
    },
}
