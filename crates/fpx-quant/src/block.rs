//! One block of 32 weights, taken apart: the scalar reference that every decoder and row kernel
//! is compared with.
//!
//! Apart from the decoders because the row kernels need integer levels and scales, not products.
//! Must not know: rows, encoders, codebooks (MIX), CPU features. Source: spec/fpx-formats.md 1-3.

use crate::format::{Format, Fp2Dialect, Fp6Endpoint};
use crate::scale;

/// A block before multiplication: `w[i] = levels[i] * scale[i / 16] - offset[i / 16]`.
///
/// All three operations are exact in f32, so the value does not depend on how they are evaluated.
/// A format with one scale repeats it. `offset` is +0 unless the format has one (subtracting +0
/// keeps every value and the sign of a zero).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unpacked {
    /// Integer levels in element order.
    pub levels: [i8; 32],
    /// Scale of elements 0..16 and of elements 16..32.
    pub scale: [f32; 2],
    /// Offset of elements 0..16 and of elements 16..32.
    pub offset: [f32; 2],
}

impl Unpacked {
    /// The 32 weights.
    #[must_use]
    #[inline]
    pub fn weights(&self) -> [f32; 32] {
        std::array::from_fn(|i| {
            f32::from(self.levels[i]) * self.scale[i / 16] - self.offset[i / 16]
        })
    }
}

/// Levels of ROCmFP2 `Signed`, by code.
pub const FP2_SIGNED: [i8; 4] = [-1, 0, 1, 2];
/// Levels of ROCmFP2 `S40`, by code.
pub const FP2_S40: [i8; 4] = [-4, -1, 1, 4];
/// Levels of ROCmFP3, by code.
pub const FP3: [i8; 8] = [0, 1, 2, 4, 0, -1, -2, -4];
/// Levels of ROCmFP4 and ROCmFP4_FAST, by code.
pub const FP4: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 10, 0, -1, -2, -3, -4, -6, -8, -10];
/// Levels of ROCmFP6, by code, with code 32 = 0.
pub const FP6_ZERO: [i8; 64] = fp6_levels(0);
/// Levels of ROCmFP6, by code, with code 32 = -32.
pub const FP6_NEG32: [i8; 64] = fp6_levels(-32);

const fn fp6_levels(code_32: i8) -> [i8; 64] {
    let mut out = [0; 64];
    let mut magnitude = 0;
    while magnitude < 32 {
        out[magnitude] = magnitude as i8;
        out[magnitude + 32] = -(magnitude as i8);
        magnitude += 1;
    }
    out[32] = code_32;
    out
}

/// Whether [`unpack`] knows the format: 32 weights a block, levels that need no codebook.
#[must_use]
pub const fn is_base(format: Format) -> bool {
    matches!(
        format,
        Format::Fp2(_) | Format::Fp3 | Format::Fp4 | Format::Fp4Fast | Format::Fp6(_) | Format::Fp8
    )
}

/// Takes one block apart. An invalid scale byte reads as scale 0: who must not accept that
/// validates first.
///
/// # Panics
/// If `block` is not `format.block_bytes()` long or the format is not one of [`is_base`].
#[must_use]
pub fn unpack(format: Format, block: &[u8]) -> Unpacked {
    assert_eq!(
        block.len(),
        format.block_bytes(),
        "{format}: bytes of a block"
    );
    match format {
        Format::Fp2(dialect) => fp2(dialect, block),
        Format::Fp3 => dual(bits::<3>(block).map(|c| FP3[c as usize]), &block[12..]),
        Format::Fp4 => dual(nibbles(block), &block[16..]),
        Format::Fp4Fast => single(nibbles(block), block[16]),
        Format::Fp6(endpoint) => {
            let levels = match endpoint {
                Fp6Endpoint::Zero => &FP6_ZERO,
                Fp6Endpoint::Neg32 => &FP6_NEG32,
            };
            dual(bits::<6>(block).map(|c| levels[c as usize]), &block[24..])
        }
        Format::Fp8 => single(
            std::array::from_fn(|i| i8::from_le_bytes([block[i]])),
            block[32],
        ),
        _ => panic!("{format}: not a ROCmFPX block without codebook"),
    }
}

fn fp2(dialect: Fp2Dialect, block: &[u8]) -> Unpacked {
    let codes = bits::<2>(block);
    let (first, second) = (block[8], block[9]);
    match dialect {
        Fp2Dialect::Signed => dual(codes.map(|c| FP2_SIGNED[c as usize]), &block[8..]),
        Fp2Dialect::S40 => dual(codes.map(|c| FP2_S40[c as usize]), &block[8..]),
        Fp2Dialect::SignedNeg => {
            // Bit 7 negates the integer level, so that level 0 stays +0.
            let mut levels = codes.map(|c| FP2_SIGNED[c as usize]);
            for (half, byte) in levels.chunks_exact_mut(16).zip([first, second]) {
                if byte & 0x80 != 0 {
                    half.iter_mut().for_each(|l| *l = -*l);
                }
            }
            dual(levels, &[first & 0x7f, second & 0x7f])
        }
        Fp2Dialect::Affine => Unpacked {
            offset: [scale::decode(second); 2],
            ..single(codes.map(|c| c as i8), first)
        },
    }
}

