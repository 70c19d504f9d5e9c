//! The f32 term of one block of 32 weights (contract rule 2) and where its parts come from.

use engine_core::math::fma;

use crate::block::{self, Unpacked};
use crate::format::{Format, Fp2Dialect};
use crate::native;

/// How the integer dots of a block become one f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Term {
    /// One scale for 32 weights.
    One,
    /// One scale for each 16 weights.
    Two,
    /// One scale and one offset for 32 weights.
    OneOffset,
    /// One scale and one offset for each 16 weights.
    TwoOffset,
}

impl Term {
    /// The term of a format; None if its rows have no integer product.
    #[must_use]
    pub const fn of(format: Format) -> Option<Self> {
        match format {
            Format::Q8_0 | Format::Mxfp4 | Format::Iq2Xxs | Format::Fp4Fast | Format::Fp8 => {
                Some(Self::One)
            }
            Format::Fp2(Fp2Dialect::Affine) | Format::Q4K => Some(Self::OneOffset),
            Format::Fp2(_) | Format::Fp3 | Format::Fp4 | Format::Fp6(_) => Some(Self::Two),
            Format::Q2K => Some(Self::TwoOffset),
            _ => None,
        }
    }
}

/// The term of a block: integer dots and sums of q of its two halves, all exact.
///
/// The conversions to f32 are exact too (below 2^24).
#[inline(always)]
#[must_use]
pub fn block_term(
    term: Term,
    scale: [f32; 2],
    offset: [f32; 2],
    dots: [i32; 2],
    sums: [f32; 2],
) -> f32 {
    let two = |by: [f32; 2], of: [f32; 2]| fma(by[0], of[0], by[1] * of[1]);
    let halves = dots.map(|i| i as f32);
    let whole = (dots[0] + dots[1]) as f32;
    match term {
        Term::One => scale[0] * whole,
        Term::Two => two(scale, halves),
        Term::OneOffset => fma(scale[0], whole, -(offset[0] * (sums[0] + sums[1]))),
        Term::TwoOffset => two(scale, halves) - two(offset, sums),
    }
}

/// Block `index` of 32 weights of a row, taken apart; K-quants have several in one stored block.
///
/// # Panics
/// If the row ends before the block or the format has no [`Term`].
#[inline]
#[must_use]
pub fn unpack_32(format: Format, row: &[u8], index: usize) -> Unpacked {
    if native::has_blocks(format) {
        return native::unpack_32(format, row, index);
    }
    let bytes = format.block_bytes();
    block::unpack(format, &row[index * bytes..][..bytes])
}
