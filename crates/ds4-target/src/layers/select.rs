//! Which compressed rows each query of a sparse layer attends to (spec/ds4-architecture.md 2.9).
//!
//! Scores are computed a tile of rows at a time, so that the rows of a pass are taken apart once for
//! several queries. With few queries the rows are divided among threads, with many the queries.
//! Must not know: where keys stand, what attention does with the picks.

use std::cell::RefCell;
use std::ops::Range;

use ds4_kernels::cpu::{
    INDEX_TILE, IndexTile, index_score_tile, index_scores_f32, top_k, unpack_index_tile,
};
use engine_core::mutant::mutant;

use super::Ctx;
use super::hc::grain;
use crate::batch::Piece;
use crate::pool::split;
use crate::state::{CompState, RowStore};

/// Queries of a long span that are scored against a tile while it is at hand.
const GROUP: usize = 8;

/// Multiply-adds worth a task of their own.
const TASK_MACS: usize = 160_000;

/// Picked compressed rows of one span.
#[derive(Debug, Default)]
pub(crate) struct Picks {
    /// `[len, top_k]`.
    pub rows: Vec<u32>,
    /// `[len]`: how many were picked.
    pub count: Vec<u32>,
    /// `[chunks of rows, len, rows of a chunk]`.
    scores: Vec<f32>,
}

/// The indexer's queries of a batch.
pub(crate) struct Queries<'a> {
    /// `[n, n_heads, dim]`, rotated (and transformed when `kv_sim`).
    pub heads: &'a [f32],
    /// The same, rounded: codes and `[n, n_heads, dim / 32]` scales; empty unless `kv_sim`.
    pub twice: &'a [i8],
    pub scale: &'a [f32],
    /// `[n, n_heads]`, scaled.
    pub weights: &'a [f32],
    pub n_heads: usize,
    pub dim: usize,
}

#[derive(Default)]
struct Local {
    tile: IndexTile,
    scores: Vec<f32>,
    ranks: Vec<u64>,
    picks: Vec<u32>,
}

impl Local {
    /// Room to pick among `rows` scores.
    fn reserve(&mut self, rows: usize) {
        let room = rows.next_multiple_of(INDEX_TILE);
        self.scores.reserve(room.saturating_sub(self.scores.len()));
        self.ranks.reserve(room.saturating_sub(self.ranks.len()));
    }
}

thread_local! {
    static LOCAL: RefCell<Local> = RefCell::default();
}

/// Compressed rows visible to the query at position `p`: those whose window has ended.
pub(crate) fn visible(p: usize, ratio: usize, span_len: usize) -> usize {
    if mutant(10) {
        return p / ratio;
    }
    if mutant(45) && span_len > 1 && p % 4 == 3 {
        return (p + 1) / ratio - 1;
    }
    (p + 1) / ratio
}

impl Queries<'_> {
    /// Scores `rows` (whole tiles, but for the last) for `tokens`. `out`: `[tokens, stride]`.
    fn score(
        &self,
        tokens: Range<usize>,
        store: &RowStore,
        rows: Range<usize>,
        tile: &mut IndexTile,
        out: &mut [f32],
        stride: usize,
    ) {
        let weights = |token: usize| &self.weights[token * self.n_heads..][..self.n_heads];
        let wide = self.n_heads * self.dim;
        if store.tile(0).is_empty() {
            let floats = &store.floats(rows.end)[rows.start * self.dim..];
            for (token, out) in tokens.zip(out.chunks_exact_mut(stride)) {
                let heads = &self.heads[token * wide..][..wide];
                index_scores_f32(heads, weights(token), floats, &mut out[..rows.len()]);
            }
            return;
        }
        let blocks = self.scale.len() * wide / self.twice.len().max(1);
        for (t, at) in rows.step_by(INDEX_TILE).enumerate() {
            unpack_index_tile(store.tile(at / INDEX_TILE), self.dim, tile);
            for (token, out) in tokens.clone().zip(out.chunks_exact_mut(stride)) {
                let twice = &self.twice[token * wide..][..wide];
                let scale = &self.scale[token * blocks..][..blocks];
                let out = &mut out.as_chunks_mut().0[t];
                index_score_tile(twice, scale, weights(token), tile, out);
            }
        }
    }
}

/// The selection of one span.
struct Selection<'a> {
    piece: &'a Piece,
    index: &'a CompState,
    queries: &'a Queries<'a>,
    k: usize,
}

/// Picks the rows of every token of a span.
pub(crate) fn select(
    ctx: &Ctx<'_>,
    piece: &Piece,
    index: &CompState,
    queries: &Queries<'_>,
    p: &mut Picks,
) {
    let s = Selection {
        piece,
        index,
        queries,
        k: ctx.meta.index_top_k,
    };
    if piece.len >= ctx.pool.threads() {
        s.by_queries(ctx, p);
    } else {
        s.by_rows(ctx, p);
    }
    if mutant(25) {
        let (k, last) = (s.k, piece.len - 1);
        for i in 0..last {
            p.rows.copy_within(last * k..(last + 1) * k, i * k);
            p.count[i] = p.count[last];
        }
    }
}

