//! Blocks of 32 weights to tiles: the ROCmFPX formats, Q8_0 and MXFP4.
//!
//! Layouts: spec/fpx-formats.md 1 and `crate::native`. The bias of each format is `Kernel::of`'s.

use std::arch::x86_64::*;

use super::scales::*;
use super::tile::{Segment, Tile};
use crate::block;
use crate::native::FP4_E2M1;
use crate::rows::avx2::part;
use crate::rows::x86::mem::{load_u8x8, load_u8x16, load_u8x64, store_f32x16};

/// Levels by code, biased; repeated so that the bits above the code do not matter.
static FP2_S40: [u8; 64] = biased(&block::FP2_S40, 4);
static FP3: [u8; 64] = biased(&block::FP3, 4);
static FP4: [u8; 64] = biased(&block::FP4, 10);
static MXFP4: [u8; 64] = biased(&FP4_E2M1, 12);
pub(super) static FP6_LEVELS: [u8; 64] = biased(&block::FP6_ZERO, 32);
pub(super) static FP6_NEG32: [u8; 64] = biased(&block::FP6_NEG32, 32);

const fn biased<const N: usize>(levels: &[i8; N], bias: i8) -> [u8; 64] {
    let mut out = [0; 64];
    let mut code = 0;
    while code < 64 {
        out[code] = (levels[code % N] + bias) as u8;
        code += 1;
    }
    out
}

/// One byte of the same block of sixteen rows.
macro_rules! byte_at {
    ($rows:expr, $block:expr, $at:expr) => {
        bytes(each!(16, i => $rows[i][$block][$at]))
    };
}

/// Two bytes of the same block of sixteen rows.
macro_rules! pair_at {
    ($rows:expr, $block:expr, $at:expr) => {
        byte_pairs(each!(16, i => *part(&$rows[i][$block], $at)))
    };
}

/// A decoder: `$body` for each block `$b` of the rows `$rows` of `$bytes` bytes a block.
macro_rules! decoder {
    ($(#[$doc:meta])* $name:ident($tile:ident, $rows:ident, $b:ident $(, $more:ident: $type:ty)*)
        $bytes:literal $(let $var:ident = $value:expr;)* $body:block) => {
        $(#[$doc])*
        #[target_feature(
            enable = "avx512vl,avx512dq,avx512vbmi,avx512vnni"
        )]
        #[inline]
        pub(super) fn $name(
            $tile: &mut Tile, segment: &Segment<'_> $(, $more: $type)*
        ) {
            let $rows = segment.stored::<$bytes, 1>();
            $(let $var = $value;)*
            for $b in 0..$rows[0].len() {
                segment.prefetch(&$rows, $b);
                $body
            }
        }
    };
}

/// Group `j` of a half: bits `2 j, 2 j + 1` of its four bytes, elements `j, j + 4, j + 8, j + 12`.
macro_rules! fp2_groups {
    ($tile:ident, $rows:ident, $b:ident, $word:ident => $level:expr) => {
        let halves = transpose_2(each!(16, i => part(&$rows[i][$b], 0)));
        for half in 0..2 {
            let $word = halves[half];
            $tile.set($b, 4 * half, $level);
            let $word = _mm512_srli_epi32::<2>(halves[half]);
            $tile.set($b, 4 * half + 1, $level);
            let $word = _mm512_srli_epi32::<4>(halves[half]);
            $tile.set($b, 4 * half + 2, $level);
            let $word = _mm512_srli_epi32::<6>(halves[half]);
            $tile.set($b, 4 * half + 3, $level);
        }
    };
}

decoder! { fp2_signed(tile, rows, b) 10 let three = _mm512_set1_epi8(3); {
    fp2_groups!(tile, rows, b, codes => _mm512_and_si512(codes, three));
    let e = pair_at!(rows, b, 8);
    store_f32x16(&mut tile.scale[b][0], ue4m3(e[0]));
    store_f32x16(&mut tile.scale[b][1], ue4m3(e[1]));
}}

decoder! {
/// A negated half is a negated scale, as in `avx2::codes::fp2_signed_neg`.
fp2_signed_neg(tile, rows, b) 10 let three = _mm512_set1_epi8(3); {
    fp2_groups!(tile, rows, b, codes => _mm512_and_si512(codes, three));
    let e = pair_at!(rows, b, 8);
    store_f32x16(&mut tile.scale[b][0], ue4m3_signed(e[0]));
    store_f32x16(&mut tile.scale[b][1], ue4m3_signed(e[1]));
}}

decoder! { fp2_affine(tile, rows, b) 10 let three = _mm512_set1_epi8(3); {
    fp2_groups!(tile, rows, b, codes => _mm512_and_si512(codes, three));
    let e = pair_at!(rows, b, 8);
    store_f32x16(&mut tile.scale[b][0], ue4m3(e[0]));
    store_f32x16(&mut tile.offset[b][0], ue4m3(e[1]));
}}

decoder! { fp2_s40(tile, rows, b) 10 let levels = load_u8x64(&FP2_S40); {
    fp2_groups!(tile, rows, b, codes => _mm512_permutexvar_epi8(codes, levels));
    let e = pair_at!(rows, b, 8);
    store_f32x16(&mut tile.scale[b][0], ue4m3(e[0]));
    store_f32x16(&mut tile.scale[b][1], ue4m3(e[1]));
}}

