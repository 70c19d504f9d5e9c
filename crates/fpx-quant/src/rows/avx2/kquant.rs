//! K-quant blocks to tiles: Q4_K, Q2_K, IQ2_XXS. Layouts: `crate::native`.

use std::arch::x86_64::*;

use super::ROWS;
use super::scales::{f16, part, transpose_2, transpose_4, transpose_8, transpose_pairs};
use super::tile::{Segment, Tile};
use crate::native::{IQ2_GRID as GRID, IQ2_SIGNS as SIGNS};
use crate::rows::x86::mem::{load_u8x8, load_u8x16, store_f32x8};

/// Sub-blocks of 32 in a stored block.
const SUBS: usize = 8;

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn q4k(tile: &mut Tile, segment: &Segment<'_>) {
    let rows = segment.stored::<144, SUBS>();
    let low = _mm256_set1_epi8(15);
    for b in 0..rows[0].len() {
        segment.prefetch(&rows, b);
        for pair in 0..SUBS / 2 {
            let words = transpose_8(each!(8, i => part(&rows[i][b], 16 + 32 * pair)));
            for group in 0..8 {
                let at = SUBS * b + 2 * pair;
                let high = _mm256_and_si256(_mm256_srli_epi32::<4>(words[group]), low);
                tile.set(at, group, _mm256_and_si256(words[group], low));
                tile.set(at + 1, group, high);
            }
        }
        let d = f16(each!(8, i => *part(&rows[i][b], 0)));
        let dmin = f16(each!(8, i => *part(&rows[i][b], 2)));
        let packed = each!(8, i => load_u8x16(part(&rows[i][b], 0)));
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
    let top_a = _mm256_and_si256(_mm256_srli_epi32::<2>(a), top);
    let top_b = _mm256_and_si256(_mm256_srli_epi32::<2>(b), top);
    let low_c = _mm256_and_si256(c, low);
    let high_c = _mm256_and_si256(_mm256_srli_epi32::<4>(c), low);
    let scales = [_mm256_and_si256(a, six), _mm256_or_si256(low_c, top_a)];
    let mins = [_mm256_and_si256(b, six), _mm256_or_si256(high_c, top_b)];
    (scales, mins)
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn q2k(tile: &mut Tile, segment: &Segment<'_>) {
    let rows = segment.stored::<84, SUBS>();
    for b in 0..rows[0].len() {
        segment.prefetch(&rows, b);
        for quarter in 0..2 {
            let words = transpose_8(each!(8, i => part(&rows[i][b], 16 + 32 * quarter)));
            for group in 0..8 {
                q2k_codes(tile, SUBS * b + 4 * quarter, group, words[group]);
            }
        }
        let d = f16(each!(8, i => *part(&rows[i][b], 80)));
        let dmin = f16(each!(8, i => *part(&rows[i][b], 82)));
        let fields = transpose_4(each!(8, i => load_u8x16(part(&rows[i][b], 0))));
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
    tile.set(first, group, _mm256_and_si256(word, three));
    let (two, four) = (_mm256_srli_epi32::<2>(word), _mm256_srli_epi32::<4>(word));
    tile.set(first + 1, group, _mm256_and_si256(two, three));
    tile.set(first + 2, group, _mm256_and_si256(four, three));
    let six = _mm256_srli_epi32::<6>(word);
    tile.set(first + 3, group, _mm256_and_si256(six, three));
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn iq2_xxs(tile: &mut Tile, segment: &Segment<'_>) {
    let rows = segment.stored::<66, SUBS>();
    for b in 0..rows[0].len() {
        segment.prefetch(&rows, b);
        let d = f16(each!(8, i => *part(&rows[i][b], 0)));
        for sub in 0..SUBS {
            let parts = each!(8, i => part::<8>(&rows[i][b], 2 + 8 * sub));
            let low = transpose_pairs(each!(4, i => iq2_levels::<0>(parts[i], parts[i + 4])));
            let high = transpose_pairs(each!(4, i => iq2_levels::<2>(parts[i], parts[i + 4])));
            for j in 0..4 {
                tile.set(SUBS * b + sub, j, low[j]);
                tile.set(SUBS * b + sub, 4 + j, high[j]);
            }
            // The second word of each row, with the signs and the scale.
            let words = transpose_2(parts)[1];
            let s = _mm256_cvtepi32_ps(_mm256_srli_epi32::<28>(words));
            let s = _mm256_mul_ps(d, _mm256_add_ps(_mm256_set1_ps(0.5), s));
            let scale = _mm256_mul_ps(s, _mm256_set1_ps(0.25));
            store_f32x8(&mut tile.scale[SUBS * b + sub][0], scale);
        }
    }
}

/// 16 signed levels, eighths `E` and `E + 1`, of two rows.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn iq2_levels<const E: usize>(a: &[u8; 8], b: &[u8; 8]) -> __m256i {
    let (sa, sb) = (
        u32::from_le_bytes(*part(a, 4)),
        u32::from_le_bytes(*part(b, 4)),
    );
    let grid = |index: u8| load_u8x8(&GRID[usize::from(index)]);
    let mask = |word: u32, e: usize| load_u8x8(&SIGNS[(word >> (7 * e) & 127) as usize]);
    let low = _mm_unpacklo_epi64(grid(a[E]), grid(a[E + 1]));
    let high = _mm_unpacklo_epi64(grid(b[E]), grid(b[E + 1]));
    let magnitudes = _mm256_set_m128i(high, low);
    let low = _mm_unpacklo_epi64(mask(sa, E), mask(sa, E + 1));
    let high = _mm_unpacklo_epi64(mask(sb, E), mask(sb, E + 1));
    let signs = _mm256_set_m128i(high, low);
    _mm256_sub_epi8(_mm256_xor_si256(magnitudes, signs), signs)
}

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
