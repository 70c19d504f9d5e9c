//! Blocks of many sequences in one batch.

use ds4_target::blocks::Group;
use engine_core::mutant::mutant;
use engine_core::seams::Ask;
use engine_core::{Fault, Pos, SeqId};

use super::LocalBackbone;
use super::rings::{Marks, Shape};

/// Which asks have context to draft from. Others get no rows: a block that sees only itself has
/// nothing to say. `rows`, `d`: rows of a block and their width; `marks`: which rows a sequence has.
pub(crate) fn drafting(
    asks: &[Ask],
    block: &[f32],
    [rows, d]: [usize; 2],
    marks: impl Fn(SeqId) -> Result<Option<Marks>, Fault>,
) -> Result<Vec<usize>, Fault> {
    if block.len() != asks.len() * rows * d {
        return Err(Fault::BadState {
            field: "block rows",
            expected: format!("{} asks of {rows} rows of {d}", asks.len()),
            got: format!("{} values", block.len()),
        });
    }
    drafting_of(asks, rows, marks)
}

/// [`drafting`] for blocks that lie elsewhere.
pub(crate) fn drafting_of(
    asks: &[Ask],
    rows: usize,
    marks: impl Fn(SeqId) -> Result<Option<Marks>, Fault>,
) -> Result<Vec<usize>, Fault> {
    let mut live = Vec::with_capacity(asks.len());
    for (i, ask) in asks.iter().enumerate() {
        let Some(marks) = marks(ask.seq)?.filter(|m| !m.is_empty()) else {
            continue;
        };
        let (seq, got) = (ask.seq, ask.pos);
        // Saturated, a seed beyond all positions meets the check below.
        let expected = marks.end().saturating_add(ask.ahead);
        if expected != got && !mutant(363) {
            return Err(Fault::WrongPosition { seq, expected, got });
        }
        let (wanted, limit) = (u64::from(got) + rows as u64, u64::from(Pos::MAX));
        if wanted > limit {
            return Err(Fault::ContextFull { seq, wanted, limit });
        }
        if ask.depth > 0 {
            live.push(i);
        }
    }
    Ok(live)
}

impl LocalBackbone {
    /// Runs the blocks of the asks `live` and leaves their rows in the scratch.
    pub(super) fn run_blocks(&mut self, asks: &[Ask], live: &[usize], block: &[f32]) {
        let (b, d, hd) = (self.block(), self.model.meta.stage.n_embd, self.shape.width);
        let Self {
            model,
            runner,
            scratch: s,
            seqs,
            shape,
            ..
        } = self;
        s.clear();
        s.rows.clear();
        for i in live {
            s.rows.extend_from_slice(&block[i * b * d..(i + 1) * b * d]);
            let first = if mutant(202) {
                asks[*i].pos - 1
            } else {
                asks[*i].pos
            };
            s.pos.extend((first..).take(b));
        }
        runner.begin(&s.rows, &s.pos);
        for (stage, weights) in model.backbone.stages.iter().enumerate() {
            s.keys.clear();
            let mut ends = Vec::with_capacity(live.len());
            for i in live {
                if let Some(rings) = seqs[asks[*i].seq.index()].as_ref() {
                    for pos in seen(&rings.marks, shape) {
                        s.keys.extend_from_slice(rings.row(stage, pos));
                    }
                }
                ends.push(s.keys.len() / hd);
            }
            runner.block(weights, &groups(&s.keys, &ends, b, hd));
        }
        let n = live.len() * b;
        s.pre_norm.resize(n * d, 0.0);
        s.normed.resize(n * d, 0.0);
        let w = &model.backbone;
        runner.head(&w.hc_head, &w.output_norm, &mut s.pre_norm, &mut s.normed);
    }
}

/// Positions whose rows a block sees.
fn seen(rings: &Marks, shape: &Shape) -> std::ops::Range<Pos> {
    let live = rings.live();
    if mutant(211) && live.len() == shape.window {
        return live.start + 1..live.end;
    }
    if mutant(212) && live.start > rings.low() {
        return live.start - 1..live.end;
    }
    live
}

/// One group a block: its context rows end at `ends[block]`.
fn groups<'a>(keys: &'a [f32], ends: &[usize], b: usize, hd: usize) -> Vec<Group<'a>> {
    let mut from = 0;
    let mut groups = Vec::with_capacity(ends.len());
    for (i, end) in ends.iter().enumerate() {
        let context = &keys[from * hd..end * hd];
        from = *end;
        if mutant(210) {
            groups.extend((i * b..(i + 1) * b).map(|row| Group {
                rows: row..row + 1,
                context,
            }));
        } else {
            let rows = i * b..(i + 1) * b;
            groups.push(Group { rows, context });
        }
    }
    groups
}
