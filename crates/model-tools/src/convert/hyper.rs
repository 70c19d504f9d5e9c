//! `config.json` in its variants, checked into one set of hyper-parameters.
//!
//! The official form writes `compress_ratios`, `num_hash_layers` and `rope_scaling`; transformers
//! writes `layer_types`, `mlp_layer_types` and `rope_parameters`. Where a file has both they must
//! agree. Nothing that bears a shape has a default. Must not know: tensors, GGUF.

use std::path::Path;

use serde_json::{Value, json};

use super::json::{self, Object};
use crate::error::ToolError;

/// Hyper-parameters of a target (spec/ds4-architecture.md 1.1).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Hyper {
    pub(crate) n_layer: u32,
    pub(crate) n_embd: u32,
    pub(crate) n_vocab: u32,
    pub(crate) n_ctx: u32,
    pub(crate) n_head: u32,
    pub(crate) head_dim: u32,
    pub(crate) n_rot: u32,
    pub(crate) q_lora: u32,
    pub(crate) o_lora: u32,
    pub(crate) o_groups: u32,
    pub(crate) window: u32,
    pub(crate) index_heads: u32,
    pub(crate) index_dim: u32,
    pub(crate) index_top_k: u32,
    /// Of each layer: 0, 4 or a larger ratio.
    pub(crate) ratios: Vec<u32>,
    pub(crate) rope_theta: f32,
    pub(crate) compress_theta: f32,
    pub(crate) yarn_factor: f32,
    pub(crate) yarn_context: u32,
    pub(crate) beta_fast: f32,
    pub(crate) beta_slow: f32,
    pub(crate) n_expert: u32,
    pub(crate) n_used: u32,
    pub(crate) n_ff: u32,
    pub(crate) route_scale: f32,
    pub(crate) clamp: f32,
    pub(crate) n_hash: u32,
    pub(crate) hc_iterations: u32,
    pub(crate) hc_eps: f32,
    pub(crate) rms_eps: f32,
}

impl Hyper {
    /// Reads and checks a `config.json`.
    pub(crate) fn read(path: &Path) -> Result<Self, ToolError> {
        Self::of(&Object::read(path)?)
    }

    /// Reads and checks an object of its form.
    pub(crate) fn of(c: &Object) -> Result<Self, ToolError> {
        check_constants(c)?;
        let n_layer = c.size(&["num_hidden_layers"], 1)?;
        let n_head = c.size(&["num_attention_heads"], 1)?;
        let head_dim = c.size(&["head_dim"], 1)?;
        let o_groups = c.size(&["o_groups"], 1)?;
        if n_head % o_groups != 0 {
            let expected = format!("a divisor of num_attention_heads {n_head}");
            return Err(c.bad("o_groups", expected, o_groups));
        }
        Ok(Self {
            n_layer,
            n_embd: c.size(&["hidden_size"], 1)?,
            n_vocab: c.size(&["vocab_size"], 1)?,
            n_ctx: c.size(&["max_position_embeddings"], 1)?,
            n_head,
            head_dim,
            n_rot: rotary(c, head_dim)?,
            q_lora: c.size(&["q_lora_rank"], 1)?,
            o_lora: c.size(&["o_lora_rank"], 1)?,
            o_groups,
            window: c.size(&["sliding_window"], 1)?,
            index_heads: c.size(&["index_n_heads"], 1)?,
            index_dim: c.size(&["index_head_dim"], 1)?,
            index_top_k: c.size(&["index_topk"], 1)?,
            ratios: ratios(c, n_layer)?,
            rope_theta: c.float(&["rope_theta", "rope_parameters.main.rope_theta"])?,
            compress_theta: c
                .float(&["compress_rope_theta", "rope_parameters.compress.rope_theta"])?,
            yarn_factor: c.float(&["rope_scaling.factor", "rope_parameters.compress.factor"])?,
            yarn_context: c.size(&YARN_CONTEXT, 1)?,
            beta_fast: c.float(&[
                "rope_scaling.beta_fast",
                "rope_parameters.compress.beta_fast",
            ])?,
            beta_slow: c.float(&[
                "rope_scaling.beta_slow",
                "rope_parameters.compress.beta_slow",
            ])?,
            n_expert: c.size(&["n_routed_experts"], 1)?,
            n_used: c.size(&["num_experts_per_tok"], 1)?,
            n_ff: c.size(&["moe_intermediate_size"], 1)?,
            route_scale: c.float(&["routed_scaling_factor"])?,
            clamp: c.float(&["swiglu_limit"])?,
            n_hash: hash_layers(c, n_layer)?,
            hc_iterations: c.size(&["hc_sinkhorn_iters"], 1)?,
            hc_eps: c.float(&["hc_eps"])?,
            rms_eps: c.float(&["rms_norm_eps"])?,
        })
    }
}

const YARN_CONTEXT: [&str; 2] = [
    "rope_scaling.original_max_position_embeddings",
    "rope_parameters.compress.original_max_position_embeddings",
];

