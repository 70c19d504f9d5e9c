//! Which rows each query attends to, and those rows as f32 (spec/ds4-architecture.md 2.6, 2.9).
//!
//! Rows of all spans stand in one slab; a query's list indexes it in canonical order: raw rows in
//! time order, then compressed rows ascending.

use std::cell::RefCell;
use std::ops::Range;

use ds4_kernels::cpu::{
    IndexQuery, index_scores_f32, index_scores_packed, quantise_index_query, top_k,
};
use engine_core::mutant::mutant;

use super::Ctx;
use crate::batch::Piece;
use crate::meta::Ratio;
use crate::pool::split;
use crate::state::{CompState, LayerState, RowStore};

/// Indexer rows scored by one task.
const SCORE_CHUNK: usize = 2_048;

/// Buffers of a layer's key lists.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    /// `[rows, head_dim]`.
    pub slab: Vec<f32>,
    /// All lists, one after another.
    pub lists: Vec<u32>,
    /// `[n]`: each token's part of `lists`.
    pub at: Vec<Range<usize>>,
    picks: Picks,
}

/// Picked compressed rows of one span.
#[derive(Debug, Default)]
struct Picks {
    /// `[len, top_k]`.
    rows: Vec<u32>,
    /// `[len]`: how many were picked.
    count: Vec<u32>,
    scores: Vec<f32>,
}

/// The indexer's queries of a batch.
pub(crate) struct Queries<'a> {
    /// `[n, n_heads, dim]`, rotated (and transformed when `kv_sim`).
    pub heads: &'a [f32],
    /// `[n, n_heads]`, scaled.
    pub weights: &'a [f32],
    pub n_heads: usize,
    pub dim: usize,
}

#[derive(Default)]
struct Local {
    query: IndexQuery,
    scores: Vec<f32>,
    picks: Vec<u32>,
}

thread_local! {
    static LOCAL: RefCell<Local> = RefCell::default();
}

/// Compressed rows visible to the query at position `p`: those whose window has ended.
fn visible(p: usize, ratio: usize, span_len: usize) -> usize {
    if mutant(10) {
        return p / ratio;
    }
    if mutant(45) && span_len > 1 && p % 4 == 3 {
        return (p + 1) / ratio - 1;
    }
    (p + 1) / ratio
}

impl Queries<'_> {
    /// Scores rows `range` for one token.
    fn score(
        &self,
        token: usize,
        rows: &RowStore,
        range: Range<usize>,
        out: &mut [f32],
        query: &mut IndexQuery,
    ) {
        let wide = self.n_heads * self.dim;
        let heads = &self.heads[token * wide..][..wide];
        let weights = &self.weights[token * self.n_heads..][..self.n_heads];
        let packed = rows.packed(range.end);
        if packed.is_empty() {
            let floats = &rows.floats(range.end)[range.start * self.dim..];
            index_scores_f32(heads, weights, floats, out);
        } else {
            quantise_index_query(heads, self.dim, query);
            let from = range.start * rows.kind().row_bytes();
            index_scores_packed(query, weights, &packed[from..], out);
        }
    }
}

/// Picks the rows of every token of a span.
fn select(ctx: &Ctx<'_>, piece: &Piece, index: &CompState, q: &Queries<'_>, p: &mut Picks) {
    let k = ctx.meta.index_top_k;
    let ratio = index.shape.ratio;
    p.rows.resize(piece.len * k, 0);
    p.count.resize(piece.len, 0);
    let seen = |i: usize| {
        let v = visible(piece.pos + i, ratio, piece.len);
        (if mutant(23) { v + 1 } else { v }).min(index.shape.max_rows)
    };
    if piece.len >= ctx.pool.threads() {
        let parts = (split(&mut p.rows, k), split(&mut p.count, 1));
        ctx.pool.each(piece.len, 1, parts, |i, (rows, count)| {
            LOCAL.with_borrow_mut(|l| {
                let v = seen(i);
                if v > k {
                    l.scores.resize(v, 0.0);
                    q.score(piece.at + i, &index.rows, 0..v, &mut l.scores, &mut l.query);
                }
                count[0] = pick(&l.scores, v, k, &mut l.picks, rows);
            });
        });
    } else {
        for i in 0..piece.len {
            let v = seen(i);
            if v > k {
                p.scores.resize(v.next_multiple_of(SCORE_CHUNK), 0.0);
                let n = v.div_ceil(SCORE_CHUNK);
                ctx.pool
                    .each(n, 1, split(&mut p.scores, SCORE_CHUNK), |c, out| {
                        let range = c * SCORE_CHUNK..((c + 1) * SCORE_CHUNK).min(v);
                        let out = &mut out[..range.len()];
                        LOCAL.with_borrow_mut(|l| {
                            q.score(piece.at + i, &index.rows, range, out, &mut l.query);
                        });
                    });
            }
            let rows = &mut p.rows[i * k..(i + 1) * k];
            p.count[i] = LOCAL.with_borrow_mut(|l| pick(&p.scores, v, k, &mut l.picks, rows));
        }
    }
    if mutant(25) {
        let (last, n) = (
            p.rows[(piece.len - 1) * k..].to_vec(),
            p.count[piece.len - 1],
        );
        for i in 0..piece.len {
            p.rows[i * k..(i + 1) * k].copy_from_slice(&last);
            p.count[i] = n;
        }
    }
}

/// All `v` rows when they fit, else the `k` best by score. Returns how many were written.
fn pick(scores: &[f32], v: usize, k: usize, picks: &mut Vec<u32>, rows: &mut [u32]) -> u32 {
    if v <= k {
        for (c, row) in rows[..v].iter_mut().enumerate() {
            *row = c as u32;
        }
        return v as u32;
    }
    top_k(&scores[..v], k, picks);
    rows.copy_from_slice(picks);
    k as u32
}

impl Buffers {
    pub(crate) fn begin(&mut self) {
        self.slab.clear();
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
        let base = self.slab.len() / hd;
        for x in from..piece.pos {
            let row = self.grow(hd);
            state.raw.get(state.raw_slot(x), row);
        }
        self.slab.extend_from_slice(raw);
        let comp_base = self.slab.len() / hd;
        let comp = state.comp.as_ref();
        let selected = queries.zip(state.index.as_ref());
        if let Some((q, index)) = selected {
            select(ctx, piece, index, q, &mut self.picks);
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
        let base = self.slab.len() / hd;
        self.slab.extend_from_slice(context);
        self.slab.extend_from_slice(own);
        let start = self.lists.len();
        self.lists
            .extend((base..self.slab.len() / hd).map(|row| row as u32));
        self.at
            .extend(std::iter::repeat_n(start..self.lists.len(), n));
    }

    fn grow(&mut self, hd: usize) -> &mut [f32] {
        let at = self.slab.len();
        self.slab.resize(at + hd, 0.0);
        &mut self.slab[at..]
    }

    fn unpack(&mut self, ctx: &Ctx<'_>, comp: &CompState, n: usize, hd: usize) {
        let at = self.slab.len();
        self.slab.resize(at + n * hd, 0.0);
        let grain = super::hc::grain(n, hd);
        ctx.pool
            .each(n, grain, split(&mut self.slab[at..], hd), |w, row| {
                comp.rows.get(w, row)
            });
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
                    let at = self.slab.len() / hd;
                    comp.rows.get(w, self.grow(hd));
                    at
                }
            };
            self.lists.push(at as u32);
        }
    }
}
