//! The draft layers and chains on devices: every bit of rows, contexts and candidates as on the processor. The CPU as
//! a device, and the fake device in a hostile order, run the kernels' host build.
#![cfg(feature = "host-exec")]
#![allow(clippy::unwrap_used)]

mod backbone;
mod chains;
mod common;
