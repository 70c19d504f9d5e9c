//! Attention of one query position over a list of shared key/value rows with a learned sink (ADR
//! 0001 rule 7, spec/ds4-architecture.md 2.6). One order serves decode, verify, prefill and draft.

use engine_core::math::{dot, exp, fma};
use engine_core::mutant::mutant;

/// Keys that share one running maximum. Chunks may run anywhere in parallel.
pub const KEY_CHUNK: usize = 128;

/// Channels whose sums stay in registers over a chunk of keys.
const TILE: usize = 64;

/// Per-thread buffers, reused without allocation.
#[derive(Clone, Debug, Default)]
pub struct AttendScratch {
    /// `[keys]` scores of one head, then weights.
    s: Vec<f32>,
    /// `[chunks]` maxima and sums.
    m: Vec<f32>,
    l: Vec<f32>,
    /// `[chunks, head_dim]`.
    acc: Vec<f32>,
}

/// Attention of all heads, with the loop of scores given: `$(#[$how])*` says how it is compiled.
macro_rules! attend_with {
    ($name:ident, $scores:path, $(#[$how:meta])*) => {
        $(#[$how])*
        fn $name(
            q: &[f32],
            rows: &[f32],
            keys: &[u32],
            scale: f32,
            sinks: &[f32],
            scratch: &mut AttendScratch,
            out: &mut [f32],
        ) {
            let hd = q.len() / sinks.len();
            for ((q, out), sink) in q.chunks_exact(hd).zip(out.chunks_exact_mut(hd)).zip(sinks) {
                scratch.resize(keys.len(), hd);
                let sink = if mutant(36) { *sink * scale } else { *sink };
                let mut max = sink;
                for (c, list) in keys.chunks(KEY_CHUNK).enumerate() {
                    $scores(q, rows, list, scale, scratch.scores(c, list.len()));
                    let m = chunk(rows, list, c, hd, scratch);
                    max = if m > max { m } else { max };
                }
                merge(scratch, sink, max, out);
            }
        }
    };
}

attend_with!(attend_impl, scores, #[inline(always)]);
#[cfg(target_arch = "x86_64")]
attend_with!(
    attend_avx2,
    scores_avx2,
    #[target_feature(enable = "avx2,fma,f16c")]
);

impl AttendScratch {
    fn resize(&mut self, keys: usize, hd: usize) {
        let n_chunks = keys.div_ceil(KEY_CHUNK);
        self.s.resize(keys, 0.0);
        self.m.resize(n_chunks, 0.0);
        self.l.resize(n_chunks, 0.0);
        self.acc.resize(n_chunks * hd, 0.0);
    }

    /// The scores of chunk `c`, which has `n` keys.
    fn scores(&mut self, c: usize, n: usize) -> &mut [f32] {
        &mut self.s[c * KEY_CHUNK..][..n]
    }
}

/// `s[j] = dot(q, rows[list[j]]) * scale`.
#[inline(always)]
fn scores(q: &[f32], rows: &[f32], list: &[u32], scale: f32, s: &mut [f32]) {
    let hd = q.len();
    for (s, key) in s.iter_mut().zip(list) {
        *s = dot(q, &rows[*key as usize * hd..][..hd]) * scale;
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn scores_avx2(q: &[f32], rows: &[f32], list: &[u32], scale: f32, s: &mut [f32]) {
    if super::avx2::fits(q.len()) {
        super::avx2::scores(q, rows, list, scale, s);
    } else {
        scores(q, rows, list, scale, s);
    }
}

/// Weights and weighted sum of chunk `c` from its scores. Returns its maximum.
#[inline(always)]
fn chunk(rows: &[f32], list: &[u32], c: usize, hd: usize, scratch: &mut AttendScratch) -> f32 {
    let s = &mut scratch.s[c * KEY_CHUNK..][..list.len()];
    let m = largest(s);
    for s in s.iter_mut() {
        *s = exp(*s - m);
    }
    scratch.l[c] = weigh(s, rows, list, &mut scratch.acc[c * hd..][..hd]);
    scratch.m[c] = m;
    m
}

/// The largest score. Which of several equal ones (+0 and -0 too) does not matter to the rule, and a
/// NaN is never it, so that lanes may look on their own.
#[inline(always)]
fn largest(s: &[f32]) -> f32 {
    const LANES: usize = 16;
    let larger = |m: f32, s: f32| if s > m { s } else { m };
    let (full, rest) = s.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for s in full {
        for i in 0..LANES {
            lanes[i] = larger(lanes[i], s[i]);
        }
    }
    let m = lanes.into_iter().fold(f32::NEG_INFINITY, larger);
    rest.iter().copied().fold(m, larger)
}

/// `acc[d] = sum over keys of weight * row[d]`, keys in order from +0, a tile of channels at a time.
/// Returns the sum of the weights, in the same order: a chain that hides behind the tile's.
#[inline(always)]
fn weigh(weights: &[f32], rows: &[f32], list: &[u32], acc: &mut [f32]) -> f32 {
    let hd = acc.len();
    let (tiles, rest) = acc.as_chunks_mut::<TILE>();
    let at_rest = tiles.len() * TILE;
    let mut l = 0f32;
    for (t, tile) in tiles.iter_mut().enumerate() {
        let mut sum = [0f32; TILE];
        l = 0.0;
        for (w, key) in weights.iter().zip(list) {
            let row = &rows[*key as usize * hd + t * TILE..][..TILE];
            l = fma(*w, 1.0, l);
            for d in 0..TILE {
                sum[d] = fma(*w, row[d], sum[d]);
            }
        }
        *tile = sum;
    }
    if rest.is_empty() {
        return l;
    }
    rest.fill(0.0);
    l = 0.0;
    for (w, key) in weights.iter().zip(list) {
        let row = &rows[*key as usize * hd + at_rest..][..rest.len()];
        l = fma(*w, 1.0, l);
        for (a, v) in rest.iter_mut().zip(row) {
            *a = fma(*w, *v, *a);
        }
    }
    l
}

/// The chunks' sums under the common maximum, with the sink's share in the total.
#[inline(always)]
fn merge(scratch: &AttendScratch, sink: f32, max: f32, out: &mut [f32]) {
    let mut total = 0f32;
    out.fill(0.0);
    let parts = scratch.acc.chunks_exact(out.len());
    for ((m, l), acc) in scratch.m.iter().zip(&scratch.l).zip(parts) {
        let f = exp(*m - max);
        total = fma(f, *l, total);
        for (o, a) in out.iter_mut().zip(acc) {
            *o = fma(f, *a, *o);
        }
    }
    total += exp(sink - max);
    for o in out {
        *o /= total;
    }
}

dispatch! {
    /// `out[h] = sum_j softmax(q[h] . rows[keys[j]] * scale, sink[h])_j * rows[keys[j]]`.
    /// `q`, `out`: `[heads, head_dim]`; `rows`: `[any, head_dim]`; `keys`: list in canonical order;
    /// `sinks`: `[heads]`.
    pub fn attend(
        q: &[f32],
        rows: &[f32],
        keys: &[u32],
        scale: f32,
        sinks: &[f32],
        scratch: &mut AttendScratch,
        out: &mut [f32],
    ) = attend_impl, avx2: attend_avx2
}

#[cfg(test)]
mod tests {
    use super::*;

    type Attend = fn(&[f32], &[f32], &[u32], f32, &[f32], &mut AttendScratch, &mut [f32]);

    fn noise(n: usize, mut state: u32) -> Vec<f32> {
        (0..n)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / 4_194_304.0 - 2.0
            })
            .collect()
    }

    #[test]
    fn matches_f64_over_several_chunks_and_follows_the_key_list() {
        let (heads, hd, n_rows) = (2, 64, 400);
        let (q, rows) = (noise(heads * hd, 1), noise(n_rows * hd, 2));
        let sinks = [0.5, -3.0];
        for n in [1usize, 127, 128, 129, 300] {
            let keys: Vec<u32> = (0..n as u32).map(|j| (j * 7 + 3) % n_rows as u32).collect();
            let mut out = vec![f32::NAN; heads * hd];
            attend(
                &q,
                &rows,
                &keys,
                0.125,
                &sinks,
                &mut AttendScratch::default(),
                &mut out,
            );
            for h in 0..heads {
                let row = |k: u32| &rows[k as usize * hd..][..hd];
                let s: Vec<f64> = keys
                    .iter()
                    .map(|k| {
                        let q = &q[h * hd..][..hd];
                        let d: f64 = q
                            .iter()
                            .zip(row(*k))
                            .map(|(a, b)| f64::from(*a) * f64::from(*b))
                            .sum();
                        (d * 0.125).exp()
                    })
                    .collect();
                let den = s.iter().sum::<f64>() + f64::from(sinks[h]).exp();
                for d in 0..hd {
                    let num: f64 = keys
                        .iter()
                        .zip(&s)
                        .map(|(k, w)| w * f64::from(row(*k)[d]))
                        .sum();
                    let got = f64::from(out[h * hd + d]);
                    assert!((got - num / den).abs() < 1e-5, "n {n} head {h} dim {d}");
                }
            }
        }
    }

    #[test]
    fn fast_scores_have_the_bits_of_the_definition() {
        for hd in [32, 64, 128, 512, 40, 544] {
            let rows = noise(70 * hd, 3);
            for n in [1u32, 7, 8, 9, 61] {
                let keys: Vec<u32> = (0..n).map(|j| (j * 31 + 5) % 70).collect();
                let (q, sinks) = (noise(3 * hd, n), [0.1, -1.0, 2.0]);
                let run = |f: Attend| {
                    let mut out = vec![f32::NAN; 3 * hd];
                    let mut scratch = AttendScratch::default();
                    f(&q, &rows, &keys, 0.09, &sinks, &mut scratch, &mut out);
                    out.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
                };
                assert_eq!(run(attend), run(attend_impl), "head of {hd}, {n} keys");
            }
        }
    }

    #[test]
    fn a_dominant_sink_silences_the_head() {
        let mut out = [f32::NAN; 4];
        let (q, rows) = ([1.0f32; 4], [1.0f32; 4]);
        attend(
            &q,
            &rows,
            &[0],
            0.5,
            &[200.0],
            &mut AttendScratch::default(),
            &mut out,
        );
        assert_eq!(out, [0.0; 4]);
    }
}
