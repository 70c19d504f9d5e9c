//! A segment of eight weight rows as the dot kernels want it.

use std::arch::x86_64::__m256i;
use std::ops::Range;

use super::{ROWS, codes, kquant};
use crate::format::{Format, Fp2Dialect, Fp6Endpoint};
use crate::rows::reference::SEGMENT_BLOCKS;
use crate::rows::x86::mem::store_u8x32;

/// Levels and scales of a segment of eight rows.
///
/// Levels are u8 `[block][group][row][4]`: a group is four elements, in element order or (2-bit
/// ROCmFPX) elements `j, j + 4, j + 8, j + 12` of a half. They are biased to be unsigned, or two's
/// complement: see `Kernel`. Scales and offsets are f32 `[block][half][row]`; what a format does
/// not have is left as it was.
#[repr(align(64))]
pub(super) struct Tile {
    pub(super) levels: [[[u8; 32]; 8]; SEGMENT_BLOCKS],
    pub(super) scale: [[[f32; ROWS]; 2]; SEGMENT_BLOCKS],
    pub(super) offset: [[[f32; ROWS]; 2]; SEGMENT_BLOCKS],
}

impl Tile {
    pub(super) fn new() -> Self {
        Self {
            levels: [[[0; 32]; 8]; SEGMENT_BLOCKS],
            scale: [[[0.0; ROWS]; 2]; SEGMENT_BLOCKS],
            offset: [[[0.0; ROWS]; 2]; SEGMENT_BLOCKS],
        }
    }

    /// Decodes blocks of eight rows.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    pub(super) fn fill(&mut self, format: Format, rows: &[&[u8]; ROWS], blocks: Range<usize>) {
        match format {
            Format::Fp2(Fp2Dialect::Signed) => codes::fp2_signed(self, rows, blocks),
            Format::Fp2(Fp2Dialect::SignedNeg) => codes::fp2_signed_neg(self, rows, blocks),
            Format::Fp2(Fp2Dialect::Affine) => codes::fp2_affine(self, rows, blocks),
            Format::Fp2(Fp2Dialect::S40) => codes::fp2_s40(self, rows, blocks),
            Format::Fp3 => codes::fp3(self, rows, blocks),
            Format::Fp4 => codes::fp4(self, rows, blocks),
            Format::Fp4Fast => codes::fp4_fast(self, rows, blocks),
            Format::Fp6(Fp6Endpoint::Zero) => codes::fp6::<false>(self, rows, blocks),
            Format::Fp6(Fp6Endpoint::Neg32) => codes::fp6::<true>(self, rows, blocks),
            Format::Fp8 => codes::fp8(self, rows, blocks),
            Format::Q8_0 => codes::q8_0(self, rows, blocks),
            Format::Mxfp4 => codes::mxfp4(self, rows, blocks),
            Format::Q4K => kquant::q4k(self, rows, blocks),
            Format::Q2K => kquant::q2k(self, rows, blocks),
            Format::Iq2Xxs => kquant::iq2_xxs(self, rows, blocks),
            _ => unreachable!("{format}: checked by the caller"),
        }
    }

    /// Sets group `group` of block `block`.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    pub(super) fn set(&mut self, block: usize, group: usize, levels: __m256i) {
        store_u8x32(&mut self.levels[block][group], levels);
    }

    /// Sets all groups of block `block`.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    pub(super) fn set_all(&mut self, block: usize, levels: [__m256i; 8]) {
        for group in 0..8 {
            store_u8x32(&mut self.levels[block][group], levels[group]);
        }
    }
}

/// The stored blocks of eight rows, all slices equally long.
#[inline(always)]
pub(super) fn stored<'a, const BYTES: usize>(
    rows: &[&'a [u8]; ROWS],
    blocks: Range<usize>,
) -> [&'a [[u8; BYTES]]; ROWS] {
    each!(8, i => &rows[i].as_chunks().0[blocks.start..blocks.end])
}
