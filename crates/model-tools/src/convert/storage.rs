//! How checkpoints store matrices: plain floats, fp8 with block scales, packed fp4 with row scales.
//!
//! Everything is read as f32 rows. The official storage (e8m0 scales) is exact: a scale is a power
//! of two, and the smallest product, 2^-9 * 2^-127, is a denormal f32. Source:
//! spec/ds4-architecture.md 1.4. Must not know: names, models.

use fpx_quant::{Format, decode_row};
use safetensors::Dtype;

use super::folder::Raw;
use crate::error::ToolError;

/// Rows and columns of a block that shares an fp8 scale.
const FP8_BLOCK: u64 = 128;
/// Elements of a row that share an fp4 scale.
const FP4_BLOCK: u64 = 32;

/// A stored matrix, or a stack of them, checked: `rows` of `k` elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stored<'a> {
    raw: Raw<'a>,
    kind: Kind<'a>,
    /// All dimensions but the last, multiplied.
    pub(crate) rows: u64,
    /// Elements of a row.
    pub(crate) k: u64,
}

#[derive(Clone, Copy, Debug)]
enum Kind<'a> {
    Float(Format),
    Fp8(Scales<'a>),
    Fp4(Scales<'a>),
}

#[derive(Clone, Copy, Debug)]
struct Scales<'a> {
    raw: Raw<'a>,
    is_e8m0: bool,
}

impl<'a> Stored<'a> {
    /// Checks how a tensor is stored. `scale`: the tensor of its scales, if there is one.
    pub(crate) fn new(raw: Raw<'a>, scale: Option<Raw<'a>>) -> Result<Self, ToolError> {
        let (last, outer) = raw.shape.split_last().unwrap_or((&1, &[]));
        let rows = outer.iter().product();
        let float = match raw.dtype {
            Dtype::F32 => Some(Format::F32),
            Dtype::F16 => Some(Format::F16),
            Dtype::BF16 => Some(Format::BF16),
            _ => None,
        };
        if let Some(format) = float {
            if let Some(scale) = scale {
                return Err(bad(&raw, "no scales beside plain floats", scale.name));
            }
            let kind = Kind::Float(format);
            return Ok(Self {
                raw,
                kind,
                rows,
                k: *last,
            });
        }
        match raw.dtype {
            Dtype::F8_E4M3 => {
                let shape = [
                    outer_product(outer).div_ceil(FP8_BLOCK),
                    last.div_ceil(FP8_BLOCK),
                ];
                let kind = Kind::Fp8(scales(&raw, scale, &shape)?);
                Ok(Self {
                    raw,
                    kind,
                    rows,
                    k: *last,
                })
            }
            Dtype::I8 | Dtype::U8 | Dtype::F4 => {
                let k = if raw.dtype == Dtype::F4 {
                    *last
                } else {
                    2 * last
                };
                if k % FP4_BLOCK != 0 {
                    return Err(bad(&raw, "rows of whole fp4 blocks of 32", k));
                }
                let kind = Kind::Fp4(scales(&raw, scale, &[rows, k / FP4_BLOCK])?);
                Ok(Self { raw, kind, rows, k })
            }
            other => {
                let expected = "F32, F16, BF16, F8_E4M3 or packed fp4 (I8)";
                Err(bad(&raw, expected, format!("{other:?}")))
            }
        }
    }

    /// Its shape as a matrix of values: fp4 packing undone. Slowest dimension first.
    pub(crate) fn shape(&self) -> Vec<u64> {
        let mut shape = self.raw.shape.to_vec();
        if let Some(last) = shape.last_mut() {
            *last = self.k;
        }
        shape
    }

    /// Reads rows from `first` on; `out` holds whole rows.
    pub(crate) fn read(&self, first: u64, out: &mut [f32]) -> Result<(), ToolError> {
        // Sizes fit: the bytes are in memory.
        let k = self.k as usize;
        for (row, out) in (first..).zip(out.chunks_exact_mut(k)) {
            match self.kind {
                Kind::Float(format) => self.read_float(format, row, out)?,
                Kind::Fp8(scales) => self.read_fp8(scales, row, out)?,
                Kind::Fp4(scales) => self.read_fp4(scales, row, out)?,
            }
            if let Some(i) = out.iter().position(|v| !v.is_finite()) {
                let index = row * self.k + i as u64;
                return Err(value(&self.raw, index, "a finite number", out[i]));
            }
        }
        Ok(())
    }

