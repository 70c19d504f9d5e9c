//! A segment of sixteen weight rows as the dot kernels want it.

use std::arch::x86_64::__m512i;
use std::ops::Range;

use super::{ROWS, codes, kquant};
use crate::format::{Format, Fp2Dialect, Fp6Endpoint};
use crate::rows::reference::SEGMENT_BLOCKS;
use crate::rows::x86::mem::prefetch;
use crate::rows::x86::mem::store_u8x64;

/// Levels and scales of a segment of sixteen rows; see `avx2::tile::Tile`. Levels are biased.
#[repr(align(64))]
pub(super) struct Tile {
    pub(super) levels: [[[u8; 64]; 8]; SEGMENT_BLOCKS],
    pub(super) scale: [[[f32; ROWS]; 2]; SEGMENT_BLOCKS],
    pub(super) offset: [[[f32; ROWS]; 2]; SEGMENT_BLOCKS],
}

impl Tile {
    pub(super) const fn new() -> Self {
        Self {
            levels: [[[0; 64]; 8]; SEGMENT_BLOCKS],
            scale: [[[0.0; ROWS]; 2]; SEGMENT_BLOCKS],
            offset: [[[0.0; ROWS]; 2]; SEGMENT_BLOCKS],
        }
    }

    /// Decodes blocks of sixteen rows.
    #[target_feature(enable = "avx512vl,avx512dq,avx512vbmi,avx512vnni")]
    #[inline]
    pub(super) fn fill(&mut self, format: Format, segment: &Segment<'_>) {
        match format {
            Format::Fp2(Fp2Dialect::Signed) => codes::fp2_signed(self, segment),
            Format::Fp2(Fp2Dialect::SignedNeg) => codes::fp2_signed_neg(self, segment),
            Format::Fp2(Fp2Dialect::Affine) => codes::fp2_affine(self, segment),
            Format::Fp2(Fp2Dialect::S40) => codes::fp2_s40(self, segment),
            Format::Fp3 => codes::fp3(self, segment),
            Format::Fp4 => codes::fp4(self, segment),
            Format::Fp4Fast => codes::fp4_fast(self, segment),
            Format::Fp6(Fp6Endpoint::Zero) => codes::fp6(self, segment, &codes::FP6_LEVELS),
            Format::Fp6(Fp6Endpoint::Neg32) => codes::fp6(self, segment, &codes::FP6_NEG32),
            Format::Fp8 => codes::fp8(self, segment),
            Format::Q8_0 => codes::q8_0(self, segment),
            Format::Mxfp4 => codes::mxfp4(self, segment),
            Format::Q4K => kquant::q4k(self, segment),
            Format::Q2K => kquant::q2k(self, segment),
            Format::Iq2Xxs => kquant::iq2_xxs(self, segment),
            _ => unreachable!("{format}: checked by the caller"),
        }
    }

    /// Sets group `group` of block `block`.
    #[target_feature(enable = "avx512f")]
    #[inline]
    pub(super) fn set(&mut self, block: usize, group: usize, levels: __m512i) {
        store_u8x64(&mut self.levels[block][group], levels);
    }
}

/// What a tile is filled from.
pub(super) struct Segment<'a> {
    pub(super) rows: &'a [&'a [u8]; ROWS],
    /// Blocks of 32.
    pub(super) blocks: Range<usize>,
    /// Bytes from a row's segment to the one that the same lane takes next.
    pub(super) ahead: usize,
}

impl<'a> Segment<'a> {
    /// The stored blocks of sixteen rows, all slices equally long; a stored block holds `SUBS`
    /// blocks of 32.
    #[inline(always)]
    pub(super) fn stored<const BYTES: usize, const SUBS: usize>(
        &self,
    ) -> [&'a [[u8; BYTES]]; ROWS] {
        let (start, end) = (self.blocks.start / SUBS, self.blocks.end / SUBS);
        each!(16, i => &self.rows[i].as_chunks().0[start..end])
    }

    /// Asks for what follows a stored block in the next segment: a stream of short runs in sixteen
    /// rows is more than the processor foresees by itself.
    #[inline(always)]
    pub(super) fn prefetch<const BYTES: usize>(&self, rows: &[&[[u8; BYTES]]; ROWS], b: usize) {
        for line in (0..BYTES).step_by(64) {
            for row in rows {
                prefetch(&row[b], self.ahead + line);
            }
        }
    }
}
