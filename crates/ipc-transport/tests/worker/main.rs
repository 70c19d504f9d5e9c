//! The worker over every transport: the same answers as in process, whatever fails on the way. Workers
//! here are threads that speak the protocol; those that are processes are tested with the binary that has
//! them (`crates/server/tests/worker.rs`).

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "test code")]

mod common;
mod conformance;
mod faults;
mod handshakes;
mod hostile;
mod overlap;
mod text;
mod toy;
