//! Inner loops that compilers do not vectorise well by themselves, written for AVX2: the operations of
//! their definitions (in `attend` and `index`) in the same order, several results side by side.
//!
//! Safe code: values move between arrays and registers as plain copies, and the one unsafe step,
//! entering functions compiled for AVX2, is the `dispatch!` of this folder.

use std::arch::x86_64::*;

use bytemuck::cast;

use super::index::{BIAS, IndexTile};
use super::round::INDEX_BLOCK;

/// Keys whose dots are folded together.
const KEYS: usize = 8;

/// Longest head whose dot is one segment of rule 4.
const SEGMENT: usize = engine_core::math::SEGMENT;

/// Whether [`scores`] can: whole stripes of 32 in one segment.
pub(super) fn fits(hd: usize) -> bool {
    hd.is_multiple_of(32) && hd <= SEGMENT
}

/// `s[j] = dot(q, rows[list[j]]) * scale` by rule 4. `q`: `[hd]`, as [`fits`] says.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn scores(q: &[f32], rows: &[f32], list: &[u32], scale: f32, s: &mut [f32]) {
    let scale = _mm256_set1_ps(scale);
    for (list, s) in list.chunks(KEYS).zip(s.chunks_mut(KEYS)) {
        // A short group repeats its last key; those dots are not stored.
        let mut folded = [_mm256_setzero_ps(); KEYS];
        for pair in 0..KEYS / 2 {
            let last = list.len() - 1;
            let keys = [list[last.min(2 * pair)], list[last.min(2 * pair + 1)]];
            let [a, b] = two_dots(q, rows, keys);
            (folded[2 * pair], folded[2 * pair + 1]) = (a, b);
        }
        let dots: [f32; KEYS] = cast(_mm256_mul_ps(fold(folded), scale));
        s.copy_from_slice(&dots[..s.len()]);
    }
}

/// The 32 partial sums of two dots, folded by 16 and 8 to eight each.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn two_dots(q: &[f32], rows: &[f32], keys: [u32; 2]) -> [__m256; 2] {
    let hd = q.len();
    let a = rows[keys[0] as usize * hd..][..hd].as_chunks::<8>().0;
    let b = rows[keys[1] as usize * hd..][..hd].as_chunks::<8>().0;
    let q = q.as_chunks::<8>().0;
    let zero = _mm256_setzero_ps();
    let (mut pa, mut pb) = ([zero; 4], [zero; 4]);
    for ((q, a), b) in q
        .chunks_exact(4)
        .zip(a.chunks_exact(4))
        .zip(b.chunks_exact(4))
    {
        for j in 0..4 {
            let q = cast(q[j]);
            pa[j] = _mm256_fmadd_ps(q, cast(a[j]), pa[j]);
            pb[j] = _mm256_fmadd_ps(q, cast(b[j]), pb[j]);
        }
    }
    let a = _mm256_add_ps(_mm256_add_ps(pa[0], pa[2]), _mm256_add_ps(pa[1], pa[3]));
    let b = _mm256_add_ps(_mm256_add_ps(pb[0], pb[2]), _mm256_add_ps(pb[1], pb[3]));
    [a, b]
}

/// The sums of eight registers, each folded by 4, 2, 1 with the lower index on the left.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn fold(p: [__m256; KEYS]) -> __m256 {
    let zero = _mm256_setzero_ps();
    let (mut by4, mut by2) = ([zero; 4], [zero; 2]);
    for i in 0..4 {
        let (a, b) = (p[2 * i], p[2 * i + 1]);
        let low = _mm256_permute2f128_ps::<0x20>(a, b);
        by4[i] = _mm256_add_ps(low, _mm256_permute2f128_ps::<0x31>(a, b));
    }
    for i in 0..2 {
        let (a, b) = (by4[2 * i], by4[2 * i + 1]);
        let low = _mm256_shuffle_ps::<0x44>(a, b);
        by2[i] = _mm256_add_ps(low, _mm256_shuffle_ps::<0xee>(a, b));
    }
    let low = _mm256_shuffle_ps::<0x88>(by2[0], by2[1]);
    let sums = _mm256_add_ps(low, _mm256_shuffle_ps::<0xdd>(by2[0], by2[1]));
    // Within the low half keys 0, 2, 4, 6, within the high half 1, 3, 5, 7.
    _mm256_permutevar8x32_ps(sums, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
}

