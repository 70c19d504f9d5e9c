//! The formats, their ids on disk and their geometry. One enum for the whole project.
//!
//! Ids 102 and 107 mean different things in different files (spec/fpx-formats.md 8): the type
//! carries the dialect, so that a tensor cannot be read without naming one.

use std::fmt;

/// What the four 2-bit codes of id 107 (or 111) mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fp2Dialect {
    /// -1, 0, +1, +2 times a scale per 16 weights.
    Signed,
    /// As `Signed`; bit 7 of a scale byte negates its half. Decode only.
    SignedNeg,
    /// code * s - o, one s and one o per 32 weights.
    Affine,
    /// -4, -1, +1, +4 times a scale per 16 weights.
    S40,
}

/// What code 32 of ROCmFP6 means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fp6Endpoint {
    /// 0: files of the sign-magnitude writers.
    Zero,
    /// -32: files of the forks.
    Neg32,
}

/// A storage format of tensor rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Format {
    F32,
    F16,
    BF16,
    I32,
    Q8_0,
    Mxfp4,
    Q4K,
    Q2K,
    Iq2Xxs,
    /// ROCmFP2, 10 bytes per 32 weights.
    Fp2(Fp2Dialect),
    /// ROCmFP3, 14 bytes.
    Fp3,
    /// ROCmFP4, two scales, 18 bytes.
    Fp4,
    /// ROCmFP4_FAST, one scale, 17 bytes.
    Fp4Fast,
    /// ROCmFP6, 26 bytes.
    Fp6(Fp6Endpoint),
    /// ROCmFP8, 33 bytes.
    Fp8,
    /// MIX3, 14 bytes and a codebook outside the tensor. Decode only.
    Mix3,
    /// MIX2, 10 bytes and a codebook outside the tensor. Decode only.
    Mix2,
    /// A type only ggml can read (feature `ggml` of the loader): id, block elements and bytes.
    Ggml {
        id: u32,
        block: u32,
        bytes: u32,
    },
}

/// Why a row cannot exist in a format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// A row is not a whole number of blocks.
    #[error("{format}: row of {elems} elements is not a multiple of the block of {block}")]
    PartialBlock {
        /// The format.
        format: Format,
        /// Elements of the row.
        elems: usize,
        /// Elements of a block.
        block: usize,
    },
    /// A byte count does not fit.
    #[error("{format}: expected {expected} bytes, got {got}")]
    Bytes {
        /// The format.
        format: Format,
        /// Bytes the shape needs.
        expected: usize,
        /// Bytes given.
        got: usize,
    },
    /// A size overflows.
    #[error("{format}: {rows} rows of {elems} elements overflow")]
    Overflow {
        /// The format.
        format: Format,
        /// Rows.
        rows: usize,
        /// Elements of a row.
        elems: usize,
    },
    /// A scale byte no writer produces.
    #[error("{format}: block {block}: scale byte {byte:#04x} is invalid (limit {limit:#04x})")]
    InvalidScale {
        /// The format.
        format: Format,
        /// Index of the block within the bytes given.
        block: usize,
        /// The byte.
        byte: u8,
        /// Largest valid byte.
        limit: u8,
    },
    /// The operation does not exist for this format.
    #[error("{format}: {what} is not supported")]
    Unsupported {
        /// The format.
        format: Format,
        /// Which operation.
        what: &'static str,
    },
    /// Importance weights that cannot guide a search.
    #[error("{format}: importance weights: {why}")]
    BadWeights {
        /// The format.
        format: Format,
        /// What is wrong.
        why: &'static str,
    },
    /// Codebook levels that no writer produces.
    #[error("{format}: codebook: {why}")]
    BadCodebook {
        /// The format.
        format: Format,
        /// What is wrong.
        why: &'static str,
    },
    /// A codebook container that does not parse.
    #[error("{kind} sidecar: near byte {at}: {what}: expected {expected}, got {got}")]
    Sidecar {
        /// Kind of container.
        kind: &'static str,
        /// Offset after the last field read.
        at: usize,
        /// The field.
        what: &'static str,
        /// What it should be.
        expected: String,
        /// What it is.
        got: String,
    },
    /// Codebooks and tensors that do not belong together.
    #[error("{tensor}: codebook: expected {expected}, got {got}")]
    BookMismatch {
        /// Name of the tensor or entry.
        tensor: String,
        /// What was needed.
        expected: String,
        /// What was found.
        got: String,
    },
}

