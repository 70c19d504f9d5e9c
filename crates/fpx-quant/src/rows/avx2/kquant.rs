//! K-quant blocks to tiles: Q4_K, Q2_K, IQ2_XXS. Layouts: `crate::native`.

use std::arch::x86_64::*;
use std::ops::Range;

use super::ROWS;
use super::codes::whole_bytes;
use super::scales::{f16, part, transpose_4, transpose_8};
use super::tile::{Tile, stored};
use crate::native::{grid_point, signs_of};
use crate::rows::simd::x86::{load_u8x16, store_f32x8};

/// Sub-blocks of 32 in a stored block.
const SUBS: usize = 8;

fn whole(blocks: Range<usize>) -> Range<usize> {
    blocks.start / SUBS..blocks.end / SUBS
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn q4k(tile: &mut Tile, rows: &[&[u8]; ROWS], blocks: Range<usize>) {
    let rows = stored::<144>(rows, whole(blocks));
    let low = _mm256_set1_epi8(15);
    for b in 0..rows[0].len() {
        for pair in 0..SUBS / 2 {
            let words = transpose_8(rows.map(|r| part(&r[b], 16 + 32 * pair)));
            for (group, word) in words.into_iter().enumerate() {
                let at = SUBS * b + 2 * pair;
                let high = _mm256_and_si256(_mm256_srli_epi32::<4>(word), low);
                tile.set(at, group, _mm256_and_si256(word, low));
                tile.set(at + 1, group, high);
            }
        }
        let d = f16(rows.map(|r| *part(&r[b], 0)));
        let dmin = f16(rows.map(|r| *part(&r[b], 2)));
        let packed = rows.map(|r| load_u8x16(part(&r[b], 0)));
        let (scales, mins) = q4k_scales(packed);
        for sub in 0..SUBS {
            let (scale, min) = (byte(scales[sub / 4], sub % 4), byte(mins[sub / 4], sub % 4));
            store_f32x8(&mut tile.scale[SUBS * b + sub][0], times(d, scale));
            store_f32x8(&mut tile.offset[SUBS * b + sub][0], times(dmin, min));
        }
    }
}

/// 6-bit scales and minima, a byte each, four a word: see `native::kquant::q4k_scales`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn q4k_scales(head: [__m128i; ROWS]) -> ([__m256i; 2], [__m256i; 2]) {
    let [_, a, b, c] = transpose_4(head);
    let six = _mm256_set1_epi8(63);
    let (low, top) = (_mm256_set1_epi8(15), _mm256_set1_epi8(48));
    let upper = |low_bits: __m256i, word: __m256i| {
        let top_bits = _mm256_and_si256(_mm256_srli_epi32::<2>(word), top);
        _mm256_or_si256(_mm256_and_si256(low_bits, low), top_bits)
    };
    let scales = [_mm256_and_si256(a, six), upper(c, a)];
    let mins = [
        _mm256_and_si256(b, six),
        upper(_mm256_srli_epi32::<4>(c), b),
    ];
    (scales, mins)
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn q2k(tile: &mut Tile, rows: &[&[u8]; ROWS], blocks: Range<usize>) {
    let rows = stored::<84>(rows, whole(blocks));
    for b in 0..rows[0].len() {
        for quarter in 0..2 {
            let words = transpose_8(rows.map(|r| part(&r[b], 16 + 32 * quarter)));
            for (group, word) in words.into_iter().enumerate() {
                q2k_codes(tile, SUBS * b + 4 * quarter, group, word);
            }
        }
        let d = f16(rows.map(|r| *part(&r[b], 80)));
        let dmin = f16(rows.map(|r| *part(&r[b], 82)));
        let fields = transpose_4(rows.map(|r| load_u8x16(part(&r[b], 0))));
        for i in 0..2 * SUBS {
            let field = byte(fields[i / 4], i % 4);
            let scale = _mm256_and_si256(field, _mm256_set1_epi32(15));
            let min = _mm256_srli_epi32::<4>(field);
            store_f32x8(&mut tile.scale[SUBS * b + i / 2][i % 2], times(d, scale));
            store_f32x8(&mut tile.offset[SUBS * b + i / 2][i % 2], times(dmin, min));
        }
    }
}

/// The four codes of each byte belong to four sub-blocks.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn q2k_codes(tile: &mut Tile, first: usize, group: usize, word: __m256i) {
    let three = _mm256_set1_epi8(3);
    let shifted = [
        word,
        _mm256_srli_epi32::<2>(word),
        _mm256_srli_epi32::<4>(word),
        _mm256_srli_epi32::<6>(word),
    ];
    for (i, codes) in shifted.into_iter().enumerate() {
        tile.set(first + i, group, _mm256_and_si256(codes, three));
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn iq2_xxs(tile: &mut Tile, rows: &[&[u8]; ROWS], blocks: Range<usize>) {
    let rows = stored::<66>(rows, whole(blocks));
    for b in 0..rows[0].len() {
        let d = f16(rows.map(|r| *part(&r[b], 0)));
        for sub in 0..SUBS {
            let parts = rows.map(|r| *part::<8>(&r[b], 2 + 8 * sub));
            let levels = parts.map(iq2_levels);
            whole_bytes(tile, SUBS * b + sub, levels.each_ref());
            let words = parts.map(|p| i32::from_le_bytes(*part(&p, 4)));
            let words = _mm256_setr_epi32(
                words[0], words[1], words[2], words[3], words[4], words[5], words[6], words[7],
            );
            let s = _mm256_cvtepi32_ps(_mm256_srli_epi32::<28>(words));
            let s = _mm256_mul_ps(d, _mm256_add_ps(_mm256_set1_ps(0.5), s));
            let scale = _mm256_mul_ps(s, _mm256_set1_ps(0.25));
            store_f32x8(&mut tile.scale[SUBS * b + sub][0], scale);
        }
    }
}

/// 32 signed levels of one row.
#[inline(always)]
fn iq2_levels(part: [u8; 8]) -> [u8; 32] {
    let word = u32::from_le_bytes([part[4], part[5], part[6], part[7]]);
    let mut out = [0; 32];
    for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *out = signed(grid_point(part[i]), signs_of(word, i));
    }
    out
}

/// Negates the bytes whose bit is set.
#[inline(always)]
fn signed(magnitudes: [i8; 8], signs: u8) -> [u8; 8] {
    let m = u64::from_le_bytes(magnitudes.map(i8::cast_unsigned));
    // Bit i to byte i, then 0xff for each set one. Magnitudes are not 0, so adding 1 to a
    // complement never carries.
    let spread = (u64::from(signs).wrapping_mul(0x8040_2010_0804_0201) >> 7) & ONES;
    let spread = spread.swap_bytes();
    ((m ^ spread.wrapping_mul(0xff)).wrapping_add(spread)).to_le_bytes()
}

/// 1 in each byte.
const ONES: u64 = 0x0101_0101_0101_0101;

/// Byte `i` of each word.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn byte(words: __m256i, i: usize) -> __m256i {
    let shifted = _mm256_srl_epi32(words, _mm_cvtsi32_si128(8 * i as i32));
    _mm256_and_si256(shifted, _mm256_set1_epi32(255))
}

/// d * f32(integer), one rounding.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn times(d: __m256, integer: __m256i) -> __m256 {
    _mm256_mul_ps(d, _mm256_cvtepi32_ps(integer))
}
