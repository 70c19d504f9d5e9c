//! The model's blocks without its state: what a drafter builds its stages from, so that there is one
//! implementation of hyper-connections, attention and experts.
//!
//! The caller brings finished key rows; every row of a group sees all of them and all rows of its
//! own group, also later ones (spec/dspark.md 1.5).

use std::ops::Range;
use std::sync::Arc;

use engine_core::Pos;

use crate::layers::{Angles, Ctx, Ropes, Scratch, attention, hc, moe};
use crate::linear::Counters;
use crate::meta::Ds4Meta;
use crate::pool::Pool;
use crate::weights::{Attention, HcSite, Moe};

/// One block: attention and experts, each inside hyper-connections.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub struct Block {
    pub hc_attn: HcSite,
    pub attn: Attention,
    pub hc_ffn: HcSite,
    pub moe: Moe,
}

/// Rows that attend to each other, and the context they share.
#[derive(Clone, Debug)]
pub struct Group<'a> {
    /// Which rows of the batch.
    pub rows: Range<usize>,
    /// `[n, head_dim]` finished key rows, oldest first.
    pub context: &'a [f32],
}

/// Runs blocks over a batch of rows.
#[derive(Debug)]
pub struct BlockRunner {
    meta: Ds4Meta,
    ropes: Ropes,
    pool: Arc<Pool>,
    counters: Counters,
    scratch: Scratch,
    kv_sim: bool,
}

impl BlockRunner {
    /// A runner for blocks of the shapes in `meta`, on the threads of `pool`.
    #[must_use]
    pub fn new(meta: Ds4Meta, pool: Arc<Pool>, kv_sim: bool) -> Self {
        let ropes = Ropes::new(&meta);
        let (counters, scratch) = (Counters::default(), Scratch::default());
        Self {
            meta,
            ropes,
            pool,
            counters,
            scratch,
            kv_sim,
        }
    }

    /// Starts a batch: every row's four streams are its input. `rows` `[n, n_embd]`, at `pos` `[n]`.
    pub fn begin(&mut self, rows: &[f32], pos: &[Pos]) {
        let Self {
            meta,
            ropes,
            pool,
            counters,
            scratch,
            kv_sim,
        } = self;
        let ctx = Ctx {
            pool,
            meta,
            counters,
            kv_sim: *kv_sim,
            ropes,
        };
        scratch.begin(&ctx, pos);
        let d = meta.n_embd;
        for (x, row) in scratch.x.chunks_exact_mut(4 * d).zip(rows.chunks_exact(d)) {
            x.chunks_exact_mut(d)
                .for_each(|stream| stream.copy_from_slice(row));
        }
    }

    /// Runs one block over the batch. `groups` cover all rows in order.
    pub fn block(&mut self, block: &Block, groups: &[Group<'_>]) {
        let Self {
            meta,
            ropes,
            pool,
            counters,
            scratch: s,
            kv_sim,
        } = self;
        let ctx = Ctx {
            pool,
            meta,
            counters,
            kv_sim: *kv_sim,
            ropes,
        };
        let (n, hd) = (s.mix.len(), meta.head_dim);
        hc::pre(&ctx, &block.hc_attn, &block.attn.norm, s.site());
        let list = |k: &mut crate::layers::keys::Buffers, own: &[f32]| {
            for g in groups {
                let own = &own[g.rows.start * hd..g.rows.end * hd];
                k.shared(g.rows.len(), g.context, own, hd);
            }
        };
        let (h, a8, angles) = (&s.h, &mut s.a8, &s.angles_window);
        let (attn, keys) = (&mut s.attn, &mut s.keys);
        let w = &block.attn;
        attention::forward_listed(&ctx, w, angles, n, h, a8, attn, keys, list, &mut s.block);
        hc::post(&ctx, &mut s.x, &s.block, &s.mix);
        hc::pre(&ctx, &block.hc_ffn, &block.moe.norm, s.site());
        // Score routing only: table routing would need the tokens (spec/dspark.md 1.1).
        let tokens = vec![0; n];
        let (h, a8, moe) = (&s.h, &mut s.a8, &mut s.moe);
        moe::forward(
            &ctx,
            &block.moe,
            &tokens,
            h,
            a8,
            moe,
            &mut s.routes,
            &mut s.block,
        );
        hc::post(&ctx, &mut s.x, &s.block, &s.mix);
    }

    /// Merges the streams of all rows. `pre_norm`, `normed`: `[n, n_embd]`, before and after `norm`.
    pub fn head(&mut self, site: &HcSite, norm: &[f32], pre_norm: &mut [f32], normed: &mut [f32]) {
        let Self {
            meta,
            ropes,
            pool,
            counters,
            scratch: s,
            kv_sim,
        } = self;
        let ctx = Ctx {
            pool,
            meta,
            counters,
            kv_sim: *kv_sim,
            ropes,
        };
        hc::merge(&ctx, site, &s.x, &mut s.m, &mut s.a8, pre_norm);
        let d = norm.len();
        for (row, out) in pre_norm.chunks_exact(d).zip(normed.chunks_exact_mut(d)) {
            ds4_kernels::cpu::rms_norm(row, norm, meta.rms_eps, out);
        }
    }

    /// Finished key rows of context inputs `x` `[n, n_embd]` at `pos`: projection, norm, rotation and
    /// the model's rounding. `out` `[n, head_dim]`.
    pub fn key_rows(&mut self, attn: &Attention, x: &[f32], pos: &[Pos], out: &mut [f32]) {
        let Self {
            meta,
            ropes,
            pool,
            counters,
            scratch: s,
            kv_sim,
        } = self;
        let ctx = Ctx {
            pool,
            meta,
            counters,
            kv_sim: *kv_sim,
            ropes,
        };
        let mut angles = Angles::default();
        angles.fill(pool, &ropes.window, pos);
        let (a8, buffers) = (&mut s.a8, &mut s.attn);
        out.copy_from_slice(attention::key_rows(
            &ctx,
            attn,
            &angles,
            pos.len(),
            x,
            a8,
            buffers,
        ));
    }

    /// A plain product, `out` `[n, w.rows]` from `x` `[n, w.k]`.
    pub fn product(&mut self, w: &crate::tensor::Tensor, x: &[f32], out: &mut [f32]) {
        let n = x.len() / w.k;
        let input = crate::linear::Input::new(&self.pool, x, n, w.k, &mut self.scratch.a8, &[w]);
        let out = fpx_quant::Out::new(out, n, w.rows);
        let job = crate::linear::Job::new(&self.pool, w.matrix(), &input, 0..n, out);
        crate::linear::run(&self.pool, &self.counters, &[job]);
    }
}
