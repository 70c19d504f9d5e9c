//! The program and its HTTP API. One binary: each would compile and link the whole program once more.

#![allow(clippy::unwrap_used, reason = "test code")]

#[path = "../common/mod.rs"]
mod common;

mod bench;
mod chat;
mod drafting;
mod flash;
mod lifetime;
mod parking;
mod process;
mod refusals;
mod selftest;
mod switches;
mod synth;
