//! How close the discrete choices of a run were.
//!
//! A comparison with another arithmetic is only fair where the margin is above that arithmetic's
//! noise; these numbers let a test say so instead of hiding it in a tolerance.

use super::forward::{Dump, LayerDump};
use super::top_k;

/// Score of the worst row taken minus the best left out; infinite when nothing was left out.
pub(super) fn gap(scores: &[f64], k: usize) -> f64 {
    let order = top_k(scores, k + 1);
    match order.len() > k && k > 0 {
        true => scores[order[k - 1] as usize] - scores[order[k] as usize],
        false => f64::INFINITY,
    }
}

impl LayerDump {
    /// Margin of token `t`'s expert choice; infinite on layers routed by table.
    #[must_use]
    pub fn route_margin(&self, t: usize) -> f64 {
        match self.moe.by_table {
            true => f64::INFINITY,
            false => gap(self.moe.route_score.row(t), self.moe.route_id[t].len()),
        }
    }

    /// Margin of token `t`'s choice of compressed rows; infinite where all were taken. Zero means
    /// an exact tie, which the tie rule decides.
    #[must_use]
    pub fn index_margin(&self, t: usize) -> f64 {
        self.attn
            .index
            .as_ref()
            .map_or(f64::INFINITY, |i| gap(&i.scores[t], i.picks[t].len()))
    }

    /// Mean of token `t`'s streams after the layer, `[D]`: what a drafter is fed.
    #[must_use]
    pub fn feature(&self, t: usize) -> Vec<f64> {
        let d = self.attn_in.cols;
        let n = self.streams.cols / d;
        super::read_streams(self.streams.row(t), &vec![1.0 / n as f64; n])
    }
}

impl Dump {
    /// Smallest expert-choice margin of every token up to and including each position, over all
    /// layers: what happened at a later position cannot matter to an earlier one.
    #[must_use]
    pub fn route_margins(&self) -> Vec<f64> {
        self.running_min(LayerDump::route_margin)
    }

    /// The same for the choice of compressed rows.
    #[must_use]
    pub fn index_margins(&self) -> Vec<f64> {
        self.running_min(LayerDump::index_margin)
    }

    fn running_min(&self, f: impl Fn(&LayerDump, usize) -> f64) -> Vec<f64> {
        let mut least = f64::INFINITY;
        let at = |t| {
            self.layers
                .iter()
                .map(|d| f(d, t))
                .fold(f64::INFINITY, f64::min)
        };
        (0..self.final_norm.rows)
            .map(|t| {
                least = least.min(at(t));
                least
            })
            .collect()
    }
}
