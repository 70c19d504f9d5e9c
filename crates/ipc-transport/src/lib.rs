//! The draft worker: a `Backbone` in a process of its own, that may die at any byte and costs no token.
//!
//! The target, the tied head, the Markov and confidence heads and the sampler stay in the parent. The
//! worker holds the draft layers and context rows, which are a function of what it was sent; so losing
//! it loses speed for a moment and nothing else. Decisions: `docs/adr/0010-worker-protocol.md`; how to
//! use it: `docs/worker.md`.
//!
//! | module | what |
//! | --- | --- |
//! | [`remote`] | the parent's side: [`remote::RemoteBackbone`] |
//! | [`worker`] | the worker's side: the loop over any backbone, and the process around it |
//! | [`launch`] | how a worker is started and ended: a process, or a thread in tests |
//! | [`handshake`] | what both sides tell each other before the first step |
//! | [`link`] | whole messages: a frame and its payload, by shared memory or by stream |
//! | [`frame`], [`region`], [`channel`] | the parts: bytes of a frame, shared memory, sockets |
//! | [`reach`] | what devices on both sides do with the shared memory, and whether they see each other's |
//! | [`report`] | what may be known of a worker: state, transport, counts |
//!
//! Must not know: sampling, the tokenizer, the target's weights. Linux only: elsewhere there are reports
//! and errors, so that a caller can say why drafting stays in the process.

#![deny(unsafe_code)]

#[cfg(target_os = "linux")]
pub mod channel;
#[cfg(target_os = "linux")]
mod copy;
#[cfg(target_os = "linux")]
mod crc;
pub mod error;
#[cfg(target_os = "linux")]
pub mod frame;
#[cfg(target_os = "linux")]
pub mod handshake;
#[cfg(target_os = "linux")]
mod heap;
#[cfg(target_os = "linux")]
pub mod launch;
#[cfg(target_os = "linux")]
pub mod link;
#[cfg(target_os = "linux")]
pub mod probe;
#[cfg(target_os = "linux")]
pub mod reach;
#[cfg(target_os = "linux")]
pub mod region;
#[cfg(target_os = "linux")]
pub mod remote;
pub mod report;
#[cfg(target_os = "linux")]
mod turn;
#[cfg(target_os = "linux")]
mod wire;
#[cfg(target_os = "linux")]
pub mod worker;
