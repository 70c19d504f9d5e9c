//! Blocks of 32 weights, eight rows at once: the ROCmFPX formats, Q8_0 and MXFP4.
//!
//! Layouts: spec/fpx-formats.md 1 and `crate::native`. The bias of each format is `Kernel::of`'s.

use std::arch::x86_64::*;

use super::ROWS;
use super::scales::{
    byte_pairs, bytes, e8m0_half, f16, part, top_bytes, transpose_2, transpose_4, transpose_8,
    transpose_pairs, ue4m3, ue4m3_signed,
};
use crate::block::{FP2_S40, FP3, FP4};
use crate::native::FP4_E2M1;
use crate::rows::x86::mem::{load_u8x8, load_u8x16};

/// The same block of eight rows, taken apart; see `super::tile::Tile` for the order of levels.
pub(super) struct Eight {
    /// Four elements a group of each of eight rows, a 32-bit lane a row.
    pub(super) levels: [__m256i; 8],
    /// Scale of the first half and of the second; a format with one scale repeats it.
    pub(super) scale: [__m256; 2],
    /// Offset of the block; 0 unless the format has one.
    pub(super) offset: __m256,
}

impl Eight {
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn one(levels: [__m256i; 8], scale: __m256) -> Self {
        Self::two(levels, [scale; 2])
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn two(levels: [__m256i; 8], scale: [__m256; 2]) -> Self {
        let offset = _mm256_setzero_ps();
        Self {
            levels,
            scale,
            offset,
        }
    }
}

/// Stored blocks of one format, one of each row.
type Blocks<'a, const BYTES: usize> = [&'a [u8; BYTES]; ROWS];

/// One byte of each block.
macro_rules! byte_at {
    ($rows:expr, $at:expr) => {
        bytes(each!(8, i => $rows[i][$at]))
    };
}

