//! A request, and what comes back from it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel as std_channel};
use std::time::Duration;

use engine_core::{SamplePlan, TokenId};

use crate::error::Failure;

/// A prompt to continue.
#[derive(Clone, Debug)]
pub struct Request {
    /// `[n]` token ids, the opening token included. At least one, fewer than the context holds.
    pub prompt: Vec<TokenId>,
    /// How tokens are drawn.
    pub plan: Arc<SamplePlan>,
    /// The most tokens to generate; what the context cannot hold is cut off.
    pub max_tokens: u32,
    /// Tokens that end the answer. They are counted but not delivered.
    pub stop_tokens: Arc<[TokenId]>,
}

/// What a request gives: tokens in order, then exactly one end.
#[derive(Clone, Debug)]
pub enum Event {
    /// The next token.
    Token(Token),
    /// The end. Nothing follows.
    Finished(Finish),
}

/// A generated token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// Its id.
    pub id: TokenId,
    /// Its place in the answer, from 0.
    pub index: u32,
}

/// The end of a request.
#[derive(Clone, Debug)]
pub struct Finish {
    /// Why it ended.
    pub reason: FinishReason,
    /// What it took.
    pub usage: Usage,
}

/// Why a request ended.
#[derive(Clone, Debug)]
pub enum FinishReason {
    /// The model drew one of the stop tokens.
    StopToken(TokenId),
    /// The receiver had enough ([`Flow::Stop`]).
    Satisfied,
    /// The asked number of tokens was reached, or the context is full.
    Length,
    /// The handle was dropped, the receiver left, or the engine was told to stop.
    Cancelled,
    /// Something failed.
    Failed(Failure),
}

/// What a request took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Of those, taken from a cached prefix instead of computed.
    pub cached_tokens: u32,
    /// Tokens drawn, a stop token included.
    pub completion_tokens: u32,
    /// Candidates of a drafter that the target verified.
    pub proposed_tokens: u32,
    /// Of those, accepted.
    pub accepted_tokens: u32,
    /// Verified spans, those without candidates too.
    pub verify_steps: u32,
    /// Whether a drafter was there.
    pub drafting: Drafting,
    /// From submission to admission.
    pub queued: Duration,
    /// Of that, waiting for a model that had been given up to be loaded.
    pub loading: Duration,
    /// From admission to the first token.
    pub prefill: Duration,
    /// From the first token to the end.
    pub decode: Duration,
}

/// The state of the drafter when a request ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Drafting {
    /// There is none.
    #[default]
    Off,
    /// It is in use.
    On,
    /// There was one, and it or a part of it failed: [`crate::Stats::drafter_lost`] says why.
    Lost,
}

/// A receiver's answer to an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// More, please.
    Continue,
    /// Enough: the answer is complete as it is.
    Stop,
    /// Nobody is listening any more.
    Cancel,
}

/// Takes a request's events, one at a time, as a rule on the engine's thread: it must not block. Its answer to a token is
/// followed before the next token is drawn, so that a stop string costs no extra token.
pub type Sink = Box<dyn FnMut(Event) -> Flow + Send>;

/// A sink that fills a channel. A dropped receiver cancels the request.
#[must_use]
pub fn channel() -> (Sink, Receiver<Event>) {
    let (sender, receiver) = std_channel();
    let sink = move |event| match sender.send(event) {
        Ok(()) => Flow::Continue,
        Err(_) => Flow::Cancel,
    };
    (Box::new(sink), receiver)
}
