//! A tile meets activation columns: integer dots, block terms, the segment sum.

use std::arch::x86_64::*;
use std::ops::Range;

use super::ROWS;
use super::tile::Tile;
use crate::a8::{A8Block, A8Rows};
use crate::format::{Format, Fp2Dialect};
use crate::rows::out::Out;
use crate::rows::term::Term;
use crate::rows::x86::mem::{load_f32x16, load_u8x64, store_f32x16};

/// How a format's tiles are multiplied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kernel {
    term: Term,
    /// What was added to the levels.
    bias: f32,
    /// Whether groups are strided by 4 within 16 elements.
    by_4: bool,
}

impl Kernel {
    pub(super) fn of(format: Format) -> Self {
        let bias = match format {
            Format::Fp2(Fp2Dialect::Signed | Fp2Dialect::SignedNeg) => 1.0,
            Format::Fp2(Fp2Dialect::S40) | Format::Fp3 => 4.0,
            Format::Fp2(Fp2Dialect::Affine) | Format::Q4K | Format::Q2K => 0.0,
            Format::Fp4 | Format::Fp4Fast => 10.0,
            Format::Mxfp4 => 12.0,
            Format::Fp6(_) => 32.0,
            _ => 128.0,
        };
        let Some(term) = Term::of(format) else {
            unreachable!("{format}: checked by the caller")
        };
        let by_4 = matches!(format, Format::Fp2(_));
        Self { term, bias, by_4 }
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

const ONE: u8 = 0;
const TWO: u8 = 1;
const ONE_OFFSET: u8 = 2;
const TWO_OFFSET: u8 = 3;

/// Adds a tile's sums to every column of the result.
#[target_feature(enable = "avx512vl,avx512dq,avx512vbmi,avx512vnni")]
pub(super) fn all_columns(kernel: Kernel, tile: &Tile, columns: &Columns<'_>, out: &mut Out<'_>) {
    match kernel.term {
        Term::One => sweep::<ONE>(kernel, tile, columns, out),
        Term::Two => sweep::<TWO>(kernel, tile, columns, out),
        Term::OneOffset => sweep::<ONE_OFFSET>(kernel, tile, columns, out),
        Term::TwoOffset => sweep::<TWO_OFFSET>(kernel, tile, columns, out),
    }
}

#[target_feature(enable = "avx512vl,avx512dq,avx512vbmi,avx512vnni")]
#[inline]
fn sweep<const TERM: u8>(kernel: Kernel, tile: &Tile, columns: &Columns<'_>, out: &mut Out<'_>) {
    let n = out.cols();
    let mut c = 0;
    while c + 4 <= n {
        some_columns::<TERM, 4>(kernel, tile, columns, c, out);
        c += 4;
    }
    if c + 2 <= n {
        some_columns::<TERM, 2>(kernel, tile, columns, c, out);
        c += 2;
    }
    if c < n {
        some_columns::<TERM, 1>(kernel, tile, columns, c, out);
    }
}

/// One activation row's share of a segment.
#[derive(Clone, Copy)]
struct Share<'a> {
    q: &'a [[[i8; 4]; 8]],
    blocks: &'a [A8Block],
}

#[target_feature(enable = "avx512vl,avx512dq,avx512vbmi,avx512vnni")]
#[inline]
fn some_columns<const TERM: u8, const N: usize>(
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
    let bias = _mm512_set1_ps(kernel.bias);
    let mut acc = [_mm512_setzero_ps(); N];
    for b in 0..columns.blocks.len() {
        let mut dots = [[_mm512_setzero_si512(); 2]; N];
        for group in 0..8 {
            let w = load_u8x64(&tile.levels[b][group]);
            for i in 0..N {
                let q = _mm512_set1_epi32(word(x[i].q[b][group]));
                dots[i][group / 4] = _mm512_dpbusd_epi32(dots[i][group / 4], w, q);
            }
        }
        for i in 0..N {
            let block = &x[i].blocks[b];
            let t = term::<TERM>(tile, b, dots[i], block, bias);
            acc[i] = _mm512_fmadd_ps(_mm512_set1_ps(block.d), t, acc[i]);
        }
    }
    let first = columns.blocks.start == 0;
    for i in 0..N {
        add_to(&mut out.col(c + i)[columns.rows.clone()], first, acc[i]);
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

/// The block term of sixteen rows (contract rule 2).
#[target_feature(enable = "avx512vl,avx512dq,avx512vbmi,avx512vnni")]
#[inline]
fn term<const TERM: u8>(
    tile: &Tile,
    b: usize,
    dots: [__m512i; 2],
    x: &A8Block,
    bias: __m512,
) -> __m512 {
    let (scale, offset) = (&tile.scale[b], &tile.offset[b]);
    let sums = [_mm512_set1_ps(x.halves[0]), _mm512_set1_ps(x.halves[1])];
    let sum = _mm512_set1_ps(x.sum);
    // Taking the bias off is exact: integers below 2^24 before and after.
    if TERM == ONE || TERM == ONE_OFFSET {
        let whole = _mm512_cvtepi32_ps(_mm512_add_epi32(dots[0], dots[1]));
        let scale = load_f32x16(&scale[0]);
        if TERM == ONE {
            return _mm512_mul_ps(scale, _mm512_fnmadd_ps(bias, sum, whole));
        }
        let low = _mm512_mul_ps(load_f32x16(&offset[0]), sum);
        return _mm512_fmsub_ps(scale, whole, low);
    }
    let halves = [_mm512_cvtepi32_ps(dots[0]), _mm512_cvtepi32_ps(dots[1])];
    if TERM == TWO {
        let low = _mm512_fnmadd_ps(bias, sums[0], halves[0]);
        return two(scale, [low, _mm512_fnmadd_ps(bias, sums[1], halves[1])]);
    }
    _mm512_sub_ps(two(scale, halves), two(offset, sums))
}

#[target_feature(enable = "avx512f")]
#[inline]
fn two(by: &[[f32; ROWS]; 2], of: [__m512; 2]) -> __m512 {
    let second = _mm512_mul_ps(load_f32x16(&by[1]), of[1]);
    _mm512_fmadd_ps(load_f32x16(&by[0]), of[0], second)
}

#[inline(always)]
fn word(bytes: [i8; 4]) -> i32 {
    i32::from_le_bytes(bytes.map(i8::cast_unsigned))
}

/// Adds a segment's sums of up to sixteen rows to a column; the first segment replaces.
#[target_feature(enable = "avx512f")]
#[inline]
fn add_to(cells: &mut [f32], first: bool, acc: __m512) {
    if let Ok(cells) = <&mut [f32; ROWS]>::try_from(&mut *cells) {
        let total = if first {
            acc
        } else {
            _mm512_add_ps(load_f32x16(cells), acc)
        };
        return store_f32x16(cells, total);
    }
    let mut lanes = [0.0; ROWS];
    store_f32x16(&mut lanes, acc);
    for (cell, acc) in cells.iter_mut().zip(lanes) {
        *cell = if first { acc } else { *cell + acc };
    }
}
