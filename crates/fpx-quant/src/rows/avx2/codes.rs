//! Blocks of 32 weights to tiles: the ROCmFPX formats, Q8_0 and MXFP4.
//!
//! Layouts: spec/fpx-formats.md 1 and `crate::native`. The bias of each format is `Kernel::of`'s.

use std::arch::x86_64::*;
use std::ops::Range;

use super::ROWS;
use super::scales::{
    e8m0_half, f16, part, transpose_2, transpose_4, transpose_8, transpose_pairs, ue4m3,
    ue4m3_signed,
};
use super::tile::{Tile, stored};
use crate::block::{FP2_S40, FP3, FP4};
use crate::native::FP4_E2M1;
use crate::rows::simd::x86::{load_u8x16, store_f32x8};

/// One byte of the same block of eight rows.
macro_rules! bytes_at {
    ($rows:expr, $block:expr, $at:expr) => {
        $rows.map(|row| row[$block][$at])
    };
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn fp2_signed(tile: &mut Tile, rows: &[&[u8]; ROWS], blocks: Range<usize>) {
    let rows = stored::<10>(rows, blocks);
    for b in 0..rows[0].len() {
        fp2_codes(tile, b, rows.map(|r| *part(&r[b], 0)), |codes| codes);
        store_f32x8(&mut tile.scale[b][0], ue4m3(bytes_at!(rows, b, 8)));
        store_f32x8(&mut tile.scale[b][1], ue4m3(bytes_at!(rows, b, 9)));
    }
}

/// A negated half is a negated scale: (-s) * I and s * (-I) have the same bits up to the sign of a
/// zero, which a sum that starts at +0 does not keep.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn fp2_signed_neg(tile: &mut Tile, rows: &[&[u8]; ROWS], blocks: Range<usize>) {
    let rows = stored::<10>(rows, blocks);
    for b in 0..rows[0].len() {
        fp2_codes(tile, b, rows.map(|r| *part(&r[b], 0)), |codes| codes);
        store_f32x8(&mut tile.scale[b][0], ue4m3_signed(bytes_at!(rows, b, 8)));
        store_f32x8(&mut tile.scale[b][1], ue4m3_signed(bytes_at!(rows, b, 9)));
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn fp2_affine(tile: &mut Tile, rows: &[&[u8]; ROWS], blocks: Range<usize>) {
    let rows = stored::<10>(rows, blocks);
    for b in 0..rows[0].len() {
        fp2_codes(tile, b, rows.map(|r| *part(&r[b], 0)), |codes| codes);
        store_f32x8(&mut tile.scale[b][0], ue4m3(bytes_at!(rows, b, 8)));
        store_f32x8(&mut tile.offset[b][0], ue4m3(bytes_at!(rows, b, 9)));
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn fp2_s40(tile: &mut Tile, rows: &[&[u8]; ROWS], blocks: Range<usize>) {
    let rows = stored::<10>(rows, blocks);
    let level = table(biased(&FP2_S40, 4));
    for b in 0..rows[0].len() {
        let codes = rows.map(|r| *part(&r[b], 0));
        fp2_codes(tile, b, codes, |codes| _mm256_shuffle_epi8(level, codes));
        store_f32x8(&mut tile.scale[b][0], ue4m3(bytes_at!(rows, b, 8)));
        store_f32x8(&mut tile.scale[b][1], ue4m3(bytes_at!(rows, b, 9)));
    }
}

/// Group `j` of a half: bits `2 j, 2 j + 1` of its four bytes, elements `j, j + 4, j + 8, j + 12`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn fp2_codes(
    tile: &mut Tile,
    block: usize,
    rows: [[u8; 8]; ROWS],
    level: impl Fn(__m256i) -> __m256i,
) {
    let three = _mm256_set1_epi8(3);
    for (half, word) in transpose_2(rows).into_iter().enumerate() {
        let shifted = [
            word,
            _mm256_srli_epi32::<2>(word),
            _mm256_srli_epi32::<4>(word),
            _mm256_srli_epi32::<6>(word),
        ];
        for (j, codes) in shifted.into_iter().enumerate() {
            tile.set(block, 4 * half + j, level(_mm256_and_si256(codes, three)));
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn fp3(tile: &mut Tile, rows: &[&[u8]; ROWS], blocks: Range<usize>) {
    let rows = stored::<14>(rows, blocks);
    let level = table(biased(&FP3, 4));
    // Three bytes, eight codes, a word.
    let spread = _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
    let spread = _mm256_broadcastsi128_si256(spread);
    for b in 0..rows[0].len() {
        let load = |row: &[[u8; 14]]| {
            let low = _mm_cvtsi64_si128(i64::from_le_bytes(*part(&row[b], 0)));
            _mm_insert_epi32::<2>(low, i32::from_le_bytes(*part(&row[b], 8)))
        };
        let pairs: [__m256i; 4] =
            std::array::from_fn(|i| _mm256_set_m128i(load(rows[i + 4]), load(rows[i])));
        let words = transpose_pairs(pairs.map(|p| _mm256_shuffle_epi8(p, spread)));
        for (i, word) in words.into_iter().enumerate() {
            let [low, high] = fp3_codes(word);
            tile.set(b, 2 * i, _mm256_shuffle_epi8(level, low));
            tile.set(b, 2 * i + 1, _mm256_shuffle_epi8(level, high));
        }
        store_f32x8(&mut tile.scale[b][0], ue4m3(bytes_at!(rows, b, 12)));
        store_f32x8(&mut tile.scale[b][1], ue4m3(bytes_at!(rows, b, 13)));
    }
}

/// Eight 3-bit codes of a word as bytes.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn fp3_codes(word: __m256i) -> [__m256i; 2] {
    // Two codes at the foot of each 16-bit half, then the upper one moves to the upper byte.
    let low = _mm256_blend_epi16::<0xaa>(word, _mm256_slli_epi32::<10>(word));
    let high =
        _mm256_blend_epi16::<0xaa>(_mm256_srli_epi32::<12>(word), _mm256_srli_epi32::<2>(word));
    [low, high].map(|codes| {
        let even = _mm256_and_si256(codes, _mm256_set1_epi16(0x0007));
        let odd = _mm256_and_si256(_mm256_slli_epi16::<5>(codes), _mm256_set1_epi16(0x0700));
        _mm256_or_si256(even, odd)
    })
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn fp4(tile: &mut Tile, rows: &[&[u8]; ROWS], blocks: Range<usize>) {
    let rows = stored::<18>(rows, blocks);
    let level = table(biased(&FP4, 10));
    for b in 0..rows[0].len() {
        nibbles(tile, b, rows.map(|r| part(&r[b], 0)), level);
        store_f32x8(&mut tile.scale[b][0], ue4m3(bytes_at!(rows, b, 16)));
        store_f32x8(&mut tile.scale[b][1], ue4m3(bytes_at!(rows, b, 17)));
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn fp4_fast(tile: &mut Tile, rows: &[&[u8]; ROWS], blocks: Range<usize>) {
    let rows = stored::<17>(rows, blocks);
    let level = table(biased(&FP4, 10));
    for b in 0..rows[0].len() {
        nibbles(tile, b, rows.map(|r| part(&r[b], 0)), level);
        store_f32x8(&mut tile.scale[b][0], ue4m3(bytes_at!(rows, b, 16)));
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn mxfp4(tile: &mut Tile, rows: &[&[u8]; ROWS], blocks: Range<usize>) {
    let rows = stored::<17>(rows, blocks);
    let level = table(biased(&FP4_E2M1, 12));
    for b in 0..rows[0].len() {
        nibbles(tile, b, rows.map(|r| part(&r[b], 1)), level);
        store_f32x8(&mut tile.scale[b][0], e8m0_half(bytes_at!(rows, b, 0)));
    }
}

/// 16 bytes a row: word `j` holds elements `4 j ..` in its low nibbles, `16 + 4 j ..` in the high.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn nibbles(tile: &mut Tile, block: usize, rows: [&[u8; 16]; ROWS], level: __m256i) {
    let low = _mm256_set1_epi8(15);
    let words = transpose_4(rows.map(|r| load_u8x16(r)));
    for (j, word) in words.into_iter().enumerate() {
        let first = _mm256_and_si256(word, low);
        let second = _mm256_and_si256(_mm256_srli_epi32::<4>(word), low);
        tile.set(block, j, _mm256_shuffle_epi8(level, first));
        tile.set(block, 4 + j, _mm256_shuffle_epi8(level, second));
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn fp6<const NEG32: bool>(tile: &mut Tile, rows: &[&[u8]; ROWS], blocks: Range<usize>) {
    let rows = stored::<26>(rows, blocks);
    // Three bytes, four codes, a word; the second 16 bytes start at byte 8.
    let spread = _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
    let spread = _mm256_broadcastsi128_si256(spread);
    let later = _mm_setr_epi8(4, 5, 6, -1, 7, 8, 9, -1, 10, 11, 12, -1, 13, 14, 15, -1);
    let later = _mm256_broadcastsi128_si256(later);
    for b in 0..rows[0].len() {
        for (half, order) in [spread, later].into_iter().enumerate() {
            let load = |i: usize| load_u8x16(part(&rows[i][b], 8 * half));
            let pairs: [__m256i; 4] =
                std::array::from_fn(|i| _mm256_set_m128i(load(i + 4), load(i)));
            let words = transpose_pairs(pairs.map(|p| _mm256_shuffle_epi8(p, order)));
            for (j, word) in words.into_iter().enumerate() {
                tile.set(b, 4 * half + j, fp6_levels::<NEG32>(word));
            }
        }
        store_f32x8(&mut tile.scale[b][0], ue4m3(bytes_at!(rows, b, 24)));
        store_f32x8(&mut tile.scale[b][1], ue4m3(bytes_at!(rows, b, 25)));
    }
}

/// Four 6-bit codes (sign, then five bits of magnitude) of a word as bytes, plus 32.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn fp6_levels<const NEG32: bool>(word: __m256i) -> __m256i {
    // Two codes at the foot of each 16-bit half, then each to the top of its byte.
    let pairs = _mm256_blend_epi16::<0xaa>(word, _mm256_slli_epi32::<4>(word));
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
pub(super) fn fp8(tile: &mut Tile, rows: &[&[u8]; ROWS], blocks: Range<usize>) {
    let rows = stored::<33>(rows, blocks);
    for b in 0..rows[0].len() {
        whole_bytes(tile, b, rows.map(|r| part(&r[b], 0)));
        store_f32x8(&mut tile.scale[b][0], ue4m3(bytes_at!(rows, b, 32)));
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn q8_0(tile: &mut Tile, rows: &[&[u8]; ROWS], blocks: Range<usize>) {
    let rows = stored::<34>(rows, blocks);
    for b in 0..rows[0].len() {
        whole_bytes(tile, b, rows.map(|r| part(&r[b], 2)));
        store_f32x8(&mut tile.scale[b][0], f16(rows.map(|r| *part(&r[b], 0))));
    }
}

/// 32 signed bytes a row, kept as they are.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn whole_bytes(tile: &mut Tile, block: usize, rows: [&[u8; 32]; ROWS]) {
    for (group, levels) in transpose_8(rows).into_iter().enumerate() {
        tile.set(block, group, levels);
    }
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
