//! IQ2_XXS: 256 weights; f16 d, then 8 bytes per 32 weights: four grid indexes, and a little-endian
//! u32 of four times 7 sign bits and a 4-bit scale on top. Weight = +-grid * d * (0.5 + s) / 4.

use super::f16_at;
use super::iq2_grid::GRID;
use crate::block::Unpacked;

pub(super) fn unpack(block: &[u8], sub: usize) -> Unpacked {
    let part = &block[2 + 8 * sub..][..8];
    let word = u32::from_le_bytes([part[4], part[5], part[6], part[7]]);
    // Exact: 11 bits times at most 5.
    let scale = f16_at(block, 0) * (0.5 + (word >> 28) as f32) * 0.25;
    Unpacked {
        levels: std::array::from_fn(|i| {
            let magnitude = grid_point(part[i / 8])[i % 8];
            let negative = signs_of(word, i / 8) >> (i % 8) & 1 != 0;
            if negative { -magnitude } else { magnitude }
        }),
        scale: [scale; 2],
        offset: [0.0; 2],
    }
}

/// Eight magnitudes.
#[inline(always)]
pub(crate) fn grid_point(index: u8) -> [i8; 8] {
    GRID[usize::from(index)]
}

/// Sign bits of eight weights: 7 stored ones; the eighth makes their number even.
#[inline(always)]
pub(crate) fn signs_of(word: u32, eighth: usize) -> u8 {
    let seven = (word >> (7 * eighth)) as u8 & 127;
    seven | ((seven.count_ones() as u8 & 1) << 7)
}
