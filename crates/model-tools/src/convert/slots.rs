//! The tensors a model has: GGUF name, shape, and the names a checkpoint may give their source.
//!
//! Names: spec/ds4-architecture.md 1.4 (official and transformers), spec/dspark.md 5.1; a leading
//! `model.` is already gone. Must not know: files, formats.

use super::draft::DraftHyper;
use super::hyper::Hyper;

/// Where a tensor comes from.
#[derive(Clone, Debug)]
pub(crate) enum From {
    /// One tensor, under the first of these names that exists.
    One(Vec<String>),
    /// One tensor for each expert, or a stack of all of them.
    Experts(Experts),
}

/// Names of routed experts.
#[derive(Clone, Debug)]
pub(crate) struct Experts {
    /// Names of expert `{}`.
    pub(crate) each: Vec<String>,
    /// A stack `[expert, rows, k]`.
    pub(crate) stacks: Vec<String>,
    /// A stack whose experts hold gate and up rows one after another: its name and which half.
    pub(crate) fused: Option<(String, u64)>,
}

/// A tensor of the output.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) name: String,
    /// GGUF order: input dimension first.
    pub(crate) shape: Vec<u64>,
    pub(crate) from: From,
    pub(crate) need: Need,
}

/// What to do when there is no source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Required,
    /// Left out.
    Optional,
    /// Written as zeros.
    OrZero,
}

/// Builds slots under a GGUF prefix and checkpoint prefixes.
struct Block<'a> {
    slots: &'a mut Vec<Slot>,
    gguf: String,
    /// Checkpoint prefix, for official and transformers names.
    from: String,
    /// Whether the files may also use GGUF's own names (drafters).
    native: bool,
}

impl Block<'_> {
    fn put(&mut self, name: &str, shape: &[u32], names: &[&str]) {
        self.put_as(name, shape, names, Need::Required);
    }

    fn put_as(&mut self, name: &str, shape: &[u32], names: &[&str], need: Need) {
        let name = format!("{}{name}", self.gguf);
        let mut names: Vec<String> = names.iter().map(|n| format!("{}{n}", self.from)).collect();
        if self.native {
            names.insert(0, name.clone());
        }
        self.slots.push(Slot {
            name,
            shape: shape.iter().map(|d| u64::from(*d)).collect(),
            from: From::One(names),
            need,
        });
    }

    fn experts(
        &mut self,
        name: &str,
        shape: &[u32; 3],
        official: &str,
        hf: &str,
        half: Option<u64>,
    ) {
        let name = format!("{}{name}", self.gguf);
        let from = &self.from;
        let mut stacks = vec![format!("{from}mlp.experts.{hf}_proj")];
        if self.native {
            stacks.insert(0, name.clone());
        }
        self.slots.push(Slot {
            name,
            shape: shape.iter().map(|d| u64::from(*d)).collect(),
            from: From::Experts(Experts {
                each: vec![
                    format!("{from}ffn.experts.{{}}.{official}.weight"),
                    format!("{from}mlp.experts.{{}}.{hf}_proj.weight"),
                ],
                stacks,
                fused: half.map(|h| (format!("{from}mlp.experts.gate_up_proj"), h)),
            }),
            need: Need::Required,
        });
    }
}

/// All tensors of a target.
pub(crate) fn target(h: &Hyper) -> Vec<Slot> {
    let mut slots = Vec::new();
    let mut top = Block {
        slots: &mut slots,
        gguf: String::new(),
        from: String::new(),
        native: false,
    };
    let (n, v) = (h.n_embd, h.n_vocab);
    top.put(
        "token_embd.weight",
        &[n, v],
        &["embed.weight", "embed_tokens.weight"],
    );
    top.put("output_norm.weight", &[n], &["norm.weight"]);
    top.put("output.weight", &[n, v], &["head.weight", "lm_head.weight"]);
    hc_head(&mut top, h, "");
    for l in 0..h.n_layer {
        let mut block = Block {
            slots: &mut slots,
            gguf: format!("blk.{l}."),
            from: format!("layers.{l}."),
            native: false,
        };
        attention(&mut block, h);
        match h.ratios[l as usize] {
            0 => {}
            r => compressor(&mut block, h, r),
        }
        ffn(
            &mut block,
            h,
            if l < h.n_hash {
                Routing::Table
            } else {
                Routing::Bias
            },
        );
    }
    slots
}