    fn row(&self, row: u64, bytes: usize) -> &'a [u8] {
        &self.raw.bytes[row as usize * bytes..][..bytes]
    }

    fn read_float(&self, format: Format, row: u64, out: &mut [f32]) -> Result<(), ToolError> {
        let bytes = self.row(row, out.len() * format.block_bytes());
        decode_row(format, bytes, out).map_err(|source| ToolError::Format {
            tensor: self.raw.name.to_owned(),
            source,
        })
    }

    fn read_fp8(&self, scales: Scales<'_>, row: u64, out: &mut [f32]) -> Result<(), ToolError> {
        let bytes = self.row(row, out.len());
        let scale_row = row / FP8_BLOCK;
        let per_row = self.k.div_ceil(FP8_BLOCK);
        for (b, (codes, out)) in bytes
            .chunks(FP8_BLOCK as usize)
            .zip(out.chunks_mut(FP8_BLOCK as usize))
            .enumerate()
        {
            let scale = scales.at(scale_row * per_row + b as u64)?;
            for (code, out) in codes.iter().zip(out) {
                *out = e4m3(*code) * scale;
            }
        }
        Ok(())
    }

    fn read_fp4(&self, scales: Scales<'_>, row: u64, out: &mut [f32]) -> Result<(), ToolError> {
        let bytes = self.row(row, out.len() / 2);
        let per_row = self.k / FP4_BLOCK;
        for (b, (codes, out)) in bytes
            .chunks_exact(FP4_BLOCK as usize / 2)
            .zip(out.chunks_exact_mut(FP4_BLOCK as usize))
            .enumerate()
        {
            let scale = scales.at(row * per_row + b as u64)?;
            for (pair, out) in codes.iter().zip(out.chunks_exact_mut(2)) {
                out[0] = E2M1[usize::from(pair & 15)] * scale;
                out[1] = E2M1[usize::from(pair >> 4)] * scale;
            }
        }
        Ok(())
    }
}

impl Scales<'_> {
    fn at(&self, index: u64) -> Result<f32, ToolError> {
        let i = index as usize;
        if self.is_e8m0 {
            let byte = self.raw.bytes[i];
            return e8m0(byte).ok_or_else(|| value(&self.raw, index, "a scale", "0xff (NaN)"));
        }
        let b = &self.raw.bytes[4 * i..4 * i + 4];
        Ok(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }
}

/// Checks the scales of `raw`: e8m0 (also stored as U8), or f32 as some exports have.
fn scales<'a>(
    raw: &Raw<'a>,
    scale: Option<Raw<'a>>,
    shape: &[u64; 2],
) -> Result<Scales<'a>, ToolError> {
    let Some(scale) = scale else {
        return Err(bad(
            raw,
            "scales beside it (.scale or .weight_scale_inv)",
            "none",
        ));
    };
    let flat = [
        outer_product(&scale.shape[..scale.shape.len().saturating_sub(1)]),
        scale.shape.last().copied().unwrap_or(1),
    ];
    if flat != *shape {
        return Err(ToolError::Shape {
            path: scale.path.to_path_buf(),
            tensor: scale.name.to_owned(),
            expected: shape.to_vec(),
            got: scale.shape.to_vec(),
        });
    }
    match scale.dtype {
        Dtype::F8_E8M0 | Dtype::U8 => Ok(Scales {
            raw: scale,
            is_e8m0: true,
        }),
        Dtype::F32 => Ok(Scales {
            raw: scale,
            is_e8m0: false,
        }),
        other => Err(bad(&scale, "F8_E8M0, U8 or F32", format!("{other:?}"))),
    }
}

fn outer_product(shape: &[u64]) -> u64 {
    shape.iter().product()
}

/// The values of e2m1 codes.
const E2M1: [f32; 16] = [
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
];

/// The value of an e4m3fn code; NaN for 0x7f and 0xff.
pub(crate) fn e4m3(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), code & 7);
    let magnitude = match (exponent, mantissa) {
        (15, 7) => f32::NAN,
        (0, m) => f32::from(m) * (-9f32).exp2(),
        (e, m) => f32::from(8 + m) * f32::from_bits(((e - 10 + 127) as u32) << 23),
    };
    if code & 0x80 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

/// The value of an e8m0 byte, 2^(byte - 127): byte 0 is the denormal 2^-127. `None` for NaN.
pub(crate) fn e8m0(byte: u8) -> Option<f32> {
    match byte {
        0xff => None,
        0 => Some(f32::from_bits(0x0040_0000)),
        b => Some(f32::from_bits(u32::from(b) << 23)),
    }
}

fn bad(raw: &Raw<'_>, expected: &str, got: impl ToString) -> ToolError {
    ToolError::Storage {
        path: raw.path.to_path_buf(),
        tensor: raw.name.to_owned(),
        expected: expected.to_owned(),
        got: got.to_string(),
    }
}

fn value(raw: &Raw<'_>, index: u64, expected: &str, got: impl ToString) -> ToolError {
    ToolError::Value {
        path: raw.path.to_path_buf(),
        tensor: raw.name.to_owned(),
        index,
        expected: expected.to_owned(),
        got: got.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_their_values() {
        for (code, value) in [
            (0x00, 0.0),
            (0x01, 0.001_953_125),
            (0x07, 0.013_671_875),
            (0x08, 0.015_625),
            (0x38, 1.0),
            (0x3c, 1.5),
            (0x7e, 448.0),
            (0xfe, -448.0),
            (0xb8, -1.0),
        ] {
            assert_eq!(e4m3(code), value, "{code:#x}");
        }
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
        assert_eq!(e8m0(0).unwrap().to_bits(), 0x0040_0000);
        assert_eq!(e8m0(1).unwrap(), f32::MIN_POSITIVE);
        assert_eq!(e8m0(127).unwrap(), 1.0);
        assert_eq!(e8m0(254).unwrap(), 2f32.powi(127));
        assert_eq!(e8m0(255), None);
    }
}
