//! The tensors of the tiny model and drafter, written down independently of the converter.

use super::*;

/// The tensors of the tiny target.
#[allow(clippy::too_many_lines)] // A table.
pub fn target_rows() -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    let mut put = |g: &str, o: &str, h: &str, kind, shape: &[usize]| {
        rows.push((g.into(), o.into(), h.into(), kind, shape.to_vec()));
    };
    use Kind::{Dense, Plain, Small};
    put(
        "token_embd.weight",
        "embed.weight",
        "model.embed_tokens.weight",
        Plain,
        &[VOCAB, N],
    );
    put(
        "output.weight",
        "head.weight",
        "lm_head.weight",
        Plain,
        &[VOCAB, N],
    );
    put(
        "output_norm.weight",
        "norm.weight",
        "model.norm.weight",
        Small,
        &[N],
    );
    put(
        "output_hc_fn.weight",
        "hc_head_fn",
        "model.hc_head.hc_fn",
        Small,
        &[4, 4 * N],
    );
    put(
        "output_hc_base.weight",
        "hc_head_base",
        "model.hc_head.hc_base",
        Small,
        &[4],
    );
    put(
        "output_hc_scale.weight",
        "hc_head_scale",
        "model.hc_head.hc_scale",
        Small,
        &[1],
    );
    for (l, ratio) in RATIOS.into_iter().enumerate() {
        let (g, o, h) = (
            format!("blk.{l}."),
            format!("layers.{l}."),
            format!("model.layers.{l}."),
        );
        layer(
            &mut rows,
            &g,
            &o,
            &h,
            if l == 0 {
                Routing::Table
            } else {
                Routing::Bias
            },
        );
        if ratio > 0 {
            let o = format!("{o}attn.compressor.");
            let h = format!("{h}self_attn.compressor.");
            compressor(
                &mut rows,
                &format!("{g}attn_compressor"),
                &o,
                &h,
                ratio,
                HEAD_DIM,
            );
        }
        if ratio == 4 {
            let (o, h) = (
                format!("{o}attn.indexer."),
                format!("{h}self_attn.compressor.indexer."),
            );
            let name = format!("{g}indexer_compressor");
            compressor(
                &mut rows,
                &name,
                &format!("{o}compressor."),
                &h,
                ratio,
                INDEX_DIM,
            );
            let mut put = |g: String, o: String, h: String, kind, shape: &[usize]| {
                rows.push((g, o, h, kind, shape.to_vec()));
            };
            put(
                format!("{g}indexer.attn_q_b.weight"),
                format!("{o}wq_b.weight"),
                format!("{h}q_b_proj.weight"),
                Dense,
                &[INDEX_HEADS * INDEX_DIM, Q_LORA],
            );
            put(
                format!("{g}indexer.proj.weight"),
                format!("{o}weights_proj.weight"),
                format!("{h}scorer.weights_proj.weight"),
                Plain,
                &[INDEX_HEADS, N],
            );
        }
    }
    rows
}

pub const STAGES: usize = 2;
pub const CAPTURE: [usize; 2] = [1, 2];
pub const RANK: usize = 32;

