//! The bits that the kernels must give: `fpx_quant` for rules 1 to 3, `engine_core::math` for rules 4 to
//! 6, and what stands alone nowhere else (`docs/adr/0001-arithmetic.md`).

use engine_core::math::{exp, fma};
use fpx_quant::{A8Rows, Format, FormatError, Matrix, Out};

use super::{Outcome, Runner, compare_bytes};
use crate::KernelError;

/// Quantised activation rows as the device holds them.
#[derive(Clone, Debug)]
pub struct Activations {
    rows: A8Rows,
    /// `[rows][k]`, before.
    x: Vec<f32>,
    k: usize,
    /// `[rows][k]`.
    pub q: Vec<u8>,
    /// `[rows][k / 32]` of 8 bytes (`gpu/a8.cu`).
    pub meta: Vec<u8>,
}

impl Activations {
    /// Rule 1 on x `[rows][k]`.
    #[must_use]
    pub fn new(x: &[f32], rows: usize, k: usize) -> Self {
        let mut a8 = A8Rows::new();
        a8.quantize(x, rows, k);
        let (mut q, mut meta) = (Vec::new(), Vec::new());
        for row in (0..rows).map(|r| a8.row(r)) {
            q.extend(row.q.iter().map(|v| v.cast_unsigned()));
            for block in row.blocks {
                meta.extend(block.d.to_le_bytes());
                // Exact sums of 16 int8 values: they fit.
                meta.extend(block.halves.iter().flat_map(|h| (*h as i16).to_le_bytes()));
            }
        }
        Self {
            rows: a8,
            x: x.to_vec(),
            k,
            q,
            meta,
        }
    }

    /// One of the rows.
    #[must_use]
    pub fn only(&self, row: usize) -> Self {
        Self::new(&self.x[row * self.k..][..self.k], 1, self.k)
    }

    /// Compares the q and meta that a kernel wrote. The NaN of a NaN block is stated, so these are bytes, not floats.
    ///
    /// # Errors
    /// `Runtime`.
    pub fn compare<R: Runner>(
        &self,
        runner: &mut R,
        name: &str,
        [q, meta]: [R::Buffer; 2],
    ) -> Result<[Outcome; 2], KernelError> {
        let (q, meta) = (runner.read(q)?, runner.read(meta)?);
        Ok([
            compare_bytes(format!("{name} q"), &self.q, &q),
            compare_bytes(format!("{name} d and sums"), &self.meta, &meta),
        ])
    }
}

/// Rules 2 and 3: y `[activation rows][weight rows]` of a file's matrix.
///
/// # Errors
/// A matrix that does not fit its bytes.
pub fn product(
    format: Format,
    rows: usize,
    k: usize,
    raw: &[u8],
    x: &Activations,
) -> Result<Vec<f32>, FormatError> {
    let matrix = Matrix::new(format, rows, k, raw)?;
    let mut y = vec![0f32; rows * x.rows.n()];
    let cols = x.rows.n();
    fpx_quant::matmul_a8(
        &matrix,
        0..rows,
        &x.rows,
        0..cols,
        &mut Out::new(&mut y, cols, rows),
    );
    Ok(y)
}

/// Rule 7 without values: probabilities of one row of scores.
#[must_use]
pub fn softmax(scores: &[f32], sink: Option<f32>) -> Vec<f32> {
    let chunks: Vec<(f32, Vec<f32>, f32)> = scores
        .chunks(128)
        .map(|chunk| {
            let peak = chunk.iter().fold(f32::NEG_INFINITY, |m, v| m.max(*v));
            let weights: Vec<f32> = chunk.iter().map(|s| exp(s - peak)).collect();
            let sum = weights.iter().fold(0.0, |l, w| fma(*w, 1.0, l));
            (peak, weights, sum)
        })
        .collect();
    let start = sink.unwrap_or(f32::NEG_INFINITY);
    let peak = chunks.iter().fold(start, |m, (p, ..)| m.max(*p));
    let factors: Vec<f32> = chunks.iter().map(|(p, ..)| exp(p - peak)).collect();
    let total = chunks
        .iter()
        .zip(&factors)
        .fold(0.0, |l, ((.., sum), f)| fma(*f, *sum, l));
    let total = sink.map_or(total, |s| total + exp(s - peak));
    let weights = chunks.iter().zip(&factors);
    weights
        .flat_map(|((_, w, _), f)| w.iter().map(move |w| f * w / total))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softmax_is_close_to_f64_and_sums_to_one() {
        let scores: Vec<f32> = (0..300)
            .map(|i| ((i * 37) % 101) as f32 * 0.07 - 3.0)
            .collect();
        let p = softmax(&scores, Some(0.5));
        let sum: f64 = scores.iter().map(|s| f64::from(*s).exp()).sum::<f64>() + 0.5f64.exp();
        for (s, p) in scores.iter().zip(&p) {
            let want = f64::from(*s).exp() / sum;
            assert!((f64::from(*p) - want).abs() < 1e-6 * want);
        }
        let total: f32 = softmax(&scores, None).iter().sum();
        assert!((total - 1.0).abs() < 1e-5);
    }
}
