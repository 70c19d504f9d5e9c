//! What comes back: events, the outcome, and streams of them.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use engine_core::TokenId;
use scheduler::{Failure, Handle, Usage};
pub use text::dsml::Call;

use crate::error::Error;

/// A step of an answer. How an answer is cut into events carries no meaning.
#[derive(Clone, Debug)]
pub enum Event {
    /// More reasoning.
    Reasoning(String),
    /// More text.
    Text(String),
    /// A tool call begins. Calls are numbered from 0.
    CallStart {
        /// Its number.
        index: usize,
        /// The tool.
        name: String,
    },
    /// More of a call's arguments: all fragments together are a JSON object.
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
        /// Whether the model finished it; one it did not must not be run.
        complete: bool,
    },
    /// The end. Nothing follows.
    Finished(Box<Outcome>),
}

/// How an answer ended.
#[derive(Clone, Debug)]
pub enum Finish {
    /// The model ended its turn, or a stop string came.
    Stop,
    /// The turn ended with at least one complete tool call.
    ToolCalls,
    /// The asked length or the context was reached.
    Length,
    /// Cancelled.
    Cancelled,
    /// A fault.
    Failed(Failure),
}

/// The end of an answer.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// How it ended.
    pub finish: Finish,
    /// The stop string that ended it.
    pub stop_string: Option<String>,
    /// The answer's tokens, a stop token excepted.
    pub ids: Vec<TokenId>,
    /// Of those, tokens of the reasoning.
    pub reasoning_tokens: u32,
    /// Pieces of tool-call markup that made no call and were left out.
    pub malformed_calls: usize,
    /// What it took.
    pub usage: Usage,
}

impl Outcome {
    /// Drawn tokens per second after the first; `None` for fewer than two.
    #[must_use]
    pub fn decode_rate(&self) -> Option<f64> {
        rate(
            self.usage.completion_tokens.checked_sub(1)?,
            self.usage.decode,
        )
    }

    /// Computed prompt tokens per second, the first drawn token included.
    #[must_use]
    pub fn prefill_rate(&self) -> Option<f64> {
        let computed = self.usage.prompt_tokens - self.usage.cached_tokens;
        rate(computed, self.usage.prefill)
    }
}

fn rate(tokens: u32, time: Duration) -> Option<f64> {
    let seconds = time.as_secs_f64();
    (tokens > 0 && seconds > 0.0).then(|| f64::from(tokens) / seconds)
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// All reasoning.
    pub reasoning: String,
    /// All text.
    pub text: String,
    /// All calls.
    pub calls: Vec<Call>,
    /// The end.
    pub outcome: Outcome,
}

/// A running answer: an iterator of events that ends after [`Event::Finished`]. Dropping it cancels
/// the request.
#[derive(Debug)]
pub struct AnswerStream {
    pub(crate) events: Receiver<Event>,
    pub(crate) handle: Handle,
}

impl Iterator for AnswerStream {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        self.events.recv().ok()
    }
}

/// What a bounded wait for an event gave.
#[derive(Debug)]
pub enum Next {
    /// An event.
    Event(Event),
    /// Nothing yet.
    Waiting,
    /// Nothing, ever again.
    Ended,
}

impl AnswerStream {
    /// The next event, if it comes within `wait`: for callers that have something else to look at.
    #[must_use]
    pub fn next_within(&mut self, wait: Duration) -> Next {
        match self.events.recv_timeout(wait) {
            Ok(event) => Next::Event(event),
            Err(RecvTimeoutError::Timeout) => Next::Waiting,
            Err(RecvTimeoutError::Disconnected) => Next::Ended,
        }
    }

    /// Asks for the end; events up to [`Event::Finished`] still come.
    pub fn cancel(&self) {
        self.handle.cancel();
    }

    /// Waits for the whole answer.
    ///
    /// # Errors
    /// `Failed` if a fault cut it off.
    pub fn collect_answer(self) -> Result<Answer, Error> {
        let mut collected = Collected::default();
        for event in self {
            if let Some(answer) = collected.take(event) {
                return match answer.outcome.finish {
                    Finish::Failed(failure) => Err(Error::Failed(failure)),
                    _ => Ok(answer),
                };
            }
        }
        Err(Error::Failed(Failure::Stopped))
    }
}

/// Puts an answer together from its events.
#[derive(Debug, Default)]
pub struct Collected {
    answer: text::dsml::Answer,
}

impl Collected {
    /// Takes an event; the answer once it has ended.
    pub fn take(&mut self, event: Event) -> Option<Answer> {
        use text::dsml::Event as Dsml;
        let step = match event {
            Event::Reasoning(text) => Dsml::Reasoning(text),
            Event::Text(text) => Dsml::Content(text),
            Event::CallStart { index, name } => Dsml::CallStart { index, name },
            Event::CallArguments { index, fragment } => Dsml::CallArguments { index, fragment },
            Event::CallEnd { index, complete } => Dsml::CallEnd { index, complete },
            Event::Finished(outcome) => {
                let all = std::mem::take(&mut self.answer);
                return Some(Answer {
                    reasoning: all.reasoning,
                    text: all.content,
                    calls: all.calls,
                    outcome: *outcome,
                });
            }
        };
        self.answer.apply(&step);
        None
    }
}
