//! The draft model: files in both forms, the f64 oracle, state, drafting beside a target.
//!
//! One binary, so that the fixtures are made once.
#![allow(clippy::unwrap_used)]

mod ahead;
mod backbone;
mod config;
mod drafter;
mod golden;
mod support;
mod tiny;
mod weights;
