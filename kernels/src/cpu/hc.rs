//! Hyper-connections: mixing the residual streams around a sublayer (ADR 0001 rule 8,
//! spec/ds4-architecture.md 2.1 to 2.3).

use engine_core::math::{exp, fma, sigmoid};
use engine_core::mutant::mutant;

/// Residual streams. The model's only value; specialising keeps everything on the stack.
pub const N_HC: usize = 4;

/// Constants of one mixing site.
#[derive(Clone, Copy, Debug)]
pub struct HcParams<'a> {
    /// `[24]`: pre, post, comb (source-major), or `[4]` for the final head.
    pub base: &'a [f32],
    /// `[3]`: factors of pre, post, comb, or `[1]` for the final head.
    pub scale: &'a [f32],
    /// Sinkhorn rounds, the first one column-only.
    pub iterations: u32,
    /// Added where the specification says (1e-6).
    pub eps: f32,
}

/// The mixing weights of one token.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HcMix {
    /// Weight of each stream in the sublayer's input.
    pub pre: [f32; N_HC],
    /// Weight of the sublayer's output in each stream.
    pub post: [f32; N_HC],
    /// `[source][destination]`: how streams carry over.
    pub comb: [[f32; N_HC]; N_HC],
}

#[inline(always)]
fn hc_mix_impl(m: &[f32], p: &HcParams<'_>) -> HcMix {
    let mut mix = HcMix::default();
    for i in 0..N_HC {
        mix.pre[i] = sigmoid(fma(m[i], p.scale[0], p.base[i])) + p.eps;
        mix.post[i] = 2.0 * sigmoid(fma(m[N_HC + i], p.scale[1], p.base[N_HC + i]));
    }
    for j in 0..N_HC {
        for k in 0..N_HC {
            let at = 2 * N_HC + N_HC * j + k;
            mix.comb[j][k] = fma(m[at], p.scale[2], p.base[at]);
        }
    }
    sinkhorn(&mut mix.comb, p.iterations, p.eps);
    mix
}

