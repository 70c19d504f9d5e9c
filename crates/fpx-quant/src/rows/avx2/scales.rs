//! Scale fields of eight rows to f32, and the transposed loads.

use std::arch::x86_64::*;

use super::ROWS;
use crate::rows::x86::mem::{load_u8x8, load_u8x16};

/// UE4M3 bytes of eight rows (spec/fpx-formats.md 2), 16 bits each; invalid ones give 0.
///
/// Moved up by 7 bits such a byte is an f16 that is 2^7 too small, subnormals included.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn ue4m3(e: __m128i) -> __m256 {
    let valid = _mm_cmpgt_epi16(_mm_set1_epi16(0x7f), e);
    let half = _mm_slli_epi16::<7>(_mm_and_si128(e, valid));
    _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_set1_ps(128.0))
}

/// The same with bit 7 as a sign.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn ue4m3_signed(e: __m128i) -> __m256 {
    let value = ue4m3(_mm_and_si128(e, _mm_set1_epi16(0x7f)));
    let sign = _mm256_slli_epi32::<24>(_mm256_cvtepu16_epi32(e));
    let sign = _mm256_and_si256(sign, _mm256_set1_epi32(i32::MIN));
    _mm256_or_ps(value, _mm256_castsi256_ps(sign))
}

/// A byte of each of eight rows, 16 bits each.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn bytes(b: [u8; ROWS]) -> __m128i {
    _mm_cvtepu8_epi16(_mm_cvtsi64_si128(i64::from_le_bytes(b)))
}

/// Two bytes of each of eight rows, 16 bits each.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn byte_pairs(pairs: [[u8; 2]; ROWS]) -> [__m128i; 2] {
    let p = halfwords(pairs);
    [
        _mm_and_si128(p, _mm_set1_epi16(255)),
        _mm_srli_epi16::<8>(p),
    ]
}

/// The top bytes of two words of each of eight rows, 16 bits each.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn top_bytes(words: [__m256i; 2]) -> [__m128i; 2] {
    let (a, b) = (
        _mm256_srli_epi32::<24>(words[0]),
        _mm256_srli_epi32::<24>(words[1]),
    );
    let packed = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packus_epi32(a, b));
    [
        _mm256_castsi256_si128(packed),
        _mm256_extracti128_si256::<1>(packed),
    ]
}

/// Half of the e8m0 number of eight rows.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn e8m0_half(e: __m128i) -> __m256 {
    let e = _mm256_cvtepu16_epi32(e);
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
    _mm256_cvtph_ps(halfwords(fields))
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn halfwords(fields: [[u8; 2]; ROWS]) -> __m128i {
    let h = each!(8, i => i16::from_le_bytes(fields[i]));
    _mm_setr_epi16(h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7])
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
    let low = transpose_4(each!(8, i => load_u8x16(part(rows[i], 0))));
    let high = transpose_4(each!(8, i => load_u8x16(part(rows[i], 16))));
    [
        low[0], low[1], low[2], low[3], high[0], high[1], high[2], high[3],
    ]
}

/// Two words of eight rows from 8 bytes a row.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn transpose_2(rows: [&[u8; 8]; ROWS]) -> [__m256i; 2] {
    let r = each!(8, i => load_u8x8(rows[i]));
    let a = _mm256_set_m128i(
        _mm_unpacklo_epi64(r[4], r[5]),
        _mm_unpacklo_epi64(r[0], r[1]),
    );
    let b = _mm256_set_m128i(
        _mm_unpacklo_epi64(r[6], r[7]),
        _mm_unpacklo_epi64(r[2], r[3]),
    );
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
pub(in crate::rows) fn part<const N: usize>(bytes: &[u8], at: usize) -> &[u8; N] {
    let Some(part) = bytes[at..].first_chunk() else {
        unreachable!("a field inside its block")
    };
    part
}
