//! Rotary tables (spec/ds4-architecture.md 2.5). sin and cos are not part of the per-device
//! arithmetic: they come from tables made once on the host, by a software libm whose bits do not
//! depend on the platform.

/// YaRN stretching of low frequencies for layers with compressed rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// Stretch factor (16).
    pub factor: f32,
    /// Context length of the original training (65536).
    pub original_context: u32,
    /// Rotations above which a pair is untouched (32).
    pub beta_fast: f32,
    /// Rotations below which a pair is fully stretched (1).
    pub beta_slow: f32,
}

/// Angles of one layer kind: pair i of a row at position p turns by p * `inv_freq[i]`.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    /// `[n_rot / 2]` f32, computed in f64 and rounded once.
    pub inv_freq: Vec<f32>,
}

impl RopeTable {
    /// Frequencies theta^(-2i/n_rot), stretched by `yarn` if given: with ramp(i) rising from 0 at
    /// the pair that turns `beta_fast` times within the original context to 1 at the pair that
    /// turns `beta_slow` times, f = inv * ((1 - ramp) + ramp / factor). No magnitude scale.
    #[must_use]
    pub fn new(n_rot: usize, theta: f32, yarn: Option<Yarn>) -> Self {
        let (dims, theta) = (n_rot as f64, f64::from(theta));
        let ramp = |i: usize| -> f64 {
            let Some(y) = yarn else { return 0.0 };
            let pair = |turns: f32| {
                let turns = f64::from(turns) * 2.0 * std::f64::consts::PI;
                dims * libm::log(f64::from(y.original_context) / turns) / (2.0 * libm::log(theta))
            };
            let low = pair(y.beta_fast).floor().max(0.0);
            let high = pair(y.beta_slow).ceil().min(dims - 1.0);
            ((i as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0)
        };
        let factor = yarn.map_or(1.0, |y| f64::from(y.factor));
        let inv_freq = (0..n_rot / 2)
            .map(|i| {
                let inv = libm::pow(theta, -2.0 * i as f64 / dims);
                (inv / factor * ramp(i) + inv * (1.0 - ramp(i))) as f32
            })
            .collect();
        Self { inv_freq }
    }

    /// Writes (cos, sin) of every pair at position `pos`. The angle is the f32 product of the f32
    /// position and the f32 frequency: its rounding is part of the model (spec 2.5).
    pub fn angles(&self, pos: u32, cos: &mut [f32], sin: &mut [f32]) {
        for ((f, c), s) in self.inv_freq.iter().zip(cos).zip(sin) {
            let angle = f64::from(pos as f32 * *f);
            *c = libm::cos(angle) as f32;
            *s = libm::sin(angle) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YARN: Yarn = Yarn {
        factor: 16.0,
        original_context: 65536,
        beta_fast: 32.0,
        beta_slow: 1.0,
    };

    #[test]
    fn yarn_ramp_runs_over_pairs_15_to_25() {
        let plain = RopeTable::new(64, 160_000.0, None).inv_freq;
        let yarn = RopeTable::new(64, 160_000.0, Some(YARN)).inv_freq;
        assert_eq!(plain[..=15], yarn[..=15]);
        for i in 25..32 {
            assert!((yarn[i] / plain[i] - 1.0 / 16.0).abs() < 1e-6, "pair {i}");
        }
        assert!((yarn[20] / plain[20] - (0.5 + 0.5 / 16.0)).abs() < 1e-6);
    }

    #[test]
    fn angles_use_the_f32_product() {
        let table = RopeTable::new(64, 10_000.0, None);
        let (mut c, mut s) = ([0.0; 32], [0.0; 32]);
        table.angles(1_000_003, &mut c, &mut s);
        let angle = 1_000_003f32 * table.inv_freq[3];
        assert_eq!(c[3], f64::from(angle).cos() as f32);
        assert_eq!(s[3], f64::from(angle).sin() as f32);
        table.angles(0, &mut c, &mut s);
        assert!(c.iter().all(|v| *v == 1.0) && s.iter().all(|v| *v == 0.0));
    }
}
