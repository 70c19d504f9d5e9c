//! Blocks of 32 weights to tiles: the ROCmFPX formats, Q8_0 and MXFP4.
//!
//! Layouts: spec/fpx-formats.md 1 and `crate::native`. The bias of each format is `Kernel::of`'s.

use std::arch::x86_64::*;

use super::ROWS;
use super::scales::{
    byte_pairs, bytes, e8m0_half, f16, part, top_bytes, transpose_2, transpose_4, transpose_8,
    transpose_pairs, ue4m3, ue4m3_signed,
};
use super::tile::{Segment, Tile};
use crate::block::{FP2_S40, FP3, FP4};
use crate::native::FP4_E2M1;
use crate::rows::x86::mem::{load_u8x8, load_u8x16, store_f32x8};

/// One byte of the same block of eight rows.
macro_rules! byte_at {
    ($rows:expr, $block:expr, $at:expr) => {
        bytes(each!(8, i => $rows[i][$block][$at]))
    };
}

/// Two bytes of the same block of eight rows.
macro_rules! pair_at {
    ($rows:expr, $block:expr, $at:expr) => {
        byte_pairs(each!(8, i => *part(&$rows[i][$block], $at)))
    };
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn fp2_signed(tile: &mut Tile, segment: &Segment<'_>) {
    let rows = segment.stored::<10, 1>();
    for b in 0..rows[0].len() {
        segment.prefetch(&rows, b);
        let codes = fp2_codes(each!(8, i => part(&rows[i][b], 0)));
        tile.set_all(b, codes);
        let e = pair_at!(rows, b, 8);
        store_f32x8(&mut tile.scale[b][0], ue4m3(e[0]));
        store_f32x8(&mut tile.scale[b][1], ue4m3(e[1]));
    }
}

/// A negated half is a negated scale: (-s) * I and s * (-I) have the same bits up to the sign of a
/// zero, which a sum that starts at +0 does not keep.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn fp2_signed_neg(tile: &mut Tile, segment: &Segment<'_>) {
    let rows = segment.stored::<10, 1>();
    for b in 0..rows[0].len() {
        segment.prefetch(&rows, b);
        let codes = fp2_codes(each!(8, i => part(&rows[i][b], 0)));
        tile.set_all(b, codes);
        let e = pair_at!(rows, b, 8);
        store_f32x8(&mut tile.scale[b][0], ue4m3_signed(e[0]));
        store_f32x8(&mut tile.scale[b][1], ue4m3_signed(e[1]));
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn fp2_affine(tile: &mut Tile, segment: &Segment<'_>) {
    let rows = segment.stored::<10, 1>();
    for b in 0..rows[0].len() {
        segment.prefetch(&rows, b);
        let codes = fp2_codes(each!(8, i => part(&rows[i][b], 0)));
        tile.set_all(b, codes);
        let e = pair_at!(rows, b, 8);
        store_f32x8(&mut tile.scale[b][0], ue4m3(e[0]));
        store_f32x8(&mut tile.offset[b][0], ue4m3(e[1]));
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn fp2_s40(tile: &mut Tile, segment: &Segment<'_>) {
    let rows = segment.stored::<10, 1>();
    let level = table(biased(&FP2_S40, 4));
    for b in 0..rows[0].len() {
        segment.prefetch(&rows, b);
        let codes = fp2_codes(each!(8, i => part(&rows[i][b], 0)));
        tile.set_all(b, each!(8, g => _mm256_shuffle_epi8(level, codes[g])));
        let e = pair_at!(rows, b, 8);
        store_f32x8(&mut tile.scale[b][0], ue4m3(e[0]));
        store_f32x8(&mut tile.scale[b][1], ue4m3(e[1]));
    }
}

/// Group `j` of a half: bits `2 j, 2 j + 1` of its four bytes, elements `j, j + 4, j + 8, j + 12`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn fp2_codes(rows: [&[u8; 8]; ROWS]) -> [__m256i; 8] {
    let three = _mm256_set1_epi8(3);
    let [a, b] = transpose_2(rows);
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
pub(super) fn fp3(tile: &mut Tile, segment: &Segment<'_>) {
    let rows = segment.stored::<14, 1>();
    let level = table(biased(&FP3, 4));
    // Three bytes, eight codes, a word; the scale bytes on top of the first two words.
    let spread = _mm_setr_epi8(0, 1, 2, 14, 3, 4, 5, 15, 6, 7, 10, -1, 11, 12, 13, -1);
    let spread = _mm256_broadcastsi128_si256(spread);
    for b in 0..rows[0].len() {
        segment.prefetch(&rows, b);
        let pairs = each!(4, i => {
            let pair = _mm256_set_m128i(load_14(&rows[i + 4][b]), load_14(&rows[i][b]));
            _mm256_shuffle_epi8(pair, spread)
        });
        let words = transpose_pairs(pairs);
        for i in 0..4 {
            let word = words[i];
            let up = _mm256_slli_epi32::<10>(word);
            let low = fp3_codes(_mm256_blend_epi16::<0xaa>(word, up));
            let (down, up) = (_mm256_srli_epi32::<12>(word), _mm256_srli_epi32::<2>(word));
            let high = fp3_codes(_mm256_blend_epi16::<0xaa>(down, up));
            tile.set(b, 2 * i, _mm256_shuffle_epi8(level, low));
            tile.set(b, 2 * i + 1, _mm256_shuffle_epi8(level, high));
        }
        let e = top_bytes([words[0], words[1]]);
        store_f32x8(&mut tile.scale[b][0], ue4m3(e[0]));
        store_f32x8(&mut tile.scale[b][1], ue4m3(e[1]));
    }
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
pub(super) fn fp4(tile: &mut Tile, segment: &Segment<'_>) {
    let rows = segment.stored::<18, 1>();
    let level = table(biased(&FP4, 10));
    for b in 0..rows[0].len() {
        segment.prefetch(&rows, b);
        nibbles(tile, b, each!(8, i => part(&rows[i][b], 0)), level);
        let e = pair_at!(rows, b, 16);
        store_f32x8(&mut tile.scale[b][0], ue4m3(e[0]));
        store_f32x8(&mut tile.scale[b][1], ue4m3(e[1]));
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn fp4_fast(tile: &mut Tile, segment: &Segment<'_>) {
    let rows = segment.stored::<17, 1>();
    let level = table(biased(&FP4, 10));
    for b in 0..rows[0].len() {
        segment.prefetch(&rows, b);
        nibbles(tile, b, each!(8, i => part(&rows[i][b], 0)), level);
        store_f32x8(&mut tile.scale[b][0], ue4m3(byte_at!(rows, b, 16)));
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn mxfp4(tile: &mut Tile, segment: &Segment<'_>) {
    let rows = segment.stored::<17, 1>();
    let level = table(biased(&FP4_E2M1, 12));
    for b in 0..rows[0].len() {
        segment.prefetch(&rows, b);
        nibbles(tile, b, each!(8, i => part(&rows[i][b], 1)), level);
        store_f32x8(&mut tile.scale[b][0], e8m0_half(byte_at!(rows, b, 0)));
    }
}

/// 16 bytes a row: word `j` holds elements `4 j ..` in its low nibbles, `16 + 4 j ..` in the high.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn nibbles(tile: &mut Tile, block: usize, rows: [&[u8; 16]; ROWS], level: __m256i) {
    let low = _mm256_set1_epi8(15);
    let words = transpose_4(each!(8, i => load_u8x16(rows[i])));
    for j in 0..4 {
        let first = _mm256_and_si256(words[j], low);
        let second = _mm256_and_si256(_mm256_srli_epi32::<4>(words[j]), low);
        tile.set(block, j, _mm256_shuffle_epi8(level, first));
        tile.set(block, 4 + j, _mm256_shuffle_epi8(level, second));
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn fp6<const NEG32: bool>(tile: &mut Tile, segment: &Segment<'_>) {
    let rows = segment.stored::<26, 1>();
    // Three bytes, four codes, a word. The second load starts at byte 10 and also brings the scale
    // bytes, which go on top of its first two words.
    let spread = _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
    let spread = _mm256_broadcastsi128_si256(spread);
    let later = _mm_setr_epi8(2, 3, 4, 14, 5, 6, 7, 15, 8, 9, 10, -1, 11, 12, 13, -1);
    let later = _mm256_broadcastsi128_si256(later);
    for b in 0..rows[0].len() {
        segment.prefetch(&rows, b);
        let first = transpose_pairs(each!(4, i => {
            let (low, high) = (part(&rows[i][b], 0), part(&rows[i + 4][b], 0));
            let pair = _mm256_set_m128i(load_u8x16(high), load_u8x16(low));
            _mm256_shuffle_epi8(pair, spread)
        }));
        let second = transpose_pairs(each!(4, i => {
            let (low, high) = (part(&rows[i][b], 10), part(&rows[i + 4][b], 10));
            let pair = _mm256_set_m128i(load_u8x16(high), load_u8x16(low));
            _mm256_shuffle_epi8(pair, later)
        }));
        for j in 0..4 {
            tile.set(b, j, fp6_levels::<NEG32>(first[j]));
            tile.set(b, 4 + j, fp6_levels::<NEG32>(second[j]));
        }
        let e = top_bytes([second[0], second[1]]);
        store_f32x8(&mut tile.scale[b][0], ue4m3(e[0]));
        store_f32x8(&mut tile.scale[b][1], ue4m3(e[1]));
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
pub(super) fn fp8(tile: &mut Tile, segment: &Segment<'_>) {
    let rows = segment.stored::<33, 1>();
    for b in 0..rows[0].len() {
        segment.prefetch(&rows, b);
        whole_bytes(tile, b, each!(8, i => part(&rows[i][b], 0)));
        store_f32x8(&mut tile.scale[b][0], ue4m3(byte_at!(rows, b, 32)));
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn q8_0(tile: &mut Tile, segment: &Segment<'_>) {
    let rows = segment.stored::<34, 1>();
    for b in 0..rows[0].len() {
        segment.prefetch(&rows, b);
        whole_bytes(tile, b, each!(8, i => part(&rows[i][b], 2)));
        store_f32x8(
            &mut tile.scale[b][0],
            f16(each!(8, i => *part(&rows[i][b], 0))),
        );
    }
}

/// 32 signed bytes a row, kept as they are.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn whole_bytes(tile: &mut Tile, block: usize, rows: [&[u8; 32]; ROWS]) {
    tile.set_all(block, transpose_8(rows));
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
