//! Router, experts and the shared expert (spec/ds4-architecture.md 2.10).

use rayon::prelude::*;

use super::model::{Mat, OracleModel, axpy, matmul, project, sigmoid};
use super::top_k;
use crate::Error;

/// What the feed-forward part of one layer did.
#[derive(Clone, Debug, Default)]
pub struct MoeDump {
    /// Experts of each token in slot order, `[T][n_expert_used]`.
    pub route_id: Vec<Vec<u32>>,
    /// Their weights, `[T][n_expert_used]`.
    pub route_w: Vec<Vec<f64>>,
    /// What selection compares: probability plus bias, `[T][n_expert]`; on layers routed by table
    /// the probabilities alone.
    pub route_score: Mat,
    /// Whether the table chose the experts.
    pub by_table: bool,
    /// The sublayer's output, `[T][D]`.
    pub out: Mat,
}

/// sqrt(softplus(x)); softplus is the identity above 20.
#[must_use]
pub fn sqrt_softplus(x: f64) -> f64 {
    let softplus = if x > 20.0 { x } else { x.exp().ln_1p() };
    softplus.sqrt()
}

/// silu(min(gate, limit)) * clamp(up, -limit, limit).
#[must_use]
pub fn clamped_swiglu(gate: f64, up: f64, limit: f64) -> f64 {
    let g = gate.min(limit);
    g * sigmoid(g) * up.clamp(-limit, limit)
}

/// Runs the layer over `h` `[T][D]`, the normed input of `tokens`.
pub(super) fn moe(
    model: &OracleModel,
    layer: usize,
    h: &Mat,
    tokens: &[u32],
) -> Result<MoeDump, Error> {
    let c = &model.config;
    let mut prob = project(h, model.layer(layer, "ffn_gate_inp.weight")?);
    prob.par_rows(|_, row| row.iter_mut().for_each(|v| *v = sqrt_softplus(*v)));
    let mut route_score = prob.clone();
    let by_table = layer < c.n_hash;
    let route_id = if by_table {
        tokens
            .iter()
            .map(|t| table_row(model, layer, *t))
            .collect::<Result<Vec<_>, _>>()?
    } else {
        let bias = &model.layer(layer, "exp_probs_b.bias")?.data;
        route_score.par_rows(|_, row| {
            row.iter_mut()
                .zip(bias)
                .for_each(|(s, b)| *s += f64::from(*b));
        });
        (0..h.rows)
            .map(|t| top_k(route_score.row(t), c.n_expert_used))
            .collect()
    };
    let weights = |(t, ids): (usize, &Vec<u32>)| {
        let p: Vec<f64> = ids.iter().map(|e| prob.row(t)[*e as usize]).collect();
        let sum: f64 = p.iter().sum();
        p.iter()
            .map(|p| f64::from(c.route_scale) * p / sum)
            .collect()
    };
    let route_w: Vec<Vec<f64>> = route_id.iter().enumerate().map(weights).collect();
    let mut out = routed(model, layer, h, &route_id, &route_w)?;
    let shared = shared(model, layer, h)?;
    out.par_rows(|t, row| axpy(1.0, shared.row(t), row));
    Ok(MoeDump {
        route_id,
        route_w,
        route_score,
        by_table,
        out,
    })
}

/// The experts the table names for a token, in its order.
fn table_row(model: &OracleModel, layer: usize, token: u32) -> Result<Vec<u32>, Error> {
    let table = model.layer(layer, "ffn_gate_tid2eid.weight")?;
    let n_expert = model.config.n_expert;
    let id = |v: &f32| match v.fract() == 0.0 && (0.0..n_expert as f32).contains(v) {
        true => Ok(*v as u32),
        false => Err(Error::ExpertId {
            name: format!("blk.{layer}.ffn_gate_tid2eid.weight"),
            token,
            got: *v,
            n_expert,
        }),
    };
    table.row(token as usize).iter().map(id).collect()
}

/// Sum over slots of the chosen experts' outputs.
fn routed(
    model: &OracleModel,
    layer: usize,
    h: &Mat,
    ids: &[Vec<u32>],
    weights: &[Vec<f64>],
) -> Result<Mat, Error> {
    let c = &model.config;
    let gate = model.layer(layer, "ffn_gate_exps.weight")?;
    let up = model.layer(layer, "ffn_up_exps.weight")?;
    let down = model.layer(layer, "ffn_down_exps.weight")?;
    let limit = f64::from(c.clamp_exp[layer]);
    let size = c.n_ff * c.n_embd;
    // All tokens of one expert together; the sum over slots is in order all the same.
    let by_expert: Vec<(Vec<(usize, usize)>, Mat)> = (0..c.n_expert)
        .into_par_iter()
        .map(|e| {
            let users = users_of(e, ids);
            let x = h.gather(users.iter().map(|(t, _)| *t));
            let part = |w: &super::Tensor| w.data[e * size..(e + 1) * size].to_vec();
            let mut mid = hidden(&x, &part(gate), &part(up), c.n_ff, limit);
            for (row, (t, slot)) in users.iter().enumerate() {
                let w = weights[*t][*slot];
                mid.row_mut(row).iter_mut().for_each(|v| *v *= w);
            }
            let y = matmul(&mid, &part(down), c.n_embd);
            (users, y)
        })
        .collect();
    let mut slots = vec![Mat::zeros(h.rows, c.n_embd); c.n_expert_used];
    for (users, y) in &by_expert {
        for (row, (t, slot)) in users.iter().enumerate() {
            slots[*slot].row_mut(*t).copy_from_slice(y.row(row));
        }
    }
    let mut out = Mat::zeros(h.rows, c.n_embd);
    out.par_rows(|t, row| slots.iter().for_each(|s| axpy(1.0, s.row(t), row)));
    Ok(out)
}

/// (token, slot) pairs that use expert `e`.
fn users_of(e: usize, ids: &[Vec<u32>]) -> Vec<(usize, usize)> {
    let slots = |(t, row): (usize, &Vec<u32>)| {
        let row = row.clone().into_iter().enumerate();
        row.filter(move |(_, id)| *id as usize == e)
            .map(move |(slot, _)| (t, slot))
    };
    ids.iter().enumerate().flat_map(slots).collect()
}

fn shared(model: &OracleModel, layer: usize, h: &Mat) -> Result<Mat, Error> {
    let get = |suffix: &str| model.layer(layer, suffix);
    let limit = f64::from(model.config.clamp_shexp[layer]);
    let (gate, up) = (get("ffn_gate_shexp.weight")?, get("ffn_up_shexp.weight")?);
    let mid = hidden(h, &gate.data, &up.data, model.config.n_ff, limit);
    Ok(project(&mid, get("ffn_down_shexp.weight")?))
}

fn hidden(x: &Mat, gate: &[f32], up: &[f32], n_ff: usize, limit: f64) -> Mat {
    let mut mid = matmul(x, gate, n_ff);
    let up = matmul(x, up, n_ff);
    mid.par_rows(|t, row| {
        for (g, u) in row.iter_mut().zip(up.row(t)) {
            *g = clamped_swiglu(*g, *u, limit);
        }
    });
    mid
}
