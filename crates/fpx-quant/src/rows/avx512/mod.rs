//! AVX-512 kernels (VNNI, VBMI): sixteen weight rows abreast, one 32-bit lane a row.
//!
//! The scheme of [`super::avx2`] at twice the width. Two instructions make it more than that: one
//! takes unaligned 6- or 3-bit codes out of words, one looks up 64 bytes; together they decode any
//! code. Levels are always biased to be unsigned, as the 8-bit dot instruction wants.
//!
//! Float matrices stay with AVX2: their multiply-adds are bound by loads.

mod codes;
mod dot;
mod kquant;
mod scales;
mod tile;

use std::cell::RefCell;
use std::ops::Range;

use crate::a8::{A8Rows, BLOCK};
use crate::rows::matrix::Matrix;
use crate::rows::out::Out;
use crate::rows::reference::SEGMENT_BLOCKS;

use dot::{Columns, Kernel};
use tile::{Segment, Tile};

/// Weight rows abreast.
const ROWS: usize = 16;

/// See [`crate::rows::matmul_a8`]; shapes are checked, K is not 0.
#[target_feature(enable = "avx512vl,avx512dq,avx512vbmi,avx512vnni")]
pub(super) fn matmul_a8(w: &Matrix<'_>, x: &A8Rows, cols: Range<usize>, out: &mut Out<'_>) {
    TILE.with_borrow_mut(|tile| by_tiles(tile, w, x, cols, out));
}

thread_local! {
    /// Kept by each thread: most products are so small that clearing a tile for each would show.
    static TILE: RefCell<Tile> = const { RefCell::new(Tile::new()) };
}

#[target_feature(enable = "avx512vl,avx512dq,avx512vbmi,avx512vnni")]
fn by_tiles(tile: &mut Tile, w: &Matrix<'_>, x: &A8Rows, cols: Range<usize>, out: &mut Out<'_>) {
    let kernel = Kernel::of(w.format());
    let blocks = w.k() / BLOCK;
    for row in (0..w.rows()).step_by(ROWS) {
        let rows = each!(16, i => w.row((row + i).min(w.rows() - 1)));
        let live = row..w.rows().min(row + ROWS);
        for first in (0..blocks).step_by(SEGMENT_BLOCKS) {
            let here = first..blocks.min(first + SEGMENT_BLOCKS);
            let segment = Segment {
                rows: &rows,
                blocks: here.clone(),
                ahead: w.ahead(ROWS, here.clone()),
            };
            tile.fill(w.format(), &segment);
            let columns = Columns {
                x,
                first: cols.start,
                blocks: here,
                rows: live.clone(),
            };
            dot::all_columns(kernel, tile, &columns, out);
        }
    }
}
