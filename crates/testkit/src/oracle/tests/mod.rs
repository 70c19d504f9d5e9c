//! Closed forms and traps of spec/ds4-architecture.md 6 and 11. The recorded runs are in `tests/`.

mod attention;
mod hyper;
mod moe;
mod rope;
mod run;
mod sim;

use super::{Mat, OracleConfig, OracleModel};
use crate::fixture::{Fixture, Kind};
use crate::rng::Rng;

/// A model of the usual structure that runs in milliseconds.
fn small() -> OracleModel {
    let config = OracleConfig {
        n_embd: 64,
        n_vocab: 300,
        n_ff: 32,
        ..Kind::T0i.config()
    };
    Fixture::of(config, 11).unwrap().model
}

fn random(rows: usize, cols: usize, seed: u64) -> Mat {
    let mut rng = Rng::new(seed);
    Mat {
        rows,
        cols,
        data: (0..rows * cols).map(|_| rng.normal()).collect(),
    }
}

fn max_diff(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f64::max)
}
