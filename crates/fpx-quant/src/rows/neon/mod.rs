//! NEON kernels: four weight rows abreast. A segment is unpacked once into signed bytes (nibble and
//! byte formats by tables and copies, the rest by the portable `unpack_32`), then every column
//! meets it by widening multiplies.
//!
//! Checked for equal bits under emulation only: its speed on real processors is not known. Float
//! matrices use the portable kernel, which the compiler vectorises here with the base set.

mod mem;

use std::arch::aarch64::*;
use std::ops::Range;

use engine_core::math::row_total;

use crate::a8::{A8Block, A8Rows, BLOCK};
use crate::block::{FP4, Unpacked};
use crate::format::Format;
use crate::native::{self, FP4_E2M1};
use crate::rows::matrix::Matrix;
use crate::rows::out::Out;
use crate::rows::reference::SEGMENT_BLOCKS;
use crate::rows::term::{Term, unpack_32};
use crate::scale;

pub(super) use mem::matmul_a8;
use mem::{load_f32x4, load_i8x16, load_u8x16, store_f32x4, store_i8x16};

/// Weight rows abreast.
const ROWS: usize = 4;

/// A segment of four rows: levels `[block][row][half][16]`, scales and offsets
/// `[block][half][row]`.
struct Tile {
    levels: [[[[i8; 16]; 2]; ROWS]; SEGMENT_BLOCKS],
    scale: [[[f32; ROWS]; 2]; SEGMENT_BLOCKS],
    offset: [[[f32; ROWS]; 2]; SEGMENT_BLOCKS],
}

/// See [`crate::rows::matmul_a8`]; shapes are checked, K is not 0.
#[target_feature(enable = "neon")]
fn kernel(term: Term, w: &Matrix<'_>, x: &A8Rows, cols: Range<usize>, out: &mut Out<'_>) {
    let blocks = w.k() / BLOCK;
    let mut tile = Tile {
        levels: [[[[0; 16]; 2]; ROWS]; SEGMENT_BLOCKS],
        scale: [[[0.0; ROWS]; 2]; SEGMENT_BLOCKS],
        offset: [[[0.0; ROWS]; 2]; SEGMENT_BLOCKS],
    };
    for row in (0..w.rows()).step_by(ROWS) {
        let live = row..w.rows().min(row + ROWS);
        for first in (0..blocks).step_by(SEGMENT_BLOCKS) {
            let here = first..blocks.min(first + SEGMENT_BLOCKS);
            // Rows missing from the last four keep what was there; their sums are dropped.
            for (i, row) in live.clone().enumerate() {
                fill(&mut tile, i, w.format(), w.row(row), here.clone());
            }
            for (c, col) in cols.clone().enumerate() {
                let sums = segment(term, &tile, x, col, here.clone());
                let cells = &mut out.col(c)[live.clone()];
                for (cell, sum) in cells.iter_mut().zip(sums) {
                    *cell = row_total(first == 0, *cell, sum);
                }
            }
        }
    }
}

/// Unpacks blocks of one row.
#[target_feature(enable = "neon")]
fn fill(tile: &mut Tile, row: usize, format: Format, bytes: &[u8], blocks: Range<usize>) {
    for (b, block) in blocks.enumerate() {
        let levels = &mut tile.levels[b][row];
        let (scale, offset) = match format {
            Format::Fp4Fast => {
                let [codes @ .., e] = stored::<17>(bytes, block);
                nibbles(levels, codes, &FP4);
                ([scale::decode(*e); 2], [0.0; 2])
            }
            Format::Fp4 => {
                let [codes @ .., e0, e1] = stored::<18>(bytes, block);
                nibbles(levels, codes, &FP4);
                ([*e0, *e1].map(scale::decode), [0.0; 2])
            }
            Format::Mxfp4 => {
                let [e, codes @ ..] = stored::<17>(bytes, block);
                nibbles(levels, codes, &FP4_E2M1);
                ([native::e8m0_half(*e); 2], [0.0; 2])
            }
            _ => {
                let Unpacked {
                    levels: all,
                    scale,
                    offset,
                } = unpack_32(format, bytes, block);
                levels.as_flattened_mut().copy_from_slice(&all);
                (scale, offset)
            }
        };
        for half in 0..2 {
            tile.scale[b][half][row] = scale[half];
            tile.offset[b][half][row] = offset[half];
        }
    }
}