impl Format {
    /// Elements of a block.
    #[must_use]
    pub const fn block_elems(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 | Self::I32 => 1,
            Self::Q4K | Self::Q2K | Self::Iq2Xxs => 256,
            Self::Ggml { block, .. } => block as usize,
            _ => 32,
        }
    }

    /// Bytes of a block. Source: spec/fpx-formats.md 1 for ROCmFPX, ggml's block structs for the
    /// rest (Q8_0 = f16 + 32; MXFP4 = e8m0 + 16; Q4_K = 2 f16 + 12 + 128; Q2_K = 16 + 64 + 2 f16;
    /// IQ2_XXS = f16 + 64).
    #[must_use]
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q8_0 => 34,
            Self::Mxfp4 | Self::Fp4Fast => 17,
            Self::Q4K => 144,
            Self::Q2K => 84,
            Self::Iq2Xxs => 66,
            Self::Fp2(_) | Self::Mix2 => 10,
            Self::Fp3 | Self::Mix3 => 14,
            Self::Fp4 => 18,
            Self::Fp6(_) => 26,
            Self::Fp8 => 33,
            Self::Ggml { bytes, .. } => bytes as usize,
        }
    }

    /// Bytes of one row of `elems` elements.
    ///
    /// # Errors
    /// `PartialBlock`, `Overflow`.
    pub fn row_bytes(self, elems: usize) -> Result<usize, FormatError> {
        let block = self.block_elems();
        if !elems.is_multiple_of(block) {
            return Err(FormatError::PartialBlock {
                format: self,
                elems,
                block,
            });
        }
        (elems / block)
            .checked_mul(self.block_bytes())
            .ok_or(FormatError::Overflow {
                format: self,
                rows: 1,
                elems,
            })
    }

    /// Bytes of `rows` rows of `elems` elements.
    ///
    /// # Errors
    /// `PartialBlock`, `Overflow`.
    pub fn matrix_bytes(self, rows: usize, elems: usize) -> Result<usize, FormatError> {
        self.row_bytes(elems)?
            .checked_mul(rows)
            .ok_or(FormatError::Overflow {
                format: self,
                rows,
                elems,
            })
    }

    /// Whether products run in ordered f32 (rule 5) rather than on int8 activation blocks.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::BF16)
    }

    /// The type id written to GGUF, in the dialect of spec/fpx-formats.md 8 (S40: 111).
    #[must_use]
    pub const fn ggml_id(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q8_0 => 8,
            Self::Q2K => 10,
            Self::Q4K => 12,
            Self::Iq2Xxs => 16,
            Self::I32 => 26,
            Self::BF16 => 30,
            Self::Mxfp4 => 39,
            Self::Fp4 => 100,
            Self::Fp4Fast => 101,
            Self::Fp6(_) => 102,
            Self::Fp8 => 103,
            Self::Fp3 => 104,
            Self::Mix3 => 105,
            Self::Mix2 => 106,
            Self::Fp2(Fp2Dialect::S40) => 111,
            Self::Fp2(_) => 107,
            Self::Ggml { id, .. } => id,
        }
    }

    /// The name used in recipes, reports and messages (ggml spelling, dialect appended).
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::BF16 => "BF16",
            Self::I32 => "I32",
            Self::Q8_0 => "Q8_0",
            Self::Mxfp4 => "MXFP4",
            Self::Q4K => "Q4_K",
            Self::Q2K => "Q2_K",
            Self::Iq2Xxs => "IQ2_XXS",
            Self::Fp2(Fp2Dialect::Signed) => "ROCMFP2",
            Self::Fp2(Fp2Dialect::SignedNeg) => "ROCMFP2:neg",
            Self::Fp2(Fp2Dialect::Affine) => "ROCMFP2:affine",
            Self::Fp2(Fp2Dialect::S40) => "ROCMFP2:s40",
            Self::Fp3 => "ROCMFP3",
            Self::Fp4 => "ROCMFP4",
            Self::Fp4Fast => "ROCMFP4_FAST",
            Self::Fp6(Fp6Endpoint::Zero) => "ROCMFP6",
            Self::Fp6(Fp6Endpoint::Neg32) => "ROCMFP6:neg32",
            Self::Fp8 => "ROCMFP8",
            Self::Mix3 => "ROCMFP3_MIX",
            Self::Mix2 => "ROCMFP2_MIX",
            Self::Ggml { .. } => "ggml",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ggml { id, .. } => write!(f, "ggml type {id}"),
            _ => f.write_str(self.name()),
        }
    }
}
