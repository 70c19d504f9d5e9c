//! The two public entries of the crate: rows of f32 to bytes and back, for every format.
//!
//! Apart from the codecs because it only checks sizes and chooses one. Must not know: how a
//! format stores anything, files.

use engine_core::math::simd_level;

use crate::format::{Format, FormatError};
use crate::{block, fpx, native, validate};

/// Decodes one row (or several: rows are contiguous) exactly; every format is bit-exact on every
/// device.
///
/// `bytes`: `out.len()` weights in `format`; no alignment is needed. `out`: f32, untouched on error.
///
/// # Errors
/// `PartialBlock` and `Bytes` for sizes that do not fit, `InvalidScale` for a scale byte that no
/// writer produces, `Unsupported` for a format that bytes alone cannot decode (MIX: see `mix`).
pub fn decode_row(format: Format, bytes: &[u8], out: &mut [f32]) -> Result<(), FormatError> {
    check_bytes(format, bytes.len(), out.len())?;
    validate::validate_row_data(format, bytes)?;
    decode_valid(format, bytes, out)
}

/// As [`decode_row`], but a block half with an invalid scale byte decodes to zeros, as the CPU
/// readers of the formats' first writers do. For looking at damaged files, never for inference.
///
/// # Errors
/// As [`decode_row`], less `InvalidScale`.
pub fn decode_row_lossy(format: Format, bytes: &[u8], out: &mut [f32]) -> Result<(), FormatError> {
    check_bytes(format, bytes.len(), out.len())?;
    decode_valid(format, bytes, out)
}

fn decode_valid(format: Format, bytes: &[u8], out: &mut [f32]) -> Result<(), FormatError> {
    match format {
        _ if block::is_base(format) => fpx::decode::blocks(simd_level(), format, bytes, out),
        _ if native::can_decode(format) => native::decode(format, bytes, out),
        Format::Mix2 | Format::Mix3 => return unsupported(format, "decoding without a codebook"),
        _ => return unsupported(format, "decoding"),
    }
    Ok(())
}

fn unsupported(format: Format, what: &'static str) -> Result<(), FormatError> {
    Err(FormatError::Unsupported { format, what })
}

/// How hard, and how freely, to look for the best bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodeMode {
    /// The bytes of the format's first writer, by the plain definition, on one thread: the
    /// reference of `Fast`.
    Reference,
    /// The same bytes as `Reference`, by a pruned search on all cores of the current `rayon` pool.
    Fast,
    /// As `Fast`, but ROCmFP8 without an importance matrix searches for the least squared error
    /// too instead of taking the first scale. The other formats search in every mode.
    Better,
}

/// Encodes a matrix of f32.
///
/// `values`: `[rows, row_elems]`. `imatrix`: `[row_elems]`, the importance of each input column,
/// the same for every row; it weights the error of the ROCmFPX searches, the other formats do not
/// read it. `out`: `[rows, row_bytes]`. Block formats store a value that is not finite as zero.
///
/// # Errors
/// `PartialBlock`; `Bytes` where `out` does not fit (or `values` is not whole rows); `BadWeights`
/// for an importance vector of the wrong length or with a scale group that has no usable
/// (positive, finite) value; `Unsupported` for a format that is decode only. `out` is untouched on error.
pub fn encode_rows(
    format: Format,
    values: &[f32],
    row_elems: usize,
    imatrix: Option<&[f32]>,
    mode: EncodeMode,
    out: &mut [u8],
) -> Result<(), FormatError> {
    check_rows(format, values.len(), row_elems, out.len())?;
    match format {
        _ if block::is_base(format) => fpx::encode::rows(fpx::encode::Job {
            format,
            values,
            row_elems,
            imatrix,
            mode,
            out,
        }),
        _ if native::can_encode(format) => {
            native::encode_rows(format, values, row_elems, mode, out);
            Ok(())
        }
        _ => unsupported(format, "encoding"),
    }
}

/// Whether `values` are whole rows and `bytes` is what they need.
fn check_rows(
    format: Format,
    values: usize,
    row_elems: usize,
    bytes: usize,
) -> Result<(), FormatError> {
    let rows = values.checked_div(row_elems).unwrap_or(0);
    let expected = format.matrix_bytes(rows, row_elems)?;
    if rows * row_elems != values {
        return Err(FormatError::PartialBlock {
            format,
            elems: values,
            block: row_elems,
        });
    }
    if bytes != expected {
        return Err(FormatError::Bytes {
            format,
            expected,
            got: bytes,
        });
    }
    Ok(())
}

/// Whether `bytes` bytes hold exactly `elems` weights.
pub(crate) fn check_bytes(format: Format, bytes: usize, elems: usize) -> Result<(), FormatError> {
    let expected = format.row_bytes(elems)?;
    if bytes != expected {
        return Err(FormatError::Bytes {
            format,
            expected,
            got: bytes,
        });
    }
    Ok(())
}