impl Selection<'_> {
    /// Rows that query `i` of the span sees.
    fn seen(&self, i: usize) -> usize {
        let s = &self.index.shape;
        let v = visible(self.piece.pos + i, s.ratio, self.piece.len);
        (if mutant(23) { v + 1 } else { v }).min(s.max_rows)
    }

    /// Rows that any query of `range` sees.
    fn most(&self, range: Range<usize>) -> usize {
        range.map(|i| self.seen(i)).max().unwrap_or(0)
    }

    /// A task is a group of queries with all their rows.
    fn by_queries(&self, ctx: &Ctx<'_>, p: &mut Picks) {
        let (len, k) = (self.piece.len, self.k);
        let group = (len / (2 * ctx.pool.threads())).clamp(1, GROUP);
        let groups = len.div_ceil(group);
        p.rows.resize(groups * group * k, 0);
        p.count.resize(groups * group, 0);
        let parts = (split(&mut p.rows, group * k), split(&mut p.count, group));
        ctx.pool.each(groups, 1, parts, |g, (rows, count)| {
            let range = g * group..len.min((g + 1) * group);
            LOCAL.with_borrow_mut(|l| {
                l.reserve(self.index.shape.max_rows);
                let most = self.most(range.clone());
                let stride = most.next_multiple_of(INDEX_TILE);
                if most > k {
                    l.scores.resize(range.len() * stride, 0.0);
                    let tokens = self.piece.at + range.start..self.piece.at + range.end;
                    let (store, out) = (&self.index.rows, &mut l.scores);
                    self.queries
                        .score(tokens, store, 0..most, &mut l.tile, out, stride);
                }
                for (j, i) in range.enumerate() {
                    let v = self.seen(i);
                    let scores = l.scores.get(j * stride..j * stride + v).unwrap_or(&[]);
                    let rows = &mut rows[j * k..(j + 1) * k];
                    count[j] = pick(scores, v, k, &mut l.ranks, &mut l.picks, rows);
                }
            });
        });
    }

    /// A task is a chunk of rows for all queries; then every query picks.
    fn by_rows(&self, ctx: &Ctx<'_>, p: &mut Picks) {
        let (len, k) = (self.piece.len, self.k);
        p.rows.resize(len * k, 0);
        p.count.resize(len, 0);
        let most = self.most(0..len);
        let q = self.queries;
        let tile_macs = INDEX_TILE * q.n_heads * q.dim * len;
        let chunk = TASK_MACS.div_ceil(tile_macs.max(1)) * INDEX_TILE;
        if most > k {
            // Room for the longest context at once: a step must not allocate because it is later.
            let chunks = self.index.shape.max_rows.div_ceil(chunk);
            let room = chunks * len * chunk;
            p.scores.reserve(room.saturating_sub(p.scores.len()));
            let chunks = most.div_ceil(chunk);
            p.scores.resize(chunks * len * chunk, 0.0);
            let parts = split(&mut p.scores, len * chunk);
            ctx.pool.each(chunks, 1, parts, |c, out| {
                let rows = c * chunk..most.min((c + 1) * chunk);
                let tokens = self.piece.at..self.piece.at + len;
                LOCAL.with_borrow_mut(|l| {
                    q.score(tokens, &self.index.rows, rows, &mut l.tile, out, chunk);
                });
            });
        }
        let scores = &p.scores;
        let parts = (split(&mut p.rows, k), split(&mut p.count, 1));
        ctx.pool
            .each(len, grain(len, 8 * most), parts, |i, (rows, count)| {
                LOCAL.with_borrow_mut(|l| {
                    l.reserve(self.index.shape.max_rows);
                    let v = self.seen(i);
                    l.scores.clear();
                    if v > k {
                        let own = scores.chunks_exact(chunk).skip(i).step_by(len);
                        own.for_each(|s| l.scores.extend_from_slice(s));
                    }
                    count[0] = pick(&l.scores, v, k, &mut l.ranks, &mut l.picks, rows);
                });
            });
    }
}

/// All `v` rows when they fit, else the `k` best by score. Returns how many were written.
fn pick(
    scores: &[f32],
    v: usize,
    k: usize,
    ranks: &mut Vec<u64>,
    picks: &mut Vec<u32>,
    rows: &mut [u32],
) -> u32 {
    if v <= k {
        for (c, row) in rows[..v].iter_mut().enumerate() {
            *row = c as u32;
        }
        return v as u32;
    }
    top_k(&scores[..v], k, ranks, picks);
    rows.copy_from_slice(picks);
    k as u32
}
