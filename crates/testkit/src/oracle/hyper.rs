//! Hyper-connections: the streams' read, mix and write (spec/ds4-architecture.md 2.1 to 2.3).

use super::model::{Mat, OracleModel, dot, inv_rms, sigmoid, widen};
use crate::Error;

/// The coefficients of one sublayer for one token.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    /// Weight of each stream in the sublayer's input, `[n]`.
    pub pre: Vec<f64>,
    /// Weight of the sublayer's output in each stream, `[n]`.
    pub post: Vec<f64>,
    /// Mixing matrix, `[source][destination]`.
    pub comb: Vec<f64>,
}

/// Splits the projected numbers `m` `[n * (2 + n)]` into coefficients: spec 2.1 after the matmul.
#[must_use]
pub fn split_mix(m: &[f64], scale: &[f64], base: &[f64], n: usize, iters: usize, eps: f64) -> Mix {
    let z = |i: usize, s: usize| m[i] * scale[s] + base[i];
    let pre = (0..n).map(|i| sigmoid(z(i, 0)) + eps).collect();
    let post = (0..n).map(|i| 2.0 * sigmoid(z(n + i, 1))).collect();
    let mut comb: Vec<f64> = (0..n * n).map(|i| z(2 * n + i, 2)).collect();
    for row in comb.chunks_exact_mut(n) {
        softmax(row);
        row.iter_mut().for_each(|c| *c += eps);
    }
    divide_columns(&mut comb, n, eps);
    for _ in 1..iters {
        divide_rows(&mut comb, n, eps);
        divide_columns(&mut comb, n, eps);
    }
    Mix { pre, post, comb }
}

fn softmax(row: &mut [f64]) {
    let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    row.iter_mut().for_each(|v| *v = (*v - max).exp());
    let sum: f64 = row.iter().sum();
    row.iter_mut().for_each(|v| *v /= sum);
}

fn divide_rows(c: &mut [f64], n: usize, eps: f64) {
    for row in c.chunks_exact_mut(n) {
        let sum = row.iter().sum::<f64>() + eps;
        row.iter_mut().for_each(|v| *v /= sum);
    }
}

fn divide_columns(c: &mut [f64], n: usize, eps: f64) {
    for k in 0..n {
        let sum = (0..n).map(|j| c[j * n + k]).sum::<f64>() + eps;
        (0..n).for_each(|j| c[j * n + k] /= sum);
    }
}

/// Weighted sum of the streams `[n][D]` -> `[D]`.
#[must_use]
pub fn read_streams(streams: &[f64], weights: &[f64]) -> Vec<f64> {
    let d = streams.len() / weights.len();
    let mut u = vec![0.0; d];
    for (x, w) in streams.chunks_exact(d).zip(weights) {
        super::model::axpy(*w, x, &mut u);
    }
    u
}

/// New streams: `post[k] * a + sum over sources j of comb[j][k] * X[j]` (spec 2.2).
#[must_use]
pub fn write_streams(streams: &[f64], a: &[f64], mix: &Mix) -> Vec<f64> {
    let (n, d) = (mix.post.len(), a.len());
    let mut out = vec![0.0; n * d];
    for (k, x) in out.chunks_exact_mut(d).enumerate() {
        super::model::axpy(mix.post[k], a, x);
        for (j, source) in streams.chunks_exact(d).enumerate() {
            super::model::axpy(mix.comb[j * n + k], source, x);
        }
    }
    out
}

/// A sublayer's hyper-connection with its weights widened.
pub(super) struct Hyper {
    fn_rows: Vec<f64>,
    base: Vec<f64>,
    scale: Vec<f64>,
    n: usize,
    iters: usize,
    hc_eps: f64,
    rms_eps: f32,
}

impl Hyper {
    /// `stem`: `blk.{L}.hc_attn`, `blk.{L}.hc_ffn` or `output_hc`.
    pub(super) fn new(model: &OracleModel, stem: &str) -> Result<Self, Error> {
        let get = |part: &str| -> Result<Vec<f64>, Error> {
            Ok(widen(&model.tensor(&format!("{stem}_{part}.weight"))?.data))
        };
        Ok(Self {
            fn_rows: get("fn")?,
            base: get("base")?,
            scale: get("scale")?,
            n: model.config.n_hc,
            iters: model.config.sinkhorn_iters,
            hc_eps: f64::from(model.config.hc_eps),
            rms_eps: model.config.rms_eps,
        })
    }

    /// One norm over all streams together, then the projection.
    fn project(&self, streams: &[f64]) -> Vec<f64> {
        let s = inv_rms(streams, self.rms_eps);
        let rows = self.fn_rows.chunks_exact(streams.len());
        rows.map(|w| dot(w, streams) * s).collect()
    }

    /// The coefficients for one token's streams `[n][D]`.
    pub(super) fn mix(&self, streams: &[f64]) -> Mix {
        let m = self.project(streams);
        split_mix(&m, &self.scale, &self.base, self.n, self.iters, self.hc_eps)
    }

    /// The final merge of one token's streams (spec 2.3).
    pub(super) fn merge(&self, streams: &[f64]) -> Vec<f64> {
        let m = self.project(streams);
        let gate = |(m, b): (&f64, &f64)| sigmoid(m * self.scale[0] + b) + self.hc_eps;
        let weights: Vec<f64> = m.iter().zip(&self.base).map(gate).collect();
        read_streams(streams, &weights)
    }
}

/// Applies `f` to every row's streams and gathers the results.
pub(super) fn map_rows<R: Send>(x: &Mat, f: impl Fn(&[f64]) -> R + Sync + Send) -> Vec<R> {
    use rayon::prelude::*;
    x.data.par_chunks(x.cols).map(f).collect()
}
