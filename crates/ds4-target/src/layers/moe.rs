//! Mixture of experts over a batch (spec/ds4-architecture.md 2.10): tokens grouped by expert, so
//! that each visited expert is read once a pass.

use ds4_kernels::cpu::{Route, add_rows, route_hash, route_top_k, swiglu};
use engine_core::TokenId;
use engine_core::mutant::mutant;
use fpx_quant::{A8Rows, Out};

use super::Ctx;
use super::hc::grain;
use crate::linear::{Input, Job, JobRoom, run};
use crate::pool::split;
use crate::profile::Family;
use crate::weights::{Moe, Routing};

/// Buffers of the sublayer, `n` tokens, `s = n * n_used` slots.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    /// `[n, n_expert]`.
    logits: Vec<f32>,
    scores: Vec<f32>,
    /// Shared expert: `[n, n_ff]` each, `[n, n_embd]`.
    shared: [Vec<f32>; 3],
    shared_out: Vec<f32>,
    /// `[s]` slots sorted by expert (stable), each slot's place in that order `[s]`, and the end of each
    /// expert's run `[n_expert]`.
    order: Vec<u32>,
    place: Vec<u32>,
    ends: Vec<usize>,
    /// `[s, n_embd]` inputs in that order; `[s, n_ff]` each.
    x: Vec<f32>,
    mid: [Vec<f32>; 3],
    /// `[s, n_embd]` outputs in that order, and in slot order.
    y: Vec<f32>,
    slots: Vec<f32>,
    /// Blocks of `x`, of the activations in `mid` and of those in `shared`.
    x_a8: A8Rows,
    mid_a8: A8Rows,
    shared_a8: A8Rows,
    jobs: JobRoom,
}

/// The sublayer: `h` `[n, n_embd]` normed input, `block` `[n, n_embd]` output.
pub(crate) fn forward(
    ctx: &Ctx<'_>,
    w: &Moe,
    tokens: &[TokenId],
    h: &[f32],
    h_a8: &mut A8Rows,
    b: &mut Buffers,
    routes: &mut [Route],
    block: &mut [f32],
) {
    let n = tokens.len();
    first_products(ctx, w, n, h, h_a8, b);
    route(ctx, w, tokens, b, routes);
    sort(ctx.meta.n_expert, routes, b);
    ctx.lap(Family::Router);
    routed(ctx, w, h, routes, b);
    ctx.lap(Family::Experts);
    let (d, used) = (ctx.meta.n_embd, ctx.meta.n_used);
    let (y, place, shared_out) = (&b.y, &b.place, &b.shared_out);
    let parts = (split(block, d), split(&mut b.slots, used * d));
    ctx.pool
        .each(n, grain(n, used * d), parts, |i, (out, slots)| {
            let own = &place[i * used..(i + 1) * used];
            for (slot, at) in slots.chunks_exact_mut(d).zip(own) {
                slot.copy_from_slice(&y[*at as usize * d..][..d]);
            }
            add_rows(slots, &shared_out[i * d..][..d], out);
        });
    ctx.lap(Family::RoutedSum);
}

/// Router and the shared expert's gate and up, in one region.
fn first_products(ctx: &Ctx<'_>, w: &Moe, n: usize, h: &[f32], a8: &mut A8Rows, b: &mut Buffers) {
    let m = ctx.meta;
    b.logits.resize(n * m.n_expert, 0.0);
    b.scores.resize(n * m.n_expert, 0.0);
    for s in &mut b.shared {
        s.resize(n * m.n_ff, 0.0);
    }
    let users = [&w.router, &w.shared_gate, &w.shared_up];
    let input = Input::new(ctx.pool, h, n, m.n_embd, a8, &users);
    let [gate, up, _] = &mut b.shared;
    let outs = [&mut b.logits, gate, up];
    let mut jobs = b.jobs.take();
    for (w, out) in users.into_iter().zip(outs) {
        jobs.push(Job::new(
            ctx.pool,
            w.matrix(),
            &input,
            0..n,
            Out::new(out, n, w.rows),
        ));
    }
    run(ctx.pool, ctx.counters, &jobs);
    b.jobs.put_back(jobs);
}

fn route(ctx: &Ctx<'_>, w: &Moe, tokens: &[TokenId], b: &mut Buffers, routes: &mut [Route]) {
    let m = ctx.meta;
    let logits = &b.logits;
    let parts = (split(&mut b.scores, m.n_expert), split(routes, m.n_used));
    ctx.pool
        .each(tokens.len(), 16, parts, |i, (scores, routes)| {
            let logits = &logits[i * m.n_expert..][..m.n_expert];
            match &w.routing {
                Routing::TopK(bias) => route_top_k(logits, bias, m.route_scale, scores, routes),
                Routing::Table(table) => {
                    let token = if mutant(30) {
                        tokens[(i + 1) % tokens.len()]
                    } else {
                        tokens[i]
                    };
                    let row = &table[token as usize * m.n_used..][..m.n_used];
                    route_hash(logits, row, m.route_scale, scores, routes);
                }
            }
        });
}

