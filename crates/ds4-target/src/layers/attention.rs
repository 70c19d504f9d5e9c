//! Attention of a layer over a batch (spec/ds4-architecture.md 2.4 to 2.9).

use std::cell::RefCell;

use ds4_kernels::cpu::{
    AttendScratch, INDEX_BLOCK, Turn, attend, hadamard, quantise_index_heads, rms_norm, rms_unit,
    rotate,
};
use engine_core::mutant::mutant;
use fpx_quant::{A8Rows, Out};

use super::compress::{Finish, Use, advance, bias_gates, round_kv};
use super::hc::grain;
use super::keys;
use super::select::Queries;
use super::{Angles, Ctx};
use crate::batch::Batch;
use crate::linear::{Input, Job, JobRoom, run};
use crate::meta::Ratio;
use crate::pool::split;
use crate::profile::Family;
use crate::state::SeqState;
use crate::weights::{Attention, Compressor, Indexer, Layer};

/// Buffers of the attention sublayer, `n` tokens.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    /// `[n, q_lora]` before and after its norm.
    qa: Vec<f32>,
    qr: Vec<f32>,
    /// `[n, n_head, head_dim]`.
    pub q: Vec<f32>,
    /// `[n, head_dim]` before and after norm, rotation and rounding.
    kv_in: Vec<f32>,
    pub kv: Vec<f32>,
    comp: Projections,
    index: Projections,
    /// `[n, index_heads]`, `[n, index_heads, index_dim]`.
    iw: Vec<f32>,
    iq: Vec<f32>,
    /// `iq` rounded to fp4: codes of the same shape, `[n, index_heads, index_dim / 32]` scales.
    iq_twice: Vec<i8>,
    iq_scale: Vec<f32>,
    /// `[o_groups, n, group_dim]` attention output, group-major for the grouped product.
    o: Vec<f32>,
    /// `[n, o_groups * o_lora]`.
    low: Vec<f32>,
    rows: Vec<f32>,
    /// Blocks of `qr`, `o` and `low`: one each, so that none changes its size within a pass.
    qr_a8: A8Rows,
    o_a8: A8Rows,
    low_a8: A8Rows,
    jobs: JobRoom,
}

/// Keys and gates of a compressor, `[n, wide]` and what larger ones left behind.
#[derive(Debug, Default)]
struct Projections {
    key: Vec<f32>,
    gate: Vec<f32>,
}

impl Projections {
    /// Room for `n` rows of a compressor: only grows, since layers with and without take turns.
    fn grow(&mut self, n: usize, c: Option<&Compressor>) {
        let len = c.map_or(0, |c| n * c.key.rows).max(self.key.len());
        self.key.resize(len, 0.0);
        self.gate.resize(len, 0.0);
    }
}

thread_local! {
    static LOCAL: RefCell<AttendScratch> = RefCell::default();
}

/// The sublayer: `h` `[n, n_embd]` normed input, `block` `[n, n_embd]` output. Writes the span's rows
/// into the sequences' states.
pub(crate) fn forward(
    ctx: &Ctx<'_>,
    at: usize,
    layer: &Layer,
    batch: &Batch,
    angles: &Angles,
    seqs: &mut [Option<SeqState>],
    h: &[f32],
    h_a8: &mut A8Rows,
    b: &mut Buffers,
    k: &mut keys::Buffers,
    block: &mut [f32],
) {
    let index = layer.indexer.as_ref();
    project(
        ctx,
        &layer.attn,
        layer.compressor.as_ref(),
        index,
        batch.n(),
        h,
        h_a8,
        b,
    );
    queries(ctx, &layer.attn, index, angles, batch.n(), b);
    if let Some(indexer) = index {
        index_queries(ctx, indexer, angles, batch.n(), b);
    }
    ctx.lap(Family::Projections);
    store(ctx, at, layer, batch, seqs, b);
    ctx.lap(Family::Compressors);
    lists(ctx, at, layer, batch, seqs, b, k);
    keep_raw(at, batch, seqs, &b.kv);
    ctx.lap(Family::KeyLists);
    attend_all(ctx, &layer.attn, angles, batch.n(), b, k);
    ctx.lap(Family::Attention);
    project_out(ctx, &layer.attn, batch.n(), b, block);
    ctx.lap(Family::Projections);
}

