//! Scale fields of sixteen rows to f32, and the transposed loads.

use std::arch::x86_64::*;

use super::ROWS;
use crate::rows::x86::mem::{load_u8x8, load_u8x16};

/// UE4M3 bytes of sixteen rows, 16 bits each; invalid ones give 0. See `avx2::scales::ue4m3`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
pub(super) fn ue4m3(e: __m256i) -> __m512 {
    let valid = _mm256_cmplt_epi16_mask(e, _mm256_set1_epi16(0x7f));
    let half = _mm256_maskz_slli_epi16::<7>(valid, e);
    _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(128.0))
}

/// The same with bit 7 as a sign.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
#[inline]
pub(super) fn ue4m3_signed(e: __m256i) -> __m512 {
    let value = ue4m3(_mm256_and_si256(e, _mm256_set1_epi16(0x7f)));
    let sign = _mm512_slli_epi32::<24>(_mm512_cvtepu16_epi32(e));
    let sign = _mm512_and_si512(sign, _mm512_set1_epi32(i32::MIN));
    _mm512_or_ps(value, _mm512_castsi512_ps(sign))
}

/// Half of the e8m0 number of sixteen rows.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn e8m0_half(e: __m256i) -> __m512 {
    let e = _mm512_cvtepu16_epi32(e);
    let one = _mm512_set1_epi32(1);
    let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(e, one));
    let denormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x0020_0000), e);
    let is_normal = _mm512_cmpgt_epi32_mask(e, one);
    _mm512_castsi512_ps(_mm512_mask_blend_epi32(is_normal, denormal, normal))
}

/// f16 fields of sixteen rows.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn f16(fields: [[u8; 2]; ROWS]) -> __m512 {
    _mm512_cvtph_ps(halfwords(fields))
}

/// A byte of each of sixteen rows, 16 bits each.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn bytes(b: [u8; ROWS]) -> __m256i {
    _mm256_cvtepu8_epi16(load_u8x16(&b))
}

/// Two bytes of each of sixteen rows, 16 bits each.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn byte_pairs(pairs: [[u8; 2]; ROWS]) -> [__m256i; 2] {
    let p = halfwords(pairs);
    let low = _mm256_and_si256(p, _mm256_set1_epi16(255));
    [low, _mm256_srli_epi16::<8>(p)]
}

/// The top bytes of two words of each of sixteen rows, 16 bits each.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn top_bytes(words: [__m512i; 2]) -> [__m256i; 2] {
    let (a, b) = (
        _mm512_srli_epi32::<24>(words[0]),
        _mm512_srli_epi32::<24>(words[1]),
    );
    [_mm512_cvtepi32_epi16(a), _mm512_cvtepi32_epi16(b)]
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn halfwords(fields: [[u8; 2]; ROWS]) -> __m256i {
    let h = each!(16, i => i16::from_le_bytes(fields[i]));
    _mm256_setr_epi16(
        h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7], h[8], h[9], h[10], h[11], h[12], h[13],
        h[14], h[15],
    )
}

/// Four quarters of a register.
#[target_feature(enable = "avx512f,avx512vl")]
#[inline]
pub(super) fn quarters(a: __m128i, b: __m128i, c: __m128i, d: __m128i) -> __m512i {
    let (low, high) = (_mm256_set_m128i(b, a), _mm256_set_m128i(d, c));
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
}

/// The same 16 bytes in every quarter.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn repeat(quarter: __m128i) -> __m512i {
    _mm512_broadcast_i32x4(quarter)
}

/// Four words of sixteen rows, word `j` of all rows in result `j`; row `4 q + i` in quarter `q` of
/// element `i`.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn transpose_4(y: [__m512i; 4]) -> [__m512i; 4] {
    let (a, b) = (
        _mm512_unpacklo_epi32(y[0], y[1]),
        _mm512_unpacklo_epi32(y[2], y[3]),
    );
    let (c, d) = (
        _mm512_unpackhi_epi32(y[0], y[1]),
        _mm512_unpackhi_epi32(y[2], y[3]),
    );
    [
        _mm512_unpacklo_epi64(a, b),
        _mm512_unpackhi_epi64(a, b),
        _mm512_unpacklo_epi64(c, d),
        _mm512_unpackhi_epi64(c, d),
    ]
}

/// Two words of sixteen rows from 8 bytes a row.
#[target_feature(enable = "avx512f,avx512vl")]
#[inline]
pub(super) fn transpose_2(rows: [&[u8; 8]; ROWS]) -> [__m512i; 2] {
    let two = each!(8, i => _mm_unpacklo_epi64(load_u8x8(rows[2 * i]), load_u8x8(rows[2 * i + 1])));
    let low = quarters(two[0], two[1], two[2], two[3]);
    let high = quarters(two[4], two[5], two[6], two[7]);
    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    let odd = _mm512_or_si512(even, _mm512_set1_epi32(1));
    [
        _mm512_permutex2var_epi32(low, even, high),
        _mm512_permutex2var_epi32(low, odd, high),
    ]
}

/// Loads 16 bytes of each of sixteen rows in the order of [`transpose_4`] and transposes them.
macro_rules! words_16 {
    ($i:ident => $bytes:expr) => {
        transpose_4(each!(4, y => {
            let q = each!(4, q => {
                let $i = 4 * q + y;
                load_u8x16($bytes)
            });
            quarters(q[0], q[1], q[2], q[3])
        }))
    };
}
pub(super) use words_16;
