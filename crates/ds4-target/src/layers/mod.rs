//! The layers of the model over a flattened batch of tokens. A drafter's layers use the same parts.
//!
//! Buffers belong to [`Scratch`] and grow to the largest pass seen; a step in steady state
//! allocates nothing.

pub(crate) mod attention;
pub(crate) mod compress;
pub(crate) mod hc;
pub(crate) mod keys;
pub(crate) mod moe;
pub(crate) mod select;

use ds4_kernels::cpu::{HcMix, Route};
use engine_core::math::RopeTable;
use engine_core::mutant::mutant;
use fpx_quant::A8Rows;

use crate::linear::Counters;
use crate::meta::{Ds4Meta, Ratio};
use crate::pool::{Pool, split};
use crate::profile::Family;

/// What every layer function needs.
pub(crate) struct Ctx<'a> {
    pub pool: &'a Pool,
    pub meta: &'a Ds4Meta,
    pub counters: &'a Counters,
    pub kv_sim: bool,
    pub ropes: &'a Ropes,
}

impl Ctx<'_> {
    /// Ends a lap of the profile.
    #[inline]
    pub(crate) fn lap(&self, family: Family) {
        self.counters.laps.lap(family);
    }
}

/// Rotary tables of the two layer kinds.
#[derive(Clone, Debug)]
pub(crate) struct Ropes {
    pub window: RopeTable,
    pub compressed: RopeTable,
}

impl Ropes {
    pub(crate) fn new(m: &Ds4Meta) -> Self {
        let table = |ratio| {
            let (theta, yarn) = m.rope_of(ratio);
            RopeTable::new(m.n_rot, theta, yarn)
        };
        Self {
            window: table(Ratio::None),
            compressed: table(Ratio::Sparse),
        }
    }

    pub(crate) fn of(&self, ratio: Ratio) -> &RopeTable {
        if ratio == Ratio::None {
            &self.window
        } else {
            &self.compressed
        }
    }
}

/// cos and sin of every token of a pass, `[n, n_rot / 2]` each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Angles {
    pub cos: Vec<f32>,
    pub sin: Vec<f32>,
    pub half: usize,
}

impl Angles {
    pub(crate) fn fill(&mut self, pool: &Pool, table: &RopeTable, pos: &[u32]) {
        self.half = table.inv_freq.len();
        self.cos.resize(pos.len() * self.half, 0.0);
        self.sin.resize(pos.len() * self.half, 0.0);
        let parts = (
            split(&mut self.cos, self.half),
            split(&mut self.sin, self.half),
        );
        pool.each(pos.len(), 16, parts, |i, (cos, sin)| {
            let at = if mutant(47) { pos[i] & 127 } else { pos[i] };
            table.angles(at, cos, sin);
            if mutant(3) {
                cos.iter_mut().chain(sin).for_each(|v| *v *= 1.277_258_9);
            }
        });
    }

    pub(crate) fn at(&self, token: usize) -> (&[f32], &[f32]) {
        let range = token * self.half..(token + 1) * self.half;
        (&self.cos[range.clone()], &self.sin[range])
    }
}

/// Buffers of a pass. `n` tokens; shapes beside each.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// `[n, 4, n_embd]` residual streams.
    pub x: Vec<f32>,
    /// `[n, 24]` mixing dot products.
    pub m: Vec<f32>,
    /// `[n]` mixing weights of the site being run.
    pub mix: Vec<HcMix>,
    /// `[n, n_embd]` collapsed input, then normed in place of `h`.
    pub u: Vec<f32>,
    pub h: Vec<f32>,
    /// Blocks of `h`, and of `x` where mixing weights are stored in blocks.
    pub a8: A8Rows,
    pub x_a8: A8Rows,
    pub angles_window: Angles,
    pub angles_compressed: Angles,
    pub attn: attention::Buffers,
    pub keys: keys::Buffers,
    pub moe: moe::Buffers,
    /// `[n, n_embd]` output of a sublayer.
    pub block: Vec<f32>,
    /// `[n, n_used]`.
    pub routes: Vec<Route>,
    /// `[rows, 4, n_embd]` streams, `[rows, n_embd]` final hidden states, `[rows, n_vocab]` logits.
    pub gathered: Vec<f32>,
    pub merged: Vec<f32>,
    pub logits: Vec<f32>,
    pub hidden: Vec<f32>,
}

impl Scratch {
    /// Sizes the shared buffers and makes the angles of a pass.
    pub(crate) fn begin(&mut self, ctx: &Ctx<'_>, pos: &[u32]) {
        let (n, d) = (pos.len(), ctx.meta.n_embd);
        self.x.resize(n * 4 * d, 0.0);
        self.m.resize(n * 24, 0.0);
        self.mix.resize(n, HcMix::default());
        self.u.resize(n * d, 0.0);
        self.h.resize(n * d, 0.0);
        self.block.resize(n * d, 0.0);
        self.routes.resize(n * ctx.meta.n_used, Route::default());
        self.angles_window.fill(ctx.pool, &ctx.ropes.window, pos);
        self.angles_compressed
            .fill(ctx.pool, &ctx.ropes.compressed, pos);
    }

    /// The buffers of a hyper-connection site.
    pub(crate) fn site(&mut self) -> hc::Site<'_> {
        hc::Site {
            x: &self.x,
            m: &mut self.m,
            mix: &mut self.mix,
            u: &mut self.u,
            h: &mut self.h,
            a8: &mut self.x_a8,
        }
    }
}
