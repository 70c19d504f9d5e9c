//! The metadata keys of a target and of a drafter (spec/ds4-architecture.md 1.3, spec/dspark.md
//! 5.1). Must not know: JSON, tensors.

use gguf::Value;

use super::draft::DraftHyper;
use super::hyper::Hyper;

/// Keys in file order.
pub(crate) type Keys = Vec<(String, Value)>;

/// Gating function id of sqrt(softplus(x)).
const SQRT_SOFTPLUS: u32 = 4;

/// Architecture keys of a target.
pub(crate) fn target(h: &Hyper) -> Keys {
    let clamps = vec![h.clamp; h.n_layer as usize];
    let ratios: Vec<i32> = h.ratios.iter().map(|r| *r as i32).collect();
    let mut keys = shared("deepseek4", h, h.n_layer);
    let mut put = |name: &str, value: Value| keys.push((format!("deepseek4.{name}"), value));
    put("context_length", h.n_ctx.into());
    put("attention.indexer.head_count", h.index_heads.into());
    put("attention.indexer.key_length", h.index_dim.into());
    put("attention.indexer.top_k", h.index_top_k.into());
    put("attention.compress_ratios", ratios.into());
    put("rope.scaling.type", "yarn".into());
    put(
        "rope.scaling.original_context_length",
        h.yarn_context.into(),
    );
    put("expert_weights_norm", true.into());
    put("expert_gating_func", SQRT_SOFTPLUS.into());
    put("hash_layer_count", h.n_hash.into());
    put("swiglu_clamp_exp", clamps.clone().into());
    put("swiglu_clamp_shexp", clamps.into());
    keys
}

/// Architecture keys of a drafter of this target.
pub(crate) fn drafter(h: &Hyper, d: &DraftHyper) -> Keys {
    let arch = DraftHyper::ARCH;
    let mut keys = shared(arch, h, d.n_stage);
    let mut put = |name: &str, value: Value| keys.push((format!("{arch}.{name}"), value));
    put("context_length", h.n_ctx.into());
    put("hash_layer_count", 0u32.into());
    put("swiglu_clamp_exp", h.clamp.into());
    put("dflash.n_target_layers", (d.capture.len() as u32).into());
    put("dflash.block_size", d.block.into());
    put("dflash.mask_token_id", d.mask.into());
    put("dflash.capture_layer_ids", d.capture.clone().into());
    put("dflash.head_hc_enabled", 0u32.into());
    put("dflash.dspark.enabled", 1u32.into());
    put("dflash.dspark.markov_rank", d.rank.into());
    put("dflash.dspark.vocab_size", h.n_vocab.into());
    put("dflash.dspark.confidence_dim", d.confidence.into());
    put(
        "dflash.dspark.confidence.enabled",
        u32::from(d.confidence > 0).into(),
    );
    keys
}

/// What both kinds of file carry.
fn shared(arch: &str, h: &Hyper, blocks: u32) -> Keys {
    let mut keys = Keys::new();
    let mut put = |name: &str, value: Value| keys.push((format!("{arch}.{name}"), value));
    put("block_count", blocks.into());
    put("embedding_length", h.n_embd.into());
    put("vocab_size", h.n_vocab.into());
    put("attention.head_count", h.n_head.into());
    put("attention.head_count_kv", 1u32.into());
    put("attention.key_length", h.head_dim.into());
    put("attention.value_length", h.head_dim.into());
    put("attention.q_lora_rank", h.q_lora.into());
    put("attention.output_lora_rank", h.o_lora.into());
    put("attention.output_group_count", h.o_groups.into());
    put("attention.sliding_window", h.window.into());
    put("attention.layer_norm_rms_epsilon", h.rms_eps.into());
    put("attention.compress_rope_freq_base", h.compress_theta.into());
    put("rope.dimension_count", h.n_rot.into());
    put("rope.freq_base", h.rope_theta.into());
    put("rope.scaling.factor", h.yarn_factor.into());
    put("rope.scaling.yarn_beta_fast", h.beta_fast.into());
    put("rope.scaling.yarn_beta_slow", h.beta_slow.into());
    put("expert_count", h.n_expert.into());
    put("expert_used_count", h.n_used.into());
    put("expert_shared_count", 1u32.into());
    put("expert_feed_forward_length", h.n_ff.into());
    put("expert_weights_scale", h.route_scale.into());
    put("hyper_connection.count", 4u32.into());
    put(
        "hyper_connection.sinkhorn_iterations",
        h.hc_iterations.into(),
    );
    put("hyper_connection.epsilon", h.hc_eps.into());
    keys
}
