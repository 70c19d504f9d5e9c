//! K-quant blocks to tiles: Q4_K, Q2_K, IQ2_XXS. Layouts: `crate::native`.

use std::arch::x86_64::*;

use super::scales::{f16, quarters, transpose_2, transpose_4, words_16};
use super::tile::{Segment, Tile};
use crate::native::{IQ2_GRID as GRID, IQ2_SIGNS as SIGNS};
use crate::rows::avx2::part;
use crate::rows::x86::mem::{load_u8x8, load_u8x16, store_f32x16};

/// Sub-blocks of 32 in a stored block.
const SUBS: usize = 8;

#[target_feature(enable = "avx512vl,avx512dq,avx512vbmi,avx512vnni")]
#[inline]
pub(super) fn q4k(tile: &mut Tile, segment: &Segment<'_>) {
    let rows = segment.stored::<144, SUBS>();
    let low = _mm512_set1_epi8(15);
    for b in 0..rows[0].len() {
        segment.prefetch(&rows, b);
        for part_of in 0..SUBS {
            // 16 bytes: half of the groups of two sub-blocks.
            let words = words_16!(i => part(&rows[i][b], 16 + 16 * part_of));
            let (at, group) = (SUBS * b + part_of / 2 * 2, part_of % 2 * 4);
            for j in 0..4 {
                let high = _mm512_and_si512(_mm512_srli_epi32::<4>(words[j]), low);
                tile.set(at, group + j, _mm512_and_si512(words[j], low));
                tile.set(at + 1, group + j, high);
            }
        }
        let d = f16(each!(16, i => *part(&rows[i][b], 0)));
        let dmin = f16(each!(16, i => *part(&rows[i][b], 2)));
        let (scales, mins) = q4k_scales(words_16!(i => part(&rows[i][b], 0)));
        for sub in 0..SUBS {
            let (scale, min) = (byte(scales[sub / 4], sub % 4), byte(mins[sub / 4], sub % 4));
            store_f32x16(&mut tile.scale[SUBS * b + sub][0], times(d, scale));
            store_f32x16(&mut tile.offset[SUBS * b + sub][0], times(dmin, min));
        }
    }
}

/// 6-bit scales and minima, a byte each, four a word: see `native::kquant::q4k_scales`.
#[target_feature(enable = "avx512f")]
#[inline]
fn q4k_scales(head: [__m512i; 4]) -> ([__m512i; 2], [__m512i; 2]) {
    let [_, a, b, c] = head;
    let six = _mm512_set1_epi8(63);
    let (low, top) = (_mm512_set1_epi8(15), _mm512_set1_epi8(48));
    let top_a = _mm512_and_si512(_mm512_srli_epi32::<2>(a), top);
    let top_b = _mm512_and_si512(_mm512_srli_epi32::<2>(b), top);
    let low_c = _mm512_and_si512(c, low);
    let high_c = _mm512_and_si512(_mm512_srli_epi32::<4>(c), low);
    let scales = [_mm512_and_si512(a, six), _mm512_or_si512(low_c, top_a)];
    let mins = [_mm512_and_si512(b, six), _mm512_or_si512(high_c, top_b)];
    (scales, mins)
}

#[target_feature(enable = "avx512vl,avx512dq,avx512vbmi,avx512vnni")]
#[inline]
pub(super) fn q2k(tile: &mut Tile, segment: &Segment<'_>) {
    let rows = segment.stored::<84, SUBS>();
    for b in 0..rows[0].len() {
        segment.prefetch(&rows, b);
        for part_of in 0..4 {
            // 16 bytes: half of the groups of four sub-blocks.
            let words = words_16!(i => part(&rows[i][b], 16 + 16 * part_of));
            let (at, group) = (SUBS * b + part_of / 2 * 4, part_of % 2 * 4);
            for j in 0..4 {
                q2k_codes(tile, at, group + j, words[j]);
            }
        }
        let d = f16(each!(16, i => *part(&rows[i][b], 80)));
        let dmin = f16(each!(16, i => *part(&rows[i][b], 82)));
        let fields = words_16!(i => part(&rows[i][b], 0));
        for i in 0..2 * SUBS {
            let field = byte(fields[i / 4], i % 4);
            let scale = _mm512_and_si512(field, _mm512_set1_epi32(15));
            let min = _mm512_srli_epi32::<4>(field);
            store_f32x16(&mut tile.scale[SUBS * b + i / 2][i % 2], times(d, scale));
            store_f32x16(&mut tile.offset[SUBS * b + i / 2][i % 2], times(dmin, min));
        }
    }
}

