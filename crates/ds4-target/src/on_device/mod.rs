//! The target on a device of any runtime: the `Target` seam over launches of `ds4-kernels`, with the bits of
//! `CpuTarget`.
//!
//! Weights are uploaded once, the state of all sequences stays on the device, and a pass is a chain of launches on
//! one stream. Decode, verify and prefill are the same chain with other numbers of tokens.
//!
//! Must not know: vendors, drafters, who runs it.

mod arena;
mod blocks;
mod chain;
mod clock;
mod counts;
mod draws;
mod gpu;
mod graphs;
mod inputs;
mod layers;
mod products;
mod retire;
mod scratch;
mod state;
mod target;
mod upload;
mod weights;

pub use blocks::{Answer, BlockParts, BlockSizes, DeviceBlocks, Reads};
pub use chain::Markov;
pub use clock::Clocked;
pub use counts::Counts;
pub use graphs::GraphCounts;
pub use target::{DeviceTarget, Settings};

/// Passes of so many tokens are replayed as graphs: a step of several sequences with their candidates.
pub const GRAPH_TOKENS: usize = 16;
