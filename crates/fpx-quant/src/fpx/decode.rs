//! Rows of blocks to f32, written so that the compiler vectorises them: codes by shifts of whole
//! words, levels by integer arithmetic instead of tables.
//!
//! Must not know: validation (an invalid scale byte reads as 0 here). The reference is `block`;
//! source of the level sets: spec/fpx-formats.md 1.

use engine_core::math::Level;

use crate::format::{Format, Fp2Dialect, Fp6Endpoint};
use crate::scale;
use crate::simd::{self, Kernel};

/// Decodes whole blocks with the given instruction set. The caller has checked that `format` is a
/// base format and that `bytes` holds exactly `out.len() / 32` blocks.
pub(crate) fn blocks(level: Level, format: Format, bytes: &[u8], out: &mut [f32]) {
    match format {
        Format::Fp2(Fp2Dialect::Signed) => run(level, Fp2Signed, bytes, out),
        Format::Fp2(Fp2Dialect::SignedNeg) => run(level, Fp2SignedNeg, bytes, out),
        Format::Fp2(Fp2Dialect::Affine) => run(level, Fp2Affine, bytes, out),
        Format::Fp2(Fp2Dialect::S40) => run(level, Fp2S40, bytes, out),
        Format::Fp3 => run(level, Fp3, bytes, out),
        Format::Fp4 => run(level, Fp4, bytes, out),
        Format::Fp4Fast => run(level, Fp4Fast, bytes, out),
        Format::Fp6(Fp6Endpoint::Zero) => run(level, Fp6::<0>, bytes, out),
        Format::Fp6(Fp6Endpoint::Neg32) => run(level, Fp6::<1>, bytes, out),
        Format::Fp8 => run(level, Fp8, bytes, out),
        // Unreachable by the caller's check; an untouched buffer is the mildest failure.
        _ => debug_assert!(false, "{format} is not a base format"),
    }
}

/// How one block of `N` bytes becomes 32 weights.
trait Layout<const N: usize> {
    fn decode(block: &[u8; N], out: &mut [f32; 32]);
}

struct Run<'a, const N: usize, L> {
    _layout: L,
    bytes: &'a [u8],
    out: &'a mut [f32],
}

impl<const N: usize, L: Layout<N>> Kernel for Run<'_, N, L> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let (blocks, _) = self.bytes.as_chunks::<N>();
        let (outs, _) = self.out.as_chunks_mut::<32>();
        for (block, out) in blocks.iter().zip(outs) {
            L::decode(block, out);
        }
    }
}

fn run<const N: usize, L: Layout<N>>(level: Level, layout: L, bytes: &[u8], out: &mut [f32]) {
    simd::dispatch_at(
        level,
        Run {
            _layout: layout,
            bytes,
            out,
        },
    );
}

/// Sixteen 2-bit codes of a little-endian word.
#[inline(always)]
fn codes2(block: &[u8; 10], half: usize) -> [i32; 16] {
    let q = &block[4 * half..4 * half + 4];
    let word = u32::from_le_bytes([q[0], q[1], q[2], q[3]]);
    std::array::from_fn(|i| (word >> (2 * i) & 3) as i32)
}

#[inline(always)]
fn store(out: &mut [f32; 32], half: usize, levels: [i32; 16], scale: f32) {
    for i in 0..16 {
        out[16 * half + i] = levels[i] as f32 * scale;
    }
}

/// `level`, negated where `sign` is 1. Two's complement, so that level 0 stays +0.
#[inline(always)]
fn negate_if(level: i32, sign: i32) -> i32 {
    (level ^ -sign) + sign
}

struct Fp2Signed;

impl Layout<10> for Fp2Signed {
    #[inline(always)]
    fn decode(block: &[u8; 10], out: &mut [f32; 32]) {
        for half in 0..2 {
            let levels = codes2(block, half).map(|c| c - 1);
            store(out, half, levels, scale::decode(block[8 + half]));
        }
    }
}

struct Fp2SignedNeg;

