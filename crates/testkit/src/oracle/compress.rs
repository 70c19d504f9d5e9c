//! Compressed rows: pooling of windows (spec/ds4-architecture.md 2.8).

use rayon::prelude::*;

use super::config::halves;
use super::model::{Mat, OracleModel, project, rms_norm_row};
use super::rope::Rope;
use crate::Error;

/// The rows of one compressor over `h` `[T][D]` at positions 0..T, before any rounding:
/// `[T / ratio][width]`, normed and rotated to the first position of their window.
/// `stem`: `attn_compressor` or `indexer_compressor`.
pub(super) fn compressed_rows(
    model: &OracleModel,
    layer: usize,
    stem: &str,
    h: &Mat,
    rope: &Rope,
) -> Result<Mat, Error> {
    let ratio = model.config.ratios[layer];
    let norm = model.layer(layer, &format!("{stem}_norm.weight"))?;
    let width = norm.cols();
    let keys = project(h, model.layer(layer, &format!("{stem}_kv.weight"))?);
    let mut gates = project(h, model.layer(layer, &format!("{stem}_gate.weight"))?);
    let ape = model.layer(layer, &format!("{stem}_ape.weight"))?;
    gates.par_rows(|p, row| {
        for (g, a) in row.iter_mut().zip(ape.row(p % ratio)) {
            *g += f64::from(*a);
        }
    });
    let mut rows = Mat::zeros(h.rows / ratio, width);
    rows.data
        .par_chunks_mut(width)
        .enumerate()
        .for_each(|(w, row)| {
            pool(&keys, &gates, &window(w, ratio, width), row);
            rms_norm_row(row, &norm.data, model.config.rms_eps);
            rope.forward(row, w * ratio);
        });
    Ok(rows)
}

/// What window `w` pools: (position, first channel) pairs. An overlapping window takes the first
/// half of the window before it and the second half of its own; window 0 has nothing before it.
fn window(w: usize, ratio: usize, width: usize) -> Vec<(usize, usize)> {
    let own = w * ratio..(w + 1) * ratio;
    if halves(ratio) == 1 {
        return own.map(|p| (p, 0)).collect();
    }
    let before = w.saturating_sub(1) * ratio..w * ratio;
    let before = before.map(|p| (p, 0));
    before.chain(own.map(|p| (p, width))).collect()
}

/// Per channel: the keys weighted by the softmax of the gates over the entries.
fn pool(keys: &Mat, gates: &Mat, entries: &[(usize, usize)], out: &mut [f64]) {
    for (d, out) in out.iter_mut().enumerate() {
        let at = |m: &Mat, (p, first): (usize, usize)| m.row(p)[first + d];
        let max = entries
            .iter()
            .map(|e| at(gates, *e))
            .fold(f64::NEG_INFINITY, f64::max);
        let (mut num, mut den) = (0.0, 0.0);
        for e in entries {
            let w = (at(gates, *e) - max).exp();
            den += w;
            num += w * at(keys, *e);
        }
        *out = num / den;
    }
}
