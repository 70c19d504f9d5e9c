//! The target on a device of any runtime: the `Target` seam over launches of `ds4-kernels`, with the bits of
//! `CpuTarget`.
//!
//! Weights are uploaded once, the state of all sequences stays on the device, and a pass is a chain of launches on
//! one stream. Decode, verify and prefill are the same chain with other numbers of tokens. Layers may be shared by
//! devices of one runtime: a chain of stages, of which one device has one.
//!
//! Must not know: vendors, drafters, who runs it.

mod arena;
mod blocks;
mod chain;
mod clock;
mod counts;
mod draws;
mod edge;
mod gpu;
mod graphs;
mod inputs;
mod layers;
mod load;
mod pass;
mod products;
mod retire;
mod scratch;
mod split;
mod stage;
mod state;
mod taps;
mod target;
mod upload;
mod weights;

pub use blocks::{Answer, BlockParts, BlockSizes, DeviceBlocks, Reads};
pub use chain::Markov;
pub use clock::Clocked;
pub use counts::Counts;
pub use edge::Crossing;
pub use graphs::GraphCounts;
pub use split::{Share, SplitError, equal_shares};
pub use target::{DeviceTarget, Settings};

/// Passes of so many tokens are replayed as graphs: a step of several sequences with their candidates.
pub const GRAPH_TOKENS: usize = 16;
