//! Attention of one query position over a list of shared key/value rows with a learned sink (ADR
//! 0001 rule 7, spec/ds4-architecture.md 2.6). One order serves decode, verify, prefill and draft.

use engine_core::math::{dot, exp, fma};
use engine_core::mutant::mutant;

/// Keys that share one running maximum. Chunks may run anywhere in parallel.
pub const KEY_CHUNK: usize = 128;

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

#[inline(always)]
fn attend_impl(
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
        attend_head(q, rows, keys, scale, *sink, scratch, out);
    }
}

#[inline(always)]
fn attend_head(
    q: &[f32],
    rows: &[f32],
    keys: &[u32],
    scale: f32,
    sink: f32,
    scratch: &mut AttendScratch,
    out: &mut [f32],
) {
    let hd = q.len();
    let n_chunks = keys.len().div_ceil(KEY_CHUNK);
    scratch.s.resize(keys.len(), 0.0);
    scratch.m.resize(n_chunks, 0.0);
    scratch.l.resize(n_chunks, 0.0);
    scratch.acc.resize(n_chunks * hd, 0.0);
    let sink = if mutant(36) { sink * scale } else { sink };
    let mut max = sink;
    for (c, list) in keys.chunks(KEY_CHUNK).enumerate() {
        let s = &mut scratch.s[c * KEY_CHUNK..][..list.len()];
        for (s, key) in s.iter_mut().zip(list) {
            *s = dot(q, &rows[*key as usize * hd..][..hd]) * scale;
        }
        let m = s
            .iter()
            .fold(f32::NEG_INFINITY, |m, s| if *s > m { *s } else { m });
        for s in s.iter_mut() {
            *s = exp(*s - m);
        }
        let acc = &mut scratch.acc[c * hd..][..hd];
        acc.fill(0.0);
        let mut l = 0f32;
        for (w, key) in s.iter().zip(list) {
            l = fma(*w, 1.0, l);
            let row = &rows[*key as usize * hd..][..hd];
            for (a, v) in acc.iter_mut().zip(row) {
                *a = fma(*w, *v, *a);
            }
        }
        scratch.m[c] = m;
        scratch.l[c] = l;
        max = if m > max { m } else { max };
    }
    let mut total = 0f32;
    out.fill(0.0);
    for c in 0..n_chunks {
        let f = exp(scratch.m[c] - max);
        total = fma(f, scratch.l[c], total);
        for (o, a) in out.iter_mut().zip(&scratch.acc[c * hd..][..hd]) {
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
    ) = attend_impl
}

#[cfg(test)]
mod tests {
    use super::*;

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
