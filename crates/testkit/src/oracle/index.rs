//! The lightning indexer: scores and selection of compressed rows (spec/ds4-architecture.md 2.9).

use rayon::prelude::*;

use super::compress::compressed_rows;
use super::model::{Mat, OracleModel, dot, project};
use super::rope::Rope;
use super::{sim, top_k};
use crate::Error;

/// What the indexer of one layer did.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IndexDump {
    /// Its compressed rows, `[n][index_dim]`.
    pub keys: Mat,
    /// Scores of the visible rows, `[T][visible]`. Present even where all rows are taken.
    pub scores: Vec<Vec<f64>>,
    /// Rows attended, ascending, `[T][min(visible, top_k)]`.
    pub picks: Vec<Vec<u32>>,
}

/// Scores every visible row for every token and selects. `qr` is the normed low-rank query.
pub(super) fn index(
    model: &OracleModel,
    layer: usize,
    h: &Mat,
    qr: &Mat,
    rope: &Rope,
    kv_sim: bool,
) -> Result<IndexDump, Error> {
    let c = &model.config;
    let dim = c.index_dim;
    let mut queries = project(qr, model.layer(layer, "indexer.attn_q_b.weight")?);
    queries.par_rows(|p, row| {
        for head in row.chunks_exact_mut(dim) {
            rope.forward(head, p);
            if kv_sim {
                sim::index_row(head);
            }
        }
    });
    let weights = project(h, model.layer(layer, "indexer.proj.weight")?);
    let mut keys = compressed_rows(model, layer, "indexer_compressor", h, rope)?;
    if kv_sim {
        keys.par_rows(|_, row| sim::index_row(row));
    }
    let factor = 1.0 / ((dim * c.index_heads) as f64).sqrt();
    let score = |p: usize, key: &[f64]| {
        let heads = queries.row(p).chunks_exact(dim).zip(weights.row(p));
        heads
            .map(|(q, w)| w * factor * dot(q, key).max(0.0))
            .sum::<f64>()
    };
    let scores: Vec<Vec<f64>> = (0..h.rows)
        .into_par_iter()
        .map(|p| {
            let visible = (p + 1) / c.ratios[layer];
            (0..visible).map(|row| score(p, keys.row(row))).collect()
        })
        .collect();
    let picks = scores.iter().map(|s| select(s, c.index_top_k)).collect();
    Ok(IndexDump {
        keys,
        scores,
        picks,
    })
}

fn select(scores: &[f64], k: usize) -> Vec<u32> {
    let mut picks = top_k(scores, k);
    picks.sort_unstable();
    picks
}