/// Stable counting sort of slots by expert.
fn sort(n_expert: usize, routes: &[Route], b: &mut Buffers) {
    b.ends.clear();
    b.ends.resize(n_expert, 0);
    for r in routes {
        b.ends[r.expert as usize] += 1;
    }
    let mut at = 0;
    for end in &mut b.ends {
        (*end, at) = (at, at + *end);
    }
    b.order.resize(routes.len(), 0);
    b.place.resize(routes.len(), 0);
    for (slot, r) in routes.iter().enumerate() {
        let at = &mut b.ends[r.expert as usize];
        b.order[*at] = slot as u32;
        b.place[slot] = *at as u32;
        *at += 1;
    }
}

/// All visited experts: gate and up, activation, down. The shared expert's down runs beside
/// theirs.
fn routed(ctx: &Ctx<'_>, w: &Moe, h: &[f32], routes: &[Route], b: &mut Buffers) {
    let (m, s) = (ctx.meta, routes.len());
    let (d, ff) = (m.n_embd, m.n_ff);
    b.x.resize(s * d, 0.0);
    b.y.resize(s * d, 0.0);
    b.slots.resize(s * d, 0.0);
    for v in &mut b.mid {
        v.resize(s * ff, 0.0);
    }
    let order = &b.order;
    ctx.pool.each(s, grain(s, d), split(&mut b.x, d), |i, x| {
        x.copy_from_slice(&h[order[i] as usize / m.n_used * d..][..d]);
    });
    let [gate, up, act] = &mut b.mid;
    {
        let input = Input::new(ctx.pool, &b.x, s, d, &mut b.x_a8, &[&w.gate, &w.up]);
        let outs = [
            (&w.gate, Out::new(gate, s, ff)),
            (&w.up, Out::new(up, s, ff)),
        ];
        let mut jobs = b.jobs.take();
        for (w, mut rest) in outs {
            for_runs(&b.ends, |e, cols| {
                let whole = std::mem::replace(&mut rest, Out::new(&mut [], 0, 0));
                let (own, others) = whole.split_cols(cols.len());
                rest = others;
                jobs.push(Job::new(ctx.pool, w.sub(e * ff, ff), &input, cols, own));
            });
        }
        run(ctx.pool, ctx.counters, &jobs);
        b.jobs.put_back(jobs);
    }
    let (gate, up) = (&*gate, &*up);
    ctx.pool
        .each(s, grain(s, 4 * ff), split(act, ff), |i, act| {
            let (at, weight) = (i * ff, routes[order[i] as usize].weight);
            swiglu(
                &gate[at..at + ff],
                &up[at..at + ff],
                w.clamp_routed,
                Some(weight),
                act,
            );
        });
    shared_act(ctx, w, &mut b.shared);
    {
        let n = s / m.n_used;
        b.shared_out.resize(n * d, 0.0);
        let input = Input::new(ctx.pool, act, s, ff, &mut b.mid_a8, &[&w.down]);
        let (act, a8) = (&b.shared[2], &mut b.shared_a8);
        let shared = Input::new(ctx.pool, act, n, ff, a8, &[&w.shared_down]);
        let mut rest = Out::new(&mut b.y, s, d);
        let mut jobs = b.jobs.take();
        let out = Out::new(&mut b.shared_out, n, d);
        let down = w.shared_down.matrix();
        jobs.push(Job::new(ctx.pool, down, &shared, 0..n, out));
        for_runs(&b.ends, |e, cols| {
            let whole = std::mem::replace(&mut rest, Out::new(&mut [], 0, 0));
            let (own, others) = whole.split_cols(cols.len());
            rest = others;
            jobs.push(Job::new(ctx.pool, w.down.sub(e * d, d), &input, cols, own));
        });
        run(ctx.pool, ctx.counters, &jobs);
        b.jobs.put_back(jobs);
    }
}

/// Calls `f(expert, columns)` for every expert that has any.
fn for_runs(ends: &[usize], mut f: impl FnMut(usize, std::ops::Range<usize>)) {
    let mut start = 0;
    for (e, end) in ends.iter().enumerate() {
        if *end > start {
            f(e, start..*end);
        }
        start = *end;
    }
}

/// The shared expert's activation, `[n, n_ff]` each.
fn shared_act(ctx: &Ctx<'_>, w: &Moe, [gate, up, act]: &mut [Vec<f32>; 3]) {
    let ff = ctx.meta.n_ff;
    let n = act.len() / ff;
    let (gate, up) = (&*gate, &*up);
    ctx.pool
        .each(n, grain(n, 4 * ff), split(act, ff), |i, act| {
            let range = i * ff..(i + 1) * ff;
            swiglu(&gate[range.clone()], &up[range], w.clamp_shared, None, act);
        });
}
