//! What reading an answer gives: events as they become certain, the whole answer, and how it ended.

/// A step of an answer. Events of one kind in a row may be joined; how an answer is cut into tokens
/// or chunks changes nothing else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// More reasoning.
    Reasoning(String),
    /// More text of the reply.
    Content(String),
    /// A tool call begins. Calls are numbered from 0 and follow one another.
    CallStart {
        /// Its number.
        index: usize,
        /// The tool.
        name: String,
    },
    /// More of the arguments. All fragments of a call together are a JSON object, always.
    CallArguments {
        /// The call.
        index: usize,
        /// JSON text.
        fragment: String,
    },
    /// A tool call ends.
    CallEnd {
        /// Its number.
        index: usize,
        /// Whether the model finished it. An unfinished call has the arguments that were certain
        /// and must not be run.
        complete: bool,
    },
}

/// A call of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// The tool.
    pub name: String,
    /// JSON text of an object.
    pub arguments: String,
    /// Whether the model finished it.
    pub complete: bool,
}

/// An answer put together from its events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// All reasoning.
    pub reasoning: String,
    /// All text.
    pub content: String,
    /// All calls.
    pub calls: Vec<Call>,
}

impl Answer {
    /// Adds an event.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Reasoning(text) => self.reasoning.push_str(text),
            Event::Content(text) => self.content.push_str(text),
            Event::CallStart { name, .. } => self.calls.push(Call {
                name: name.clone(),
                ..Call::default()
            }),
            Event::CallArguments { index, fragment } => {
                if let Some(call) = self.calls.get_mut(*index) {
                    call.arguments.push_str(fragment);
                }
            }
            Event::CallEnd { index, complete } => {
                if let Some(call) = self.calls.get_mut(*index) {
                    call.complete = *complete;
                }
            }
        }
    }
}

/// Why no more tokens come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The model ended its turn, or a stop string did.
    Stop,
    /// The budget ran out, or the request was cancelled.
    Cut,
}

/// How an answer ended, in the words of the APIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A reply.
    Stop,
    /// At least one complete call.
    ToolCalls,
    /// Cut off.
    Length,
}

/// What was read, and what was wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// How it ended.
    pub finish: Finish,
    /// Complete calls.
    pub complete: usize,
    /// Complete calls that lacked a closing tag.
    pub repaired: usize,
    /// Calls that were begun and not finished.
    pub incomplete: usize,
    /// Pieces of markup that made no call and were left out.
    pub malformed: usize,
    /// Whether the answer ended before its reasoning did.
    pub in_reasoning: bool,
}
