//! A tile meets activation columns: integer dots, block terms, the segment sum.

use std::arch::x86_64::*;
use std::ops::Range;

use super::ROWS;
use super::tile::Tile;
use crate::a8::{A8Block, A8Rows};
use crate::format::{Format, Fp2Dialect};
use crate::rows::out::Out;
use crate::rows::term::Term;
use crate::rows::x86::mem::{load_f32x8, load_u8x32, store_f32x8};

/// Levels are unsigned with a bias that the activation sums take off; four products of a half are
/// added in 16 bits. Needs (largest level + bias) * 127 * 2 * 4 < 2^15: 32.
const BIASED_BY_4: u8 = 0;
/// The same, two products: 64.
const BIASED_BY_2: u8 = 1;
/// Levels are signed, -128 to 127: |w| times x with the sign of w. 128 * 127 * 2 < 2^15.
const SIGNED: u8 = 2;

/// How a format's tiles are multiplied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernel {
    term: Term,
    dot: u8,
    bias: f32,
    by_4: bool,
}

impl Kernel {
    pub(super) fn of(format: Format) -> Self {
        let (dot, bias) = match format {
            Format::Fp2(Fp2Dialect::Signed | Fp2Dialect::SignedNeg) => (BIASED_BY_4, 1.0),
            Format::Fp2(Fp2Dialect::S40) | Format::Fp3 => (BIASED_BY_4, 4.0),
            Format::Fp2(Fp2Dialect::Affine) | Format::Q4K | Format::Q2K => (BIASED_BY_4, 0.0),
            Format::Fp4 | Format::Fp4Fast => (BIASED_BY_4, 10.0),
            Format::Mxfp4 => (BIASED_BY_4, 12.0),
            Format::Fp6(_) => (BIASED_BY_2, 32.0),
            _ => (SIGNED, 0.0),
        };
        let Some(term) = Term::of(format) else {
            unreachable!("{format}: checked by the caller")
        };
        let by_4 = matches!(format, Format::Fp2(_));
        Self {
            term,
            dot,
            bias,
            by_4,
        }
    }
}

/// Where a tile goes.
pub(super) struct Columns<'a> {
    pub(super) x: &'a A8Rows,
    /// Activation row of column 0 of the result.
    pub(super) first: usize,
    /// Blocks of the tile.
    pub(super) blocks: Range<usize>,
    /// Rows of the result.
    pub(super) rows: Range<usize>,
}

/// Adds a tile's sums to every column of the result.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn all_columns(kernel: Kernel, tile: &Tile, columns: &Columns<'_>, out: &mut Out<'_>) {
    match (kernel.term, kernel.dot) {
        (Term::One, SIGNED) => sweep::<SIGNED, ONE>(kernel, tile, columns, out),
        (Term::One, _) => sweep::<BIASED_BY_4, ONE>(kernel, tile, columns, out),
        (Term::Two, BIASED_BY_2) => sweep::<BIASED_BY_2, TWO>(kernel, tile, columns, out),
        (Term::Two, _) => sweep::<BIASED_BY_4, TWO>(kernel, tile, columns, out),
        (Term::OneOffset, _) => sweep::<BIASED_BY_4, ONE_OFFSET>(kernel, tile, columns, out),
        (Term::TwoOffset, _) => sweep::<BIASED_BY_4, TWO_OFFSET>(kernel, tile, columns, out),
    }
}

const ONE: u8 = 0;
const TWO: u8 = 1;
const ONE_OFFSET: u8 = 2;
const TWO_OFFSET: u8 = 3;

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn sweep<const DOT: u8, const TERM: u8>(
    kernel: Kernel,
    tile: &Tile,
    columns: &Columns<'_>,
    out: &mut Out<'_>,
) {
    let n = out.cols();
    let mut c = 0;
    while c + 4 <= n {
        some_columns::<DOT, TERM, 4>(kernel, tile, columns, c, out);
        c += 4;
    }
    if c + 2 <= n {
        some_columns::<DOT, TERM, 2>(kernel, tile, columns, c, out);
        c += 2;
    }
    if c < n {
        some_columns::<DOT, TERM, 1>(kernel, tile, columns, c, out);
    }
}

