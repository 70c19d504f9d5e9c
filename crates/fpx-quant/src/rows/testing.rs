//! Shared by the tests: noise, weight bytes, paths, comparers.

use half::{bf16, f16};

use crate::format::{Format, Fp2Dialect, Fp6Endpoint};
use crate::rows::Isa;

/// The paths of this processor.
pub(crate) fn paths() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.available())
}

/// A small generator (splitmix64).
pub(crate) struct Noise(u64);

impl Noise {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in -1..1.
    pub(crate) fn float(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / 8_388_608.0 - 1.0
    }

    pub(crate) fn vec(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }

    pub(crate) fn block(&mut self, by: f32) -> [f32; 32] {
        std::array::from_fn(|_| self.float() * by)
    }

    pub(crate) fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| (self.bits() >> 32) as u8).collect()
    }
}

/// Every format with a row kernel.
pub(crate) const FORMATS: [Format; 18] = [
    Format::F32,
    Format::F16,
    Format::BF16,
    Format::Q8_0,
    Format::Mxfp4,
    Format::Q4K,
    Format::Q2K,
    Format::Iq2Xxs,
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

/// Random rows with tame scales: every code occurs, no product overflows.
pub(crate) fn weights(format: Format, rows: usize, k: usize, noise: &mut Noise) -> Vec<u8> {
    let mut bytes = noise.bytes(format.matrix_bytes(rows, k).unwrap());
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        let halves: &[usize] = match format {
            Format::F16 | Format::Q8_0 | Format::Iq2Xxs => &[0],
            Format::Q4K => &[0, 2],
            Format::Q2K => &[80, 82],
            _ => &[],
        };
        for &at in halves {
            let value = f16::from_f32(noise.float() * 0.01);
            block[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
        match format {
            Format::F32 => block.copy_from_slice(&noise.float().to_le_bytes()),
            Format::BF16 => {
                block.copy_from_slice(&bf16::from_f32(noise.float()).to_le_bytes());
            }
            Format::Mxfp4 => block[0] = 110 + block[0] % 20,
            _ => {}
        }
    }
    bytes
}

/// Equal bits, or both NaN (which NaN an operation gives is not specified).
pub(crate) fn same(got: f32, want: f32) -> bool {
    got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan())
}