decoder! { fp3(tile, rows, b) 14
    let levels = load_u8x64(&FP3);
    // Three bytes, eight codes, a word; the scale bytes on top of the first two words.
    let spread = repeat(_mm_setr_epi8(0, 1, 2, 14, 3, 4, 5, 15, 6, 7, 10, -1, 11, 12, 13, -1));
    let low = _mm512_set1_epi64(bit_offsets([0, 3, 6, 9]));
    let high = _mm512_set1_epi64(bit_offsets([12, 15, 18, 21]));
{
    let words = transpose_4(each!(4, y => {
        let q = each!(4, q => {
            // Bytes 0..8, then 6..14.
            let block = &rows[4 * q + y][b];
            _mm_unpacklo_epi64(load_u8x8(part(block, 0)), load_u8x8(part(block, 6)))
        });
        _mm512_shuffle_epi8(quarters(q[0], q[1], q[2], q[3]), spread)
    }));
    for i in 0..4 {
        let codes = _mm512_multishift_epi64_epi8(low, words[i]);
        tile.set(b, 2 * i, _mm512_permutexvar_epi8(codes, levels));
        let codes = _mm512_multishift_epi64_epi8(high, words[i]);
        tile.set(b, 2 * i + 1, _mm512_permutexvar_epi8(codes, levels));
    }
    let e = top_bytes([words[0], words[1]]);
    store_f32x16(&mut tile.scale[b][0], ue4m3(e[0]));
    store_f32x16(&mut tile.scale[b][1], ue4m3(e[1]));
}}

/// Bit positions of four codes of a word, and of the next word of the same 64 bits.
const fn bit_offsets(of: [u8; 4]) -> i64 {
    let [a, b, c, d] = of;
    i64::from_le_bytes([a, b, c, d, 32 + a, 32 + b, 32 + c, 32 + d])
}

/// 16 bytes a row: word `j` holds elements `4 j ..` in its low nibbles, `16 + 4 j ..` in the high.
macro_rules! nibble_groups {
    ($tile:ident, $rows:ident, $b:ident, $at:literal, $levels:ident) => {
        let words = words_16!(i => part(&$rows[i][$b], $at));
        for j in 0..4 {
            let high = _mm512_srli_epi32::<4>(words[j]);
            $tile.set($b, j, _mm512_permutexvar_epi8(words[j], $levels));
            $tile.set($b, 4 + j, _mm512_permutexvar_epi8(high, $levels));
        }
    };
}

decoder! { fp4(tile, rows, b) 18 let levels = load_u8x64(&FP4); {
    nibble_groups!(tile, rows, b, 0, levels);
    let e = pair_at!(rows, b, 16);
    store_f32x16(&mut tile.scale[b][0], ue4m3(e[0]));
    store_f32x16(&mut tile.scale[b][1], ue4m3(e[1]));
}}

decoder! { fp4_fast(tile, rows, b) 17 let levels = load_u8x64(&FP4); {
    nibble_groups!(tile, rows, b, 0, levels);
    store_f32x16(&mut tile.scale[b][0], ue4m3(byte_at!(rows, b, 16)));
}}

decoder! { mxfp4(tile, rows, b) 17 let levels = load_u8x64(&MXFP4); {
    nibble_groups!(tile, rows, b, 1, levels);
    store_f32x16(&mut tile.scale[b][0], e8m0_half(byte_at!(rows, b, 0)));
}}

decoder! { fp6(tile, rows, b, levels: &[u8; 64]) 26
    let levels = load_u8x64(levels);
    // Three bytes, four codes, a word. The second load starts at byte 10 and also brings the scale
    // bytes, which go on top of its first two words.
    let spread = repeat(_mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1));
    let later = repeat(_mm_setr_epi8(2, 3, 4, 14, 5, 6, 7, 15, 8, 9, 10, -1, 11, 12, 13, -1));
    let offsets = _mm512_set1_epi64(bit_offsets([0, 6, 12, 18]));
{
    let first = transpose_4(each!(4, y => {
        let q = each!(4, q => load_u8x16(part(&rows[4 * q + y][b], 0)));
        _mm512_shuffle_epi8(quarters(q[0], q[1], q[2], q[3]), spread)
    }));
    let second = transpose_4(each!(4, y => {
        let q = each!(4, q => load_u8x16(part(&rows[4 * q + y][b], 10)));
        _mm512_shuffle_epi8(quarters(q[0], q[1], q[2], q[3]), later)
    }));
    for j in 0..4 {
        let codes = _mm512_multishift_epi64_epi8(offsets, first[j]);
        tile.set(b, j, _mm512_permutexvar_epi8(codes, levels));
        let codes = _mm512_multishift_epi64_epi8(offsets, second[j]);
        tile.set(b, 4 + j, _mm512_permutexvar_epi8(codes, levels));
    }
    let e = top_bytes([second[0], second[1]]);
    store_f32x16(&mut tile.scale[b][0], ue4m3(e[0]));
    store_f32x16(&mut tile.scale[b][1], ue4m3(e[1]));
}}

/// 32 signed bytes a row, plus 128.
macro_rules! byte_groups {
    ($tile:ident, $rows:ident, $b:ident, $at:literal, $sign:ident) => {
        let first = words_16!(i => part(&$rows[i][$b], $at));
        let second = words_16!(i => part(&$rows[i][$b], $at + 16));
        for j in 0..4 {
            $tile.set($b, j, _mm512_xor_si512(first[j], $sign));
            $tile.set($b, 4 + j, _mm512_xor_si512(second[j], $sign));
        }
    };
}

decoder! { fp8(tile, rows, b) 33 let sign = _mm512_set1_epi8(-128); {
    byte_groups!(tile, rows, b, 0, sign);
    store_f32x16(&mut tile.scale[b][0], ue4m3(byte_at!(rows, b, 32)));
}}

decoder! { q8_0(tile, rows, b) 34 let sign = _mm512_set1_epi8(-128); {
    byte_groups!(tile, rows, b, 2, sign);
    store_f32x16(&mut tile.scale[b][0], f16(each!(16, i => *part(&rows[i][b], 0))));
}}