/// One activation row's share of a segment.
#[derive(Clone, Copy)]
struct Share<'a> {
    q: &'a [[[i8; 4]; 8]],
    blocks: &'a [A8Block],
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn some_columns<const DOT: u8, const TERM: u8, const N: usize>(
    kernel: Kernel,
    tile: &Tile,
    columns: &Columns<'_>,
    c: usize,
    out: &mut Out<'_>,
) {
    let x: [Share<'_>; N] = std::array::from_fn(|i| share(kernel, columns, c + i));
    let mut acc = [_mm256_setzero_ps(); N];
    for b in 0..columns.blocks.len() {
        let mut dots = [[_mm256_setzero_si256(); 2]; N];
        for half in 0..2 {
            half_dots::<DOT, N>(&tile.levels[b], b, half, &x, &mut dots);
        }
        for i in 0..N {
            let block = &x[i].blocks[b];
            let t = term::<DOT, TERM>(tile, b, dots[i], block, kernel.bias);
            acc[i] = _mm256_fmadd_ps(_mm256_set1_ps(block.d), t, acc[i]);
        }
    }
    let first = columns.blocks.start == 0;
    for i in 0..N {
        add_to(out.col(c + i), columns.rows.clone(), first, acc[i]);
    }
}

#[inline(always)]
fn share<'a>(kernel: Kernel, columns: &Columns<'a>, c: usize) -> Share<'a> {
    let x = columns.x.row(columns.first + c);
    let q = if kernel.by_4 { x.q_by_4 } else { x.q };
    let here = columns.blocks.clone();
    Share {
        q: &q.as_chunks().0.as_chunks().0[here.clone()],
        blocks: &x.blocks[here],
    }
}

/// Integer dots of one half of block `b`, bias included, i32 `[column][half][row]`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn half_dots<const DOT: u8, const N: usize>(
    levels: &[[u8; 32]; 8],
    b: usize,
    half: usize,
    x: &[Share<'_>; N],
    dots: &mut [[__m256i; 2]; N],
) {
    let ones = _mm256_set1_epi16(1);
    let depth = [4, 2, 1][DOT as usize];
    let mut pairs = [_mm256_setzero_si256(); N];
    for g in 0..4 {
        let group = 4 * half + g;
        let w = load_u8x32(&levels[group]);
        let magnitude = _mm256_abs_epi8(w);
        for i in 0..N {
            let q = _mm256_set1_epi32(word(x[i].q[b][group]));
            let product = if DOT == SIGNED {
                _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(q, w))
            } else {
                _mm256_maddubs_epi16(w, q)
            };
            let fresh = g % depth == 0;
            pairs[i] = if fresh {
                product
            } else {
                _mm256_add_epi16(pairs[i], product)
            };
            if (g + 1) % depth == 0 {
                let sums = _mm256_madd_epi16(pairs[i], ones);
                dots[i][half] = _mm256_add_epi32(dots[i][half], sums);
            }
        }
    }
}

/// The block term of eight rows (contract rule 2).
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn term<const DOT: u8, const TERM: u8>(
    tile: &Tile,
    b: usize,
    dots: [__m256i; 2],
    x: &A8Block,
    bias: f32,
) -> __m256 {
    let (scale, offset) = (&tile.scale[b], &tile.offset[b]);
    let sums = [_mm256_set1_ps(x.halves[0]), _mm256_set1_ps(x.halves[1])];
    let sum = _mm256_set1_ps(x.sum);
    let biased = DOT != SIGNED && TERM < ONE_OFFSET;
    let bias = _mm256_set1_ps(bias);
    // Taking the bias off is exact: integers below 2^24 before and after.
    if TERM == ONE || TERM == ONE_OFFSET {
        let mut whole = _mm256_cvtepi32_ps(_mm256_add_epi32(dots[0], dots[1]));
        if biased {
            whole = _mm256_fnmadd_ps(bias, sum, whole);
        }
        let scale = load_f32x8(&scale[0]);
        if TERM == ONE {
            return _mm256_mul_ps(scale, whole);
        }
        let low = _mm256_mul_ps(load_f32x8(&offset[0]), sum);
        return _mm256_fmsub_ps(scale, whole, low);
    }
    let mut halves = [_mm256_cvtepi32_ps(dots[0]), _mm256_cvtepi32_ps(dots[1])];
    if biased {
        halves[0] = _mm256_fnmadd_ps(bias, sums[0], halves[0]);
        halves[1] = _mm256_fnmadd_ps(bias, sums[1], halves[1]);
    }
    let high = two(scale, halves);
    if TERM == TWO {
        return high;
    }
    _mm256_sub_ps(high, two(offset, sums))
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn two(by: &[[f32; ROWS]; 2], of: [__m256; 2]) -> __m256 {
    let second = _mm256_mul_ps(load_f32x8(&by[1]), of[1]);
    _mm256_fmadd_ps(load_f32x8(&by[0]), of[0], second)
}

#[inline(always)]
fn word(bytes: [i8; 4]) -> i32 {
    i32::from_le_bytes(bytes.map(i8::cast_unsigned))
}

/// Adds a segment's sums of up to eight rows to one column; the first segment replaces.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn add_to(col: &mut [f32], rows: Range<usize>, first: bool, acc: __m256) {
    let cells = &mut col[rows];
    if let Ok(cells) = <&mut [f32; ROWS]>::try_from(&mut *cells) {
        let total = if first {
            acc
        } else {
            _mm256_add_ps(load_f32x8(cells), acc)
        };
        return store_f32x8(cells, total);
    }
    let mut lanes = [0.0; ROWS];
    store_f32x8(&mut lanes, acc);
    for (cell, acc) in cells.iter_mut().zip(lanes) {
        *cell = if first { acc } else { *cell + acc };
    }
}