impl Layout<10> for Fp2SignedNeg {
    #[inline(always)]
    fn decode(block: &[u8; 10], out: &mut [f32; 32]) {
        for half in 0..2 {
            let meta = block[8 + half];
            let sign = i32::from(meta >> 7);
            let levels = codes2(block, half).map(|c| negate_if(c - 1, sign));
            store(out, half, levels, scale::decode(meta & 0x7f));
        }
    }
}

struct Fp2Affine;

impl Layout<10> for Fp2Affine {
    #[inline(always)]
    fn decode(block: &[u8; 10], out: &mut [f32; 32]) {
        let (scale, offset) = (scale::decode(block[8]), scale::decode(block[9]));
        for half in 0..2 {
            let codes = codes2(block, half);
            for i in 0..16 {
                out[16 * half + i] = codes[i] as f32 * scale - offset;
            }
        }
    }
}

struct Fp2S40;

impl Layout<10> for Fp2S40 {
    #[inline(always)]
    fn decode(block: &[u8; 10], out: &mut [f32; 32]) {
        for half in 0..2 {
            // Codes 1 and 2 are the inner levels -1 and +1.
            let levels = codes2(block, half).map(|c| {
                let inner = (c ^ (c >> 1)) & 1;
                negate_if(4 - 3 * inner, 1 - (c >> 1))
            });
            store(out, half, levels, scale::decode(block[8 + half]));
        }
    }
}

struct Fp3;

impl Layout<14> for Fp3 {
    #[inline(always)]
    fn decode(block: &[u8; 14], out: &mut [f32; 32]) {
        for group in 0..4 {
            let q = &block[3 * group..3 * group + 3];
            let word = u32::from_le_bytes([q[0], q[1], q[2], 0]);
            let scale = scale::decode(block[12 + group / 2]);
            for i in 0..8 {
                let code = (word >> (3 * i)) as i32;
                let low = code & 3;
                // Magnitudes 0, 1, 2, 4.
                let magnitude = low + (low & (low >> 1));
                let level = negate_if(magnitude, code >> 2 & 1);
                out[8 * group + i] = level as f32 * scale;
            }
        }
    }
}

/// Level of a 4-bit code: magnitudes 0..=4 in ones, then 6, 8, 10.
#[inline(always)]
fn level4(code: u8) -> i32 {
    let low = i32::from(code & 7);
    negate_if(low + (low - 4).max(0), i32::from(code >> 3 & 1))
}

#[inline(always)]
fn nibbles(q: &[u8], scales: [f32; 2], out: &mut [f32; 32]) {
    for j in 0..16 {
        out[j] = level4(q[j] & 15) as f32 * scales[0];
    }
    for j in 0..16 {
        out[16 + j] = level4(q[j] >> 4) as f32 * scales[1];
    }
}

struct Fp4;

impl Layout<18> for Fp4 {
    #[inline(always)]
    fn decode(block: &[u8; 18], out: &mut [f32; 32]) {
        let scales = [scale::decode(block[16]), scale::decode(block[17])];
        nibbles(&block[..16], scales, out);
    }
}

struct Fp4Fast;

impl Layout<17> for Fp4Fast {
    #[inline(always)]
    fn decode(block: &[u8; 17], out: &mut [f32; 32]) {
        nibbles(&block[..16], [scale::decode(block[16]); 2], out);
    }
}

/// `NEG32` = 1: code 32 is -32 instead of 0.
struct Fp6<const NEG32: i32>;

impl<const NEG32: i32> Layout<26> for Fp6<NEG32> {
    #[inline(always)]
    fn decode(block: &[u8; 26], out: &mut [f32; 32]) {
        for group in 0..8 {
            let q = &block[3 * group..3 * group + 3];
            let word = u32::from_le_bytes([q[0], q[1], q[2], 0]);
            let scale = scale::decode(block[24 + group / 4]);
            for i in 0..4 {
                let code = (word >> (6 * i)) as i32 & 63;
                let level = negate_if(code & 31, code >> 5);
                let endpoint = NEG32 * i32::from(code == 32);
                out[4 * group + i] = (level - 32 * endpoint) as f32 * scale;
            }
        }
    }
}

