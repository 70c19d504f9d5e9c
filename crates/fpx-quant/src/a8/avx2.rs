//! The AVX2 body of [`super::A8Rows::quantize`]: the operations of `quantize_block`, eight a time.
//!
//! Magnitudes are compared as integers: the order is the same, and a NaN is larger than infinity.

use std::arch::x86_64::*;

use super::{A8Block, BLOCK, Blocks, NAN_SCALE, TINY};
use crate::rows::x86::mem::{load_f32x8, store_i8x32};

/// Quantises a run of blocks.
#[target_feature(enable = "avx2,fma,f16c")]
pub(crate) fn quantize(x: &[[f32; BLOCK]], out: &mut Blocks<'_>) {
    for (i, x) in x.iter().enumerate() {
        let x: [__m256; 4] = std::array::from_fn(|j| load_f32x8(&x.as_chunks().0[j]));
        let amax = f32::from_bits(max_magnitude(&x));
        let (inv, d) = match amax {
            _ if amax.is_nan() => (0.0, NAN_SCALE),
            _ if amax < TINY => (0.0, 0.0),
            _ => (127.0 / amax, amax / 127.0),
        };
        if inv == 0.0 {
            // Zero, NaN and infinite blocks (127 over infinity is 0): a product could give NaN.
            (out.q[i], out.q_by_4[i]) = ([0; BLOCK], [0; BLOCK]);
            out.blocks[i] = A8Block {
                d,
                ..A8Block::default()
            };
            continue;
        }
        let inv = _mm256_set1_ps(inv);
        let q = x.map(|v| _mm256_cvtps_epi32(_mm256_mul_ps(v, inv)));
        let halves = [add_all(q[0], q[1]), add_all(q[2], q[3])];
        let sum = halves[0] + halves[1];
        out.blocks[i] = A8Block { d, sum, halves };
        let q = pack(q);
        store_i8x32(&mut out.q[i], q);
        store_i8x32(&mut out.q_by_4[i], by_4(q));
    }
}

/// Bits of the largest magnitude.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn max_magnitude(x: &[__m256; 4]) -> u32 {
    let mask = _mm256_set1_epi32(0x7fff_ffff);
    let m = x.map(|v| _mm256_and_si256(_mm256_castps_si256(v), mask));
    let m = _mm256_max_epu32(_mm256_max_epu32(m[0], m[1]), _mm256_max_epu32(m[2], m[3]));
    let m = _mm_max_epu32(_mm256_castsi256_si128(m), _mm256_extracti128_si256::<1>(m));
    let m = _mm_max_epu32(m, _mm_shuffle_epi32::<0b00_00_11_10>(m));
    let m = _mm_max_epu32(m, _mm_shuffle_epi32::<0b00_00_00_01>(m));
    _mm_cvtsi128_si32(m) as u32
}

/// Sum of 16 integers.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn add_all(a: __m256i, b: __m256i) -> f32 {
    let s = _mm256_add_epi32(a, b);
    let s = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256::<1>(s));
    let s = _mm_add_epi32(s, _mm_shuffle_epi32::<0b00_00_11_10>(s));
    let s = _mm_add_epi32(s, _mm_shuffle_epi32::<0b00_00_00_01>(s));
    _mm_cvtsi128_si32(s) as f32
}

/// 32 integers within +-127 as bytes, in order. |x * inv| is at most 127 plus rounding, so the
/// clamp of the definition is the saturation here.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn pack(q: [__m256i; 4]) -> __m256i {
    let low = _mm256_packs_epi32(q[0], q[1]);
    let high = _mm256_packs_epi32(q[2], q[3]);
    // The packs work within 128-bit lanes: 0 4 1 5 2 6 3 7 in groups of four bytes.
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order)
}

/// Every 16 bytes transposed as 4 x 4.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn by_4(q: __m256i) -> __m256i {
    let order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm256_shuffle_epi8(q, _mm256_broadcastsi128_si256(order))
}
