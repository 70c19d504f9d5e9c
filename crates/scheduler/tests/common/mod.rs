//! Short ways to submit and to collect.

#![allow(dead_code, reason = "each test file uses some of it")]
#![allow(clippy::unwrap_used, reason = "test code")]

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use engine_core::{SamplePlan, TokenId};
use scheduler::{Event, Finish, FinishReason, Handle, Limits, Request, Scheduler, channel};
use testkit::fake::FakeTarget;

/// A request for `max` tokens after `prompt`, greedy, token 0 being the end.
pub(crate) fn request(prompt: &[TokenId], max: u32) -> Request {
    Request {
        prompt: prompt.to_vec(),
        plan: Arc::new(SamplePlan::greedy()),
        max_tokens: max,
        stop_tokens: Arc::from([0]),
    }
}

pub(crate) fn start(target: FakeTarget) -> Scheduler {
    Scheduler::start(Box::new(target), None, Limits::default()).unwrap()
}

/// A submitted request.
pub(crate) struct Running {
    pub(crate) handle: Handle,
    pub(crate) events: Receiver<Event>,
}

pub(crate) fn submit(scheduler: &Scheduler, request: Request) -> Running {
    let (sink, events) = channel();
    let handle = scheduler.submit(request, sink).unwrap();
    Running { handle, events }
}

impl Running {
    /// The next token.
    pub(crate) fn token(&self) -> TokenId {
        match self.next() {
            Event::Token(token) => token.id,
            Event::Finished(finish) => panic!("ended: {finish:?}"),
        }
    }

    fn next(&self) -> Event {
        // Far beyond any wait: a test that would hang fails instead.
        self.events.recv_timeout(Duration::from_secs(60)).unwrap()
    }

    /// All tokens to come, and the end.
    pub(crate) fn finish(&self) -> (Vec<TokenId>, Finish) {
        let mut tokens = Vec::new();
        loop {
            match self.next() {
                Event::Token(token) => tokens.push(token.id),
                Event::Finished(finish) => {
                    assert!(self.events.try_recv().is_err(), "nothing follows the end");
                    return (tokens, finish);
                }
            }
        }
    }

    pub(crate) fn end(&self) -> FinishReason {
        self.finish().1.reason
    }
}

/// Runs one request to its end.
pub(crate) fn run(scheduler: &Scheduler, request: Request) -> (Vec<TokenId>, Finish) {
    submit(scheduler, request).finish()
}