struct Fp8;

impl Layout<33> for Fp8 {
    #[inline(always)]
    fn decode(block: &[u8; 33], out: &mut [f32; 32]) {
        let scale = scale::decode(block[32]);
        for i in 0..32 {
            out[i] = f32::from(i8::from_le_bytes([block[i]])) * scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use engine_core::math::simd_level;

    use super::*;
    use crate::block;

    const FORMATS: [Format; 10] = [
        Format::Fp2(Fp2Dialect::Signed),
        Format::Fp2(Fp2Dialect::SignedNeg),
        Format::Fp2(Fp2Dialect::Affine),
        Format::Fp2(Fp2Dialect::S40),
        Format::Fp3,
        Format::Fp4,
        Format::Fp4Fast,
        Format::Fp6(Fp6Endpoint::Zero),
        Format::Fp6(Fp6Endpoint::Neg32),
        Format::Fp8,
    ];

    fn next(state: &mut u64) -> u64 {
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        *state >> 33
    }

    /// Every level on `count` blocks of any bytes (invalid scale bytes included).
    fn compare(format: Format, count: usize, seed: u64) {
        let mut state = seed;
        let mut bytes = vec![0u8; 1000 * format.block_bytes()];
        for _ in 0..count.div_ceil(1000) {
            bytes.fill_with(|| next(&mut state) as u8);
            for level in [Level::Baseline, Level::Avx2] {
                let mut out = vec![f32::NAN; 32_000];
                blocks(level, format, &bytes, &mut out);
                let pairs = bytes.chunks(format.block_bytes()).zip(out.chunks(32));
                for (block, got) in pairs {
                    let want = block::unpack(format, block).weights();
                    let equal = got
                        .iter()
                        .zip(&want)
                        .all(|(g, w)| g.to_bits() == w.to_bits());
                    assert!(
                        equal,
                        "{format} {level:?} {block:x?}: {got:?}, not {want:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn every_instruction_set_is_the_reference() {
        // Without AVX2 both runs are the baseline; say so, since nothing else would.
        if simd_level() == Level::Baseline {
            eprintln!("skipped: no AVX2, the baseline was compared twice");
        }
        for (seed, format) in FORMATS.into_iter().enumerate() {
            compare(format, 100_000, seed as u64);
        }
    }

    #[test]
    #[ignore = "soak: 10^7 random blocks a format against the scalar reference"]
    fn soak_every_instruction_set_is_the_reference() {
        for (seed, format) in FORMATS.into_iter().enumerate() {
            compare(format, 10_000_000, 100 + seed as u64);
        }
    }

    /// Every scale byte with every code in every place.
    #[test]
    fn every_code_with_every_scale() {
        for format in FORMATS {
            let codes: u32 = match format {
                Format::Fp2(_) => 4,
                Format::Fp3 => 8,
                Format::Fp4 | Format::Fp4Fast => 16,
                Format::Fp6(_) => 64,
                _ => 256,
            };
            let width = codes.ilog2() as usize;
            let size = format.block_bytes();
            let mut bytes = Vec::new();
            for scale in 0..=255u8 {
                for code in 0..codes {
                    // In a bit stream of equal codes the order of elements does not matter.
                    let mut block = vec![0u8; size];
                    for bit in 0..32 * width {
                        block[bit / 8] |= ((code >> (bit % width) & 1) as u8) << (bit % 8);
                    }
                    block[4 * width..].fill(scale);
                    bytes.extend(block);
                }
            }
            let mut out = vec![f32::NAN; bytes.len() / size * 32];
            blocks(simd_level(), format, &bytes, &mut out);
            for (block, got) in bytes.chunks(size).zip(out.chunks(32)) {
                assert_eq!(
                    got,
                    block::unpack(format, block).weights(),
                    "{format} {block:x?}"
                );
                assert!(got.iter().all(|v| *v == got[0]), "{format} {block:x?}");
            }
        }
    }
}