/// The sublayer without compressed rows and without state: keys are whatever `keys` lists, given the
/// rows' own keys `[n, head_dim]`. For a drafter's blocks.
pub(crate) fn forward_listed(
    ctx: &Ctx<'_>,
    w: &Attention,
    angles: &Angles,
    n: usize,
    h: &[f32],
    h_a8: &mut A8Rows,
    b: &mut Buffers,
    k: &mut keys::Buffers,
    list: impl FnOnce(&mut keys::Buffers, &[f32]),
    block: &mut [f32],
) {
    project(ctx, w, None, None, n, h, h_a8, b);
    queries(ctx, w, None, angles, n, b);
    k.begin();
    list(k, &b.kv);
    attend_all(ctx, w, angles, n, b, k);
    project_out(ctx, w, n, b, block);
}

/// Finished key rows of given inputs: projection, norm, rotation, rounding. `x` `[n, n_embd]`.
pub(crate) fn key_rows<'b>(
    ctx: &Ctx<'_>,
    w: &Attention,
    angles: &Angles,
    n: usize,
    x: &[f32],
    a8: &mut A8Rows,
    b: &'b mut Buffers,
) -> &'b [f32] {
    let m = ctx.meta;
    b.kv_in.resize(n * m.head_dim, 0.0);
    b.kv.resize(n * m.head_dim, 0.0);
    let input = Input::new(ctx.pool, x, n, m.n_embd, a8, &[&w.kv]);
    let out = Out::new(&mut b.kv_in, n, m.head_dim);
    run(
        ctx.pool,
        ctx.counters,
        &[Job::new(ctx.pool, w.kv.matrix(), &input, 0..n, out)],
    );
    finish_keys(ctx, w, angles, n, &b.kv_in, &mut b.kv);
    &b.kv
}

/// Everything that reads `h`, in one region.
fn project(
    ctx: &Ctx<'_>,
    w: &Attention,
    comp: Option<&Compressor>,
    indexer: Option<&Indexer>,
    n: usize,
    h: &[f32],
    a8: &mut A8Rows,
    b: &mut Buffers,
) {
    let m = ctx.meta;
    b.qa.resize(n * m.q_lora, 0.0);
    b.qr.resize(n * m.q_lora, 0.0);
    b.kv_in.resize(n * m.head_dim, 0.0);
    b.kv.resize(n * m.head_dim, 0.0);
    b.comp.grow(n, comp);
    b.index.grow(n, indexer.map(|i| &i.compressor));
    if indexer.is_some() {
        b.iw.resize(n * m.index_heads, 0.0);
    }
    let mut users = [Some(&w.q_a), Some(&w.kv), None, None, None, None, None];
    let mut outs = [
        Some(&mut b.qa),
        Some(&mut b.kv_in),
        None,
        None,
        None,
        None,
        None,
    ];
    if let Some(c) = comp {
        (users[2], users[3]) = (Some(&c.key), Some(&c.gate));
        (outs[2], outs[3]) = (Some(&mut b.comp.key), Some(&mut b.comp.gate));
    }
    if let Some(i) = indexer {
        (users[4], users[5]) = (Some(&i.compressor.key), Some(&i.compressor.gate));
        (outs[4], outs[5]) = (Some(&mut b.index.key), Some(&mut b.index.gate));
        (users[6], outs[6]) = (Some(&i.proj), Some(&mut b.iw));
    }
    let all: [_; 7] = std::array::from_fn(|i| users[i].unwrap_or(&w.q_a));
    let input = Input::new(ctx.pool, h, n, m.n_embd, a8, &all);
    let mut jobs = b.jobs.take();
    for (w, out) in users.into_iter().zip(outs) {
        if let (Some(w), Some(out)) = (w, out) {
            let out = Out::new(&mut out[..n * w.rows], n, w.rows);
            jobs.push(Job::new(ctx.pool, w.matrix(), &input, 0..n, out));
        }
    }
    run(ctx.pool, ctx.counters, &jobs);
    b.jobs.put_back(jobs);
    let (qa, eps) = (&b.qa, m.rms_eps);
    ctx.pool.each(
        n,
        grain(n, m.q_lora),
        split(&mut b.qr, m.q_lora),
        |i, qr| {
            rms_norm(&qa[i * m.q_lora..][..m.q_lora], &w.q_a_norm, eps, qr);
        },
    );
}