/// What the architecture fixes: a file that says otherwise is another model.
fn check_constants(c: &Object) -> Result<(), ToolError> {
    c.need(&["model_type"], "\"deepseek_v4\"", |v| {
        (v == "deepseek_v4").then_some(())
    })?;
    for (key, value) in [
        ("num_key_value_heads", json!(1)),
        ("n_shared_experts", json!(1)),
        ("hc_mult", json!(4)),
        ("scoring_func", json!("sqrtsoftplus")),
        ("norm_topk_prob", json!(true)),
        ("hidden_act", json!("silu")),
        ("tie_word_embeddings", json!(false)),
        ("attention_bias", json!(false)),
        ("mlp_bias", json!(false)),
        ("rope_scaling.type", json!("yarn")),
        ("rope_scaling.rope_type", json!("yarn")),
        ("rope_parameters.compress.rope_type", json!("yarn")),
        ("rope_parameters.main.rope_type", json!("default")),
    ] {
        c.must(key, &value)?;
    }
    // YaRN's magnitude factor is 1 in this architecture (spec/ds4-architecture.md 1.1).
    for key in [
        "rope_scaling.attention_factor",
        "rope_parameters.compress.attention_factor",
    ] {
        if let Some(v) = c.find(key)
            && v.as_f64() != Some(1.0)
        {
            return Err(c.bad(key, "1", v));
        }
    }
    Ok(())
}

/// Rotary channels: given, or a fraction of the head.
fn rotary(c: &Object, head_dim: u32) -> Result<u32, ToolError> {
    let expected = format!("an even number of at most head_dim {head_dim}");
    let whole = |v: f64| {
        let n = v as u32;
        (f64::from(n) == v && n > 0 && n <= head_dim && n.is_multiple_of(2)).then_some(n)
    };
    let given = c.one_of(&["qk_rope_head_dim"], &expected, |v| whole(v.as_f64()?))?;
    let keys = [
        "partial_rotary_factor",
        "rope_parameters.main.partial_rotary_factor",
    ];
    let part = c.one_of(&keys, &expected, |v| {
        whole(v.as_f64()? * f64::from(head_dim))
    })?;
    match (given, part) {
        (Some(a), Some(b)) if a != b => Err(c.bad(
            "qk_rope_head_dim",
            format!("{b} as partial_rotary_factor says"),
            a,
        )),
        (Some(n), _) | (None, Some(n)) => Ok(n),
        (None, None) => Err(c.bad(
            "qk_rope_head_dim or partial_rotary_factor",
            expected,
            "nothing",
        )),
    }
}

/// Ratios of the first `n_layer` layers, from either spelling.
fn ratios(c: &Object, n_layer: u32) -> Result<Vec<u32>, ToolError> {
    let n = n_layer as usize;
    let expected = format!("at least {n_layer} ratios of 0, 4 or more");
    let given = c.one_of(&["compress_ratios"], &expected, |v| {
        let mut v = json::as_u32s(v)?;
        let fits = v.len() >= n && v.iter().all(|r| *r == 0 || *r >= 4);
        v.truncate(n);
        fits.then_some(v)
    })?;
    let named = match c.find("layer_types") {
        None => None,
        Some(v) => Some(named_ratios(c, v, n)?),
    };
    match (given, named) {
        (Some(a), Some(b)) if a != b => Err(c.bad(
            "compress_ratios",
            format!("{b:?} as layer_types says"),
            format!("{a:?}"),
        )),
        (Some(r), _) | (None, Some(r)) => Ok(r),
        (None, None) => Err(c.bad("compress_ratios or layer_types", expected, "nothing")),
    }
}

fn named_ratios(c: &Object, types: &Value, n: usize) -> Result<Vec<u32>, ToolError> {
    let key = "layer_types";
    let names = json::as_strings(types)
        .filter(|t| t.len() >= n)
        .ok_or_else(|| c.bad(key, format!("at least {n} names"), types))?;
    names[..n]
        .iter()
        .map(|name| match name.as_str() {
            "sliding_attention" => Ok(0),
            "compressed_sparse_attention" | "heavily_compressed_attention" => {
                c.size(&[&format!("compress_rates.{name}")], 4)
            }
            other => Err(c.bad(key, "attention kinds of DeepSeek V4", other)),
        })
        .collect()
}

/// Leading layers that route by table, from either spelling.
fn hash_layers(c: &Object, n_layer: u32) -> Result<u32, ToolError> {
    let expected = format!("at most {n_layer} leading layers");
    let given = c.one_of(&["num_hash_layers"], &expected, |v| {
        u32::try_from(v.as_u64()?).ok().filter(|n| *n <= n_layer)
    })?;
    let counted = c.one_of(&["mlp_layer_types"], &expected, |v| {
        let kinds = json::as_strings(v)?;
        let kinds = kinds.get(..n_layer as usize)?;
        let n = kinds.iter().take_while(|k| *k == "hash_moe").count();
        let rest = kinds[n..].iter().all(|k| k == "moe");
        rest.then_some(n as u32)
    })?;
    match (given, counted) {
        (Some(a), Some(b)) if a != b => {
            Err(c.bad("num_hash_layers", format!("{b} as mlp_layer_types says"), a))
        }
        (Some(n), _) | (None, Some(n)) => Ok(n),
        (None, None) => Err(c.bad("num_hash_layers or mlp_layer_types", expected, "nothing")),
    }
}
