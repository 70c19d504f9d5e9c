//! A tile meets activation columns: integer dots, block terms, the segment sum.

use std::arch::x86_64::*;
use std::ops::Range;

use super::ROWS;
use super::tile::Tile;
use crate::a8::{A8Block, A8Row, A8Rows};
use crate::format::{Format, Fp2Dialect};
use crate::rows::out::Out;
use crate::rows::term::Term;
use crate::rows::x86::mem::{load_f32x8, load_u8x32, store_f32x8};

/// Levels are unsigned with a bias that the activation sums take off; four products of a half are
/// added in 16 bits. Needs (largest level + bias) * 127 * 2 * 4 < 2^15: 32.
pub(super) const BIASED_BY_4: u8 = 0;
/// The same, two products: 64.
pub(super) const BIASED_BY_2: u8 = 1;
/// Levels are signed, -128 to 127: |w| times x with the sign of w. 128 * 127 * 2 < 2^15.
pub(super) const SIGNED: u8 = 2;
/// Levels are sign and 5 bits of magnitude on top of a byte, whose two low bits are noise. The sign
/// goes to x. 31 * 127 * 2 * 4 < 2^15.
pub(super) const SIGN_AND_5: u8 = 3;

/// Whether x takes the sign of the level, so that there is no bias.
const fn signed(dot: u8) -> bool {
    matches!(dot, SIGNED | SIGN_AND_5)
}

/// How a format's tiles are multiplied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernel {
    term: Term,
    dot: u8,
    /// What was added to the levels.
    pub(super) bias: f32,
    /// Whether groups are strided by 4 within 16 elements.
    pub(super) by_4: bool,
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

/// Terms as constants for generic code.
pub(super) const ONE: u8 = 0;
pub(super) const TWO: u8 = 1;
pub(super) const ONE_OFFSET: u8 = 2;
const TWO_OFFSET: u8 = 3;

/// Whether the term takes the dot of the whole block.
pub(super) const fn one_dot(term: u8) -> bool {
    matches!(term, ONE | ONE_OFFSET)
}

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
pub(super) struct Share<'a> {
    pub(super) q: &'a [[[i8; 4]; 8]],
    pub(super) blocks: &'a [A8Block],
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
    // Not `array::from_fn`: its closure would be called, not inlined.
    let mut x = [share(kernel, columns, c); N];
    for i in 1..N {
        x[i] = share(kernel, columns, c + i);
    }
    let mut acc = [_mm256_setzero_ps(); N];
    for b in 0..columns.blocks.len() {
        let mut dots = [[_mm256_setzero_si256(); 2]; N];
        let q = columns_at(&x, b);
        for half in 0..2 {
            half_dots::<DOT, N>(&tile.levels[b], half, &q, &mut dots);
        }
        let scale = each!(2, i => load_f32x8(&tile.scale[b][i]));
        let offset = each!(2, i => load_f32x8(&tile.offset[b][i]));
        for i in 0..N {
            let block = &x[i].blocks[b];
            let t = term::<DOT, TERM>(scale, offset, dots[i], block, kernel.bias);
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
    share_of(
        kernel,
        columns.x.row(columns.first + c),
        columns.blocks.clone(),
    )
}

/// Some blocks of an activation row.
#[inline(always)]
pub(super) fn share_of<'a>(kernel: Kernel, x: A8Row<'a>, here: Range<usize>) -> Share<'a> {
    let q = if kernel.by_4 { x.q_by_4 } else { x.q };
    Share {
        q: &q.as_chunks().0.as_chunks().0[here.clone()],
        blocks: &x.blocks[here],
    }
}

/// The values of block `b` of every column.
#[inline(always)]
pub(super) fn columns_at<'a, const N: usize>(
    x: &[Share<'a>; N],
    b: usize,
) -> [&'a [[i8; 4]; 8]; N] {
    let mut q = [&x[0].q[b]; N];
    for i in 1..N {
        q[i] = &x[i].q[b];
    }
    q
}

/// Integer dots of one half of a block of a tile.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn half_dots<const DOT: u8, const N: usize>(
    levels: &[[u8; 32]; 8],
    half: usize,
    q: &[&[[i8; 4]; 8]; N],
    dots: &mut [[__m256i; 2]; N],
) {
    let mut pairs = [_mm256_setzero_si256(); N];
    for g in 0..4 {
        let group = 4 * half + g;
        group_dots::<DOT, N>(load_u8x32(&levels[group]), group, half, q, &mut pairs, dots);
    }
}

/// Adds the products of one group to the integer dots, bias included, i32 `[column][half][row]`.
/// `half` is where they go: a term of the whole block may have all in half 0. `pairs` holds what is
/// still in 16 bits. Groups come in order.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn group_dots<const DOT: u8, const N: usize>(
    w: __m256i,
    group: usize,
    half: usize,
    q: &[&[[i8; 4]; 8]; N],
    pairs: &mut [__m256i; N],
    dots: &mut [[__m256i; 2]; N],
) {
    let ones = _mm256_set1_epi16(1);
    let depth = [4, 2, 1, 4][DOT as usize];
    let magnitude = match DOT {
        SIGNED => _mm256_abs_epi8(w),
        SIGN_AND_5 => _mm256_and_si256(_mm256_srli_epi16::<2>(w), _mm256_set1_epi8(31)),
        _ => w,
    };
    for i in 0..N {
        let q = _mm256_set1_epi32(word(q[i][group]));
        let q = if signed(DOT) {
            _mm256_sign_epi8(q, w)
        } else {
            q
        };
        let product = _mm256_maddubs_epi16(magnitude, q);
        let fresh = group.is_multiple_of(depth);
        pairs[i] = if fresh {
            product
        } else {
            _mm256_add_epi16(pairs[i], product)
        };
        if (group + 1).is_multiple_of(depth) {
            let sums = _mm256_madd_epi16(pairs[i], ones);
            dots[i][half] = _mm256_add_epi32(dots[i][half], sums);
        }
    }
}

/// The block term of eight rows (contract rule 2).
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn term<const DOT: u8, const TERM: u8>(
    scale: [__m256; 2],
    offset: [__m256; 2],
    dots: [__m256i; 2],
    x: &A8Block,
    bias: f32,
) -> __m256 {
    let sums = [_mm256_set1_ps(x.halves[0]), _mm256_set1_ps(x.halves[1])];
    let sum = _mm256_set1_ps(x.sum);
    let biased = !signed(DOT) && TERM < ONE_OFFSET;
    let bias = _mm256_set1_ps(bias);
    // Taking the bias off is exact: integers below 2^24 before and after.
    if one_dot(TERM) {
        let mut whole = _mm256_cvtepi32_ps(_mm256_add_epi32(dots[0], dots[1]));
        if biased {
            whole = _mm256_fnmadd_ps(bias, sum, whole);
        }
        if TERM == ONE {
            return _mm256_mul_ps(scale[0], whole);
        }
        let low = _mm256_mul_ps(offset[0], sum);
        return _mm256_fmsub_ps(scale[0], whole, low);
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
fn two(by: [__m256; 2], of: [__m256; 2]) -> __m256 {
    let second = _mm256_mul_ps(by[1], of[1]);
    _mm256_fmadd_ps(by[0], of[0], second)
}

#[inline(always)]
fn word(bytes: [i8; 4]) -> i32 {
    i32::from_le_bytes(bytes.map(i8::cast_unsigned))
}

/// Adds a segment's sums of up to eight rows to one column; the first segment replaces.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn add_to(col: &mut [f32], rows: Range<usize>, first: bool, acc: __m256) {
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