/// The four codes of each byte belong to four sub-blocks.
#[target_feature(enable = "avx512f")]
#[inline]
fn q2k_codes(tile: &mut Tile, first: usize, group: usize, word: __m512i) {
    let three = _mm512_set1_epi8(3);
    tile.set(first, group, _mm512_and_si512(word, three));
    let (two, four) = (_mm512_srli_epi32::<2>(word), _mm512_srli_epi32::<4>(word));
    tile.set(first + 1, group, _mm512_and_si512(two, three));
    tile.set(first + 2, group, _mm512_and_si512(four, three));
    let six = _mm512_srli_epi32::<6>(word);
    tile.set(first + 3, group, _mm512_and_si512(six, three));
}

#[target_feature(enable = "avx512vl,avx512dq,avx512vbmi,avx512vnni")]
#[inline]
pub(super) fn iq2_xxs(tile: &mut Tile, segment: &Segment<'_>) {
    let rows = segment.stored::<66, SUBS>();
    for b in 0..rows[0].len() {
        segment.prefetch(&rows, b);
        let d = f16(each!(16, i => *part(&rows[i][b], 0)));
        for sub in 0..SUBS {
            let parts = each!(16, i => part::<8>(&rows[i][b], 2 + 8 * sub));
            let low = transpose_4(each!(4, y => iq2_levels::<0>(each!(4, q => parts[4 * q + y]))));
            let high = transpose_4(each!(4, y => iq2_levels::<2>(each!(4, q => parts[4 * q + y]))));
            for j in 0..4 {
                tile.set(SUBS * b + sub, j, low[j]);
                tile.set(SUBS * b + sub, 4 + j, high[j]);
            }
            // The second word of each row, with the signs and the scale.
            let words = transpose_2(parts)[1];
            let s = _mm512_cvtepi32_ps(_mm512_srli_epi32::<28>(words));
            let s = _mm512_mul_ps(d, _mm512_add_ps(_mm512_set1_ps(0.5), s));
            let scale = _mm512_mul_ps(s, _mm512_set1_ps(0.25));
            store_f32x16(&mut tile.scale[SUBS * b + sub][0], scale);
        }
    }
}

/// 16 levels plus 128, eighths `E` and `E + 1`, of four rows.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
#[inline]
fn iq2_levels<const E: usize>(rows: [&[u8; 8]; 4]) -> __m512i {
    let m = each!(4, q => {
        let grid = each!(2, e => load_u8x8(&GRID[usize::from(rows[q][E + e])]));
        _mm_unpacklo_epi64(grid[0], grid[1])
    });
    let s = each!(4, q => {
        let word = u32::from_le_bytes(*part(rows[q], 4));
        let mask = each!(2, e => load_u8x8(&SIGNS[(word >> (7 * (E + e)) & 127) as usize]));
        _mm_unpacklo_epi64(mask[0], mask[1])
    });
    let (m, s) = (
        quarters(m[0], m[1], m[2], m[3]),
        quarters(s[0], s[1], s[2], s[3]),
    );
    let signed = _mm512_sub_epi8(_mm512_xor_si512(m, s), s);
    _mm512_xor_si512(signed, _mm512_set1_epi8(-128))
}

/// Byte `i` of each word.
#[target_feature(enable = "avx512f")]
#[inline]
fn byte(words: __m512i, i: usize) -> __m512i {
    let shifted = _mm512_srl_epi32(words, _mm_cvtsi32_si128(8 * i as i32));
    _mm512_and_si512(shifted, _mm512_set1_epi32(255))
}

/// d * f32(integer), one rounding.
#[target_feature(enable = "avx512f")]
#[inline]
fn times(d: __m512, integer: __m512i) -> __m512 {
    _mm512_mul_ps(d, _mm512_cvtepi32_ps(integer))
}
