//! Many requests over one target: admission, batching, chunked prefill, sampling, cancellation.
//!
//! Separate because it is the only place that decides *when* something runs, and the numeric
//! contract makes *when* invisible in the result: every rule here may change without changing a
//! byte of output. Must not know: tensors, vendors, text, JSON, sockets.
//!
//! One thread owns the target. Every tick of it is one step of the speculative loop
//! (`dspark_draft::speculate`), and so one pass: the next tokens of all sequences that generate, and
//! chunks of the prompts of those that do not yet, granted by `plan`. Proposing, verifying, accepting
//! and committing are the loop's; this crate decides who is in it and what becomes of its tokens.
//!
//! Not here yet: reuse of prefixes. It has its place at the two ends of a sequence's life. Where one
//! is opened (`Core::admit`), the longest remembered prefix that is shorter than the prompt would be
//! loaded instead (`Target::load` of saved rows, or `Target::fork` of a sequence kept open), and
//! prefill would begin behind it; where one ends (`Core::retire`), its committed tokens and rows
//! would be remembered (`Target::save`). By the contract a restored sequence continues with the bits
//! of a computed one, so that nothing else has to know; [`Usage::cached_tokens`] reports it.
//!
//! Between answers the model can be given up and loaded again ([`Scheduler::park`], [`Scheduler::unpark`]): requests
//! wait, counters go on, and by the contract nothing else can be seen.
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
mod park;
mod plan;
mod request;
mod sequence;
mod service;
mod speculation;
mod stats;
mod thread;

pub use error::{Failure, SubmitError};
pub use park::{
    Load, LoadFailure, Loaded, ParkError, Parked, Parking, Phase, UnparkError, Unparked,
};
pub use request::{
    Drafting, Event, Finish, FinishReason, Flow, Request, Sink, Token, Usage, channel,
};
pub use service::{Handle, Limits, Scheduler};
pub use speculation::Speculation;
pub use stats::Stats;

pub use dspark_draft::speculate::{Cold, WarmUp};
pub use dspark_draft::stats::Stats as LoopStats;
pub use dspark_draft::width::{Policy, RewardOptions};
