//! Compressor pooling: one row out of the keys and gates of its window (ADR 0001 rule 9,
//! spec/ds4-architecture.md 2.8).

use engine_core::math::{exp, fma};
use engine_core::mutant::mutant;

/// One position's contribution: key and gate, the gate already biased by the position table.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// `[width]`.
    pub key: &'a [f32],
    /// `[width]`.
    pub gate: &'a [f32],
}

#[inline(always)]
fn pool_row_impl(entries: &[Entry<'_>], pool: &mut [f32]) {
    const TILE: usize = 64;
    for (tile, out) in pool.chunks_mut(TILE).enumerate() {
        let (at, n) = (tile * TILE, out.len());
        let mut max = [f32::NEG_INFINITY; TILE];
        for e in entries {
            for i in 0..n {
                max[i] = max[i].max(e.gate[at + i]);
            }
        }
        let (mut den, mut num) = ([0f32; TILE], [0f32; TILE]);
        for e in entries {
            for i in 0..n {
                let gate = if mutant(15) {
                    e.gate[0] - max[0]
                } else {
                    e.gate[at + i] - max[i]
                };
                let w = exp(gate);
                den[i] += w;
                num[i] = fma(w, e.key[at + i], num[i]);
            }
        }
        for i in 0..n {
            out[i] = num[i] / den[i];
        }
    }
}

dispatch! {
    /// Per-channel softmax over the entries, in the order given, of their keys.
    /// `pool`: `[width]`. At least one entry.
    pub fn pool_row(entries: &[Entry<'_>], pool: &mut [f32]) = pool_row_impl
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softmax_runs_per_channel() {
        let (k0, g0) = ([1.0, 10.0], [0.0, 5.0]);
        let (k1, g1) = ([3.0, 20.0], [0.0, -5.0]);
        let entries = [
            Entry {
                key: &k0,
                gate: &g0,
            },
            Entry {
                key: &k1,
                gate: &g1,
            },
        ];
        let mut pool = [f32::NAN; 2];
        pool_row(&entries, &mut pool);
        assert_eq!(pool[0], 2.0);
        let w = (-10f64).exp();
        assert!((f64::from(pool[1]) - (10.0 + 20.0 * w) / (1.0 + w)).abs() < 1e-5);
    }
}
