//! The roundings that are part of the model (spec/ds4-architecture.md 3.1, 3.2): `kv_sim`.
//!
//! Written from the value grids: every representable number is listed and the nearest taken, ties
//! to the even code. Slow, and for that reason unlike any bit trick it is compared with.

use std::sync::OnceLock;

/// Channels that share a scale in a key/value row.
pub const FP8_BLOCK: usize = 64;
/// Channels that share a scale in an indexer row.
pub const FP4_BLOCK: usize = 32;

/// Magnitudes of e2m1 by code.
pub const E2M1: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// Magnitudes of e4m3fn by code 0..=126 (127 is NaN): 3 mantissa bits, bias 7, subnormals.
#[must_use]
pub fn e4m3() -> &'static [f64] {
    static GRID: OnceLock<Vec<f64>> = OnceLock::new();
    GRID.get_or_init(|| {
        let value = |code: i32| {
            let (e, m) = (code >> 3, f64::from(code & 7));
            match e {
                0 => m * 2f64.powi(-9),
                _ => (1.0 + m / 8.0) * 2f64.powi(e - 7),
            }
        };
        (0..=126).map(value).collect()
    })
}

/// The grid's magnitude nearest to |v|, ties to the even code, with the sign of v. Values beyond
/// the grid clamp to its end. NaN stays NaN.
#[must_use]
pub fn round_to_grid(v: f64, grid: &[f64]) -> f64 {
    if v.is_nan() {
        return v;
    }
    let a = v.abs();
    let above = grid.partition_point(|g| *g < a);
    let code = match above {
        0 => 0,
        n if n == grid.len() => n - 1,
        n => {
            let (down, up) = (a - grid[n - 1], grid[n] - a);
            let to_upper = up < down || (up == down && n % 2 == 0);
            if to_upper { n } else { n - 1 }
        }
    };
    grid[code].copysign(v)
}

/// Smallest power of two not below x: 2^ceil(log2 x), read off the exponent. For x > 0.
#[must_use]
pub fn pow2_at_least(x: f64) -> f64 {
    let floor = f64::from_bits(x.to_bits() & !((1 << 52) - 1));
    if floor == x { x } else { 2.0 * floor }
}

/// The scale of a key/value block with largest magnitude `amax`.
#[must_use]
pub fn fp8_scale(amax: f64) -> f64 {
    pow2_at_least(amax.max(1e-4) / 448.0)
}

/// The scale of an indexer block with largest magnitude `amax`.
#[must_use]
pub fn fp4_scale(amax: f64) -> f64 {
    pow2_at_least(amax.max(6.0 * 2f64.powi(-126)) / 6.0)
}

/// Rounds whole blocks of 64 to e4m3 times a power of two, in place.
pub fn fp8_sim(x: &mut [f64]) {
    for block in x.chunks_mut(FP8_BLOCK) {
        let scale = fp8_scale(amax(block));
        block
            .iter_mut()
            .for_each(|v| *v = round_to_grid(*v / scale, e4m3()) * scale);
    }
}

/// Rounds whole blocks of 32 to e2m1 times a power of two, in place.
pub fn fp4_sim(x: &mut [f64]) {
    for block in x.chunks_mut(FP4_BLOCK) {
        let scale = fp4_scale(amax(block));
        block
            .iter_mut()
            .for_each(|v| *v = round_to_grid(*v / scale, &E2M1) * scale);
    }
}

fn amax(x: &[f64]) -> f64 {
    x.iter().fold(0.0, |m: f64, v| m.max(v.abs()))
}

/// Nearest bf16, ties to even, straight from f64.
#[must_use]
pub fn bf16_round(v: f64) -> f64 {
    const DROP: u32 = 52 - 7;
    let smallest_normal = 2f64.powi(-126);
    if !v.is_finite() {
        return v;
    }
    if v.abs() < smallest_normal {
        let step = 2f64.powi(-133);
        return (v / step).round_ties_even() * step;
    }
    let bits = v.to_bits();
    let half = (1u64 << (DROP - 1)) - 1 + ((bits >> DROP) & 1);
    let rounded = f64::from_bits((bits + half) & !((1 << DROP) - 1));
    let largest = f64::from(half::bf16::MAX.to_f32());
    if rounded.abs() > largest {
        f64::INFINITY.copysign(v)
    } else {
        rounded
    }
}

/// Orthonormal Hadamard transform in natural order, in place. The length is a power of two.
pub fn hadamard(x: &mut [f64]) {
    let n = x.len();
    let mut stride = 1;
    while stride < n {
        for pair in x.chunks_exact_mut(2 * stride) {
            let (low, high) = pair.split_at_mut(stride);
            for (a, b) in low.iter_mut().zip(high) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        stride *= 2;
    }
    let scale = 1.0 / (n as f64).sqrt();
    x.iter_mut().for_each(|v| *v *= scale);
}

/// A key/value row as the model keeps it: e4m3 blocks, then the `n_rot` tail in bf16.
pub fn kv_row(row: &mut [f64], n_rot: usize) {
    let (nope, tail) = row.split_at_mut(row.len() - n_rot);
    fp8_sim(nope);
    tail.iter_mut().for_each(|v| *v = bf16_round(*v));
}

/// An indexer query or key as the model keeps it: rotated by Hadamard, then e2m1.
pub fn index_row(row: &mut [f64]) {
    hadamard(row);
    fp4_sim(row);
}
