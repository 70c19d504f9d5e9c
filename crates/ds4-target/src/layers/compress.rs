//! Compressors over a batch: open (key, gate) rows, and the rows that windows emit
//! (spec/ds4-architecture.md 2.8).

use ds4_kernels::cpu::{Entry, Turn, fp8_sim, hadamard, pool_row, rms_norm, rotate, round_bf16};
use engine_core::math::RopeTable;
use engine_core::mutant::mutant;

use super::Ctx;
use crate::batch::Piece;
use crate::pool::split;
use crate::state::CompState;
use crate::weights::Compressor;

/// What a compressor's rows are for: decides the rounding at production.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Attention keys: fp8 head, bf16 tail.
    Attention,
    /// Indexer keys: Hadamard, then fp4 (in the store).
    Index,
}

/// Adds the position table to the gates of a batch. `gates` `[n, wide]`.
pub(crate) fn bias_gates(
    ctx: &Ctx<'_>,
    c: &Compressor,
    ratio: usize,
    pos: &[u32],
    gates: &mut [f32],
) {
    let wide = c.gate.rows;
    let first = pos.first().copied().unwrap_or(0);
    ctx.pool.each(
        pos.len(),
        super::hc::grain(pos.len(), wide),
        split(gates, wide),
        |i, gate| {
            let p = if mutant(14) { pos[i] - first } else { pos[i] };
            let ape = &c.ape[(p as usize % ratio) * wide..][..wide];
            for (g, a) in gate.iter_mut().zip(ape) {
                *g += *a;
            }
        },
    );
}

/// The open rows of one span: its own projections, and the ring for earlier positions.
struct Open<'a> {
    state: &'a CompState,
    piece: &'a Piece,
    keys: &'a [f32],
    gates: &'a [f32],
}

impl Open<'_> {
    /// (key, gate) of position `x`, channels `from..from + width`.
    fn entry(&self, x: usize, from: usize) -> Entry<'_> {
        let width = self.state.shape.width;
        let wide = width * self.state.shape.overlap;
        if x >= self.piece.pos {
            let at = (self.piece.at + x - self.piece.pos) * wide + from;
            Entry {
                key: &self.keys[at..at + width],
                gate: &self.gates[at..at + width],
            }
        } else {
            let at = self.state.slot(x).start + from;
            Entry {
                key: &self.state.keys[at..at + width],
                gate: &self.state.gates[at..at + width],
            }
        }
    }

    /// Pools row `w` into `row`: the second halves of its own window, preceded by the first halves
    /// of the window before where windows overlap. Window 0 has no predecessor (ruling D3).
    fn pool(&self, w: usize, row: &mut [f32]) {
        let s = &self.state.shape;
        let own = s.width * (s.overlap - 1);
        let (first, second) = if mutant(11) { (own, 0) } else { (0, own) };
        let mut entries = [EMPTY; MAX_STACK];
        let mut many = Vec::new();
        let mut n = 0;
        let zeros = if mutant(13) {
            vec![0f32; s.width]
        } else {
            Vec::new()
        };
        let before = w * s.ratio..w * s.ratio;
        let before = if s.overlap == 2 && w > 0 && !(mutant(12) && self.piece.len == 1) {
            before.start - s.ratio..before.start
        } else {
            before
        };
        if mutant(13) && s.overlap == 2 && w == 0 {
            many.extend((0..s.ratio).map(|_| Entry {
                key: &zeros,
                gate: &zeros,
            }));
        }
        let own_window = w * s.ratio..(w + 1) * s.ratio;
        let all = before
            .map(|x| (x, first))
            .chain(own_window.map(|x| (x, second)));
        if s.ratio * s.overlap <= MAX_STACK && many.is_empty() {
            for (x, from) in all {
                entries[n] = self.entry(x, from);
                n += 1;
            }
            pool_row(&entries[..n], row);
        } else {
            many.extend(all.map(|(x, from)| self.entry(x, from)));
            pool_row(&many, row);
        }
    }
}

/// Windows up to this many entries pool without allocating.
const MAX_STACK: usize = 128;
const EMPTY: Entry<'static> = Entry {
    key: &[],
    gate: &[],
};

/// What shapes a finished row.
pub(crate) struct Finish<'a> {
    pub norm: &'a [f32],
    pub rope: &'a RopeTable,
    pub n_rot: usize,
    pub eps: f32,
    pub kv_sim: bool,
    pub used: Use,
}

impl Finish<'_> {
    /// Norm, rotation at the window's first token, rounding.
    fn apply(&self, w: usize, ratio: usize, pool: &[f32], row: &mut [f32]) {
        rms_norm(pool, self.norm, self.eps, row);
        let half = self.rope.inv_freq.len();
        let (mut cos, mut sin) = ([0f32; 256], [0f32; 256]);
        let at = if mutant(16) { w } else { w * ratio };
        self.rope
            .angles(at as u32, &mut cos[..half], &mut sin[..half]);
        rotate(row, &cos[..half], &sin[..half], Turn::Forward);
        match self.used {
            Use::Attention if self.kv_sim => round_kv(row, self.n_rot),
            Use::Index if self.kv_sim => hadamard(row),
            _ => {}
        }
    }
}

/// The roundings of an attention row: fp8 head, bf16 tail.
pub(crate) fn round_kv(row: &mut [f32], n_rot: usize) {
    let at = if mutant(22) {
        row.len()
    } else {
        row.len() - n_rot
    };
    let (head, tail) = row.split_at_mut(at);
    fp8_sim(head);
    for v in tail {
        *v = round_bf16(*v);
    }
}

/// Emits every row whose window ends inside the span, then keeps the span's last open rows.
/// `keys`, `gates`: `[n, wide]` of the whole batch, gates biased. `rows`: scratch.
pub(crate) fn advance(
    ctx: &Ctx<'_>,
    state: &mut CompState,
    piece: &Piece,
    keys: &[f32],
    gates: &[f32],
    finish: &Finish<'_>,
    rows: &mut Vec<f32>,
) {
    let (ratio, width) = (state.shape.ratio, state.shape.width);
    if mutant(46) && finish.used == Use::Index && (piece.pos + piece.len) / ratio == 0 {
        return;
    }
    let first = piece.pos / ratio;
    let n = (piece.pos + piece.len) / ratio - first;
    if n > 0 {
        rows.resize(2 * n * width, 0.0);
        let (pools, done) = rows.split_at_mut(n * width);
        let open = Open {
            state,
            piece,
            keys,
            gates,
        };
        let grain = super::hc::grain(n, ratio * width);
        ctx.pool.each(
            n,
            grain,
            (split(pools, width), split(done, width)),
            |i, (pool, row)| {
                open.pool(first + i, pool);
                finish.apply(first + i, ratio, pool, row);
            },
        );
        for (i, row) in done.chunks_exact(width).enumerate() {
            state.rows.put(first + i, row);
        }
    }
    let wide = width * state.shape.overlap;
    let end = piece.pos + piece.len;
    for x in end.saturating_sub(state.shape.ring).max(piece.pos)..end {
        let (slot, at) = (state.slot(x), (piece.at + x - piece.pos) * wide);
        state.keys[slot.clone()].copy_from_slice(&keys[at..at + wide]);
        state.gates[slot].copy_from_slice(&gates[at..at + wide]);
    }
}
