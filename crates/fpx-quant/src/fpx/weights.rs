//! Importance of each weight in the encoder's error, from an importance matrix.
//!
//! Apart from the search because the affine dialect uses it too. Must not know: formats' levels.
//! Source: spec/fpx-formats.md 5.

use crate::format::{Format, FormatError};

/// Smallest usable importance: with less, error terms of ordinary weights underflow to 0.
const LEAST: f32 = 1e-30;

/// An importance vector of one row, checked once for the whole matrix.
#[derive(Clone, Copy)]
pub(crate) struct Importance<'a> {
    values: &'a [f32],
    guarded: bool,
}

impl<'a> Importance<'a> {
    /// Refuses a vector of the wrong length and one where a whole scale group has no usable
    /// (finite, at least `LEAST`) value: every candidate's error would be 0, and the tie rule would pick
    /// the smallest scale and saturate the group.
    ///
    /// `guarded`: whether overflow of a weight is caught, as some writers do, or carried on as
    /// infinity, as others do.
    pub(crate) fn new(
        format: Format,
        values: &'a [f32],
        row_elems: usize,
        group: usize,
        guarded: bool,
    ) -> Result<Self, FormatError> {
        let bad = |why| Err(FormatError::BadWeights { format, why });
        if values.len() != row_elems {
            return bad("length differs from the row's");
        }
        let usable = |v: &f32| *v >= LEAST && v.is_finite();
        if !values.chunks(group).all(|g| g.iter().any(usable)) {
            return bad("a scale group has no usable (positive, finite) value");
        }
        Ok(Self { values, guarded })
    }

    /// Error weights of the block starting at element `at`, whose weights are `x` (finite).
    #[inline]
    pub(crate) fn block(&self, energy: f32, at: usize, x: &[f32; 32]) -> [f32; 32] {
        std::array::from_fn(|i| {
            let q = self.values[at + i];
            if !(q > 0.0 && q.is_finite()) {
                return 0.0;
            }
            let w = q * (energy + x[i] * x[i]).sqrt();
            if w.is_finite() || !self.guarded {
                w
            } else {
                f32::MAX
            }
        })
    }

    /// Mean square of a row, f32 in element order; guarded: by f64 where that overflows, at most
    /// `f32::MAX`. Non-finite elements count as 0 and in the length.
    pub(crate) fn row_energy(&self, row: &[f32]) -> f32 {
        let finite = || row.iter().copied().filter(|x| x.is_finite());
        let sum: f32 = finite().fold(0.0, |sum, x| sum + x * x);
        if sum.is_finite() || !self.guarded {
            return sum / row.len() as f32;
        }
        let wide: f64 = finite().fold(0.0, |sum, x| sum + f64::from(x) * f64::from(x));
        (wide / row.len() as f64).min(f64::from(f32::MAX)) as f32
    }
}