dispatch! {
    /// Mixing weights from the 24 normalised dot products `m` (already times 1 / rms).
    pub fn hc_mix(m: &[f32], p: &HcParams<'_>) -> HcMix = hc_mix_impl
}

/// Row softmax + eps, columns, then (rows, columns) `iterations - 1` times.
#[inline(always)]
fn sinkhorn(c: &mut [[f32; N_HC]; N_HC], iterations: u32, eps: f32) {
    for row in c.iter_mut() {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let e = row.map(|z| exp(z - max));
        let sum = ((e[0] + e[1]) + e[2]) + e[3];
        *row = e.map(|v| v / sum + eps);
    }
    if mutant(26) {
        rows(c, eps);
    }
    columns(c, eps);
    for _ in 1..iterations {
        rows(c, eps);
        columns(c, eps);
    }
}

#[inline(always)]
fn rows(c: &mut [[f32; N_HC]; N_HC], eps: f32) {
    for row in c.iter_mut() {
        let sum = (((row[0] + row[1]) + row[2]) + row[3]) + eps;
        *row = row.map(|v| v / sum);
    }
}

#[inline(always)]
fn columns(c: &mut [[f32; N_HC]; N_HC], eps: f32) {
    for k in 0..N_HC {
        let sum = (((c[0][k] + c[1][k]) + c[2][k]) + c[3][k]) + eps;
        for row in c.iter_mut() {
            row[k] /= sum;
        }
    }
}

/// Weights of the final merge from 4 normalised dot products.
#[must_use]
pub fn hc_head_weights(m: &[f32], p: &HcParams<'_>) -> [f32; N_HC] {
    std::array::from_fn(|i| sigmoid(fma(m[i], p.scale[0], p.base[i])) + p.eps)
}

#[inline(always)]
fn hc_collapse_impl(streams: &[f32], weights: &[f32; N_HC], u: &mut [f32]) {
    let d = u.len();
    let (x0, rest) = streams.split_at(d);
    let (x1, rest) = rest.split_at(d);
    let (x2, x3) = rest.split_at(d);
    for i in 0..d {
        let v = weights[0] * x0[i];
        let v = fma(weights[1], x1[i], v);
        let v = fma(weights[2], x2[i], v);
        u[i] = fma(weights[3], x3[i], v);
    }
}

dispatch! {
    /// `u[d] = sum_h weights[h] * streams[h][d]`. `streams`: `[4, n_embd]`, `u`: `[n_embd]`.
    pub fn hc_collapse(streams: &[f32], weights: &[f32; N_HC], u: &mut [f32]) = hc_collapse_impl
}

#[inline(always)]
fn hc_post_impl(streams: &mut [f32], block: &[f32], mix: &HcMix) {
    let d = block.len();
    let (x0, rest) = streams.split_at_mut(d);
    let (x1, rest) = rest.split_at_mut(d);
    let (x2, x3) = rest.split_at_mut(d);
    let c = &mix.comb;
    for i in 0..d {
        let old = [x0[i], x1[i], x2[i], x3[i]];
        let new: [f32; N_HC] = std::array::from_fn(|k| {
            let v = mix.post[k] * block[i];
            let v = fma(c[0][k], old[0], v);
            let v = fma(c[1][k], old[1], v);
            let v = fma(c[2][k], old[2], v);
            fma(c[3][k], old[3], v)
        });
        x0[i] = new[0];
        x1[i] = new[1];
        x2[i] = new[2];
        x3[i] = new[3];
    }
}

dispatch! {
    /// `streams[k][d] = post[k] * block[d] + sum_j comb[j][k] * streams[j][d]` in place.
    /// `streams`: `[4, n_embd]`, `block`: `[n_embd]`.
    pub fn hc_post(streams: &mut [f32], block: &[f32], mix: &HcMix) = hc_post_impl
}

/// What a drafter sees of a layer: the mean of the streams. `streams` `[4, d]`, `out` `[d]`, f32.
pub fn hc_tap(streams: &[f32], out: &mut [f32]) {
    let d = out.len();
    let (a, rest) = streams[..4 * d].split_at(d);
    let (b, rest) = rest.split_at(d);
    let (c, e) = rest.split_at(d);
    for ((((v, a), b), c), e) in out.iter_mut().zip(a).zip(b).zip(c).zip(e) {
        *v = (((a + b) + c) + e) * 0.25;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Golden numbers of spec/ds4-architecture.md 11.
    #[test]
    fn golden_mix() {
        let m: Vec<f32> = (0..24)
            .map(|i| (2.0 * (1.7 * f64::from(i)).sin()) as f32)
            .collect();
        let base: Vec<f32> = (0..24).map(|i| (0.9 * f64::from(i)).cos() as f32).collect();
        let p = HcParams {
            base: &base,
            scale: &[0.7, 1.3, 0.9],
            iterations: 20,
            eps: 1e-6,
        };
        let mix = hc_mix(&m, &p);
        let near = |got: &[f32], want: &[f32]| {
            for (g, w) in got.iter().zip(want) {
                assert!((g - w).abs() < 1e-6, "{got:?} want {want:?}");
            }
        };
        near(
            &mix.pre,
            &[0.731_059_6, 0.881_837_8, 0.357_793_2, 0.099_732_4],
        );
        near(
            &mix.post,
            &[1.191_571_6, 1.731_820_2, 0.468_315_5, 0.705_351_7],
        );
        near(
            &mix.comb[0],
            &[0.412_308_7, 0.498_197_7, 0.059_935_1, 0.029_557_5],
        );
        near(
            &mix.comb[1],
            &[0.164_152_5, 0.337_318_1, 0.274_114_9, 0.224_413_5],
        );
        near(
            &mix.comb[2],
            &[0.283_315_1, 0.068_383_5, 0.148_288_4, 0.500_012_0],
        );
        near(
            &mix.comb[3],
            &[0.140_222_8, 0.096_099_7, 0.517_660_6, 0.246_015_9],
        );
        let mut x: Vec<f32> = (0..8)
            .map(|i| (3.1 * f64::from(2 * (i / 2) + i % 2) + 0.5).sin() as f32)
            .collect();
        hc_post(&mut x, &[1.0, -2.0], &mix);
        let want = [
            1.583_230_5,
            -2.736_397_3,
            2.153_442_8,
            -3.847_335_9,
            0.784_879_9,
            -1.213_633_4,
            1.035_088_4,
            -1.700_989_2,
        ];
        for (g, w) in x.iter().zip(&want) {
            assert!((g - w).abs() < 2e-6, "{x:?}");
        }
    }

    /// Twenty rounds converge whatever the order; two show it.
    /// Softmax rows sum to one up to eps, so only an eps much larger than the model's tells a first round
    /// of columns from one of both.
    #[test]
    fn the_first_round_normalises_columns_only() {
        let logits = [
            [0.3f32, -1.0, 2.0, 0.1],
            [1.5, 0.2, -0.7, 0.0],
            [0.0; 4],
            [-2.0, 1.0, 0.4, 3.0],
        ];
        for eps in [1e-6f32, 1e-2] {
            let want = two_rounds(logits.map(|row| row.map(f64::from)), f64::from(eps));
            let mut c = logits;
            sinkhorn(&mut c, 2, eps);
            for (got, want) in c.as_flattened().iter().zip(want.as_flattened()) {
                assert!((f64::from(*got) - want).abs() < 1e-6, "{c:?} want {want}");
            }
        }
    }

    /// Softmax of rows, columns, rows, columns in f64.
    fn two_rounds(logits: [[f64; N_HC]; N_HC], eps: f64) -> [[f64; N_HC]; N_HC] {
        let mut c = logits.map(|row| {
            let sum: f64 = row.iter().map(|z| z.exp()).sum();
            row.map(|z| z.exp() / sum + eps)
        });
        let columns = |c: &mut [[f64; N_HC]; N_HC]| {
            for k in 0..N_HC {
                let sum: f64 = c.iter().map(|row| row[k]).sum::<f64>() + eps;
                c.iter_mut().for_each(|row| row[k] /= sum);
            }
        };
        columns(&mut c);
        for row in &mut c {
            let sum: f64 = row.iter().sum::<f64>() + eps;
            *row = row.map(|v| v / sum);
        }
        columns(&mut c);
        c
    }

    #[test]
    fn collapse_weighs_streams() {
        let mut u = [f32::NAN; 2];
        hc_collapse(
            &[1., 2., 3., 4., 5., 6., 7., 8.],
            &[1.0, 0.5, 0.25, 2.0],
            &mut u,
        );
        assert_eq!(u, [1. + 1.5 + 1.25 + 14., 2. + 2. + 1.5 + 16.]);
    }
}
