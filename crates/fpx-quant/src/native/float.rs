//! F32, F16 and BF16 as little-endian bytes.

use half::{bf16, f16};

use crate::format::Format;

/// Widens a float row exactly. A NaN stays a NaN.
///
/// # Panics
/// If the sizes do not match or the format is not [`Format::is_float`].
#[inline]
pub fn widen(format: Format, bytes: &[u8], out: &mut [f32]) {
    let size = format.block_bytes();
    assert_eq!(
        bytes.len(),
        out.len() * size,
        "bytes of {} weights",
        out.len()
    );
    match format {
        Format::F32 => each(bytes, out, f32::from_le_bytes),
        Format::F16 => each(bytes, out, |b| f16::from_le_bytes(b).to_f32()),
        Format::BF16 => each(bytes, out, |b| bf16::from_le_bytes(b).to_f32()),
        _ => panic!("{format}: not a float format"),
    }
}

/// Rounds to nearest even.
pub(super) fn narrow(format: Format, x: &[f32], out: &mut [u8]) {
    match format {
        Format::F32 => each_to(x, out, f32::to_le_bytes),
        Format::F16 => each_to(x, out, |v| f16::from_f32(v).to_le_bytes()),
        Format::BF16 => each_to(x, out, |v| bf16::from_f32(v).to_le_bytes()),
        _ => panic!("{format}: not a float format"),
    }
}

#[inline]
fn each<const N: usize>(bytes: &[u8], out: &mut [f32], widen: impl Fn([u8; N]) -> f32) {
    for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *out = widen(*bytes);
    }
}

fn each_to<const N: usize>(x: &[f32], out: &mut [u8], narrow: impl Fn(f32) -> [u8; N]) {
    for (out, x) in out.as_chunks_mut::<N>().0.iter_mut().zip(x) {
        *out = narrow(*x);
    }
}
