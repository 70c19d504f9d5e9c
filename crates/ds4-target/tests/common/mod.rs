//! What the whole-model tests share: fixtures as sources, and short ways to run a target.
#![allow(dead_code, clippy::unwrap_used)]

pub(crate) mod quantised;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use ds4_target::source::{Bytes, MetaValue, RawTensor, Source};
use ds4_target::{CpuTarget, Model, Options};
use engine_core::{Out, SeqId, Span, Tap, Target, TokenId, Want};
use fpx_quant::{EncodeMode, Format, encode_rows};
use testkit::oracle::{OracleConfig, OracleModel};

/// A fixture model, its matrices encoded as `format_of` says (vectors stay F32, tables I32).
pub(crate) struct OracleSource {
    pub(crate) model: OracleModel,
    pub(crate) format_of: fn(&str) -> Format,
    /// Tensors are asked for several times, and encoding is slow.
    cache: RefCell<BTreeMap<String, RawTensor>>,
}

pub(crate) fn f32_everywhere(_: &str) -> Format {
    Format::F32
}

pub(crate) fn source(model: OracleModel) -> OracleSource {
    OracleSource {
        model,
        format_of: f32_everywhere,
        cache: RefCell::default(),
    }
}

impl Source for OracleSource {
    fn name(&self) -> &str {
        "fixture"
    }

    fn meta(&self, key: &str) -> Option<MetaValue> {
        meta(&self.model.config, key)
    }

    fn tensor(&self, name: &str) -> Option<RawTensor> {
        if let Some(raw) = self.cache.borrow().get(name) {
            return Some(raw.clone());
        }
        let t = self.model.tensors.get(name)?;
        let shape: Vec<u64> = t.shape.iter().rev().map(|d| *d as u64).collect();
        let (format, bytes) = if name.contains("tid2eid") {
            (
                Format::I32,
                t.data
                    .iter()
                    .flat_map(|v| (*v as i32).to_le_bytes())
                    .collect(),
            )
        } else {
            let format = if t.shape.len() == 1 {
                Format::F32
            } else {
                (self.format_of)(name)
            };
            let k = t.cols();
            let mut bytes = vec![0; format.matrix_bytes(t.data.len() / k, k).unwrap()];
            encode_rows(format, &t.data, k, None, EncodeMode::Fast, &mut bytes).unwrap();
            (format, bytes)
        };
        let raw = RawTensor {
            shape,
            format,
            bytes: Bytes::from_vec(bytes),
        };
        self.cache.borrow_mut().insert(name.to_owned(), raw.clone());
        Some(raw)
    }

    fn tensor_names(&self) -> Vec<String> {
        self.model.tensors.keys().cloned().collect()
    }
}

pub(crate) fn meta(c: &OracleConfig, key: &str) -> Option<MetaValue> {
    let int = |v: usize| Some(MetaValue::Int(v as i64));
    let float = |v: f32| Some(MetaValue::Float(f64::from(v)));
    let floats = |v: &[f32]| Some(MetaValue::Floats(v.iter().map(|v| f64::from(*v)).collect()));
    if key == "general.architecture" {
        return Some(MetaValue::Str("deepseek4".to_owned()));
    }
    match key.strip_prefix("deepseek4.")? {
        "block_count" => int(c.n_layer()),
        "embedding_length" => int(c.n_embd),
        "vocab_size" => int(c.n_vocab),
        "context_length" => int(c.context_length as usize),
        "attention.head_count" => int(c.n_head),
        "attention.head_count_kv" => int(1),
        "attention.key_length" | "attention.value_length" => int(c.head_dim),
        "rope.dimension_count" => int(c.n_rot),
        "attention.q_lora_rank" => int(c.q_lora_rank),
        "attention.output_lora_rank" => int(c.o_lora_rank),
        "attention.output_group_count" => int(c.o_groups),
        "attention.sliding_window" => int(c.n_swa),
        "attention.indexer.head_count" => int(c.index_heads),
        "attention.indexer.key_length" => int(c.index_dim),
        "attention.indexer.top_k" => int(c.index_top_k),
        "attention.compress_ratios" => Some(MetaValue::Ints(
            c.ratios.iter().map(|r| *r as i64).collect(),
        )),
        "rope.freq_base" => float(c.rope_theta),
        "attention.compress_rope_freq_base" => float(c.compress_rope_theta),
        "rope.scaling.type" => Some(MetaValue::Str("yarn".to_owned())),
        "rope.scaling.factor" => float(c.yarn.factor),
        "rope.scaling.original_context_length" => int(c.yarn.orig_ctx as usize),
        "rope.scaling.yarn_beta_fast" => float(c.yarn.beta_fast),
        "rope.scaling.yarn_beta_slow" => float(c.yarn.beta_slow),
        "expert_count" => int(c.n_expert),
        "expert_used_count" => int(c.n_expert_used),
        "expert_shared_count" => int(1),
        "expert_feed_forward_length" => int(c.n_ff),
        "expert_weights_scale" => float(c.route_scale),
        "expert_weights_norm" => Some(MetaValue::Bool(true)),
        "expert_gating_func" => int(4),
        "swiglu_clamp_exp" => floats(&c.clamp_exp),
        "swiglu_clamp_shexp" => floats(&c.clamp_shexp),
        "hash_layer_count" => int(c.n_hash),
        "hyper_connection.count" => int(c.n_hc),
        "hyper_connection.sinkhorn_iterations" => int(c.sinkhorn_iters),
        "hyper_connection.epsilon" => float(c.hc_eps),
        "attention.layer_norm_rms_epsilon" => float(c.rms_eps),
        _ => None,
    }
}

pub(crate) fn target(source: &dyn Source, options: Options) -> CpuTarget {
    CpuTarget::new(Arc::new(Model::load(source).unwrap()), options).unwrap()
}

/// One span of one sequence, everything asked for.
pub(crate) fn span(seq: SeqId, pos: u32, len: usize, out: Out) -> Span {
    Span {
        seq,
        pos,
        range: 0..len,
        out,
        want: Want::Logits,
        tap: Tap::default(),
    }
}

/// Runs `tokens` as one span and commits them; returns the logits of all rows.
pub(crate) fn feed(t: &mut dyn Target, seq: SeqId, tokens: &[TokenId], out: Out) -> Vec<f32> {
    let pos = t.pos(seq).unwrap();
    let ticket = t
        .submit(tokens, &[span(seq, pos, tokens.len(), out)])
        .unwrap();
    let logits = t.wait(ticket, None).unwrap().logits.clone();
    t.commit(seq, pos + tokens.len() as u32);
    logits
}

/// Greedy continuation of a prompt.
pub(crate) fn greedy(t: &mut CpuTarget, prompt: &[TokenId], n: usize) -> Vec<TokenId> {
    let seq = t.open().unwrap();
    let mut next = prompt.to_vec();
    let mut out = Vec::new();
    while out.len() < n {
        let logits = feed(t, seq, &next, Out::Last);
        next = vec![ds4_kernels::cpu::argmax(&logits)];
        out.push(next[0]);
    }
    t.close(seq);
    out
}
