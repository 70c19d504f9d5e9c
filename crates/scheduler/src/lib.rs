//! Many requests over one target: admission, batching, chunked prefill, sampling, cancellation.
//!
//! Separate because it is the only place that decides *when* something runs, and the numeric
//! contract makes *when* invisible in the result: every rule here may change without changing a
//! byte of output. Must not know: tensors, vendors, text, JSON, sockets.
//!
//! One thread owns the target. Every tick of it is one pass: the next tokens of all sequences that
//! generate, and chunks of the prompts of those that do not yet. A sequence's own step is always
//! propose, verify, accept, commit; without a drafter nothing is proposed and the verified span is
//! one token wide, which is plain decoding.
//!
//! | here | elsewhere called |
//! | --- | --- |
//! | [`Request`] | sequence group, task |
//! | tick | engine step, iteration |
//! | [`Limits::pass_tokens`] | max batched tokens, ubatch |
//! | [`Stats::active`] | running, processing |
//! | [`Stats::queued`] | waiting, deferred |

#![forbid(unsafe_code)]

mod core;
mod error;
mod plan;
mod request;
mod sequence;
mod service;
mod stats;

pub use error::{Failure, SubmitError};
pub use request::{Event, Finish, FinishReason, Flow, Request, Sink, Token, Usage, channel};
pub use service::{Handle, Limits, Scheduler};
pub use stats::Stats;