/// All tensors of a drafter.
pub(crate) fn drafter(h: &Hyper, d: &DraftHyper) -> Vec<Slot> {
    let mut slots = Vec::new();
    let n = h.n_embd;
    let last = d.n_stage - 1;
    let mut top = Block {
        slots: &mut slots,
        gguf: String::new(),
        from: String::new(),
        native: true,
    };
    let features = n * d.capture.len() as u32;
    top.put(
        "dflash.fc.weight",
        &[features, n],
        &["mtp.0.main_proj.weight"],
    );
    top.put(
        "dflash.hidden_norm.weight",
        &[n],
        &["mtp.0.main_norm.weight"],
    );
    top.from = format!("mtp.{last}.");
    top.put("output_norm.weight", &[n], &["norm.weight"]);
    hc_head(&mut top, h, "");
    let markov = [d.rank, h.n_vocab];
    top.put(
        "dflash.dspark.markov.w1",
        &markov,
        &["markov_head.markov_w1.weight"],
    );
    top.put(
        "dflash.dspark.markov.w2",
        &markov,
        &["markov_head.markov_w2.weight"],
    );
    if d.confidence > 0 {
        let weight = ["confidence_head.proj.weight"];
        top.put(
            "dflash.dspark.confidence.weight",
            &[d.confidence, 1],
            &weight,
        );
        let bias = ["confidence_head.proj.bias"];
        top.put_as("dflash.dspark.confidence.bias", &[1], &bias, Need::OrZero);
    }
    for s in 0..d.n_stage {
        let mut block = Block {
            slots: &mut slots,
            gguf: format!("blk.{s}."),
            from: format!("mtp.{s}."),
            native: true,
        };
        attention(&mut block, h);
        ffn(&mut block, h, Routing::MaybeBias);
    }
    slots
}

fn hc_head(b: &mut Block<'_>, h: &Hyper, prefix: &str) {
    for (part, shape) in [
        ("fn", &[4 * h.n_embd, 4][..]),
        ("base", &[4]),
        ("scale", &[1]),
    ] {
        let names = [
            format!("{prefix}hc_head_{part}"),
            format!("{prefix}hc_head.hc_{part}"),
        ];
        b.put(
            &format!("output_hc_{part}.weight"),
            shape,
            &[&names[0], &names[1]],
        );
    }
}

fn attention(b: &mut Block<'_>, h: &Hyper) {
    for site in ["attn", "ffn"] {
        for (part, shape) in [
            ("fn", &[4 * h.n_embd, 24][..]),
            ("base", &[24]),
            ("scale", &[3]),
        ] {
            let names = [format!("hc_{site}_{part}"), format!("{site}_hc.{part}")];
            b.put(
                &format!("hc_{site}_{part}.weight"),
                shape,
                &[&names[0], &names[1]],
            );
        }
    }
    let (n, heads, low) = (h.n_embd, h.n_head * h.head_dim, h.o_groups * h.o_lora);
    b.put(
        "attn_norm.weight",
        &[n],
        &["attn_norm.weight", "input_layernorm.weight"],
    );
    for (name, shape, official, hf) in [
        ("attn_q_a", &[n, h.q_lora][..], "wq_a", "q_a_proj"),
        ("attn_q_a_norm", &[h.q_lora], "q_norm", "q_a_norm"),
        ("attn_q_b", &[h.q_lora, heads], "wq_b", "q_b_proj"),
        ("attn_kv", &[n, h.head_dim], "wkv", "kv_proj"),
        (
            "attn_output_a",
            &[heads / h.o_groups, low],
            "wo_a",
            "o_a_proj",
        ),
        ("attn_output_b", &[low, n], "wo_b", "o_b_proj"),
    ] {
        let names = [
            format!("attn.{official}.weight"),
            format!("self_attn.{hf}.weight"),
        ];
        b.put(&format!("{name}.weight"), shape, &[&names[0], &names[1]]);
    }
    // transformers saves the norm as `attn.norm`.
    let kv_norm = [
        "attn.kv_norm.weight",
        "self_attn.kv_norm.weight",
        "attn.norm.weight",
    ];
    b.put("attn_kv_a_norm.weight", &[h.head_dim], &kv_norm);
    b.put(
        "attn_sinks.weight",
        &[h.n_head],
        &["attn.attn_sink", "self_attn.sinks"],
    );
}