/// Takes a packed tile apart: see [`super::index::unpack_index_tile`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn unpack_tile(packed: &[u8], dim: usize, tile: &mut IndexTile) {
    tile.resize(dim);
    let (codes, scales) = packed.as_chunks::<16>().0.split_at(dim / 2);
    let b = BIAS as i8;
    let values = _mm_setr_epi8(
        b,
        b + 1,
        b + 2,
        b + 3,
        b + 4,
        b + 6,
        b + 8,
        b + 12,
        b,
        b - 1,
        b - 2,
        b - 3,
        b - 4,
        b - 6,
        b - 8,
        b - 12,
    );
    let low_nibbles = _mm_set1_epi8(15);
    for (quad, codes) in tile.quads.iter_mut().zip(codes.as_chunks::<2>().0) {
        let (a, b) = (cast(codes[0]), cast(codes[1]));
        let e0 = _mm_shuffle_epi8(values, _mm_and_si128(a, low_nibbles));
        let e1 = _mm_shuffle_epi8(values, _mm_and_si128(_mm_srli_epi16::<4>(a), low_nibbles));
        let e2 = _mm_shuffle_epi8(values, _mm_and_si128(b, low_nibbles));
        let e3 = _mm_shuffle_epi8(values, _mm_and_si128(_mm_srli_epi16::<4>(b), low_nibbles));
        let (a, b) = (_mm_unpacklo_epi8(e0, e1), _mm_unpacklo_epi8(e2, e3));
        let (c, d) = (_mm_unpackhi_epi8(e0, e1), _mm_unpackhi_epi8(e2, e3));
        let rows: [__m128i; 4] = [
            _mm_unpacklo_epi16(a, b),
            _mm_unpackhi_epi16(a, b),
            _mm_unpacklo_epi16(c, d),
            _mm_unpackhi_epi16(c, d),
        ];
        *quad = cast(rows);
    }
    for (scale, e) in tile.scale.iter_mut().zip(scales) {
        let halves = e.as_chunks::<8>().0;
        for (scale, e) in scale.as_chunks_mut::<8>().0.iter_mut().zip(halves) {
            let e = _mm256_cvtepu8_epi32(_mm_set_epi64x(0, i64::from_le_bytes(*e)));
            *scale = cast(_mm256_slli_epi32::<23>(e));
        }
    }
}

/// Heads that share the loads of a tile.
const ABREAST: usize = 4;

/// Scores a tile: see [`super::index::index_score_tile`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn score_tile(
    twice: &[i8],
    scale: &[f32],
    weights: &[f32],
    tile: &IndexTile,
    scores: &mut [f32; 16],
) {
    let (dim, blocks) = (tile.dim(), tile.scale.len());
    let mut sums = [_mm256_setzero_ps(); 2];
    let mut h = 0;
    while h < weights.len() {
        let (twice, scale, w) = (&twice[h * dim..], &scale[h * blocks..], &weights[h..]);
        if w.len() >= ABREAST {
            sums = add_heads::<ABREAST>(twice, scale, w, tile, sums);
            h += ABREAST;
        } else {
            sums = add_heads::<1>(twice, scale, w, tile, sums);
            h += 1;
        }
    }
    *scores = cast(sums);
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn add_heads<const H: usize>(
    twice: &[i8],
    scale: &[f32],
    weights: &[f32],
    tile: &IndexTile,
    mut sums: [__m256; 2],
) -> [__m256; 2] {
    let blocks = tile.scale.len();
    let heads = twice.as_chunks::<INDEX_BLOCK>().0;
    let quarter = _mm256_set1_ps(0.25);
    let mut a = [[_mm256_setzero_ps(); 2]; H];
    let quads = tile.quads.as_chunks::<{ INDEX_BLOCK / 4 }>().0;
    for (b, (quads, row_scale)) in quads.iter().zip(&tile.scale).enumerate() {
        let mut dots = [[_mm256_setzero_si256(); 2]; H];
        let mut q = [&heads[0].as_chunks::<4>().0[..8]; H];
        for h in 0..H {
            q[h] = &heads[h * blocks + b].as_chunks::<4>().0[..8];
        }
        for (i, quad) in quads.iter().enumerate() {
            let rows: [__m256i; 2] = cast(*quad);
            for h in 0..H {
                let q = _mm256_set1_epi32(cast(q[h][i]));
                for r in 0..2 {
                    // At most 2 * 24 * 12 a pair, eight times: far from saturation.
                    let pairs = _mm256_maddubs_epi16(rows[r], q);
                    dots[h][r] = _mm256_add_epi16(dots[h][r], pairs);
                }
            }
        }
        let row_scale: [__m256; 2] = cast(*row_scale);
        for h in 0..H {
            let at = h * blocks + b;
            let bias = _mm256_set1_epi32(BIAS * sum(&heads[at]));
            let s = _mm256_set1_ps(scale[at]);
            for r in 0..2 {
                let dot = _mm256_madd_epi16(dots[h][r], _mm256_set1_epi16(1));
                let dot = _mm256_cvtepi32_ps(_mm256_sub_epi32(dot, bias));
                let s = _mm256_mul_ps(_mm256_mul_ps(s, row_scale[r]), quarter);
                a[h][r] = _mm256_fmadd_ps(dot, s, a[h][r]);
            }
        }
    }
    for h in 0..H {
        let w = _mm256_set1_ps(weights[h]);
        for r in 0..2 {
            // The second operand where the first is NaN: 0, as the definition has it.
            let a = _mm256_max_ps(a[h][r], _mm256_setzero_ps());
            sums[r] = _mm256_fmadd_ps(w, a, sums[r]);
        }
    }
    sums
}

/// Sum of a block's codes.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn sum(codes: &[i8; INDEX_BLOCK]) -> i32 {
    let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), cast(*codes));
    let quads = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    let s = _mm_add_epi32(
        _mm256_castsi256_si128(quads),
        _mm256_extracti128_si256::<1>(quads),
    );
    let s = _mm_add_epi32(s, _mm_shuffle_epi32::<0b00_00_11_10>(s));
    let s = _mm_add_epi32(s, _mm_shuffle_epi32::<0b00_00_00_01>(s));
    _mm_cvtsi128_si32(s)
}
