//! `cargo xtask qualify`: what may be claimed.
//!
//! Two kinds of profile. `one-result` runs the shipped pair in every way there is and compares token
//! ids and state by equality ([`identity`]). A comparison runs the `fourspark` binary in two
//! arms and says whether a difference of speed may be claimed.
//!
//! Must not know: layers and kernels; how the product composes itself.

#![forbid(unsafe_code)]

mod answer;
pub mod campaign;
pub mod canonical;
pub mod card;
pub mod claims;
pub mod code;
pub mod command;
pub mod counted;
pub mod diff;
pub mod fake;
pub mod gate;
pub mod hash;
pub mod heat;
pub mod html;
pub mod identity;
pub mod machine;
pub mod order;
pub mod pack;
pub mod profile;
pub mod quality;
pub mod render;
pub mod report;
pub mod run;
pub mod runner;
pub mod schema;
pub mod selftest;
pub mod snippets;
pub mod stats;
pub mod verdict;
pub mod verify;
