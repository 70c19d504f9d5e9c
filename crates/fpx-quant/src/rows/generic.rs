//! Portable kernels: a segment of a weight row is taken apart once, then meets every column.
//!
//! Safe code over fixed-size arrays that compilers vectorise; also the path of formats without a
//! kernel of their own on an instruction set (compiled once more there).

use std::ops::Range;

use engine_core::math::{LANES, SEGMENT, fma, fold_lanes, row_total};

use crate::a8::{A8Row, A8Rows, BLOCK};
use crate::native;
use crate::rows::matrix::Matrix;
use crate::rows::out::Out;
use crate::rows::reference::SEGMENT_BLOCKS;
use crate::rows::term::{Term, block_term, unpack_32};

/// A segment of one weight row, taken apart.
struct Segment {
    levels: [[[i8; 16]; 2]; SEGMENT_BLOCKS],
    scale: [[f32; 2]; SEGMENT_BLOCKS],
    offset: [[f32; 2]; SEGMENT_BLOCKS],
}

/// See [`crate::rows::matmul_a8`]; shapes are checked, K is not 0.
#[inline(always)]
pub(super) fn matmul_a8(
    term: Term,
    w: &Matrix<'_>,
    x: &A8Rows,
    cols: Range<usize>,
    out: &mut Out<'_>,
) {
    let mut tile = Segment {
        levels: [[[0; 16]; 2]; SEGMENT_BLOCKS],
        scale: [[0.0; 2]; SEGMENT_BLOCKS],
        offset: [[0.0; 2]; SEGMENT_BLOCKS],
    };
    let blocks = w.k() / BLOCK;
    for row in 0..w.rows() {
        for first in (0..blocks).step_by(SEGMENT_BLOCKS) {
            let here = first..blocks.min(first + SEGMENT_BLOCKS);
            for (i, block) in here.clone().enumerate() {
                let parts = unpack_32(w.format(), w.row(row), block);
                for (half, levels) in tile.levels[i].iter_mut().enumerate() {
                    levels.copy_from_slice(&parts.levels[16 * half..][..16]);
                }
                (tile.scale[i], tile.offset[i]) = (parts.scale, parts.offset);
            }
            for (c, col) in cols.clone().enumerate() {
                let acc = segment_a8(term, &tile, &x.row(col), here.clone());
                let cell = &mut out.col(c)[row];
                *cell = row_total(first == 0, *cell, acc);
            }
        }
    }
}

#[inline(always)]
fn segment_a8(term: Term, w: &Segment, x: &A8Row<'_>, blocks: Range<usize>) -> f32 {
    let q = &x.q.as_chunks::<16>().0[2 * blocks.start..2 * blocks.end];
    let mut acc = 0.0;
    for (i, x) in x.blocks[blocks].iter().enumerate() {
        let dots = [0, 1].map(|half| int_dot(&w.levels[i][half], &q[2 * i + half]));
        let t = block_term(term, w.scale[i], w.offset[i], dots, x.halves);
        acc = fma(x.d, t, acc);
    }
    acc
}

#[inline(always)]
fn int_dot(w: &[i8; 16], q: &[i8; 16]) -> i32 {
    let mut sum = 0;
    for i in 0..16 {
        sum += i32::from(w[i]) * i32::from(q[i]);
    }
    sum
}

/// See [`crate::rows::matmul_f32`]; x f32 `[out.cols()][k]`, K is not 0.
#[inline(always)]
pub(super) fn matmul_f32(w: &Matrix<'_>, x: &[f32], out: &mut Out<'_>) {
    let (k, bytes) = (w.k(), w.format().block_bytes());
    let mut wide = [0f32; SEGMENT];
    for row in 0..w.rows() {
        for first in (0..k).step_by(SEGMENT) {
            let here = first..k.min(first + SEGMENT);
            let wide = &mut wide[..here.len()];
            native::widen(
                w.format(),
                &w.row(row)[first * bytes..here.end * bytes],
                wide,
            );
            for (c, x) in x.chunks_exact(k).enumerate() {
                let sum = segment_f32(wide, &x[here.clone()]);
                let cell = &mut out.col(c)[row];
                *cell = row_total(first == 0, *cell, sum);
            }
        }
    }
}

/// One segment of rule 4.
#[inline(always)]
pub(super) fn segment_f32(w: &[f32], x: &[f32]) -> f32 {
    let mut p = [0f32; LANES];
    let ((cw, rw), (cx, rx)) = (w.as_chunks::<LANES>(), x.as_chunks::<LANES>());
    for (w, x) in cw.iter().zip(cx) {
        for j in 0..LANES {
            p[j] = fma(w[j], x[j], p[j]);
        }
    }
    for (j, (w, x)) in rw.iter().zip(rx).enumerate() {
        p[j] = fma(*w, *x, p[j]);
    }
    fold_lanes(p)
}