fn dual(levels: [i8; 32], scales: &[u8]) -> Unpacked {
    Unpacked {
        levels,
        scale: [scale::decode(scales[0]), scale::decode(scales[1])],
        offset: [0.0; 2],
    }
}

fn single(levels: [i8; 32], byte: u8) -> Unpacked {
    dual(levels, &[byte; 2])
}

/// 32 codes of `WIDTH` bits, element `i` at bit `WIDTH * i` of the little-endian bit stream.
fn bits<const WIDTH: usize>(stream: &[u8]) -> [u8; 32] {
    std::array::from_fn(|i| {
        let (byte, shift) = (i * WIDTH / 8, i * WIDTH % 8);
        // A code may straddle two bytes; the second one exists because the scale bytes follow.
        let window = u16::from_le_bytes([stream[byte], stream[byte + 1]]);
        (window >> shift) as u8 & ((1 << WIDTH) - 1)
    })
}

/// Levels of 16 nibble bytes: element `j` in the low nibble of byte `j`, element `j + 16` in the
/// high one.
fn nibbles(block: &[u8]) -> [i8; 32] {
    std::array::from_fn(|i| {
        let byte = block[i % 16];
        FP4[usize::from(if i < 16 { byte & 15 } else { byte >> 4 })]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(format: Format, bytes: &[u8]) -> [f32; 32] {
        unpack(format, bytes).weights()
    }

    #[test]
    fn worked_fp3() {
        let mut block = [0x88, 0xc6, 0xfa].repeat(4);
        block.extend([0x40, 0x48]);
        let w = weights(Format::Fp3, &block);
        let want = [0.0, 1.0, 2.0, 4.0, 0.0, -1.0, -2.0, -4.0];
        for i in 0..32 {
            assert_eq!(w[i], want[i % 8] * [1.0, 2.0][i / 16], "element {i}");
        }
    }

    #[test]
    fn worked_fp4() {
        let mut block = vec![0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe];
        block.extend([0; 8]);
        block.extend([0x40, 0x48]);
        let w = weights(Format::Fp4, &block);
        assert_eq!(w[..8], [0.0, 2.0, 4.0, 8.0, 0.0, -2.0, -4.0, -8.0]);
        assert_eq!(w[16..24], [2.0, 6.0, 12.0, 20.0, -2.0, -6.0, -12.0, -20.0]);
        assert!(w[8..16].iter().chain(&w[24..]).all(|&x| x == 0.0));
        let fast = weights(Format::Fp4Fast, &block[..17]);
        assert_eq!(fast[16..20], [1.0, 3.0, 6.0, 10.0]);
    }

    #[test]
    fn worked_fp6() {
        let mut block = vec![0x41, 0x10, 0x80];
        block.extend([0; 21]);
        block.extend([0x40, 0x48]);
        let zero = weights(Format::Fp6(Fp6Endpoint::Zero), &block);
        let neg = weights(Format::Fp6(Fp6Endpoint::Neg32), &block);
        assert_eq!(zero[..5], [1.0, 1.0, 1.0, 0.0, 0.0]);
        assert!(zero[3].is_sign_positive());
        assert_eq!(neg[..5], [1.0, 1.0, 1.0, -32.0, 0.0]);
    }

    #[test]
    fn worked_id_107() {
        let mut block = vec![0xe4; 8];
        block.extend([0x38, 0x40]);
        let cases = [
            (
                Fp2Dialect::Signed,
                [-0.5, 0.0, 0.5, 1.0],
                [-1.0, 0.0, 1.0, 2.0],
            ),
            (
                Fp2Dialect::S40,
                [-2.0, -0.5, 0.5, 2.0],
                [-4.0, -1.0, 1.0, 4.0],
            ),
            (
                Fp2Dialect::Affine,
                [-1.0, -0.5, 0.0, 0.5],
                [-1.0, -0.5, 0.0, 0.5],
            ),
            (
                Fp2Dialect::SignedNeg,
                [-0.5, 0.0, 0.5, 1.0],
                [-1.0, 0.0, 1.0, 2.0],
            ),
        ];
        for (dialect, first, second) in cases {
            let w = weights(Format::Fp2(dialect), &block);
            for i in 0..32 {
                let want = if i < 16 { first } else { second };
                assert_eq!(w[i], want[i % 4], "{dialect:?} element {i}");
            }
        }
        block[9] |= 0x80;
        let w = weights(Format::Fp2(Fp2Dialect::SignedNeg), &block);
        assert_eq!(w[..4], [-0.5, 0.0, 0.5, 1.0]);
        assert_eq!(w[16..20], [1.0, 0.0, -1.0, -2.0]);
    }

    #[test]
    fn worked_fp8() {
        let mut block: Vec<u8> = (0..31).collect();
        block.extend([0x80, 0x10]);
        let w = weights(Format::Fp8, &block);
        assert_eq!((w[1], w[30], w[31]), (1.0 / 64.0, 30.0 / 64.0, -2.0));
    }

    #[test]
    #[should_panic(expected = "bytes of a block")]
    fn a_short_block_is_refused() {
        let _ = unpack(Format::Fp3, &[0; 13]);
    }
}
