//! Scale fields of eight rows to f32, and the transposed loads.

use std::arch::x86_64::*;

use super::ROWS;
use crate::rows::simd::x86::load_u8x16;

/// UE4M3 bytes of eight rows (spec/fpx-formats.md 2); invalid ones give 0.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn ue4m3(bytes: [u8; ROWS]) -> __m256 {
    let e = widen(bytes);
    let bits = _mm256_add_epi32(_mm256_slli_epi32::<20>(e), _mm256_set1_epi32(119 << 23));
    let small = _mm256_mul_ps(_mm256_cvtepi32_ps(e), _mm256_set1_ps(1.0 / 1024.0));
    let is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(8), e);
    let value = _mm256_blendv_ps(
        _mm256_castsi256_ps(bits),
        small,
        _mm256_castsi256_ps(is_small),
    );
    let valid = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x7f), e);
    _mm256_and_ps(value, _mm256_castsi256_ps(valid))
}

/// The same with bit 7 as a sign.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn ue4m3_signed(bytes: [u8; ROWS]) -> __m256 {
    let sign = _mm256_and_si256(
        _mm256_slli_epi32::<24>(widen(bytes)),
        _mm256_set1_epi32(i32::MIN),
    );
    _mm256_or_ps(ue4m3(bytes.map(|b| b & 0x7f)), _mm256_castsi256_ps(sign))
}

/// Half of the e8m0 number of eight rows.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn e8m0_half(bytes: [u8; ROWS]) -> __m256 {
    let e = widen(bytes);
    let one = _mm256_set1_epi32(1);
    let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(e, one));
    let denormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), e);
    let is_normal = _mm256_cmpgt_epi32(e, one);
    _mm256_castsi256_ps(_mm256_blendv_epi8(denormal, normal, is_normal))
}

/// f16 fields of eight rows.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn f16(fields: [[u8; 2]; ROWS]) -> __m256 {
    let h = fields.map(i16::from_le_bytes);
    _mm256_cvtph_ps(_mm_setr_epi16(
        h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7],
    ))
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn widen(bytes: [u8; ROWS]) -> __m256i {
    _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(i64::from_le_bytes(bytes)))
}

/// Four words of eight rows, word `j` of all rows in result `j`, from 16 bytes a row.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn transpose_4(rows: [__m128i; ROWS]) -> [__m256i; 4] {
    transpose_pairs(std::array::from_fn(|i| {
        _mm256_set_m128i(rows[i + 4], rows[i])
    }))
}

/// The same from pairs: row `i` in the low half of element `i`, row `i + 4` in the high half.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn transpose_pairs(y: [__m256i; 4]) -> [__m256i; 4] {
    let (a, b) = (
        _mm256_unpacklo_epi32(y[0], y[1]),
        _mm256_unpacklo_epi32(y[2], y[3]),
    );
    let (c, d) = (
        _mm256_unpackhi_epi32(y[0], y[1]),
        _mm256_unpackhi_epi32(y[2], y[3]),
    );
    [
        _mm256_unpacklo_epi64(a, b),
        _mm256_unpackhi_epi64(a, b),
        _mm256_unpacklo_epi64(c, d),
        _mm256_unpackhi_epi64(c, d),
    ]
}

/// Eight words of eight rows from 32 bytes a row.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn transpose_8(rows: [&[u8; 32]; ROWS]) -> [__m256i; 8] {
    let low = transpose_4(rows.map(|r| load_u8x16(&r.as_chunks().0[0])));
    let high = transpose_4(rows.map(|r| load_u8x16(&r.as_chunks().0[1])));
    [
        low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3],
    ]
}

/// Two words of eight rows from 8 bytes a row.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn transpose_2(rows: [[u8; 8]; ROWS]) -> [__m256i; 2] {
    let r = rows.map(i64::from_le_bytes);
    let a = _mm256_setr_epi64x(r[0], r[1], r[4], r[5]);
    let b = _mm256_setr_epi64x(r[2], r[3], r[6], r[7]);
    let (a, b) = (_mm256_castsi256_ps(a), _mm256_castsi256_ps(b));
    [
        _mm256_castps_si256(_mm256_shuffle_ps::<0b10_00_10_00>(a, b)),
        _mm256_castps_si256(_mm256_shuffle_ps::<0b11_01_11_01>(a, b)),
    ]
}

/// The first `N` bytes from `at` on.
///
/// # Panics
/// If the array is too short: never, for the constants used here.
#[inline(always)]
pub(super) fn part<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    let Some(part) = bytes[at..].first_chunk() else {
        unreachable!("a field inside its block")
    };
    part
}
