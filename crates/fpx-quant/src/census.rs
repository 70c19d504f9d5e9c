//! Counts over a whole tensor that tell dialects of one type id apart where they can be told apart.
//!
//! Apart from `validate` because a census is evidence, not proof: a loader without a named dialect
//! refuses, and quotes these numbers. Must not know: files, defaults. Source of the shares:
//! spec/fpx-formats.md 8 (one million N(0, 0.02) weights, no importance matrix).

use crate::format::{Format, FormatError, Fp2Dialect, Fp6Endpoint};
use crate::scale;
use crate::validate::whole_blocks;

/// What an id-102 tensor contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fp6Census {
    /// Blocks seen.
    pub blocks: u64,
    /// Blocks with code 32 in them.
    pub blocks_with_code_32: u64,
}

impl Fp6Census {
    /// Counts over whole blocks.
    ///
    /// # Errors
    /// `Bytes`.
    pub fn of(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut census = Self::default();
        for data in blocks(Format::Fp6(Fp6Endpoint::Neg32), bytes)? {
            census.blocks += 1;
            census.blocks_with_code_32 += u64::from(has_code_32(&data[..24]));
        }
        Ok(census)
    }

    /// Whether the tensor decodes to the same values with either endpoint. Where not, its writer
    /// used -32 (the sign-magnitude writers never emit code 32), or the bytes are damaged.
    #[must_use]
    pub fn endpoint_is_irrelevant(&self) -> bool {
        self.blocks_with_code_32 == 0
    }
}

/// Whether one of the 32 codes, four in every three bytes, is 32.
fn has_code_32(codes: &[u8]) -> bool {
    let mut found = false;
    for q in codes.chunks_exact(3) {
        let word = u32::from_le_bytes([q[0], q[1], q[2], 0]);
        for shift in [0, 6, 12, 18] {
            found |= word >> shift & 63 == 32;
        }
    }
    found
}

/// What an id-107 tensor contains.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fp2Census {
    /// Blocks seen.
    pub blocks: u64,
    /// Weights by code.
    pub codes: [u64; 4],
    /// Trailing bytes with bit 7 set.
    pub top_bits: u64,
    /// Trailing bytes that are invalid even without bit 7.
    pub invalid: u64,
    /// Mean of (second trailing byte - first), both without bit 7.
    pub mean_difference: f64,
}

/// Why a dialect looks wrong for a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fp2Alarm {
    /// Bit 7 is set in some trailing bytes: only `SignedNeg` (or a MIX tensor) has it.
    TopBits,
    /// Bytes that no dialect writes.
    Invalid,
    /// The second byte exceeds the first by about 5 on average, as in `Affine`, and this is
    /// another dialect; or it does not, and this is `Affine`.
    Difference,
    /// The codes are distributed as in another dialect (`Signed`: code 0 four times as often as
    /// code 3; the others: about equally often).
    Codes,
}

impl Fp2Census {
    /// Fewer blocks than this alarm nobody: a few odd blocks are possible in any dialect.
    pub const LEAST_BLOCKS: u64 = 1024;

    /// Counts over whole blocks of id 107.
    ///
    /// # Errors
    /// `Bytes`.
    pub fn of(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut census = Self {
            blocks: 0,
            codes: [0; 4],
            top_bits: 0,
            invalid: 0,
            mean_difference: 0.0,
        };
        let mut difference = 0i64;
        for data in blocks(Format::Fp2(Fp2Dialect::Affine), bytes)? {
            census.blocks += 1;
            for &byte in &data[..8] {
                for shift in [0, 2, 4, 6] {
                    census.codes[usize::from(byte >> shift & 3)] += 1;
                }
            }
            for &byte in &data[8..] {
                census.top_bits += u64::from(byte >> 7);
                census.invalid += u64::from(!scale::is_valid(byte & 0x7f));
            }
            difference += i64::from(data[9] & 0x7f) - i64::from(data[8] & 0x7f);
        }
        if census.blocks > 0 {
            census.mean_difference = difference as f64 / census.blocks as f64;
        }
        Ok(census)
    }

    /// Share of each code.
    #[must_use]
    pub fn shares(&self) -> [f64; 4] {
        let all = self.codes.iter().sum::<u64>().max(1) as f64;
        self.codes.map(|n| n as f64 / all)
    }

    /// What speaks against a dialect, the strongest first. None is no proof of the dialect.
    #[must_use]
    pub fn alarm(&self, dialect: Fp2Dialect) -> Option<Fp2Alarm> {
        if self.invalid > 0 {
            return Some(Fp2Alarm::Invalid);
        }
        if self.top_bits > 0 && dialect != Fp2Dialect::SignedNeg {
            return Some(Fp2Alarm::TopBits);
        }
        if self.blocks < Self::LEAST_BLOCKS {
            return None;
        }
        // Halfway between the dialects: 0.0 and 5.0.
        let like_affine = self.mean_difference > 2.5;
        if like_affine != (dialect == Fp2Dialect::Affine) {
            return Some(Fp2Alarm::Difference);
        }
        // Share of code 0 less that of code 3: Signed 0.23, S40 0.00, Affine -0.03. With negated
        // halves either sign is possible, so SignedNeg is not judged by it.
        let shares = self.shares();
        let like_signed = shares[0] - shares[3] > 0.12;
        let wrong = match dialect {
            Fp2Dialect::Signed => !like_signed,
            Fp2Dialect::S40 | Fp2Dialect::Affine => like_signed,
            Fp2Dialect::SignedNeg => false,
        };
        wrong.then_some(Fp2Alarm::Codes)
    }
}

/// Whole blocks of a format.
fn blocks(format: Format, bytes: &[u8]) -> Result<impl Iterator<Item = &[u8]>, FormatError> {
    whole_blocks(format, bytes.len())?;
    Ok(bytes.chunks_exact(format.block_bytes()))
}
