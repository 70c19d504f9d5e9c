//! Up to four columns: blocks go from the packed rows through registers into the dots.
//!
//! A tile pays when many columns read it; for few it is stored and loaded for nothing. Decoders,
//! dots and terms are those of the tile path, segments and their sums in the same order.

use std::arch::x86_64::*;
use std::ops::Range;

use super::ROWS;
use super::blocks::*;
use super::dot::{self, *};
use super::tile::prefetch_next;
use crate::a8::{A8Rows, BLOCK};
use crate::format::{Format, Fp2Dialect, Fp6Endpoint};
use crate::rows::matrix::Matrix;
use crate::rows::out::Out;
use crate::rows::reference::SEGMENT_BLOCKS;

/// Most columns this path takes.
pub(super) const COLUMNS: usize = 4;

/// Whether blocks of the format are 32 weights, which is what this path takes.
pub(super) fn takes(format: Format, columns: usize) -> bool {
    (1..=COLUMNS).contains(&columns) && format.block_elems() == BLOCK
}

/// See [`super::matmul_a8`], for what [`takes`] accepts.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn matmul_a8(w: &Matrix<'_>, x: &A8Rows, cols: Range<usize>, out: &mut Out<'_>) {
    match cols.len() {
        1 => by_format::<1>(w, x, cols.start, out),
        2 => by_format::<2>(w, x, cols.start, out),
        3 => by_format::<3>(w, x, cols.start, out),
        _ => by_format::<4>(w, x, cols.start, out),
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn by_format<const N: usize>(w: &Matrix<'_>, x: &A8Rows, first: usize, out: &mut Out<'_>) {
    const B4: u8 = BIASED_BY_4;
    match w.format() {
        Format::Fp2(Fp2Dialect::Signed) => run::<FP2_SIGNED, 10, B4, TWO, N>(w, x, first, out),
        Format::Fp2(Fp2Dialect::SignedNeg) => {
            run::<FP2_SIGNED_NEG, 10, B4, TWO, N>(w, x, first, out);
        }
        Format::Fp2(Fp2Dialect::Affine) => {
            run::<FP2_AFFINE, 10, B4, ONE_OFFSET, N>(w, x, first, out);
        }
        Format::Fp2(Fp2Dialect::S40) => run::<FP2_S40, 10, B4, TWO, N>(w, x, first, out),
        Format::Fp3 => run::<FP3, 14, B4, TWO, N>(w, x, first, out),
        Format::Fp4 => run::<FP4, 18, B4, TWO, N>(w, x, first, out),
        Format::Fp4Fast => run::<FP4_FAST, 17, B4, ONE, N>(w, x, first, out),
        Format::Mxfp4 => run::<MXFP4, 17, B4, ONE, N>(w, x, first, out),
        Format::Fp6(Fp6Endpoint::Zero) => {
            run::<FP6_SIGN_AND_5, 26, SIGN_AND_5, TWO, N>(w, x, first, out);
        }
        Format::Fp6(Fp6Endpoint::Neg32) => {
            run::<FP6_NEG32, 26, BIASED_BY_2, TWO, N>(w, x, first, out);
        }
        Format::Fp8 => run::<FP8, 33, SIGNED, ONE, N>(w, x, first, out),
        Format::Q8_0 => run::<Q8_0, 34, SIGNED, ONE, N>(w, x, first, out),
        format => unreachable!("{format}: checked by the caller"),
    }
}

/// All rows with N columns from `first` on.
#[target_feature(enable = "avx2,fma,f16c")]
fn run<const F: u8, const BYTES: usize, const DOT: u8, const TERM: u8, const N: usize>(
    w: &Matrix<'_>,
    x: &A8Rows,
    first: usize,
    out: &mut Out<'_>,
) {
    let kernel = Kernel::of(w.format());
    let blocks = w.k() / BLOCK;
    let mut shares = [share_of(kernel, x.row(first), 0..blocks); N];
    for i in 1..N {
        shares[i] = share_of(kernel, x.row(first + i), 0..blocks);
    }
    for row in (0..w.rows()).step_by(ROWS) {
        let rows = each!(8, i => &w.row((row + i).min(w.rows() - 1)).as_chunks().0[..blocks]);
        let totals = eight_rows::<F, BYTES, DOT, TERM, N>(w, &rows, &shares, kernel.bias);
        let live = row..w.rows().min(row + ROWS);
        for i in 0..N {
            dot::add_to(out.col(i), live.clone(), true, totals[i]);
        }
    }
}

/// The products of eight rows with N columns.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn eight_rows<const F: u8, const BYTES: usize, const DOT: u8, const TERM: u8, const N: usize>(
    w: &Matrix<'_>,
    rows: &[&[[u8; BYTES]]; ROWS],
    x: &[Share<'_>; N],
    bias: f32,
) -> [__m256; N] {
    let blocks = rows[0].len();
    let mut totals = [_mm256_setzero_ps(); N];
    for first in (0..blocks).step_by(SEGMENT_BLOCKS) {
        let mut acc = [_mm256_setzero_ps(); N];
        let here = first..blocks.min(first + SEGMENT_BLOCKS);
        let ahead = w.ahead(ROWS, here.clone());
        for b in here {
            prefetch_next(rows, b, ahead);
            let block = each!(8, i => &rows[i][b]);
            let (dots, scale, offset) =
                block_dots::<F, BYTES, DOT, TERM, N>(block, &columns_at(x, b));
            for i in 0..N {
                let block = &x[i].blocks[b];
                let t = term::<DOT, TERM>(scale, offset, dots[i], block, bias);
                acc[i] = _mm256_fmadd_ps(_mm256_set1_ps(block.d), t, acc[i]);
            }
        }
        for i in 0..N {
            totals[i] = if first == 0 {
                acc[i]
            } else {
                _mm256_add_ps(totals[i], acc[i])
            };
        }
    }
    totals
}

/// Integer dots `[column][half]`, scales and offsets of a block of eight rows.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn block_dots<const F: u8, const BYTES: usize, const DOT: u8, const TERM: u8, const N: usize>(
    rows: [&[u8; BYTES]; ROWS],
    q: &[&[[i8; 4]; 8]; N],
) -> ([[__m256i; 2]; N], [__m256; 2], [__m256; 2]) {
    let zero = _mm256_setzero_si256();
    let eight = decode::<F, BYTES>(rows);
    let (scale, offset) = (eight.scale, [eight.offset; 2]);
    let (mut pairs, mut dots) = ([zero; N], [[zero; 2]; N]);
    let _: [(); 8] = each!(8, group => {
        let half = if one_dot(TERM) { 0 } else { group / 4 };
        group_dots::<DOT, N>(eight.levels[group], group, half, q, &mut pairs, &mut dots);
    });
    (dots, scale, offset)
}
