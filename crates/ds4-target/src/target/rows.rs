//! What enters and leaves a pass: embedded streams, tapped features, rows of logits or token ids.
//!
//! Must not know: layers, state, which sequences are open.

use engine_core::mutant::mutant;
use engine_core::{Pos, Rows, Span, TokenId, Want};
use sampling::Sampler;

use crate::batch::Batch;
use crate::layers::Ctx;
use crate::pool::split;
use crate::weights::Weights;

/// Turns logits into what each row asked for. `pos`: position of each row's token.
pub(super) fn deliver(
    spans: &[Span],
    pos: impl Fn(usize) -> Pos,
    logits: &[f32],
    sampler: &mut Sampler,
    rows: &mut Rows,
) {
    let n_vocab = rows.n_vocab;
    for (i, span) in spans.iter().enumerate() {
        for row in rows.span_rows[i].clone() {
            let values = &logits[row * n_vocab..][..n_vocab];
            let keep = !matches!(span.want, Want::Ids(_));
            if keep && !(mutant(42) && row > 0) {
                rows.logit_row.push(Some(rows.logits.len() / n_vocab));
                rows.logits.extend_from_slice(values);
            } else {
                rows.logit_row.push(if keep { Some(0) } else { None });
            }
            rows.ids.push(match &span.want {
                Want::Logits => TokenId::MAX,
                // A row without numbers has no token: that is one sequence's fault, not the pass's.
                Want::Ids(plan) | Want::Both(plan) => {
                    let sound = !values.iter().any(|v| v.is_nan()) || mutant(259);
                    let drawn = sound.then(|| sampler.draw(plan, values, pos(row) + 1, &[]));
                    drawn.and_then(Result::ok).unwrap_or(TokenId::MAX)
                }
            });
        }
    }
}

pub(super) fn embed_streams(ctx: &Ctx<'_>, w: &Weights, batch: &Batch, x: &mut [f32]) {
    let d = ctx.meta.n_embd;
    ctx.pool.each(batch.n(), 16, split(x, 4 * d), |i, x| {
        let (first, rest) = x.split_at_mut(d);
        w.embed.decode(batch.tokens[i] as usize, first);
        for stream in rest.chunks_exact_mut(d) {
            if mutant(28) {
                stream.fill(0.0);
            } else {
                stream.copy_from_slice(first);
            }
        }
    });
}

/// Copies the mean of the streams after layer `at` for spans that tap it.
pub(super) fn tap(batch: &Batch, spans: &[Span], at: usize, x: &[f32], d: usize, rows: &mut Rows) {
    for ((span, piece), features) in spans.iter().zip(&batch.pieces).zip(&rows.span_features) {
        let layers = &span.tap.layers;
        for (slot, _) in layers.iter().enumerate().filter(|(_, l)| l.index() == at) {
            for i in 0..piece.len {
                let x = &x[(piece.at + i) * 4 * d..][..4 * d];
                let to = features.start + (i * layers.len() + slot) * d;
                for (j, f) in rows.features[to..to + d].iter_mut().enumerate() {
                    *f = (((x[j] + x[d + j]) + x[2 * d + j]) + x[3 * d + j]) * 0.25;
                }
            }
        }
    }
}
