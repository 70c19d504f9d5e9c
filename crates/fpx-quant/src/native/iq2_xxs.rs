//! IQ2_XXS: 256 weights; f16 d, then 8 bytes per 32 weights: four grid indexes, and a little-endian
//! u32 of four times 7 sign bits and a 4-bit scale on top. Weight = +-grid * d * (0.5 + s) / 4.

use super::f16_at;
use super::iq2_grid::{GRID, SIGNS};
use crate::block::Unpacked;

pub(super) fn unpack(block: &[u8], sub: usize) -> Unpacked {
    let part = &block[2 + 8 * sub..][..8];
    let word = u32::from_le_bytes([part[4], part[5], part[6], part[7]]);
    // Exact: 11 bits times at most 5.
    let scale = f16_at(block, 0) * (0.5 + (word >> 28) as f32) * 0.25;
    Unpacked {
        levels: std::array::from_fn(|i| {
            let magnitude = GRID[usize::from(part[i / 8])][i % 8].cast_signed();
            let signs = &SIGNS[(word >> (7 * (i / 8)) & 127) as usize];
            if signs[i % 8] != 0 {
                -magnitude
            } else {
                magnitude
            }
        }),
        scale: [scale; 2],
        offset: [0.0; 2],
    }
}
