//! What makes the bytes of a tensor invalid whatever they mean: sizes and scale bytes.
//!
//! Apart from the decoders because loaders run it once over whole tensors. Must not know: files,
//! how weights are used. Source: spec/fpx-formats.md 2.

use crate::format::{Format, FormatError, Fp2Dialect};
use crate::scale::MAX_SCALE_BYTE;

/// Checks rows of blocks: a whole number of blocks, and no scale byte that cannot be written.
///
/// Formats without a constrained byte are checked for their length only. For MIX the book bit of
/// the scale byte is accepted here (whether a tensor may set it depends on its codebook's mode).
///
/// # Errors
/// `Bytes` (expected: the whole blocks that fit), `InvalidScale` with the first bad block's index.
pub fn validate_row_data(format: Format, bytes: &[u8]) -> Result<(), FormatError> {
    let size = format.block_bytes().max(1);
    whole_blocks(format, bytes.len())?;
    let (scales, mask) = scale_bytes(format);
    if scales == 0 {
        return Ok(());
    }
    for (block, data) in bytes.chunks_exact(size).enumerate() {
        for &byte in &data[size - scales..] {
            if byte & mask > MAX_SCALE_BYTE {
                return Err(FormatError::InvalidScale {
                    format,
                    block,
                    byte,
                    limit: MAX_SCALE_BYTE,
                });
            }
        }
    }
    Ok(())
}

/// Whether `bytes` bytes are a whole number of blocks.
pub(crate) fn whole_blocks(format: Format, bytes: usize) -> Result<(), FormatError> {
    let extra = bytes % format.block_bytes().max(1);
    if extra != 0 {
        return Err(FormatError::Bytes {
            format,
            expected: bytes - extra,
            got: bytes,
        });
    }
    Ok(())
}

/// How many bytes at the end of a block are scale bytes, and which bits of them are scale.
pub(crate) const fn scale_bytes(format: Format) -> (usize, u8) {
    match format {
        Format::Fp2(Fp2Dialect::SignedNeg) | Format::Mix2 | Format::Mix3 => (2, 0x7f),
        Format::Fp2(_) | Format::Fp3 | Format::Fp4 | Format::Fp6(_) => (2, 0xff),
        Format::Fp4Fast | Format::Fp8 => (1, 0xff),
        _ => (0, 0),
    }
}
