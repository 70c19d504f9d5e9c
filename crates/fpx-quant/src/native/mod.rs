//! The formats of ggml that this project computes with itself: exact decoders, the encoders of
//! the simple ones, and blocks of 32 weights taken apart for the row kernels.
//!
//! Apart from the ROCmFPX codec because layouts and encoders come from elsewhere (ggml's block
//! structs). Must not know: GGUF, row kernels. K-quants are decode only.

mod float;
mod iq2_grid;
mod iq2_xxs;
mod kquant;
mod mxfp4;
mod q8_0;

use half::f16;
use rayon::prelude::*;

use crate::a8::BLOCK;
use crate::block::Unpacked;
use crate::codec::EncodeMode;
use crate::format::Format;

pub use float::widen;
#[cfg(target_arch = "x86_64")]
pub(crate) use iq2_grid::{GRID as IQ2_GRID, SIGNS as IQ2_SIGNS};
pub use mxfp4::{FP4_E2M1, e8m0_half};

/// Whether [`unpack_32`] knows the format.
#[must_use]
pub const fn has_blocks(format: Format) -> bool {
    matches!(
        format,
        Format::Q8_0 | Format::Mxfp4 | Format::Q4K | Format::Q2K | Format::Iq2Xxs
    )
}

/// Whether [`decode`] knows the format.
#[must_use]
pub const fn can_decode(format: Format) -> bool {
    format.is_float() || has_blocks(format)
}

/// Whether [`encode`] knows the format.
#[must_use]
pub const fn can_encode(format: Format) -> bool {
    format.is_float() || matches!(format, Format::Q8_0 | Format::Mxfp4)
}

/// Weights `32 * index ..` of a row, taken apart. Scales and offsets of K-quants are the f32
/// products of the contract (rule 2).
///
/// # Panics
/// If the row ends before the block or the format is not one of [`has_blocks`].
#[must_use]
pub fn unpack_32(format: Format, row: &[u8], index: usize) -> Unpacked {
    let subs = format.block_elems() / BLOCK;
    let block = &row[index / subs * format.block_bytes()..][..format.block_bytes()];
    match format {
        Format::Q8_0 => q8_0::unpack(block),
        Format::Mxfp4 => mxfp4::unpack(block),
        Format::Q4K => kquant::unpack_q4k(block, index % subs),
        Format::Q2K => kquant::unpack_q2k(block, index % subs),
        Format::Iq2Xxs => iq2_xxs::unpack(block, index % subs),
        _ => panic!("{format}: not a block format of ggml"),
    }
}

/// Decodes whole blocks, exactly as ggml does without contraction.
///
/// # Panics
/// If the sizes do not match or the format is not one of [`can_decode`].
pub fn decode(format: Format, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(
        format.row_bytes(out.len()),
        Ok(bytes.len()),
        "bytes of {} weights",
        out.len()
    );
    if format.is_float() {
        return widen(format, bytes, out);
    }
    for (index, out) in out.as_chunks_mut::<BLOCK>().0.iter_mut().enumerate() {
        *out = unpack_32(format, bytes, index).weights();
    }
}

/// [`encode`] of whole rows, on all cores of the current `rayon` pool unless `mode` is `Reference`
/// (the bytes are the same in every mode).
pub(crate) fn encode_rows(
    format: Format,
    values: &[f32],
    row_elems: usize,
    mode: EncodeMode,
    out: &mut [u8],
) {
    let row_bytes = row_elems / format.block_elems() * format.block_bytes();
    if mode == EncodeMode::Reference || row_bytes == 0 {
        return encode(format, values, out);
    }
    values
        .par_chunks_exact(row_elems)
        .zip(out.par_chunks_exact_mut(row_bytes))
        .for_each(|(values, out)| encode(format, values, out));
}

/// Encodes whole blocks: F32, F16 and BF16 to nearest even, Q8_0 and MXFP4 by ggml's rules (of a
/// value that is not finite, 0).
///
/// # Panics
/// If the sizes do not match or the format is not one of [`can_encode`].
pub fn encode(format: Format, x: &[f32], out: &mut [u8]) {
    assert_eq!(
        format.row_bytes(x.len()),
        Ok(out.len()),
        "bytes of {} weights",
        x.len()
    );
    if format.is_float() {
        return float::narrow(format, x, out);
    }
    let (blocks, _) = x.as_chunks::<BLOCK>();
    for (x, out) in blocks
        .iter()
        .zip(out.chunks_exact_mut(format.block_bytes()))
    {
        let x = x.map(|v| if v.is_finite() { v } else { 0.0 });
        match format {
            Format::Q8_0 => q8_0::encode(&x, out),
            Format::Mxfp4 => mxfp4::encode(&x, out),
            _ => panic!("{format}: no encoder"),
        }
    }
}

/// The little-endian f16 at `at`, widened.
#[inline]
fn f16_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}
