//! Deterministic inputs: the same numbers on every machine, from integers only.

/// A small generator (64-bit linear congruential, high bits used).
#[derive(Clone, Debug)]
pub struct Noise(u64);

impl Noise {
    /// A stream of its own for each seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut noise = Self(seed ^ 0x9e37_79b9_7f4a_7c15);
        noise.word();
        noise
    }

    /// 32 random bits.
    pub fn word(&mut self) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let x = self.0;
        (((x >> 18) ^ x) >> 27) as u32 ^ (x >> 40) as u32
    }

    /// A number below `limit` (of at least 1).
    pub fn below(&mut self, limit: u32) -> u32 {
        ((u64::from(self.word()) * u64::from(limit)) >> 32) as u32
    }

    /// A value in [-2, 2) on a grid of 2^-20: sums of few products are not all exact.
    pub fn value(&mut self) -> f32 {
        (self.word() >> 10) as i32 as f32 / 1_048_576.0 - 2.0
    }

    /// Rows of activations `[rows][k]`: every seventh block small, every eleventh large.
    pub fn activations(&mut self, rows: usize, k: usize) -> Vec<f32> {
        let scale = |block: usize| match block {
            b if b % 7 == 3 => 1e-3,
            b if b % 11 == 5 => 40.0,
            _ => 1.0,
        };
        (0..rows * k)
            .map(|i| self.value() * scale(i / 32))
            .collect()
    }
}
