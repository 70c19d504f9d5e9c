//! Formats whose stored block is 32 weights, as constants for generic code: one kernel a format,
//! whether its blocks go to a tile or straight to a dot. Must not know: activations.

use super::ROWS;
use super::codes::{self, Eight};

pub(super) const FP2_SIGNED: u8 = 0;
pub(super) const FP2_SIGNED_NEG: u8 = 1;
pub(super) const FP2_AFFINE: u8 = 2;
pub(super) const FP2_S40: u8 = 3;
pub(super) const FP3: u8 = 4;
pub(super) const FP4: u8 = 5;
pub(super) const FP4_FAST: u8 = 6;
pub(super) const FP6: u8 = 7;
pub(super) const FP6_NEG32: u8 = 8;
pub(super) const FP8: u8 = 9;
pub(super) const Q8_0: u8 = 10;
pub(super) const MXFP4: u8 = 11;
/// ROCmFP6 with levels as sign and magnitude, for few columns: cheaper to make, dearer to
/// multiply.
pub(super) const FP6_SIGN_AND_5: u8 = 12;

/// Whether the halves of a block have scales of their own.
pub(super) const fn two_scales(format: u8) -> bool {
    !matches!(format, FP2_AFFINE | FP4_FAST | FP8 | Q8_0 | MXFP4)
}

/// Takes a block of `BYTES` bytes of each of eight rows apart.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn decode<const F: u8, const BYTES: usize>(rows: [&[u8; BYTES]; ROWS]) -> Eight {
    match F {
        FP2_SIGNED => codes::fp2_signed(sized(rows)),
        FP2_SIGNED_NEG => codes::fp2_signed_neg(sized(rows)),
        FP2_AFFINE => codes::fp2_affine(sized(rows)),
        FP2_S40 => codes::fp2_s40(sized(rows)),
        FP3 => codes::fp3(sized(rows)),
        FP4 => codes::fp4(sized(rows)),
        FP4_FAST => codes::fp4_fast(sized(rows)),
        FP6 => codes::fp6::<false>(sized(rows)),
        FP6_NEG32 => codes::fp6::<true>(sized(rows)),
        FP6_SIGN_AND_5 => codes::fp6_sign_and_5(sized(rows)),
        FP8 => codes::fp8(sized(rows)),
        Q8_0 => codes::q8_0(sized(rows)),
        MXFP4 => codes::mxfp4(sized(rows)),
        _ => unreachable!("a format of this list"),
    }
}

/// The same blocks with their length as the decoder of the format names it.
#[inline(always)]
fn sized<const BYTES: usize, const N: usize>(rows: [&[u8; BYTES]; ROWS]) -> [&[u8; N]; ROWS] {
    each!(8, i => match rows[i].first_chunk() {
        Some(block) if BYTES == N => block,
        _ => unreachable!("{BYTES} bytes in a block of {N}"),
    })
}
