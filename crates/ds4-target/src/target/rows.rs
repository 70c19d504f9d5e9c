//! What enters and leaves a pass: embedded streams, tapped features, rows of logits or token ids.
//!
//! Must not know: layers, state, which sequences are open.

use engine_core::mutant::mutant;
use engine_core::seams::{Candidates, TargetInfo};
use engine_core::{Fault, Out, Pos, Rows, Span, TokenId, Want};
use sampling::Sampler;

use crate::batch::Batch;
use crate::layers::Ctx;
use crate::pool::split;
use crate::weights::Weights;

/// Refuses what no pass does: taps on layers the model does not have, plans that need history.
pub(crate) fn refuse(spans: &[Span], n_layer: usize) -> Result<(), Fault> {
    for layer in spans.iter().flat_map(|s| s.tap.layers.iter()) {
        if layer.index() >= n_layer {
            return Err(Fault::Unsupported(
                "a tap on a layer the model does not have",
            ));
        }
    }
    let needs_history = |want: &Want| match want {
        Want::Ids(p) | Want::Both(p) => !p.penalties.is_neutral(),
        Want::Logits => false,
    };
    if spans.iter().any(|s| needs_history(&s.want)) {
        return Err(Fault::Unsupported(
            "a plan with penalties in the pass (ask for logits)",
        ));
    }
    Ok(())
}

/// Which rows each span gets, and room for its features.
pub(crate) fn lay_out(rows: &mut Rows, spans: &[Span], n_vocab: usize, n_embd: usize) {
    rows.clear(n_vocab);
    let mut row = 0;
    for span in spans {
        let n = match span.out {
            Out::None => 0,
            Out::Last => 1,
            Out::All => span.range.len(),
        };
        rows.span_rows.push(row..row + n);
        row += n;
        let at = rows.features.len();
        let len = span.range.len() * span.tap.layers.len() * n_embd;
        rows.features.resize(at + len, f32::NAN);
        rows.span_features.push(at..at + len);
    }
}

/// Refuses chains whose rows are not there or whose seeds are no tokens.
pub(crate) fn check_chains(
    info: &TargetInfo,
    rows: &[f32],
    chains: &[Candidates<'_>],
) -> Result<(), Fault> {
    let wanted: usize = chains.iter().map(|c| c.rows).sum();
    if rows.len() != wanted * info.n_embd {
        return Err(Fault::BadState {
            field: "rows of chains",
            expected: format!("{wanted} rows of {}", info.n_embd),
            got: format!("{} values", rows.len()),
        });
    }
    let n_vocab = info.n_vocab;
    let mut seeds = chains.iter().map(|c| c.seed).enumerate();
    match seeds.find(|(_, token)| *token as usize >= n_vocab) {
        None => Ok(()),
        Some((index, token)) => Err(Fault::BadToken {
            token,
            index,
            n_vocab,
        }),
    }
}

/// How many final hidden states `rows` holds; refuses lengths that do not fit.
pub(crate) fn check_head(info: &TargetInfo, rows: &[f32], out: &[f32]) -> Result<usize, Fault> {
    let (d, v) = (info.n_embd, info.n_vocab);
    let n = rows.len() / d;
    if rows.len() != n * d || out.len() != n * v {
        let expected = format!("rows of {d}, logits of {v}");
        let got = format!("{} and {} values", rows.len(), out.len());
        return Err(Fault::BadState {
            field: "head rows",
            expected,
            got,
        });
    }
    Ok(n)
}

/// Embedding rows, `out` `[tokens, n_embd]`.
pub(crate) fn embed(
    w: &Weights,
    info: &TargetInfo,
    tokens: &[TokenId],
    out: &mut [f32],
) -> Result<(), Fault> {
    let (d, n_vocab) = (info.n_embd, info.n_vocab);
    if out.len() != tokens.len() * d {
        let (expected, got) = ((tokens.len() * d).to_string(), out.len().to_string());
        return Err(Fault::BadState {
            field: "embedding rows",
            expected,
            got,
        });
    }
    for (index, token) in tokens.iter().enumerate() {
        if *token as usize >= n_vocab {
            return Err(Fault::BadToken {
                token: *token,
                index,
                n_vocab,
            });
        }
    }
    for (token, out) in tokens.iter().zip(out.chunks_exact_mut(d)) {
        w.embed.decode(*token as usize, out);
    }
    Ok(())
}

/// What a target brings for a row.
pub(crate) enum Given<'a> {
    /// Its logits.
    Logits(&'a [f32]),
    /// The token drawn from it elsewhere, for a row that wants its token only.
    Token(TokenId),
}

/// Turns rows into what each span asked for. `pos`: position of each row's token.
pub(crate) fn deliver<'a>(
    spans: &[Span],
    pos: impl Fn(usize) -> Pos,
    given: impl Fn(usize) -> Given<'a>,
    sampler: &mut Sampler,
    rows: &mut Rows,
) {
    let n_vocab = rows.n_vocab;
    for (i, span) in spans.iter().enumerate() {
        for row in rows.span_rows[i].clone() {
            let values = match given(row) {
                Given::Logits(values) => values,
                Given::Token(token) => {
                    rows.logit_row.push(None);
                    rows.ids.push(token);
                    continue;
                }
            };
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

pub(crate) fn embed_streams(ctx: &Ctx<'_>, w: &Weights, batch: &Batch, x: &mut [f32]) {
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
pub(crate) fn tap(batch: &Batch, spans: &[Span], at: usize, x: &[f32], d: usize, rows: &mut Rows) {
    for ((span, piece), features) in spans.iter().zip(&batch.pieces).zip(&rows.span_features) {
        let layers = &span.tap.layers;
        for (slot, _) in layers.iter().enumerate().filter(|(_, l)| l.index() == at) {
            for i in 0..piece.len {
                let x = &x[(piece.at + i) * 4 * d..][..4 * d];
                let to = features.start + (i * layers.len() + slot) * d;
                ds4_kernels::cpu::hc_tap(x, &mut rows.features[to..to + d]);
            }
        }
    }
}
