//! MIX2 and MIX3: codes whose levels come from codebooks outside the tensor. Decode only.
//!
//! Apart from the other formats because bytes alone mean nothing here: a row is decoded with a
//! [`Codebook`], and codebooks come from a sidecar (`mix::sidecar`). Must not know: files, GGUF
//! keys, experts. Source: spec/fpx-formats.md 1, 3, 8.

mod cursor;
pub mod sidecar;

use crate::block::{FP2_SIGNED, FP3};
use crate::format::{Format, FormatError};
use crate::scale::{self, MAX_SCALE_BYTE};

/// Levels of one MIX tensor (or of one expert's matrix).
#[derive(Clone, Debug, PartialEq)]
pub struct Codebook {
    format: Format,
    mode: Mode,
    /// Two books of 8 levels; MIX2 uses the first 4 of each.
    levels: [[f32; 8]; 2],
}

/// How the last two bytes of a block are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Levels of ROCmFP2 `Signed` or ROCmFP3; the byte is a plain scale.
    Fixed,
    /// Bit 7 chooses one of two books of a half, bits 0..6 are its scale.
    Adaptive,
}

impl Codebook {
    /// The codebook of a tensor in mode 0.
    ///
    /// # Errors
    /// `Unsupported` for a format that is not MIX.
    pub fn fixed(format: Format) -> Result<Self, FormatError> {
        let count = level_count(format)?;
        let mut book = [0.0; 8];
        for (code, level) in book.iter_mut().enumerate().take(count) {
            *level = f32::from(match format {
                Format::Mix2 => FP2_SIGNED[code],
                _ => FP3[code],
            });
        }
        Ok(Self {
            format,
            mode: Mode::Fixed,
            levels: [book; 2],
        })
    }

    /// The codebook of a tensor in mode 1. `levels`: bf16 bits, book 0 then book 1, 4 (MIX2) or 8
    /// (MIX3) strictly increasing levels within [-1, 1] each.
    ///
    /// # Errors
    /// `Unsupported` for a format that is not MIX, `BadCodebook` for other levels.
    pub fn adaptive(format: Format, levels: &[u16]) -> Result<Self, FormatError> {
        let count = level_count(format)?;
        if levels.len() != 2 * count {
            return Err(FormatError::BadCodebook {
                format,
                why: "wrong number of levels",
            });
        }
        let mut books = [[0.0; 8]; 2];
        for (book, bits) in books.iter_mut().zip(levels.chunks_exact(count)) {
            for (level, &bits) in book.iter_mut().zip(bits) {
                *level = f32::from_bits(u32::from(bits) << 16);
            }
            // NaN fails both comparisons.
            let book = &book[..count];
            let bounded = book.iter().all(|l| l.abs() <= 1.0);
            if !bounded || !book.windows(2).all(|pair| pair[0] < pair[1]) {
                return Err(FormatError::BadCodebook {
                    format,
                    why: "levels do not increase strictly within [-1, 1]",
                });
            }
        }
        Ok(Self {
            format,
            mode: Mode::Adaptive,
            levels: books,
        })
    }

    /// `Mix2` or `Mix3`.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// How scale bytes are read.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Levels by code of a book (0 or 1): 4 or 8.
    #[must_use]
    pub fn levels(&self, book: usize) -> &[f32] {
        let count = if self.format == Format::Mix2 { 4 } else { 8 };
        &self.levels[book & 1][..count]
    }

    /// Checks the scale bytes of whole blocks by this codebook's mode: in mode 0 bit 7 is an error.
    ///
    /// # Errors
    /// `Bytes`, `InvalidScale`.
    pub fn validate(&self, bytes: &[u8]) -> Result<(), FormatError> {
        crate::validate::validate_row_data(self.format, bytes)?;
        if self.mode == Mode::Adaptive {
            return Ok(());
        }
        let size = self.format.block_bytes();
        for (block, data) in bytes.chunks_exact(size).enumerate() {
            if let Some(&byte) = data[size - 2..].iter().find(|&&b| !scale::is_valid(b)) {
                return Err(FormatError::InvalidScale {
                    format: self.format,
                    block,
                    byte,
                    limit: MAX_SCALE_BYTE,
                });
            }
        }
        Ok(())
    }

    /// Decodes one row (or several, contiguous) exactly.
    ///
    /// `bytes`: `out.len()` weights; no alignment is needed. `out`: f32, untouched on error.
    ///
    /// # Errors
    /// `PartialBlock`, `Bytes`, `InvalidScale`.
    pub fn decode_row(&self, bytes: &[u8], out: &mut [f32]) -> Result<(), FormatError> {
        crate::codec::check_bytes(self.format, bytes.len(), out.len())?;
        self.validate(bytes)?;
        match self.format {
            Format::Mix2 => self.blocks::<2, 10>(bytes, out),
            _ => self.blocks::<3, 14>(bytes, out),
        }
        Ok(())
    }

    /// Blocks of `SIZE` bytes with codes of `WIDTH` bits.
    fn blocks<const WIDTH: usize, const SIZE: usize>(&self, bytes: &[u8], out: &mut [f32]) {
        let (blocks, _) = bytes.as_chunks::<SIZE>();
        let (outs, _) = out.as_chunks_mut::<32>();
        for (block, out) in blocks.iter().zip(outs) {
            for half in 0..2 {
                let meta = block[SIZE - 2 + half];
                let scale = scale::decode(meta & 0x7f);
                let book = &self.levels[usize::from(meta >> 7)];
                // A half is 2 * WIDTH bytes, at most 48 bits.
                let mut word = 0u64;
                for (i, &byte) in block[2 * WIDTH * half..2 * WIDTH * (half + 1)]
                    .iter()
                    .enumerate()
                {
                    word |= u64::from(byte) << (8 * i);
                }
                for i in 0..16 {
                    let code = (word >> (WIDTH * i)) as usize & ((1 << WIDTH) - 1);
                    out[16 * half + i] = book[code] * scale;
                }
            }
        }
    }
}

/// Levels of a book.
fn level_count(format: Format) -> Result<usize, FormatError> {
    match format {
        Format::Mix2 => Ok(4),
        Format::Mix3 => Ok(8),
        _ => Err(FormatError::Unsupported {
            format,
            what: "a codebook",
        }),
    }
}
