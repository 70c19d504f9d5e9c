//! AVX2 kernels: eight weight rows abreast, one 32-bit lane a row.
//!
//! A segment (512 elements) of eight rows is decoded once into a tile in which four elements of
//! each row lie side by side, so that one integer multiply-add serves eight rows, needs no
//! horizontal sum, and the f32 steps of contract rules 2 and 3 run on eight rows at once. Then
//! every column meets the tile. For up to four columns blocks of 32 go through registers instead, see
//! [`direct`]. Rows missing from the last eight repeat the last row.
//!
//! Safe code; loads and stores are in [`super::x86::mem`].

mod blocks;
mod codes;
mod direct;
mod dot;
mod float;
mod kquant;
mod scales;
mod tile;

use std::cell::RefCell;
use std::ops::Range;

use crate::a8::{A8Rows, BLOCK};
use crate::rows::matrix::Matrix;
use crate::rows::out::Out;
use crate::rows::reference::SEGMENT_BLOCKS;

pub(super) use float::matmul_f32;
pub(super) use scales::part;

use dot::{Columns, Kernel};
use tile::{Segment, Tile};

/// Weight rows abreast.
const ROWS: usize = 8;

/// See [`crate::rows::matmul_a8`]; shapes are checked, K is not 0.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn matmul_a8(w: &Matrix<'_>, x: &A8Rows, cols: Range<usize>, out: &mut Out<'_>) {
    if direct::takes(w.format(), cols.len()) {
        return direct::matmul_a8(w, x, cols, out);
    }
    TILE.with_borrow_mut(|tile| by_tiles(tile, w, x, cols, out));
}

thread_local! {
    /// Kept by each thread: most products are so small that clearing a tile for each would show.
    static TILE: RefCell<Tile> = const { RefCell::new(Tile::new()) };
}

#[target_feature(enable = "avx2,fma,f16c")]
fn by_tiles(tile: &mut Tile, w: &Matrix<'_>, x: &A8Rows, cols: Range<usize>, out: &mut Out<'_>) {
    let kernel = Kernel::of(w.format());
    let blocks = w.k() / BLOCK;
    for row in (0..w.rows()).step_by(ROWS) {
        let rows = each!(8, i => w.row((row + i).min(w.rows() - 1)));
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