fn compressor(b: &mut Block<'_>, h: &Hyper, ratio: u32) {
    let is_sparse = ratio == 4;
    let wide = |width: u32| if is_sparse { 2 * width } else { width };
    let mut one = |gguf: &str, width: u32, official: &str, hf: &str| {
        for (name, shape, of, hf_part) in [
            (
                "kv",
                &[h.n_embd, wide(width)][..],
                "wkv.weight",
                "kv_proj.weight",
            ),
            (
                "gate",
                &[h.n_embd, wide(width)],
                "wgate.weight",
                "gate_proj.weight",
            ),
            ("ape", &[wide(width), ratio], "ape", "position_bias"),
            ("norm", &[width], "norm.weight", "kv_norm.weight"),
        ] {
            let names = [format!("{official}{of}"), format!("{hf}{hf_part}")];
            b.put(
                &format!("{gguf}_{name}.weight"),
                shape,
                &[&names[0], &names[1]],
            );
        }
    };
    one(
        "attn_compressor",
        h.head_dim,
        "attn.compressor.",
        "self_attn.compressor.",
    );
    if !is_sparse {
        return;
    }
    let (official, hf) = ("attn.indexer.", "self_attn.compressor.indexer.");
    one(
        "indexer_compressor",
        h.index_dim,
        &format!("{official}compressor."),
        hf,
    );
    let width = h.index_heads * h.index_dim;
    let names = [
        format!("{official}wq_b.weight"),
        format!("{hf}q_b_proj.weight"),
    ];
    b.put(
        "indexer.attn_q_b.weight",
        &[h.q_lora, width],
        &[&names[0], &names[1]],
    );
    let names = [
        format!("{official}weights_proj.weight"),
        format!("{hf}scorer.weights_proj.weight"),
    ];
    b.put(
        "indexer.proj.weight",
        &[h.n_embd, h.index_heads],
        &[&names[0], &names[1]],
    );
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Routing {
    Table,
    Bias,
    MaybeBias,
}

fn ffn(b: &mut Block<'_>, h: &Hyper, routing: Routing) {
    let (n, ff, e) = (h.n_embd, h.n_ff, h.n_expert);
    b.put(
        "ffn_norm.weight",
        &[n],
        &["ffn_norm.weight", "post_attention_layernorm.weight"],
    );
    b.put(
        "ffn_gate_inp.weight",
        &[n, e],
        &["ffn.gate.weight", "mlp.gate.weight"],
    );
    let bias = ["ffn.gate.bias", "mlp.gate.e_score_correction_bias"];
    match routing {
        Routing::Table => {
            let names = ["ffn.gate.tid2eid", "mlp.gate.tid2eid"];
            b.put("ffn_gate_tid2eid.weight", &[h.n_used, h.n_vocab], &names);
        }
        Routing::Bias => b.put("exp_probs_b.bias", &[e], &bias),
        Routing::MaybeBias => b.put_as("exp_probs_b.bias", &[e], &bias, Need::Optional),
    }
    b.experts("ffn_gate_exps.weight", &[n, ff, e], "w1", "gate", Some(0));
    b.experts("ffn_up_exps.weight", &[n, ff, e], "w3", "up", Some(1));
    b.experts("ffn_down_exps.weight", &[ff, n, e], "w2", "down", None);
    for (name, shape, official, hf) in [
        ("ffn_gate_shexp", [n, ff], "w1", "gate_proj"),
        ("ffn_up_shexp", [n, ff], "w3", "up_proj"),
        ("ffn_down_shexp", [ff, n], "w2", "down_proj"),
    ] {
        let names = [
            format!("ffn.shared_experts.{official}.weight"),
            format!("mlp.shared_experts.{hf}.weight"),
        ];
        b.put(&format!("{name}.weight"), &shape, &[&names[0], &names[1]]);
    }
}
