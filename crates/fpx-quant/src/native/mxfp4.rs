//! MXFP4: a power-of-two scale byte (e8m0), then 16 bytes of two e2m1 codes: element `j` in the
//! low nibble of byte `j`, element `j + 16` in the high one.
//!
//! As in ggml, levels are twice the e2m1 numbers and the scale is half of e8m0, so that levels are
//! integers; byte 255 (NaN in the standard) reads as 2^127.

use crate::a8::BLOCK;
use crate::block::Unpacked;

/// Twice the e2m1 numbers, by code.
pub const FP4_E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Half of the e8m0 number: 2^(e - 128), exact down to the denormals of e = 0 and 1.
#[must_use]
#[inline]
pub const fn e8m0_half(e: u8) -> f32 {
    f32::from_bits(match e {
        0 | 1 => 0x0020_0000 << e,
        _ => (e as u32 - 1) << 23,
    })
}

pub(super) fn unpack(block: &[u8]) -> Unpacked {
    let code = |i: usize| block[1 + i % 16] >> (i / 16 * 4) & 15;
    Unpacked {
        levels: std::array::from_fn(|i| FP4_E2M1[usize::from(code(i))]),
        scale: [e8m0_half(block[0]); 2],
        offset: [0.0; 2],
    }
}

/// Scale exponent floor(log2(amax)) - 2, read off the bits and not below the format's range (ggml
/// asks libm's log2f, which rounds up within an ulp or so below some powers of two); then the
/// nearest level by f32 distance, the lowest code on a tie.
pub(super) fn encode(x: &[f32; BLOCK], out: &mut [u8]) {
    let amax = x.iter().fold(0f32, |m, v| m.max(v.abs()));
    let e = ((amax.to_bits() >> 23) as u8).saturating_sub(2);
    let scale = e8m0_half(e);
    out[0] = e;
    for j in 0..16 {
        out[1 + j] = nearest(x[j], scale) | nearest(x[j + 16], scale) << 4;
    }
}

fn nearest(x: f32, scale: f32) -> u8 {
    let error = |code: usize| (f32::from(FP4_E2M1[code]) * scale - x).abs();
    let closer = |best: usize, code| {
        if error(code) < error(best) {
            code
        } else {
            best
        }
    };
    (1..16).fold(0, closer) as u8
}
