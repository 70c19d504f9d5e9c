//! The oracle: the target's forward pass in f64, written from spec/ds4-architecture.md sections 1
//! to 5 and nothing else.
//!
//! It is plain on purpose: one shot over a token list, quadratic, no caches, no chunks, no rings,
//! so that it cannot share the engine's mistakes. Everything is f64 except rotary angles, which
//! the model itself computes in f32. Equal scores are broken towards the lower index.
//!
//! [`OracleModel::forward`] returns a [`Dump`] of every intermediate a test may want, with the
//! margins of its discrete choices: where a margin is below the noise of the engine's arithmetic,
//! the two may choose differently and both be right.

mod attention;
mod compress;
mod config;
mod config_json;
pub mod draft;
mod forward;
mod hyper;
mod index;
mod load;
mod margin;
mod model;
mod moe;
pub mod rope;
pub mod sim;

#[cfg(test)]
mod tests;

pub use attention::AttentionDump;
pub use config::{OracleConfig, Yarn};
pub use config_json::config_from_json;
pub use forward::{Dump, LayerDump, Rows, RunOptions};
pub use hyper::{Mix, read_streams, split_mix, write_streams};
pub use index::IndexDump;
pub use load::{canonical_name, load_dir, load_files};
pub use model::{Mat, OracleModel, Tensor};
pub use moe::{MoeDump, clamped_swiglu, sqrt_softplus};

/// Indices of the k largest values, best first; equal values lower index first, NaN last.
#[must_use]
pub fn top_k(values: &[f64], k: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..values.len() as u32).collect();
    let key = |i: u32| values[i as usize];
    order.sort_by(|a, b| {
        let (a, b) = (key(*a), key(*b));
        // The sort is stable, so equal values (and -0, +0) keep ascending order.
        b.partial_cmp(&a)
            .unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
    });
    order.truncate(k);
    order
}

/// Index of the largest value, the lowest of equals.
#[must_use]
pub fn argmax(values: &[f64]) -> Option<u32> {
    top_k(values, 1).first().copied()
}