/// The tensors of the tiny drafter. Official names only.
pub fn draft_rows() -> Vec<Row> {
    use Kind::{Dense, Plain, Small};
    let mut rows: Vec<Row> = Vec::new();
    let mut put = |g: &str, o: String, kind, shape: &[usize]| {
        rows.push((g.into(), o, String::new(), kind, shape.to_vec()));
    };
    let last = STAGES - 1;
    let m = |s: usize, name: &str| format!("mtp.{s}.{name}");
    put(
        "dflash.fc.weight",
        m(0, "main_proj.weight"),
        Dense,
        &[N, CAPTURE.len() * N],
    );
    put(
        "dflash.hidden_norm.weight",
        m(0, "main_norm.weight"),
        Small,
        &[N],
    );
    put("output_norm.weight", m(last, "norm.weight"), Small, &[N]);
    put(
        "output_hc_fn.weight",
        m(last, "hc_head_fn"),
        Small,
        &[4, 4 * N],
    );
    put(
        "output_hc_base.weight",
        m(last, "hc_head_base"),
        Small,
        &[4],
    );
    put(
        "output_hc_scale.weight",
        m(last, "hc_head_scale"),
        Small,
        &[1],
    );
    let markov = |w: &str| m(last, &format!("markov_head.markov_{w}.weight"));
    put(
        "dflash.dspark.markov.w1",
        markov("w1"),
        Plain,
        &[VOCAB, RANK],
    );
    put(
        "dflash.dspark.markov.w2",
        markov("w2"),
        Plain,
        &[VOCAB, RANK],
    );
    let head = m(last, "confidence_head.proj.weight");
    put(
        "dflash.dspark.confidence.weight",
        head,
        Plain,
        &[1, N + RANK],
    );
    for s in 0..STAGES {
        layer(
            &mut rows,
            &format!("blk.{s}."),
            &m(s, ""),
            "",
            Routing::Bias,
        );
    }
    rows
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Routing {
    Table,
    Bias,
}

#[allow(clippy::too_many_lines)] // A table.
fn layer(rows: &mut Vec<Row>, g: &str, o: &str, h: &str, routing: Routing) {
    use Kind::{Dense, Expert, Plain, Small, Table};
    let heads = HEADS * HEAD_DIM;
    let mut list: Vec<(&str, &str, &str, Kind, Vec<usize>)> = vec![
        (
            "hc_attn_fn.weight",
            "hc_attn_fn",
            "attn_hc.fn",
            Small,
            vec![24, 4 * N],
        ),
        (
            "hc_attn_base.weight",
            "hc_attn_base",
            "attn_hc.base",
            Small,
            vec![24],
        ),
        (
            "hc_attn_scale.weight",
            "hc_attn_scale",
            "attn_hc.scale",
            Small,
            vec![3],
        ),
        (
            "hc_ffn_fn.weight",
            "hc_ffn_fn",
            "ffn_hc.fn",
            Small,
            vec![24, 4 * N],
        ),
        (
            "hc_ffn_base.weight",
            "hc_ffn_base",
            "ffn_hc.base",
            Small,
            vec![24],
        ),
        (
            "hc_ffn_scale.weight",
            "hc_ffn_scale",
            "ffn_hc.scale",
            Small,
            vec![3],
        ),
        (
            "attn_norm.weight",
            "attn_norm.weight",
            "input_layernorm.weight",
            Small,
            vec![N],
        ),
        (
            "ffn_norm.weight",
            "ffn_norm.weight",
            "post_attention_layernorm.weight",
            Small,
            vec![N],
        ),
        (
            "attn_q_a.weight",
            "attn.wq_a.weight",
            "self_attn.q_a_proj.weight",
            Dense,
            vec![Q_LORA, N],
        ),
        (
            "attn_q_a_norm.weight",
            "attn.q_norm.weight",
            "self_attn.q_a_norm.weight",
            Small,
            vec![Q_LORA],
        ),
        (
            "attn_q_b.weight",
            "attn.wq_b.weight",
            "self_attn.q_b_proj.weight",
            Dense,
            vec![heads, Q_LORA],
        ),
        (
            "attn_kv.weight",
            "attn.wkv.weight",
            "self_attn.kv_proj.weight",
            Dense,
            vec![HEAD_DIM, N],
        ),
        (
            "attn_kv_a_norm.weight",
            "attn.kv_norm.weight",
            "self_attn.kv_norm.weight",
            Small,
            vec![HEAD_DIM],
        ),
        (
            "attn_sinks.weight",
            "attn.attn_sink",
            "self_attn.sinks",
            Small,
            vec![HEADS],
        ),
        (
            "attn_output_a.weight",
            "attn.wo_a.weight",
            "self_attn.o_a_proj.weight",
            Dense,
            vec![GROUPS * O_LORA, heads / GROUPS],
        ),
        (
            "attn_output_b.weight",
            "attn.wo_b.weight",
            "self_attn.o_b_proj.weight",
            Dense,
            vec![N, GROUPS * O_LORA],
        ),
        (
            "ffn_gate_inp.weight",
            "ffn.gate.weight",
            "mlp.gate.weight",
            Plain,
            vec![EXPERTS, N],
        ),
        (
            "ffn_gate_exps.weight",
            "ffn.experts.{}.w1.weight",
            "mlp.experts.{}.gate_proj.weight",
            Expert,
            vec![EXPERTS, FF, N],
        ),
        (
            "ffn_up_exps.weight",
            "ffn.experts.{}.w3.weight",
            "mlp.experts.{}.up_proj.weight",
            Expert,
            vec![EXPERTS, FF, N],
        ),
        (
            "ffn_down_exps.weight",
            "ffn.experts.{}.w2.weight",
            "mlp.experts.{}.down_proj.weight",
            Expert,
            vec![EXPERTS, N, FF],
        ),
        (
            "ffn_gate_shexp.weight",
            "ffn.shared_experts.w1.weight",
            "mlp.shared_experts.gate_proj.weight",
            Dense,
            vec![FF, N],
        ),
        (
            "ffn_up_shexp.weight",
            "ffn.shared_experts.w3.weight",
            "mlp.shared_experts.up_proj.weight",
            Dense,
            vec![FF, N],
        ),
        (
            "ffn_down_shexp.weight",
            "ffn.shared_experts.w2.weight",
            "mlp.shared_experts.down_proj.weight",
            Dense,
            vec![N, FF],
        ),
    ];
    list.push(match routing {
        Routing::Table => (
            "ffn_gate_tid2eid.weight",
            "ffn.gate.tid2eid",
            "mlp.gate.tid2eid",
            Table,
            vec![VOCAB, USED],
        ),
        Routing::Bias => (
            "exp_probs_b.bias",
            "ffn.gate.bias",
            "mlp.gate.e_score_correction_bias",
            Small,
            vec![EXPERTS],
        ),
    });
    for (gn, on, hn, kind, shape) in list {
        rows.push((
            format!("{g}{gn}"),
            format!("{o}{on}"),
            format!("{h}{hn}"),
            kind,
            shape,
        ));
    }
}

fn compressor(rows: &mut Vec<Row>, g: &str, o: &str, h: &str, ratio: usize, width: usize) {
    let wide = if ratio == 4 { 2 * width } else { width };
    for (gn, on, hn, kind, shape) in [
        (
            "kv",
            "wkv.weight",
            "kv_proj.weight",
            Kind::Plain,
            vec![wide, N],
        ),
        (
            "gate",
            "wgate.weight",
            "gate_proj.weight",
            Kind::Plain,
            vec![wide, N],
        ),
        (
            "ape",
            "ape",
            "position_bias",
            Kind::Small,
            vec![ratio, wide],
        ),
        (
            "norm",
            "norm.weight",
            "kv_norm.weight",
            Kind::Small,
            vec![width],
        ),
    ] {
        rows.push((
            format!("{g}_{gn}.weight"),
            format!("{o}{on}"),
            format!("{h}{hn}"),
            kind,
            shape,
        ));
    }
}