/// Two bytes of each block.
macro_rules! pair_at {
    ($rows:expr, $at:expr) => {
        byte_pairs(each!(8, i => *part($rows[i], $at)))
    };
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn fp2_signed(rows: Blocks<'_, 10>) -> Eight {
    let e = pair_at!(rows, 8);
    Eight::two(fp2_codes(rows), [ue4m3(e[0]), ue4m3(e[1])])
}

/// A negated half is a negated scale: (-s) * I and s * (-I) have the same bits up to the sign of a
/// zero, which a sum that starts at +0 does not keep.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn fp2_signed_neg(rows: Blocks<'_, 10>) -> Eight {
    let e = pair_at!(rows, 8);
    Eight::two(fp2_codes(rows), [ue4m3_signed(e[0]), ue4m3_signed(e[1])])
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn fp2_affine(rows: Blocks<'_, 10>) -> Eight {
    let e = pair_at!(rows, 8);
    let mut block = Eight::one(fp2_codes(rows), ue4m3(e[0]));
    block.offset = ue4m3(e[1]);
    block
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn fp2_s40(rows: Blocks<'_, 10>) -> Eight {
    let level = table(biased(&FP2_S40, 4));
    let codes = fp2_codes(rows);
    let levels = each!(8, g => _mm256_shuffle_epi8(level, codes[g]));
    let e = pair_at!(rows, 8);
    Eight::two(levels, [ue4m3(e[0]), ue4m3(e[1])])
}

/// Group `j` of a half: bits `2 j, 2 j + 1` of its four bytes, elements `j, j + 4, j + 8, j + 12`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn fp2_codes(rows: Blocks<'_, 10>) -> [__m256i; 8] {
    let three = _mm256_set1_epi8(3);
    let [a, b] = transpose_2(each!(8, i => part(rows[i], 0)));
    [
        _mm256_and_si256(a, three),
        _mm256_and_si256(_mm256_srli_epi32::<2>(a), three),
        _mm256_and_si256(_mm256_srli_epi32::<4>(a), three),
        _mm256_and_si256(_mm256_srli_epi32::<6>(a), three),
        _mm256_and_si256(b, three),
        _mm256_and_si256(_mm256_srli_epi32::<2>(b), three),
        _mm256_and_si256(_mm256_srli_epi32::<4>(b), three),
        _mm256_and_si256(_mm256_srli_epi32::<6>(b), three),
    ]
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn fp3(rows: Blocks<'_, 14>) -> Eight {
    let level = table(biased(&FP3, 4));
    // Three bytes, eight codes, a word; the scale bytes on top of the first two words.
    let spread = _mm_setr_epi8(0, 1, 2, 14, 3, 4, 5, 15, 6, 7, 10, -1, 11, 12, 13, -1);
    let spread = _mm256_broadcastsi128_si256(spread);
    let words = transpose_pairs(each!(4, i => {
        let pair = _mm256_set_m128i(load_14(rows[i + 4]), load_14(rows[i]));
        _mm256_shuffle_epi8(pair, spread)
    }));
    let low = each!(4, i => {
        let up = _mm256_slli_epi32::<10>(words[i]);
        let codes = fp3_codes(_mm256_blend_epi16::<0xaa>(words[i], up));
        _mm256_shuffle_epi8(level, codes)
    });
    let high = each!(4, i => {
        let down = _mm256_srli_epi32::<12>(words[i]);
        let up = _mm256_srli_epi32::<2>(words[i]);
        let codes = fp3_codes(_mm256_blend_epi16::<0xaa>(down, up));
        _mm256_shuffle_epi8(level, codes)
    });
    let e = top_bytes([words[0], words[1]]);
    let levels = each!(8, g => if g.is_multiple_of(2) { low[g / 2] } else { high[g / 2] });
    Eight::two(levels, [ue4m3(e[0]), ue4m3(e[1])])
}

/// A ROCmFP3 block: bytes 0..8, then 6..14.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn load_14(block: &[u8; 14]) -> __m128i {
    _mm_unpacklo_epi64(load_u8x8(part(block, 0)), load_u8x8(part(block, 6)))
}

/// Two 3-bit codes at the foot of each 16 bits: the upper one moves to the upper byte.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn fp3_codes(pairs: __m256i) -> __m256i {
    let even = _mm256_and_si256(pairs, _mm256_set1_epi16(0x0007));
    let odd = _mm256_and_si256(_mm256_slli_epi16::<5>(pairs), _mm256_set1_epi16(0x0700));
    _mm256_or_si256(even, odd)
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn fp4(rows: Blocks<'_, 18>) -> Eight {
    let levels = nibbles(each!(8, i => part(rows[i], 0)), table(biased(&FP4, 10)));
    let e = pair_at!(rows, 16);
    Eight::two(levels, [ue4m3(e[0]), ue4m3(e[1])])
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn fp4_fast(rows: Blocks<'_, 17>) -> Eight {
    let levels = nibbles(each!(8, i => part(rows[i], 0)), table(biased(&FP4, 10)));
    Eight::one(levels, ue4m3(byte_at!(rows, 16)))
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn mxfp4(rows: Blocks<'_, 17>) -> Eight {
    let level = table(biased(&FP4_E2M1, 12));
    let levels = nibbles(each!(8, i => part(rows[i], 1)), level);
    Eight::one(levels, e8m0_half(byte_at!(rows, 0)))
}

/// 16 bytes a row: word `j` holds elements `4 j ..` in its low nibbles, `16 + 4 j ..` in the high.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn nibbles(rows: [&[u8; 16]; ROWS], level: __m256i) -> [__m256i; 8] {
    let low = _mm256_set1_epi8(15);
    let words = transpose_4(each!(8, i => load_u8x16(rows[i])));
    each!(8, g => {
        let word = if g < 4 { words[g] } else { _mm256_srli_epi32::<4>(words[g - 4]) };
        _mm256_shuffle_epi8(level, _mm256_and_si256(word, low))
    })
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn fp6<const NEG32: bool>(rows: Blocks<'_, 26>) -> Eight {
    let words = fp6_words(rows);
    let e = top_bytes([words[4], words[5]]);
    let levels = each!(8, g => fp6_levels::<NEG32>(words[g]));
    Eight::two(levels, [ue4m3(e[0]), ue4m3(e[1])])
}

/// Levels as `super::dot::SIGN_AND_5` has them: codes moved to the top of their bytes. Code
/// 32 has magnitude 0.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn fp6_sign_and_5(rows: Blocks<'_, 26>) -> Eight {
    let words = fp6_words(rows);
    let e = top_bytes([words[4], words[5]]);
    let odd = _mm256_set1_epi16(-0x0100);
    let levels = each!(8, g => {
        let pairs = fp6_pairs(words[g]);
        let (low, high) = (_mm256_slli_epi16::<2>(pairs), _mm256_slli_epi16::<4>(pairs));
        _mm256_blendv_epi8(low, high, odd)
    });
    Eight::two(levels, [ue4m3(e[0]), ue4m3(e[1])])
}

/// Three bytes, four codes, a word. The second load starts at byte 10 and also brings the scale
/// bytes, which go on top of words 4 and 5.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn fp6_words(rows: Blocks<'_, 26>) -> [__m256i; 8] {
    let spread = _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
    let spread = _mm256_broadcastsi128_si256(spread);
    let later = _mm_setr_epi8(2, 3, 4, 14, 5, 6, 7, 15, 8, 9, 10, -1, 11, 12, 13, -1);
    let later = _mm256_broadcastsi128_si256(later);
    let [a, b, c, d] = transpose_pairs(each!(4, i => {
        let (low, high) = (part(rows[i], 0), part(rows[i + 4], 0));
        let pair = _mm256_set_m128i(load_u8x16(high), load_u8x16(low));
        _mm256_shuffle_epi8(pair, spread)
    }));
    let [e, f, g, h] = transpose_pairs(each!(4, i => {
        let (low, high) = (part(rows[i], 10), part(rows[i + 4], 10));
        let pair = _mm256_set_m128i(load_u8x16(high), load_u8x16(low));
        _mm256_shuffle_epi8(pair, later)
    }));
    [a, b, c, d, e, f, g, h]
}

/// Two 6-bit codes at the foot of each 16-bit half.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn fp6_pairs(word: __m256i) -> __m256i {
    _mm256_blend_epi16::<0xaa>(word, _mm256_slli_epi32::<4>(word))
}

