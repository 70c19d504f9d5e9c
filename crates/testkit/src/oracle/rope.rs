//! Rotary positions (spec/ds4-architecture.md 2.5): interleaved pairs of a row's tail.
//!
//! The angle is the one place where the oracle works in f32: position and frequency are f32 and
//! so is their product, because its rounding is part of the model at long contexts.

use super::OracleConfig;

/// Frequencies of one kind of layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Radians a position, one a pair.
    pub freq: Vec<f32>,
}

impl Rope {
    /// The table of a layer with compression ratio `ratio`.
    #[must_use]
    pub fn new(config: &OracleConfig, ratio: usize) -> Self {
        let pairs = config.n_rot / 2;
        let base = match ratio {
            0 => config.rope_theta,
            _ => config.compress_rope_theta,
        };
        let inv = |i: usize| f64::from(base).powf(-2.0 * i as f64 / config.n_rot as f64);
        let freq = |i: usize| match ratio {
            0 => inv(i),
            _ => {
                let ramp = yarn_ramp(config, i);
                inv(i) / f64::from(config.yarn.factor) * ramp + inv(i) * (1.0 - ramp)
            }
        };
        Self {
            freq: (0..pairs).map(|i| freq(i) as f32).collect(),
        }
    }

    /// Rotates the last `2 * freq.len()` channels of a row forward to position `pos`.
    pub fn forward(&self, row: &mut [f64], pos: usize) {
        self.rotate(row, pos, 1.0);
    }

    /// Rotates back from position `pos`.
    pub fn inverse(&self, row: &mut [f64], pos: usize) {
        self.rotate(row, pos, -1.0);
    }

    fn rotate(&self, row: &mut [f64], pos: usize, sign: f64) {
        let start = row.len() - 2 * self.freq.len();
        for (pair, f) in row[start..].chunks_exact_mut(2).zip(&self.freq) {
            let angle: f32 = pos as f32 * f;
            let (s, c) = f64::from(angle).sin_cos();
            let (a, b, s) = (pair[0], pair[1], s * sign);
            pair[0] = a * c - b * s;
            pair[1] = a * s + b * c;
        }
    }
}

/// First and last pair of the ramp between kept and divided frequencies.
#[must_use]
pub fn yarn_range(config: &OracleConfig) -> (f64, f64) {
    let rot = config.n_rot as f64;
    let pair = |beta: f32| {
        let turns = f64::from(config.yarn.orig_ctx) / (f64::from(beta) * std::f64::consts::TAU);
        rot * turns.ln() / (2.0 * f64::from(config.compress_rope_theta).ln())
    };
    let low = pair(config.yarn.beta_fast).floor().max(0.0);
    let high = pair(config.yarn.beta_slow).ceil().min(rot - 1.0);
    (low, high)
}

fn yarn_ramp(config: &OracleConfig, pair: usize) -> f64 {
    let (low, high) = yarn_range(config);
    ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0)
}