/// A stored block of 32 weights.
fn stored<const BYTES: usize>(row: &[u8], block: usize) -> &[u8; BYTES] {
    &row.as_chunks().0[block]
}

/// Element `j` in the low nibble of byte `j`, element `j + 16` in the high one.
#[target_feature(enable = "neon")]
#[inline]
fn nibbles(levels: &mut [[i8; 16]; 2], codes: &[u8; 16], by_code: &[i8; 16]) {
    let (codes, table) = (load_u8x16(codes), load_i8x16(by_code));
    let low = vandq_u8(codes, vdupq_n_u8(15));
    store_i8x16(&mut levels[0], vqtbl1q_s8(table, low));
    store_i8x16(&mut levels[1], vqtbl1q_s8(table, vshrq_n_u8::<4>(codes)));
}

/// Segment sums of four rows for one column.
#[target_feature(enable = "neon")]
#[inline]
fn segment(term: Term, tile: &Tile, x: &A8Rows, col: usize, blocks: Range<usize>) -> [f32; ROWS] {
    let row = x.row(col);
    let q = &row.q.as_chunks::<16>().0.as_chunks::<2>().0[blocks.clone()];
    let mut acc = vdupq_n_f32(0.0);
    for (b, (q, x)) in q.iter().zip(&row.blocks[blocks]).enumerate() {
        let q = [load_i8x16(&q[0]), load_i8x16(&q[1])];
        let dots = [half_dots(tile, b, 0, q[0]), half_dots(tile, b, 1, q[1])];
        let t = block_terms(term, &tile.scale[b], &tile.offset[b], dots, x);
        acc = vfmaq_f32(acc, vdupq_n_f32(x.d), t);
    }
    let mut sums = [0.0; ROWS];
    store_f32x4(&mut sums, acc);
    sums
}

/// Integer dots of one half of a block, four rows.
#[target_feature(enable = "neon")]
#[inline]
fn half_dots(tile: &Tile, b: usize, half: usize, q: int8x16_t) -> int32x4_t {
    let mut sums = [vdupq_n_s32(0); ROWS];
    for r in 0..ROWS {
        let w = load_i8x16(&tile.levels[b][r][half]);
        // Two products of at most 128 * 127 fit 16 bits.
        let products = vmull_s8(vget_low_s8(w), vget_low_s8(q));
        sums[r] = vpaddlq_s16(vmlal_high_s8(products, w, q));
    }
    vpaddq_s32(vpaddq_s32(sums[0], sums[1]), vpaddq_s32(sums[2], sums[3]))
}

/// The block terms of four rows (contract rule 2). `vfmaq_f32(a, b, c)` is a + b * c.
#[target_feature(enable = "neon")]
#[inline]
fn block_terms(
    term: Term,
    scale: &[[f32; ROWS]; 2],
    offset: &[[f32; ROWS]; 2],
    dots: [int32x4_t; 2],
    x: &A8Block,
) -> float32x4_t {
    let two = |by: &[[f32; ROWS]; 2], of: [float32x4_t; 2]| {
        let second = vmulq_f32(load_f32x4(&by[1]), of[1]);
        vfmaq_f32(second, load_f32x4(&by[0]), of[0])
    };
    let halves = [vcvtq_f32_s32(dots[0]), vcvtq_f32_s32(dots[1])];
    let whole = vcvtq_f32_s32(vaddq_s32(dots[0], dots[1]));
    match term {
        Term::One => vmulq_f32(load_f32x4(&scale[0]), whole),
        Term::Two => two(scale, halves),
        Term::OneOffset => {
            let low = vmulq_f32(load_f32x4(&offset[0]), vdupq_n_f32(x.sum));
            vfmaq_f32(vnegq_f32(low), load_f32x4(&scale[0]), whole)
        }
        Term::TwoOffset => {
            let sums = [vdupq_n_f32(x.halves[0]), vdupq_n_f32(x.halves[1])];
            vsubq_f32(two(scale, halves), two(offset, sums))
        }
    }
}
