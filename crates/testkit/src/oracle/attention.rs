//! Attention of one layer over a whole token list (spec/ds4-architecture.md 2.4 to 2.7).

use super::compress::compressed_rows;
use super::index::{IndexDump, index};
use super::model::{Mat, OracleModel, axpy, dot, inv_rms, matmul, project, rms_norm};
use super::rope::Rope;
use super::{OracleConfig, sim};
use crate::Error;

/// What the attention of one layer did.
#[derive(Clone, Debug, Default)]
pub struct AttentionDump {
    /// Queries after norm and rotation, `[T][n_head * head_dim]`.
    pub q: Mat,
    /// Raw rows as cached, `[T][head_dim]`.
    pub kv: Mat,
    /// Compressed rows as cached, `[T / ratio][head_dim]`; empty without compression.
    pub comp_kv: Mat,
    /// The indexer's part, on layers that have one.
    pub index: Option<IndexDump>,
    /// Heads after the inverse rotation, before the output projections, `[T][n_head * head_dim]`.
    pub heads: Mat,
    /// The sublayer's output, `[T][D]`.
    pub out: Mat,
}

/// Runs attention over `h` `[T][D]`, the normed input. Position of row t: `pos0 + t`; compressed
/// layers need `pos0 == 0`, since rows before the list do not exist.
pub(super) fn attention(
    model: &OracleModel,
    layer: usize,
    h: &Mat,
    pos0: usize,
    kv_sim: bool,
) -> Result<AttentionDump, Error> {
    let c = &model.config;
    let ratio = c.ratios[layer];
    let rope = Rope::new(c, ratio);
    let get = |suffix: &str| model.layer(layer, suffix);
    let qr = rms_norm(
        project(h, get("attn_q_a.weight")?),
        get("attn_q_a_norm.weight")?,
        c.rms_eps,
    );
    let mut q = project(&qr, get("attn_q_b.weight")?);
    q.par_rows(|t, row| query_heads(c, &rope, pos0 + t, row));
    let kv = project(h, get("attn_kv.weight")?);
    let mut kv = rms_norm(kv, get("attn_kv_a_norm.weight")?, c.rms_eps);
    kv.par_rows(|t, row| rope.forward(row, pos0 + t));
    let mut comp_kv = match ratio {
        0 => Mat::zeros(0, c.head_dim),
        _ => compressed_rows(model, layer, "attn_compressor", h, &rope)?,
    };
    if kv_sim {
        kv.par_rows(|_, row| sim::kv_row(row, c.n_rot));
        comp_kv.par_rows(|_, row| sim::kv_row(row, c.n_rot));
    }
    let index = match c.has_indexer(layer) {
        true => Some(index(model, layer, h, &qr, &rope, kv_sim)?),
        false => None,
    };
    let sinks = &get("attn_sinks.weight")?.data;
    let mut heads = Mat::zeros(h.rows, q.cols);
    heads.par_rows(|t, out| {
        let rows = visible_rows(c, layer, t, &kv, &comp_kv, index.as_ref());
        let per_head = q.row(t).chunks_exact(c.head_dim).zip(sinks);
        for (o, (q, sink)) in out.chunks_exact_mut(c.head_dim).zip(per_head) {
            attend(q, &rows, f64::from(*sink), o);
            rope.inverse(o, pos0 + t);
        }
    });
    let out = output(model, layer, &heads)?;
    Ok(AttentionDump {
        q,
        kv,
        comp_kv,
        index,
        heads,
        out,
    })
}

/// Norm of each head by itself, without weights, then rotation.
pub(super) fn query_heads(c: &OracleConfig, rope: &Rope, pos: usize, row: &mut [f64]) {
    for head in row.chunks_exact_mut(c.head_dim) {
        let r = inv_rms(head, c.rms_eps);
        head.iter_mut().for_each(|v| *v *= r);
        rope.forward(head, pos);
    }
}

/// The rows query `t` sees: raw in time order, then compressed ascending (spec 2.6).
fn visible_rows<'a>(
    c: &OracleConfig,
    layer: usize,
    t: usize,
    kv: &'a Mat,
    comp_kv: &'a Mat,
    index: Option<&IndexDump>,
) -> Vec<&'a [f64]> {
    let mut rows: Vec<&[f64]> = ((t + 1).saturating_sub(c.n_swa)..=t)
        .map(|p| kv.row(p))
        .collect();
    match (c.ratios[layer], index) {
        (0, _) => {}
        (_, Some(index)) => rows.extend(index.picks[t].iter().map(|r| comp_kv.row(*r as usize))),
        (ratio, None) => rows.extend((0..(t + 1) / ratio).map(|r| comp_kv.row(r))),
    }
    rows
}

/// Softmax attention of one head; the sink takes weight but has no value.
pub(super) fn attend(q: &[f64], rows: &[&[f64]], sink: f64, out: &mut [f64]) {
    let scale = 1.0 / (q.len() as f64).sqrt();
    let scores: Vec<f64> = rows.iter().map(|k| dot(q, k) * scale).collect();
    let max = scores.iter().copied().fold(sink, f64::max);
    let mut den = (sink - max).exp();
    out.fill(0.0);
    for (s, k) in scores.iter().zip(rows) {
        let w = (s - max).exp();
        den += w;
        axpy(w, k, out);
    }
    out.iter_mut().for_each(|o| *o /= den);
}

/// Grouped low-rank output: each group of consecutive heads has its own rows of output_a.
pub(super) fn output(model: &OracleModel, layer: usize, heads: &Mat) -> Result<Mat, Error> {
    let c = &model.config;
    let a = model.layer(layer, "attn_output_a.weight")?;
    let group_dim = c.n_head / c.o_groups * c.head_dim;
    let mut low = Mat::zeros(heads.rows, c.o_groups * c.o_lora_rank);
    for g in 0..c.o_groups {
        let mut x = Mat::zeros(heads.rows, group_dim);
        x.par_rows(|t, row| row.copy_from_slice(&heads.row(t)[g * group_dim..][..group_dim]));
        let weights = &a.data[g * c.o_lora_rank * group_dim..];
        let y = matmul(&x, weights, c.o_lora_rank);
        low.par_rows(|t, row| {
            row[g * c.o_lora_rank..][..c.o_lora_rank].copy_from_slice(y.row(t));
        });
    }
    Ok(project(&low, model.layer(layer, "attn_output_b.weight")?))
}