/// Four 6-bit codes (sign, then five bits of magnitude) of a word as bytes, plus 32.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn fp6_levels<const NEG32: bool>(word: __m256i) -> __m256i {
    // Each to the top of its byte.
    let pairs = fp6_pairs(word);
    let even = _mm256_and_si256(_mm256_slli_epi16::<2>(pairs), _mm256_set1_epi16(0x00fc));
    let odd = _mm256_and_si256(_mm256_slli_epi16::<4>(pairs), _mm256_set1_epi16(-0x0400));
    let top = _mm256_or_si256(even, odd);
    let magnitude = _mm256_and_si256(_mm256_srli_epi16::<2>(top), _mm256_set1_epi8(31));
    let bias = _mm256_set1_epi8(32);
    let level = _mm256_add_epi8(_mm256_sign_epi8(magnitude, top), bias);
    if NEG32 {
        // Code 32 is -32: 0 with the bias.
        let is_32 = _mm256_cmpeq_epi8(top, _mm256_set1_epi8(-128));
        return _mm256_andnot_si256(is_32, level);
    }
    level
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn fp8(rows: Blocks<'_, 33>) -> Eight {
    let levels = transpose_8(each!(8, i => part(rows[i], 0)));
    Eight::one(levels, ue4m3(byte_at!(rows, 32)))
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn q8_0(rows: Blocks<'_, 34>) -> Eight {
    let levels = transpose_8(each!(8, i => part(rows[i], 2)));
    Eight::one(levels, f16(each!(8, i => *part(rows[i], 0))))
}

/// Levels by code, made unsigned; repeated up to 16 codes.
const fn biased<const N: usize>(levels: &[i8; N], bias: i8) -> [u8; 16] {
    let mut out = [0; 16];
    let mut code = 0;
    while code < 16 {
        out[code] = (levels[code % N] + bias) as u8;
        code += 1;
    }
    out
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn table(levels: [u8; 16]) -> __m256i {
    _mm256_broadcastsi128_si256(load_u8x16(&levels))
}
