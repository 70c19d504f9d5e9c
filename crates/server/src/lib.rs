//! The `fourspark` program: its command line and its HTTP APIs. A library, so that tests can run a
//! server in their own process over a target of their own.
//!
//! Composes what the layers below offer and adds nothing to it: no answer depends on how it was
//! asked for. Must not know: layers, kernels, drafters.

#![forbid(unsafe_code)]

pub mod cli;
mod counters;
mod drafting;
pub mod http;
