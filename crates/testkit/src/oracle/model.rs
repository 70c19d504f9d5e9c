//! Weights by canonical name, and the few dense operations the oracle is made of.
//!
//! Weights stay f32 (F16 and BF16 files widen exactly); everything computed is f64.

use std::collections::BTreeMap;

use rayon::prelude::*;

use super::OracleConfig;
use crate::Error;

/// A weight tensor: row-major, slowest dimension first, so a matrix is `[out][in]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Slowest dimension first.
    pub shape: Vec<usize>,
    /// f32, product of `shape` elements. Integer tables hold their integers.
    pub data: Vec<f32>,
}

impl Tensor {
    /// Length of the contiguous dimension.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(0)
    }

    /// Row `i` of the tensor seen as `[product of the slower dimensions][cols]`.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn row(&self, i: usize) -> &[f32] {
        let n = self.cols();
        &self.data[i * n..(i + 1) * n]
    }
}

/// A model: its shape and its tensors under the canonical GGUF names of spec 1.4.
#[derive(Clone, Debug)]
pub struct OracleModel {
    /// The shape.
    pub config: OracleConfig,
    /// By canonical name.
    pub tensors: BTreeMap<String, Tensor>,
}

impl OracleModel {
    /// A model of exactly the tensors its configuration names.
    ///
    /// # Errors
    /// `Config`, `MissingTensor`, `UnknownTensor`, `Shape`.
    pub fn new(config: OracleConfig, tensors: BTreeMap<String, Tensor>) -> Result<Self, Error> {
        config.check(false)?;
        let expected: BTreeMap<_, _> = config.tensors().into_iter().collect();
        for (name, shape) in &expected {
            let t = tensors
                .get(name)
                .ok_or_else(|| Error::MissingTensor { name: name.clone() })?;
            let fits = t.shape == *shape && t.data.len() == shape.iter().product::<usize>();
            if !fits {
                return Err(Error::Shape {
                    name: name.clone(),
                    expected: shape.clone(),
                    got: t.shape.clone(),
                });
            }
        }
        match tensors.keys().find(|name| !expected.contains_key(*name)) {
            Some(name) => Err(Error::UnknownTensor { name: name.clone() }),
            None => Ok(Self { config, tensors }),
        }
    }

    /// A tensor by canonical name.
    ///
    /// # Errors
    /// `MissingTensor`.
    pub fn tensor(&self, name: &str) -> Result<&Tensor, Error> {
        self.tensors.get(name).ok_or_else(|| Error::MissingTensor {
            name: name.to_owned(),
        })
    }

    /// Tensor `blk.{layer}.{suffix}`.
    ///
    /// # Errors
    /// `MissingTensor`.
    pub fn layer(&self, layer: usize, suffix: &str) -> Result<&Tensor, Error> {
        self.tensor(&format!("blk.{layer}.{suffix}"))
    }
}

/// A matrix of computed values, f64 `[rows][cols]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mat {
    /// Rows.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// Row-major.
    pub data: Vec<f64>,
}

impl Mat {
    /// All zero.
    #[must_use]
    pub fn zeros(rows: usize, cols: usize) -> Self {
        let data = vec![0.0; rows * cols];
        Self { rows, cols, data }
    }

    /// Row `i`.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    pub fn row(&self, i: usize) -> &[f64] {
        &self.data[i * self.cols..(i + 1) * self.cols]
    }

    /// Row `i`, to be written.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row_mut(&mut self, i: usize) -> &mut [f64] {
        &mut self.data[i * self.cols..(i + 1) * self.cols]
    }

    /// The rows chosen, in the order given.
    #[must_use]
    pub fn gather(&self, rows: impl IntoIterator<Item = usize>) -> Self {
        let mut data = Vec::new();
        let mut n = 0;
        for i in rows {
            data.extend_from_slice(self.row(i));
            n += 1;
        }
        Self {
            rows: n,
            cols: self.cols,
            data,
        }
    }

    /// Runs `f(i, row)` over all rows, spread over threads.
    pub(super) fn par_rows(&mut self, f: impl Fn(usize, &mut [f64]) + Sync) {
        let cols = self.cols.max(1);
        self.data
            .par_chunks_mut(cols)
            .enumerate()
            .for_each(|(i, row)| f(i, row));
    }
}

/// Inner product. Four partial sums, so that the additions overlap.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    let n = a.len().min(b.len());
    let (a, b) = (&a[..n], &b[..n]);
    let mut s = [0.0; 4];
    let mut i = 0;
    while i + 4 <= n {
        s[0] += a[i] * b[i];
        s[1] += a[i + 1] * b[i + 1];
        s[2] += a[i + 2] * b[i + 2];
        s[3] += a[i + 3] * b[i + 3];
        i += 4;
    }
    while i < n {
        s[0] += a[i] * b[i];
        i += 1;
    }
    (s[0] + s[1]) + (s[2] + s[3])
}

/// y += a * x.
pub(super) fn axpy(a: f64, x: &[f64], y: &mut [f64]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += a * x;
    }
}

/// Weights widened.
pub(super) fn widen(w: &[f32]) -> Vec<f64> {
    w.iter().copied().map(f64::from).collect()
}

/// x `[T][in]` times a weight matrix given by its rows `[out][in]` -> `[T][out]`.
pub(super) fn matmul(x: &Mat, w: &[f32], out: usize) -> Mat {
    // A weight row is widened once for a tile of tokens, not once for each.
    const TILE: usize = 16;
    let cols = x.cols;
    let mut y = Mat::zeros(x.rows, out);
    if cols == 0 || out == 0 {
        return y;
    }
    y.data
        .par_chunks_mut(TILE * out)
        .zip(x.data.par_chunks(TILE * cols))
        .for_each(|(y, x)| {
            let mut wide = vec![0.0; cols];
            for (o, row) in w.chunks_exact(cols).take(out).enumerate() {
                for (d, s) in wide.iter_mut().zip(row) {
                    *d = f64::from(*s);
                }
                for (y, x) in y.chunks_exact_mut(out).zip(x.chunks_exact(cols)) {
                    y[o] = dot(x, &wide);
                }
            }
        });
    y
}

/// x `[T][in]` times a tensor `[out][in]`.
pub(super) fn project(x: &Mat, w: &Tensor) -> Mat {
    matmul(x, &w.data, w.shape[0])
}

/// 1 / sqrt(mean(x^2) + eps).
pub(super) fn inv_rms(x: &[f64], eps: f32) -> f64 {
    1.0 / (dot(x, x) / x.len() as f64 + f64::from(eps)).sqrt()
}

/// RMS norm of one row in place, weighted.
pub(super) fn rms_norm_row(x: &mut [f64], w: &[f32], eps: f32) {
    let r = inv_rms(x, eps);
    for (x, w) in x.iter_mut().zip(w) {
        *x = f64::from(*w) * (*x * r);
    }
}

/// RMS norm of every row, weighted.
pub(super) fn rms_norm(mut x: Mat, w: &Tensor, eps: f32) -> Mat {
    x.par_rows(|_, row| rms_norm_row(row, &w.data, eps));
    x
}

/// 1 / (1 + exp(-x)).
pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}
