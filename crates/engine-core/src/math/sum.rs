//! Ordered sums (contract rules 4 and 5).

use super::{fma, rsqrt};

/// Elements of a segment: row sums are added segment by segment.
pub const SEGMENT: usize = 512;

/// Partial sums of a segment in rule 5: p_j runs over k = j mod 32.
pub const LANES: usize = 32;

/// Combines the 32 partial sums by xor 16, 8, 4, 2, 1, the lower index on the left.
#[inline(always)]
#[must_use]
pub fn fold_lanes(mut p: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for j in 0..half {
            p[j] += p[j + half];
        }
        half /= 2;
    }
    p[0]
}

/// Adds segment sums in order; the total starts at the first one, not at zero.
#[inline(always)]
#[must_use]
pub fn row_total(first: bool, total: f32, segment: f32) -> f32 {
    if first { segment } else { total + segment }
}

/// Rule 5: sum of `a[k] * b[k]`, segments of 512, inside a segment 32 partial sums over k mod 32 by
/// fma in k order from +0, combined by [`fold_lanes`], segments added in order. A length that is
/// not a multiple of 32 ends with a partly filled stripe. The empty sum is +0.
///
/// # Panics
/// If the lengths differ.
#[inline(always)]
#[must_use]
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let mut total = 0.0;
    for (index, (sa, sb)) in a.chunks(SEGMENT).zip(b.chunks(SEGMENT)).enumerate() {
        let mut p = [0f32; LANES];
        let (ca, cb) = (sa.chunks_exact(LANES), sb.chunks_exact(LANES));
        let (ra, rb) = (ca.remainder(), cb.remainder());
        for (xa, xb) in ca.zip(cb) {
            for j in 0..LANES {
                p[j] = fma(xa[j], xb[j], p[j]);
            }
        }
        for (j, (xa, xb)) in ra.iter().zip(rb).enumerate() {
            p[j] = fma(*xa, *xb, p[j]);
        }
        total = row_total(index == 0, total, fold_lanes(p));
    }
    total
}

/// Rule 5 on x * x.
#[inline(always)]
#[must_use]
pub fn sum_squares(x: &[f32]) -> f32 {
    dot(x, x)
}

/// The factor of an RMS norm: 1 / sqrt(ss / n + eps), each step rounded.
#[inline(always)]
#[must_use]
pub fn rms_scale(x: &[f32], eps: f32) -> f32 {
    rsqrt(sum_squares(x) / x.len() as f32 + eps)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(n: usize, mut state: u32) -> Vec<f32> {
        (0..n)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / 8_388_608.0 - 1.0
            })
            .collect()
    }

    #[test]
    fn dot_is_close_to_f64_for_every_tail() {
        for n in [0, 1, 31, 32, 33, 100, 511, 512, 513, 1024, 1500] {
            let (a, b) = (noise(n, 1), noise(n, 2));
            let want: f64 = a
                .iter()
                .zip(&b)
                .map(|(x, y)| f64::from(*x) * f64::from(*y))
                .sum();
            assert!((f64::from(dot(&a, &b)) - want).abs() < 1e-5, "n = {n}");
        }
    }

    #[test]
    fn dot_follows_the_stated_order() {
        // 2^24 + 1 is lost when the two are added directly, kept when they sit in lanes that meet
        // later: the result tells which order was used.
        let mut a = vec![0f32; 64];
        a[0] = 16_777_216.0;
        a[32] = 1.0; // same lane as 0: lost
        assert_eq!(dot(&a, &[1.0; 64]), 16_777_216.0);
        let mut a = vec![0f32; 64];
        a[0] = 16_777_216.0;
        a[1] = 1.0;
        a[33] = 1.0; // both in lane 1, summed to 2 before they meet lane 0
        assert_eq!(dot(&a, &[1.0; 64]), 16_777_218.0);
        let mut a = vec![0f32; 32];
        a[0] = 16_777_216.0;
        a[16] = 1.0; // xor 16 first: lost
        a[1] = 1.0; // xor 1 last: lost too, one at a time
        assert_eq!(dot(&a, &[1.0; 32]), 16_777_216.0);
    }

    #[test]
    fn a_row_total_starts_at_its_first_segment() {
        let a = vec![-0.0f32; 1024];
        // Within a segment sums start at +0, so the result is +0 either way.
        assert_eq!(dot(&a, &[1.0; 1024]).to_bits(), 0);
        assert_eq!(row_total(true, 7.0, -0.0).to_bits(), (-0.0f32).to_bits());
    }

    #[test]
    fn rms_scale_normalises() {
        let x = noise(4096, 3);
        let r = rms_scale(&x, 1e-6);
        let ss: f64 = x.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
        assert!((f64::from(r) - 1.0 / (ss / 4096.0 + 1e-6).sqrt()).abs() < 1e-6);
    }
}