/// Query heads and the raw key row of each token; the indexer's query heads, not yet rotated.
fn queries(
    ctx: &Ctx<'_>,
    w: &Attention,
    indexer: Option<&Indexer>,
    angles: &Angles,
    n: usize,
    b: &mut Buffers,
) {
    let m = ctx.meta;
    let wide = m.n_head * m.head_dim;
    b.q.resize(n * wide, 0.0);
    let index = indexer.map_or(&w.q_b, |i| &i.q_b);
    let input = Input::new(ctx.pool, &b.qr, n, m.q_lora, &mut b.qr_a8, &[&w.q_b, index]);
    let mut jobs = b.jobs.take();
    let out = Out::new(&mut b.q, n, wide);
    jobs.push(Job::new(ctx.pool, w.q_b.matrix(), &input, 0..n, out));
    if let Some(i) = indexer {
        b.iq.resize(n * i.q_b.rows, 0.0);
        let out = Out::new(&mut b.iq, n, i.q_b.rows);
        jobs.push(Job::new(ctx.pool, i.q_b.matrix(), &input, 0..n, out));
    }
    run(ctx.pool, ctx.counters, &jobs);
    b.jobs.put_back(jobs);
    ctx.pool
        .each(n, grain(n, wide), split(&mut b.q, wide), |i, q| {
            let (cos, sin) = angles.at(i);
            for head in q.chunks_exact_mut(m.head_dim) {
                if !mutant(7) {
                    rms_unit(head, m.rms_eps);
                }
                rotate(head, cos, sin, Turn::Forward);
            }
        });
    finish_keys(ctx, w, angles, n, &b.kv_in, &mut b.kv);
}

/// Norm, rotation and rounding of raw key rows, `[n, head_dim]` each.
fn finish_keys(
    ctx: &Ctx<'_>,
    w: &Attention,
    angles: &Angles,
    n: usize,
    kv_in: &[f32],
    kv: &mut [f32],
) {
    let (hd, eps) = (ctx.meta.head_dim, ctx.meta.rms_eps);
    ctx.pool.each(n, grain(n, hd), split(kv, hd), |i, kv| {
        let (cos, sin) = angles.at(i);
        rms_norm(&kv_in[i * hd..][..hd], &w.kv_norm, eps, kv);
        rotate(kv, cos, sin, Turn::Forward);
        if ctx.kv_sim && !mutant(40) {
            round_kv(kv, ctx.meta.n_rot);
        }
    });
}

/// Rotates the indexer's query heads, rounds them where rows are rounded, scales head weights.
fn index_queries(ctx: &Ctx<'_>, w: &Indexer, angles: &Angles, n: usize, b: &mut Buffers) {
    let m = ctx.meta;
    let wide = w.q_b.rows;
    // Codes only where rows are codes: without the roundings the parts are empty.
    let (codes, scales) = match ctx.kv_sim {
        true => (wide, wide / INDEX_BLOCK),
        false => (0, 0),
    };
    b.iq_twice.resize(n * codes, 0);
    b.iq_scale.resize(n * scales, 0.0);
    let parts = (
        split(&mut b.iq, wide),
        split(&mut b.iq_twice, codes),
        split(&mut b.iq_scale, scales),
    );
    ctx.pool
        .each(n, grain(n, wide), parts, |i, (iq, twice, scale)| {
            let (cos, sin) = angles.at(i);
            for head in iq.chunks_exact_mut(m.index_dim) {
                rotate(head, cos, sin, Turn::Forward);
                if ctx.kv_sim && !mutant(19) {
                    hadamard(head);
                }
            }
            quantise_index_heads(iq, twice, scale);
        });
    let scale = (1.0 / ((m.index_dim * m.index_heads) as f64).sqrt()) as f32;
    for w in &mut b.iw {
        *w *= scale;
        if mutant(18) {
            *w = w.max(0.0);
        }
    }
}

/// Advances both compressors of every span.
fn store(
    ctx: &Ctx<'_>,
    at: usize,
    layer: &Layer,
    batch: &Batch,
    seqs: &mut [Option<SeqState>],
    b: &mut Buffers,
) {
    let Some(ratio) = layer.ratio.tokens() else {
        return;
    };
    let finish = |norm, used| Finish {
        norm,
        rope: ctx.ropes.of(layer.ratio),
        n_rot: ctx.meta.n_rot,
        eps: ctx.meta.rms_eps,
        kv_sim: ctx.kv_sim,
        used,
    };
    let index = layer.indexer.as_ref().map(|i| &i.compressor);
    let both = [
        (layer.compressor.as_ref(), &mut b.comp, Use::Attention),
        (index, &mut b.index, Use::Index),
    ];
    for (weights, p, used) in both {
        let Some(weights) = weights else { continue };
        for piece in &batch.pieces {
            let range = piece.at * weights.gate.rows..(piece.at + piece.len) * weights.gate.rows;
            let pos = &batch.pos[piece.at..piece.at + piece.len];
            bias_gates(ctx, weights, ratio as usize, pos, &mut p.gate[range]);
            let Some(seq) = seqs[piece.slot].as_mut() else {
                continue;
            };
            let state = &mut seq.layers[at];
            let state = if used == Use::Attention {
                &mut state.comp
            } else {
                &mut state.index
            };
            if let Some(state) = state {
                let finish = finish(&weights.norm, used);
                advance(ctx, state, piece, &p.key, &p.gate, &finish, &mut b.rows);
            }
        }
    }
}

