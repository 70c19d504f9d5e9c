//! The definition of a row's product, scalar, in the order of the contract (rules 2 to 4).

use engine_core::math::{SEGMENT, dot, fma, row_total};

use crate::a8::{A8Row, BLOCK};
use crate::format::Format;
use crate::native;
use crate::rows::term::{Term, block_term, unpack_32};

/// Blocks of a segment.
pub(super) const SEGMENT_BLOCKS: usize = SEGMENT / BLOCK;

/// Rules 2 and 3: a quantised weight row times a quantised activation row.
///
/// # Panics
/// If the format has no [`Term`] or the row is not `x.q.len()` elements long.
#[must_use]
pub fn dot_row_a8(format: Format, row: &[u8], x: &A8Row<'_>) -> f32 {
    let Some(term) = Term::of(format) else {
        panic!("{format}: no integer product")
    };
    assert_eq!(format.row_bytes(x.q.len()), Ok(row.len()), "bytes of a row");
    let mut total = 0.0;
    for (segment, blocks) in x.blocks.chunks(SEGMENT_BLOCKS).enumerate() {
        let mut acc = 0f32;
        for (i, sums) in blocks.iter().enumerate() {
            let block = segment * SEGMENT_BLOCKS + i;
            let w = unpack_32(format, row, block);
            let q = &x.q[block * BLOCK..][..BLOCK];
            let dots = [0, 16].map(|at| int_dot(&w.levels[at..at + 16], &q[at..at + 16]));
            let t = block_term(term, w.scale, w.offset, dots, sums.halves);
            acc = fma(sums.d, t, acc);
        }
        total = row_total(segment == 0, total, acc);
    }
    total
}

/// Rule 4: a float weight row times f32 activations, weights widened exactly.
///
/// # Panics
/// If the format is not [`Format::is_float`] or the row is not `x.len()` elements long.
#[must_use]
pub fn dot_row_f32(format: Format, row: &[u8], x: &[f32]) -> f32 {
    assert_eq!(format.row_bytes(x.len()), Ok(row.len()), "bytes of a row");
    let mut w = vec![0f32; x.len()];
    native::widen(format, row, &mut w);
    dot(&w, x)
}

fn int_dot(w: &[i8], q: &[i8]) -> i32 {
    w.iter()
        .zip(q)
        .map(|(&w, &q)| i32::from(w) * i32::from(q))
        .sum()
}
