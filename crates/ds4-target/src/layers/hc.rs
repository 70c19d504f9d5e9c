//! Hyper-connection sites over a batch (spec/ds4-architecture.md 2.1 to 2.3).

use ds4_kernels::cpu::{
    HcMix, HcParams, hc_collapse, hc_head_weights, hc_mix, hc_post, rms_factor, rms_norm,
    scale_in_place,
};
use engine_core::mutant::mutant;
use fpx_quant::{A8Rows, Out};

use super::Ctx;
use crate::linear::{Input, Job, run};
use crate::pool::split;
use crate::profile::Family;
use crate::weights::HcSite;

fn params<'a>(ctx: &Ctx<'_>, site: &'a HcSite) -> HcParams<'a> {
    HcParams {
        base: &site.base,
        scale: &site.scale,
        iterations: ctx.meta.hc_iterations,
        eps: ctx.meta.hc_eps,
    }
}

/// Raw mixing dot products of the streams `x` `[n, 4, n_embd]` into `m` `[n, rows]`.
fn dots(ctx: &Ctx<'_>, site: &HcSite, x: &[f32], n: usize, a8: &mut A8Rows, m: &mut [f32]) {
    let input = Input::new(ctx.pool, x, n, site.mix.k, a8, &[&site.mix]);
    let out = Out::new(m, n, site.mix.rows);
    run(
        ctx.pool,
        ctx.counters,
        &[Job::new(ctx.pool, site.mix.matrix(), &input, 0..n, out)],
    );
}

/// The factor 1 / rms of one token's streams, over all of them together.
fn norm_factor(ctx: &Ctx<'_>, streams: &[f32]) -> f32 {
    let over = if mutant(27) {
        &streams[..streams.len() / 4]
    } else {
        streams
    };
    rms_factor(over, ctx.meta.rms_eps)
}

/// Buffers of a site, borrowed from the scratch.
pub(crate) struct Site<'a> {
    /// `[n, 4, n_embd]`.
    pub x: &'a [f32],
    /// `[n, 24]`.
    pub m: &'a mut [f32],
    /// `[n]`.
    pub mix: &'a mut [HcMix],
    /// `[n, n_embd]` collapsed.
    pub u: &'a mut [f32],
    /// `[n, n_embd]` collapsed and normed.
    pub h: &'a mut [f32],
    pub a8: &'a mut A8Rows,
}

/// Before a sublayer: mixing weights, collapsed input, its norm.
pub(crate) fn pre(ctx: &Ctx<'_>, site: &HcSite, norm: &[f32], s: Site<'_>) {
    let (n, d) = (s.mix.len(), norm.len());
    dots(ctx, site, s.x, n, s.a8, &mut s.m[..n * 24]);
    let p = params(ctx, site);
    let parts = (
        split(s.m, 24),
        split(s.mix, 1),
        split(s.u, d),
        split(s.h, d),
    );
    ctx.pool
        .each(n, grain(n, 4 * d), parts, |i, (m, mix, u, h)| {
            let x = &s.x[i * 4 * d..][..4 * d];
            scale_in_place(m, norm_factor(ctx, x));
            mix[0] = hc_mix(m, &p);
            hc_collapse(x, &mix[0].pre, u);
            rms_norm(u, norm, ctx.meta.rms_eps, h);
        });
    ctx.lap(Family::HyperConnections);
}

/// After a sublayer: mixes its output into the streams.
pub(crate) fn post(ctx: &Ctx<'_>, x: &mut [f32], block: &[f32], mix: &[HcMix]) {
    let (n, d) = (mix.len(), block.len() / mix.len().max(1));
    ctx.pool.each(n, grain(n, 4 * d), split(x, 4 * d), |i, x| {
        hc_post(x, &block[i * d..][..d], &mix[i]);
    });
    ctx.lap(Family::HyperConnections);
}

/// The final merge of the streams by the head's weights. `x` `[n, 4, n_embd]`, `merged`
/// `[n, n_embd]`. `m`: scratch for `[n, 4]`.
pub(crate) fn merge(
    ctx: &Ctx<'_>,
    site: &HcSite,
    x: &[f32],
    m: &mut Vec<f32>,
    a8: &mut A8Rows,
    merged: &mut [f32],
) {
    let d = site.mix.k / 4;
    let n = merged.len() / d;
    m.resize(n * 4, 0.0);
    dots(ctx, site, x, n, a8, m);
    let p = params(ctx, site);
    ctx.pool
        .each(n, 1, (split(m, 4), split(merged, d)), |i, (m, merged)| {
            let x = &x[i * 4 * d..][..4 * d];
            scale_in_place(m, rms_factor(x, ctx.meta.rms_eps));
            hc_collapse(x, &hc_head_weights(m, &p), merged);
        });
}

/// Tokens a task, so that a task is worth its hand-over and few tokens stay on one thread.
pub(crate) fn grain(n: usize, floats_each: usize) -> usize {
    (16_384 / floats_each.max(1)).clamp(1, n.max(1))
}
