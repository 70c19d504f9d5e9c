//! Random numbers for tests: splitmix64 (Steele, Lea, Flood 2014), the same on every platform.
//!
//! Nothing here calls a function of the system's maths library, so a seed means the same bits
//! everywhere: a model made from a seed is a fixture, not a sample.

/// A splitmix64 stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// The stream of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The stream of a seed and a name: independent of what else was drawn, and in which order.
    #[must_use]
    pub fn named(seed: u64, name: &str) -> Self {
        // FNV-1a, 64 bits.
        let fold = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3);
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, fold);
        let mut mix = Self::new(seed ^ hash);
        Self::new(mix.next_u64())
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1), 53 bits.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * 2f64.powi(-53)
    }

    /// Uniform in [low, high).
    pub fn range(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// Uniform in 0..n.
    ///
    /// # Panics
    /// If n is 0.
    pub fn below(&mut self, n: usize) -> usize {
        assert!(n > 0, "an empty range has no element");
        // The bias of the multiplication is below n / 2^64.
        ((u128::from(self.next_u64()) * n as u128) >> 64) as usize
    }

    /// Nearly normal, mean 0, variance 1, within +-4.9: the sum of eight uniform numbers.
    pub fn normal(&mut self) -> f64 {
        let mut sum = 0u64;
        for _ in 0..2 {
            let bits = self.next_u64();
            sum += (0..4).map(|i| (bits >> (16 * i)) & 0xffff).sum::<u64>();
        }
        // Eight uniforms on 0..65535: mean 4 * 65535, variance 8 * (65536^2 - 1) / 12.
        (sum as f64 - 4.0 * 65535.0) / (8.0 * (65536.0 * 65536.0 - 1.0) / 12.0f64).sqrt()
    }

    /// `n` nearly normal f32 with this deviation.
    pub fn normals(&mut self, n: usize, deviation: f64) -> Vec<f32> {
        (0..n).map(|_| (self.normal() * deviation) as f32).collect()
    }

    /// Puts a list in random order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for i in (1..list.len()).rev() {
            list.swap(i, self.below(i + 1));
        }
    }

    /// 0..n in random order.
    pub fn permutation(&mut self, n: usize) -> Vec<usize> {
        let mut list: Vec<usize> = (0..n).collect();
        self.shuffle(&mut list);
        list
    }
}

#[cfg(test)]
mod tests {
    use super::Rng;

    /// The published outputs for seed 1234567.
    #[test]
    fn splitmix64_is_the_published_one() {
        let mut rng = Rng::new(1_234_567);
        let want = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(want.map(|_| rng.next_u64()), want);
    }

    #[test]
    fn normals_have_the_right_moments() {
        let mut rng = Rng::new(3);
        let x: Vec<f64> = (0..100_000).map(|_| rng.normal()).collect();
        let mean = x.iter().sum::<f64>() / 1e5;
        let moment = |p: i32| x.iter().map(|v| v.powi(p)).sum::<f64>() / 1e5;
        assert!(mean.abs() < 0.015, "{mean}");
        assert!((moment(2) - 1.0).abs() < 0.02, "{}", moment(2));
        // A normal has 3; eight uniforms 3 - 6 / 40.
        assert!((moment(4) - 2.85).abs() < 0.1, "{}", moment(4));
    }

    #[test]
    fn below_covers_its_range_evenly() {
        let mut rng = Rng::new(9);
        let mut count = [0; 7];
        (0..70_000).for_each(|_| count[rng.below(7)] += 1);
        assert!(
            count.iter().all(|c| (9_600..10_400).contains(c)),
            "{count:?}"
        );
    }

    #[test]
    fn permutations_are_permutations() {
        let mut p = Rng::new(5).permutation(100);
        assert_ne!(p, (0..100).collect::<Vec<_>>());
        p.sort_unstable();
        assert_eq!(p, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn names_give_different_streams() {
        let first = |name| Rng::named(1, name).next_u64();
        assert_ne!(first("blk.0.attn_kv.weight"), first("blk.1.attn_kv.weight"));
        assert_ne!(first("a"), Rng::named(2, "a").next_u64());
    }
}
