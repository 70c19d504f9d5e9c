//! Q8_0: f16 scale, then 32 signed bytes.

use half::f16;

use super::f16_at;
use crate::a8::BLOCK;
use crate::block::Unpacked;

pub(super) fn unpack(block: &[u8]) -> Unpacked {
    Unpacked {
        levels: std::array::from_fn(|i| block[2 + i].cast_signed()),
        scale: [f16_at(block, 0); 2],
        offset: [0.0; 2],
    }
}

/// d = amax / 127; levels from 1 / d before d is rounded to f16, half away from zero. The
/// scale of values beyond 127 * 65,519 is infinite, as in ggml.
pub(super) fn encode(x: &[f32; BLOCK], out: &mut [u8]) {
    let amax = x.iter().fold(0f32, |m, v| m.max(v.abs()));
    let d = amax / 127.0;
    let inv = if d > 0.0 { 1.0 / d } else { 0.0 };
    out[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    for (out, x) in out[2..].iter_mut().zip(x) {
        *out = ((x * inv).round() as i8).cast_unsigned();
    }
}