fn lists(
    ctx: &Ctx<'_>,
    at: usize,
    layer: &Layer,
    batch: &Batch,
    seqs: &[Option<SeqState>],
    b: &Buffers,
    k: &mut keys::Buffers,
) {
    let m = ctx.meta;
    k.begin();
    let queries = (layer.ratio == Ratio::Sparse).then_some(Queries {
        heads: &b.iq,
        twice: &b.iq_twice,
        scale: &b.iq_scale,
        weights: &b.iw,
        n_heads: m.index_heads,
        dim: m.index_dim,
    });
    for piece in &batch.pieces {
        let Some(seq) = seqs[piece.slot].as_ref() else {
            continue;
        };
        let raw = &b.kv[piece.at * m.head_dim..(piece.at + piece.len) * m.head_dim];
        k.span(
            ctx,
            piece,
            layer.ratio,
            &seq.layers[at],
            raw,
            queries.as_ref(),
        );
    }
}

/// Writes the last raw rows of every span into its ring, after they were read.
fn keep_raw(at: usize, batch: &Batch, seqs: &mut [Option<SeqState>], kv: &[f32]) {
    for piece in &batch.pieces {
        let Some(seq) = seqs[piece.slot].as_mut() else {
            continue;
        };
        let layer = &mut seq.layers[at];
        let (hd, end) = (layer.shape.head_dim, piece.pos + piece.len);
        for x in end.saturating_sub(layer.shape.raw_rows).max(piece.pos)..end {
            let row = &kv[(piece.at + x - piece.pos) * hd..][..hd];
            let slot = layer.raw_slot(x);
            layer.raw.put(slot, row);
        }
    }
}

/// Attention proper, one part a (group, token, head), and the inverse rotation of its output.
fn attend_all(
    ctx: &Ctx<'_>,
    w: &Attention,
    angles: &Angles,
    n: usize,
    b: &mut Buffers,
    k: &keys::Buffers,
) {
    let m = ctx.meta;
    let (heads, hd) = (m.n_head / m.o_groups, m.head_dim);
    let mut scale = (1.0 / (hd as f64).sqrt()) as f32;
    if mutant(6) {
        scale *= 1.277_258_9 * 1.277_258_9;
    }
    b.o.resize(m.n_head * n * hd, 0.0);
    let q = &b.q;
    // A token's heads of a group share its keys; only few tokens are divided further.
    let grain = if n < 2 * ctx.pool.threads() { 1 } else { heads };
    ctx.pool
        .each(m.n_head * n, grain, split(&mut b.o, hd), |unit, out| {
            let (head, token) = (unit % heads, unit / heads % n);
            let g = unit / heads / n;
            let at = if mutant(35) { g } else { g * heads } + head;
            let q = &q[(token * m.n_head + at) * hd..][..hd];
            let sink = &w.sinks[at..=at];
            let list = &k.lists[k.at[token].clone()];
            LOCAL.with_borrow_mut(|s| attend(q, &k.slab, list, scale, sink, s, out));
            let (cos, sin) = angles.at(token);
            if !mutant(2) {
                rotate(out, cos, sin, Turn::Back);
            }
        });
}

/// Grouped low-rank projection, then back to the stream width.
fn project_out(ctx: &Ctx<'_>, w: &Attention, n: usize, b: &mut Buffers, block: &mut [f32]) {
    let m = ctx.meta;
    let (group, low) = (w.o_a.k, m.o_groups * m.o_lora);
    b.low.resize(n * low, 0.0);
    // Group-major input: columns g * n .. (g + 1) * n belong to group g's rows.
    let input = Input::new(
        ctx.pool,
        &b.o,
        m.o_groups * n,
        group,
        &mut b.o_a8,
        &[&w.o_a],
    );
    let mut rest = Out::new(&mut b.low, n, low);
    let mut jobs = b.jobs.take();
    for g in 0..m.o_groups {
        let (own, others) = rest.split_rows(m.o_lora);
        rest = others;
        let matrix = w.o_a.sub(g * m.o_lora, m.o_lora);
        jobs.push(Job::new(ctx.pool, matrix, &input, g * n..(g + 1) * n, own));
    }
    run(ctx.pool, ctx.counters, &jobs);
    b.jobs.put_back(jobs);
    let input = Input::new(ctx.pool, &b.low, n, low, &mut b.low_a8, &[&w.o_b]);
    let out = Out::new(block, n, m.n_embd);
    run(
        ctx.pool,
        ctx.counters,
        &[Job::new(ctx.pool, w.o_b.matrix(), &input, 0..n, out)],
    );
}
