//! What tests of other crates share: an oracle, random models, comparers and visible skips.
//!
//! Separate, and a dev-dependency only, because it is the second implementation of everything it
//! checks. It must not know the target crate, the kernels or the row kernels of the formats: an
//! answer that comes from the code under test proves nothing (`xtask ci` checks the manifest).
//!
//! * [`oracle`]: the target's forward pass in f64, from spec/ds4-architecture.md.
//! * [`oracle::draft`]: the draft model, from spec/dspark.md.
//! * [`fixture`]: random models from a seed, with the metadata of their files.
//! * [`rng`]: the seed's random numbers.
//! * [`golden`]: recorded runs of other implementations.
//! * [`compare`]: bits, ulps, nmse, sets.
//! * [`prompts`]: sixty short prompts for the shipped model.
//! * [`fake`]: a target without weights, scripted and watched.
//! * [`sim_draft`]: a simulated speculating device, for policies of width.
//! * [`require`](mod@require): skips that are seen and counted.

pub mod compare;
pub mod error;
pub mod fake;
pub mod files;
pub mod fixture;
pub mod golden;
pub mod oracle;
pub mod prompts;
pub mod require;
pub mod rng;
pub mod sim_draft;

pub use error::Error;
