//! Loops over whole rows, compiled a second time for AVX2 and FMA: on other builds an fma is a call
//! into libm, and a row has 129,280 exponentials. The bits are the same either way: the operations
//! are, and the order is. The only unsafe code of the crate: the call into the second copy.

use engine_core::math::{LANES, Level, SEGMENT, exp, fold_lanes, row_total, simd_level};

/// The weight of a value: 1 for the largest, even an infinite one.
#[inline(always)]
pub(crate) fn weight(value: f32, largest: f32) -> f32 {
    let w = exp(value - largest);
    if value == largest { 1.0 } else { w }
}

#[inline(always)]
fn weights_body(row: &[f32], largest: f32, out: &mut [f32]) {
    for (w, value) in out.iter_mut().zip(row) {
        *w = weight(*value, largest);
    }
}

#[inline(always)]
fn sum_body(row: &[f32], largest: f32) -> f32 {
    let mut sum = 0.0;
    for (index, segment) in row.chunks(SEGMENT).enumerate() {
        let mut lanes = [0f32; LANES];
        let stripes = segment.chunks_exact(LANES);
        let rest = stripes.remainder();
        for stripe in stripes.chain((!rest.is_empty()).then_some(rest)) {
            for (lane, value) in lanes.iter_mut().zip(stripe) {
                let w = weight(*value, largest);
                *lane += if w.is_nan() { 0.0 } else { w };
            }
        }
        sum = row_total(index == 0, sum, fold_lanes(lanes));
    }
    sum
}

/// Fills `out` with the weights of `row`; NaN stays NaN.
pub(crate) fn weights(row: &[f32], largest: f32, out: &mut [f32]) {
    #[cfg(target_arch = "x86_64")]
    if simd_level() >= Level::Avx2 {
        // SAFETY: the level says that this processor has AVX2 and FMA.
        return unsafe { avx2::weights(row, largest, out) };
    }
    weights_body(row, largest, out);
}

/// The sum of all weights in the order of the arithmetic contract's dot: segments of 512, 32 partial
/// sums over the index mod 32, folded, segments added in order. NaN counts as 0.
pub(crate) fn sum_weights(row: &[f32], largest: f32) -> f32 {
    #[cfg(target_arch = "x86_64")]
    if simd_level() >= Level::Avx2 {
        // SAFETY: the level says that this processor has AVX2 and FMA.
        return unsafe { avx2::sum_weights(row, largest) };
    }
    sum_body(row, largest)
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn weights(row: &[f32], largest: f32, out: &mut [f32]) {
        super::weights_body(row, largest, out);
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn sum_weights(row: &[f32], largest: f32) -> f32 {
        super::sum_body(row, largest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_copies_give_the_same_bits() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        for n in [0usize, 1, 7, 31, 32, 33, 500, 513, 4100] {
            let mut row: Vec<f32> = (0..n).map(|i| (i * 7919 % 4001) as f32 * -0.01).collect();
            for (at, odd) in [(3, nan), (40, -inf), (510, -0.0), (2000, -103.9)] {
                if let Some(value) = row.get_mut(at) {
                    *value = odd;
                }
            }
            for largest in [0.0, inf] {
                let (mut fast, mut plain) = (vec![nan; n], vec![nan; n]);
                weights(&row, largest, &mut fast);
                weights_body(&row, largest, &mut plain);
                let bits = |v: &[f32]| v.iter().map(|w| w.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&fast), bits(&plain), "n = {n}");
                let sums = (sum_weights(&row, largest), sum_body(&row, largest));
                assert_eq!(sums.0.to_bits(), sums.1.to_bits(), "n = {n}");
            }
        }
    }
}
