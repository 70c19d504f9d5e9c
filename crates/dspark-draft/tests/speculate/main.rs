//! The loop: against a toy target whose rows depend on the whole text, against the real target, and with
//! the real drafter.
//!
//! One binary, so that it is linked once.
#![allow(clippy::unwrap_used)]

mod common;
mod costs;
mod ends;
mod faults;
mod model;
mod pair;
mod random;
#[path = "../draft/support.rs"]
#[allow(dead_code, reason = "shared with the tests of the draft model")]
mod support;
mod text;
mod warm;
