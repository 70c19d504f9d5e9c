//! Which rows each query attends to, and those rows as f32 (spec/ds4-architecture.md 2.6, 2.9).
//!
//! Rows of all spans stand in one slab; a query's list indexes it in canonical order: raw rows in
//! time order, then compressed rows ascending.

use std::ops::Range;

use engine_core::mutant::mutant;

use super::Ctx;
use super::select::{Picks, Queries, select, visible};
use crate::batch::Piece;
use crate::meta::Ratio;
use crate::pool::split;
use crate::profile::Family;
use crate::state::{CompState, LayerState};

/// Buffers of a layer's key lists.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    /// `[rows, head_dim]`; only grows, `used` floats of it are this layer's.
    pub slab: Vec<f32>,
    used: usize,
    /// All lists, one after another.
    pub lists: Vec<u32>,
    /// `[n]`: each token's part of `lists`.
    pub at: Vec<Range<usize>>,
    picks: Picks,
}

impl Buffers {
    pub(crate) fn begin(&mut self) {
        self.used = 0;
        self.lists.clear();
        self.at.clear();
    }

    /// Appends the rows and lists of one span. `raw`: `[len, head_dim]`, the span's own raw rows.
    pub(crate) fn span(
        &mut self,
        ctx: &Ctx<'_>,
        piece: &Piece,
        ratio: Ratio,
        state: &LayerState,
        raw: &[f32],
        queries: Option<&Queries<'_>>,
    ) {
        let hd = state.shape.head_dim;
        let window = if mutant(8) {
            state.shape.window + 1
        } else {
            state.shape.window
        };
        let from = piece.pos.saturating_sub(window - 1);
        let base = self.used / hd;
        let old = self.grow((piece.pos - from) * hd).chunks_exact_mut(hd);
        for (x, row) in (from..piece.pos).zip(old) {
            state.raw.get(state.raw_slot(x), row);
        }
        self.grow(raw.len()).copy_from_slice(raw);
        let comp_base = self.used / hd;
        let comp = state.comp.as_ref();
        let selected = queries.zip(state.index.as_ref());
        if let Some((q, index)) = selected {
            ctx.lap(Family::KeyLists);
            select(ctx, piece, index, q, &mut self.picks);
            ctx.lap(Family::Selection);
        }
        let all = comp.map_or(0, |c| (piece.pos + piece.len) / c.shape.ratio);
        let k = ctx.meta.index_top_k;
        // Either every visible row once, or each query's picks on their own.
        let whole = ratio != Ratio::Sparse || piece.len * k.min(all) >= all;
        if let Some(comp) = comp.filter(|_| whole) {
            self.unpack(ctx, comp, all, hd);
        }
        for i in 0..piece.len {
            let p = piece.pos + i;
            let start = self.lists.len();
            let first = p.saturating_sub(window - 1);
            self.lists
                .extend((first..=p).map(|x| (base + x - from) as u32));
            if let Some(comp) = comp {
                self.list_compressed(comp, i, piece, ratio, whole.then_some(comp_base), k);
            }
            self.at.push(start..self.lists.len());
        }
    }

    /// Appends one list for `n` queries that all see the same rows: `context`, then `own`, both
    /// `[rows, head_dim]`.
    pub(crate) fn shared(&mut self, n: usize, context: &[f32], own: &[f32], hd: usize) {
        let base = self.used / hd;
        self.grow(context.len()).copy_from_slice(context);
        self.grow(own.len()).copy_from_slice(own);
        let start = self.lists.len();
        self.lists
            .extend((base..self.used / hd).map(|row| row as u32));
        self.at
            .extend(std::iter::repeat_n(start..self.lists.len(), n));
    }

    /// The next `n` floats of the slab, their content left from before.
    fn grow(&mut self, n: usize) -> &mut [f32] {
        let at = self.used;
        self.used += n;
        if self.slab.len() < self.used {
            self.slab.resize(self.used, 0.0);
        }
        &mut self.slab[at..self.used]
    }

    fn unpack(&mut self, ctx: &Ctx<'_>, comp: &CompState, n: usize, hd: usize) {
        let grain = super::hc::grain(n, hd);
        let rows = split(self.grow(n * hd), hd);
        ctx.pool
            .each(n, grain, rows, |w, row| comp.rows.get(w, row));
    }

    fn list_compressed(
        &mut self,
        comp: &CompState,
        i: usize,
        piece: &Piece,
        ratio: Ratio,
        whole: Option<usize>,
        k: usize,
    ) {
        let hd = comp.shape.width;
        if ratio != Ratio::Sparse {
            let base = whole.unwrap_or(0);
            let v = visible(piece.pos + i, comp.shape.ratio, piece.len);
            self.lists.extend((0..v).map(|w| (base + w) as u32));
            return;
        }
        for j in 0..self.picks.count[i] as usize {
            let w = self.picks.rows[i * k + j] as usize;
            let at = match whole {
                Some(base) => base + w,
                None => {
                    let at = self.used / hd;
                    comp.rows.get(w, self.grow(hd));
                    at
                }
            };
            self.lists.push(at as u32);
        }
    }
}
