//! Newly committed features: projected once, into the rings of their sequences.

use ds4_kernels::cpu::{rms_norm, rms_unit};
use engine_core::mutant::mutant;
use engine_core::{Fault, Pos, SeqId};

use super::{LocalBackbone, Marks};

/// New rows of one sequence: its features `[n, captured layers, n_embd]` for positions `pos..`.
#[derive(Clone, Copy, Debug)]
pub struct Observation<'a> {
    /// The sequence.
    pub seq: SeqId,
    /// Position of the first row.
    pub pos: Pos,
    /// The rows.
    pub features: &'a [f32],
}

/// Feature rows projected at once: bounds the buffers of a long prompt.
pub(crate) const PROJECT_ROWS: usize = 256;

/// How many rows an observation has, if it may be taken by a sequence that has `there`.
pub(crate) fn rows_of(
    o: &Observation<'_>,
    width: usize,
    there: Option<Marks>,
) -> Result<usize, Fault> {
    let n = o.features.len() / width;
    if o.features.len() != n * width {
        return Err(Fault::BadState {
            field: "features",
            expected: format!("rows of {width}"),
            got: format!("{} values", o.features.len()),
        });
    }
    may_take(o.seq, o.pos, n, there)?;
    Ok(n)
}

/// Refuses `n` rows for `pos..` that a sequence that has `there` may not take.
pub(crate) fn may_take(seq: SeqId, pos: Pos, n: usize, there: Option<Marks>) -> Result<(), Fault> {
    let (wanted, limit) = (u64::from(pos) + n as u64, u64::from(Pos::MAX));
    if wanted > limit {
        return Err(Fault::ContextFull { seq, wanted, limit });
    }
    match there {
        Some(r) if n > 0 && !r.is_empty() && r.end() != pos => Err(Fault::WrongPosition {
            seq,
            expected: r.end(),
            got: pos,
        }),
        _ => Ok(()),
    }
}

impl LocalBackbone {
    /// `Backbone::observe` for many sequences with one pass over the weights. Refused as a whole:
    /// a fault changes nothing.
    ///
    /// # Errors
    /// As `Backbone::observe`; `DuplicateSpan` if a sequence is named twice, `Exhausted`.
    pub fn observe_many(&mut self, list: &[Observation<'_>]) -> Result<(), Fault> {
        let mut counts = Vec::with_capacity(list.len());
        for (i, o) in list.iter().enumerate() {
            if list[..i].iter().any(|other| other.seq == o.seq) {
                return Err(Fault::DuplicateSpan(o.seq));
            }
            let width = self.model.meta.feature_width();
            counts.push(rows_of(o, width, self.slot(o.seq)?)?);
        }
        for (o, n) in list.iter().zip(&counts) {
            if *n > 0 && self.open(o.seq).marks.is_empty() {
                self.open(o.seq).marks.begin(o.pos);
            }
        }
        self.project(list, &counts);
        for (o, n) in list.iter().zip(&counts) {
            if *n > 0 {
                self.open(o.seq).marks.advance(o.pos + *n as Pos);
            }
        }
        Ok(())
    }

    /// Projects the rows of a call that a ring will still hold at its end.
    fn project(&mut self, list: &[Observation<'_>], counts: &[usize]) {
        self.scratch.clear();
        let width = self.model.meta.feature_width();
        for (owner, (o, n)) in list.iter().zip(counts).enumerate() {
            let mut skip = n.saturating_sub(self.shape.ring);
            if mutant(215) {
                skip = n.saturating_sub(1);
            }
            for (i, row) in o.features.chunks_exact(width).enumerate().skip(skip) {
                self.scratch.features.extend_from_slice(row);
                self.scratch.owner.push(owner);
                self.scratch.pos.push(o.pos + i as Pos);
                if self.scratch.pos.len() == PROJECT_ROWS {
                    self.project_rows(list);
                }
            }
        }
        self.project_rows(list);
    }

    /// Projects the rows gathered in the scratch into their rings and empties it.
    fn project_rows(&mut self, list: &[Observation<'_>]) {
        let Self {
            model,
            runner,
            scratch: s,
            seqs,
            ..
        } = self;
        let (w, m) = (&model.backbone, &model.meta.stage);
        let (n, d, hd) = (s.pos.len(), m.n_embd, m.head_dim);
        if n == 0 {
            return;
        }
        // Features are about a thousand; a norm follows the projection, so only eps sees the scale.
        if !mutant(207) {
            for row in s.features.chunks_exact_mut(model.meta.feature_width()) {
                rms_unit(row, m.rms_eps);
            }
        }
        s.raw.resize(n * d, 0.0);
        s.context.resize(n * d, 0.0);
        runner.product(&w.fc, &s.features, &mut s.raw);
        for (row, out) in s.raw.chunks_exact(d).zip(s.context.chunks_exact_mut(d)) {
            rms_norm(row, &w.hidden_norm, m.rms_eps, out);
        }
        s.keys.resize(n * hd, 0.0);
        for (stage, block) in w.stages.iter().enumerate() {
            if mutant(213) {
                for (raw, out) in s.raw.chunks_exact_mut(d).zip(s.context.chunks_exact(d)) {
                    rms_norm(out, &block.attn.norm, m.rms_eps, raw);
                }
                runner.key_rows(&block.attn, &s.raw, &s.pos, &mut s.keys);
            } else {
                runner.key_rows(&block.attn, &s.context, &s.pos, &mut s.keys);
            }
            for ((owner, pos), key) in s.owner.iter().zip(&s.pos).zip(s.keys.chunks_exact(hd)) {
                if let Some(rings) = seqs[list[*owner].seq.index()].as_mut() {
                    rings.row_mut(stage, *pos).copy_from_slice(key);
                }
            }
        }
        s.clear();
    }
}
