//! A segment of eight weight rows as the dot kernels want it.

use std::arch::x86_64::__m256i;
use std::ops::Range;

use super::blocks::*;
use super::{ROWS, kquant};
use crate::format::{Format, Fp2Dialect, Fp6Endpoint};
use crate::rows::reference::SEGMENT_BLOCKS;
use crate::rows::x86::mem::{prefetch, store_f32x8, store_u8x32};

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
    pub(super) const fn new() -> Self {
        Self {
            levels: [[[0; 32]; 8]; SEGMENT_BLOCKS],
            scale: [[[0.0; ROWS]; 2]; SEGMENT_BLOCKS],
            offset: [[[0.0; ROWS]; 2]; SEGMENT_BLOCKS],
        }
    }

    /// Decodes blocks of eight rows.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    pub(super) fn fill(&mut self, format: Format, segment: &Segment<'_>) {
        match format {
            Format::Fp2(Fp2Dialect::Signed) => self.fill_by::<FP2_SIGNED, 10>(segment),
            Format::Fp2(Fp2Dialect::SignedNeg) => self.fill_by::<FP2_SIGNED_NEG, 10>(segment),
            Format::Fp2(Fp2Dialect::Affine) => self.fill_by::<FP2_AFFINE, 10>(segment),
            Format::Fp2(Fp2Dialect::S40) => self.fill_by::<FP2_S40, 10>(segment),
            Format::Fp3 => self.fill_by::<FP3, 14>(segment),
            Format::Fp4 => self.fill_by::<FP4, 18>(segment),
            Format::Fp4Fast => self.fill_by::<FP4_FAST, 17>(segment),
            Format::Fp6(Fp6Endpoint::Zero) => self.fill_by::<FP6, 26>(segment),
            Format::Fp6(Fp6Endpoint::Neg32) => self.fill_by::<FP6_NEG32, 26>(segment),
            Format::Fp8 => self.fill_by::<FP8, 33>(segment),
            Format::Q8_0 => self.fill_by::<Q8_0, 34>(segment),
            Format::Mxfp4 => self.fill_by::<MXFP4, 17>(segment),
            Format::Q4K => kquant::q4k(self, segment),
            Format::Q2K => kquant::q2k(self, segment),
            Format::Iq2Xxs => kquant::iq2_xxs(self, segment),
            _ => unreachable!("{format}: checked by the caller"),
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    fn fill_by<const F: u8, const BYTES: usize>(&mut self, segment: &Segment<'_>) {
        let rows = segment.stored::<BYTES, 1>();
        for b in 0..rows[0].len() {
            prefetch_next(&rows, b, segment.ahead);
            let eight = decode::<F, BYTES>(each!(8, i => &rows[i][b]));
            for group in 0..8 {
                self.set(b, group, eight.levels[group]);
            }
            store_f32x8(&mut self.scale[b][0], eight.scale[0]);
            if two_scales(F) {
                store_f32x8(&mut self.scale[b][1], eight.scale[1]);
            }
            if F == FP2_AFFINE {
                store_f32x8(&mut self.offset[b][0], eight.offset);
            }
        }
    }

    /// Sets group `group` of block `block`.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    pub(super) fn set(&mut self, block: usize, group: usize, levels: __m256i) {
        store_u8x32(&mut self.levels[block][group], levels);
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
    /// The stored blocks of eight rows, all slices equally long; a stored block holds `SUBS`
    /// blocks of 32.
    #[inline(always)]
    pub(super) fn stored<const BYTES: usize, const SUBS: usize>(
        &self,
    ) -> [&'a [[u8; BYTES]]; ROWS] {
        let (start, end) = (self.blocks.start / SUBS, self.blocks.end / SUBS);
        each!(8, i => &self.rows[i].as_chunks().0[start..end])
    }

    /// Asks for what follows a stored block in the next segment: a stream of short runs in eight
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

/// Asks for a line a row of what follows a segment of blocks shorter than a line, until block `b`
/// has come to the segment's end.
#[inline(always)]
pub(super) fn prefetch_next<const BYTES: usize>(
    rows: &[&[[u8; BYTES]]; ROWS],
    b: usize,
    ahead: usize,
) {
    let from_start = b % SEGMENT_BLOCKS;
    let line = from_start * LINE;
    if line < BYTES * SEGMENT_BLOCKS + LINE {
        for row in rows {
            prefetch(&row[b], ahead + line - from_start * BYTES);
        }
    }
}

/// Bytes of a cache line.
const LINE: usize = 64;
