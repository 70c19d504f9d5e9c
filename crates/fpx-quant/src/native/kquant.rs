//! Q4_K and Q2_K: blocks of 256 weights in sub-blocks with their own scale and minimum.
//!
//! Q4_K: f16 d, f16 dmin, 12 bytes of 6-bit scales and minima, 128 bytes of nibbles; 64 weights in
//! 32 bytes, the first 32 in the low nibbles. Q2_K: 16 bytes (scale in the low nibble, minimum in
//! the high one, per 16 weights), 64 bytes of 2-bit codes, f16 d, f16 dmin; 128 weights in 32
//! bytes, 32 of them at each shift 0, 2, 4, 6.

use super::f16_at;
use crate::block::Unpacked;

pub(super) fn unpack_q4k(block: &[u8], sub: usize) -> Unpacked {
    let (scale, min) = q4k_scales(&block[4..16], sub);
    let (scale, offset) = sub_block_scales([f16_at(block, 0), f16_at(block, 2)], scale, min);
    let codes = &block[16 + sub / 2 * 32..][..32];
    Unpacked {
        levels: std::array::from_fn(|i| (codes[i] >> (sub % 2 * 4) & 15).cast_signed()),
        scale: [scale; 2],
        offset: [offset; 2],
    }
}

pub(super) fn unpack_q2k(block: &[u8], sub: usize) -> Unpacked {
    let d = [f16_at(block, 80), f16_at(block, 82)];
    let codes = &block[16 + sub / 4 * 32..][..32];
    let halves = [0, 1].map(|half| {
        let byte = block[2 * sub + half];
        sub_block_scales(d, byte & 15, byte >> 4)
    });
    Unpacked {
        levels: std::array::from_fn(|i| (codes[i] >> (sub % 4 * 2) & 3).cast_signed()),
        scale: halves.map(|(scale, _)| scale),
        offset: halves.map(|(_, offset)| offset),
    }
}

/// d * scale and dmin * minimum, one rounding each.
#[inline(always)]
pub(crate) fn sub_block_scales(d: [f32; 2], scale: u8, min: u8) -> (f32, f32) {
    (d[0] * f32::from(scale), d[1] * f32::from(min))
}

/// The 6-bit scale and minimum of a Q4_K sub-block: the first four in the low bits of bytes 0..4
/// and 4..8; of the last four the low nibbles share bytes 8..12 and the top bits fill the others.
#[inline(always)]
pub(crate) fn q4k_scales(packed: &[u8], sub: usize) -> (u8, u8) {
    if sub < 4 {
        return (packed[sub] & 63, packed[sub + 4] & 63);
    }
    let low = packed[sub + 4];
    (
        low & 15 | packed[sub - 4] >> 6 << 4,
        low >> 4 | packed[sub] >> 6 << 4,
    )
}
