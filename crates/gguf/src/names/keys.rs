//! The metadata keys of a DS4 file and what else they are called.
//!
//! `KEY.name(metadata)` gives the key as the file has it, to be passed to a getter; where the
//! file has none it gives the canonical name, so that errors name that. Must not know: what a
//! value means. Aliases: those that a public reader of early files accepts.

use crate::metadata::Metadata;

/// What a loader does where a key is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing can stand for it: the error names the key.
    Required,
    /// Follows from tensors or other keys: see [`super::derive`].
    Derivable,
    /// May be absent; the meaning of that is the model's.
    Optional,
}

/// A key and its aliases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySpec {
    /// The canonical key, with the prefix `deepseek4.` where it has one.
    pub canonical: &'static str,
    /// Other keys with the same value in some files.
    pub aliases: &'static [&'static str],
    /// What its absence means.
    pub need: Need,
}

impl KeySpec {
    /// The key as the file has it, else the canonical one.
    #[must_use]
    pub fn name(&self, metadata: &Metadata) -> &'static str {
        self.find(metadata).unwrap_or(self.canonical)
    }

    /// The key as the file has it.
    #[must_use]
    pub fn find(&self, metadata: &Metadata) -> Option<&'static str> {
        let mut names = std::iter::once(&self.canonical).chain(self.aliases);
        names.find(|k| metadata.contains(k)).copied()
    }
}

macro_rules! keys {
    ($($(#[$doc:meta])* $id:ident: $need:ident $name:literal $(or $alias:literal)*;)*) => {
        $($(#[$doc])* pub const $id: KeySpec = KeySpec {
            canonical: $name,
            aliases: &[$($alias),*],
            need: Need::$need,
        };)*

        /// Every key of the table.
        pub const ALL: &[KeySpec] = &[$($id),*];
    };
}

keys! {
    /// `deepseek4`.
    ARCHITECTURE: Required "general.architecture";
    /// Layers; one more where an MTP block is appended.
    BLOCK_COUNT: Required "deepseek4.block_count";
    /// Positions the model was made for.
    CONTEXT_LENGTH: Optional "deepseek4.context_length";
    /// D.
    EMBEDDING_LENGTH: Required "deepseek4.embedding_length";
    /// Absent in llama.cpp's files.
    VOCAB_SIZE: Derivable "deepseek4.vocab_size";
    /// Query heads.
    HEAD_COUNT: Required "deepseek4.attention.head_count";
    /// 1.
    HEAD_COUNT_KV: Required "deepseek4.attention.head_count_kv";
    /// Head width.
    KEY_LENGTH: Required "deepseek4.attention.key_length";
    /// Head width again.
    VALUE_LENGTH: Optional "deepseek4.attention.value_length";
    /// Rotary channels.
    ROPE_DIMENSIONS: Required "deepseek4.rope.dimension_count";
    /// Rank of the query projection.
    Q_LORA_RANK: Derivable "deepseek4.attention.q_lora_rank";
    /// Rank of the output projection.
    OUTPUT_LORA_RANK: Derivable "deepseek4.attention.output_lora_rank"
        or "deepseek4.attention.o_lora_rank";
    /// Groups of the output projection.
    OUTPUT_GROUP_COUNT: Derivable "deepseek4.attention.output_group_count"
        or "deepseek4.attention.o_groups";
    /// Window, with the current token.
    SLIDING_WINDOW: Required "deepseek4.attention.sliding_window";
    /// Indexer heads.
    INDEXER_HEAD_COUNT: Required "deepseek4.attention.indexer.head_count"
        or "deepseek4.indexer.head_count";
    /// Indexer head width.
    INDEXER_KEY_LENGTH: Required "deepseek4.attention.indexer.key_length"
        or "deepseek4.indexer.head_dim";
    /// Rows the indexer selects.
    INDEXER_TOP_K: Required "deepseek4.attention.indexer.top_k" or "deepseek4.indexer.top_k";
    /// One ratio a layer; may be longer than the layers.
    COMPRESS_RATIOS: Derivable "deepseek4.attention.compress_ratios"
        or "deepseek4.attention.layer_compress_ratio";
    /// Rotary base of layers with a compressor.
    COMPRESS_ROPE_FREQ_BASE: Required "deepseek4.attention.compress_rope_freq_base"
        or "deepseek4.compress_rope.freq_base" or "deepseek4.rope.freq_base_compress";
    /// RMS epsilon.
    RMS_EPSILON: Required "deepseek4.attention.layer_norm_rms_epsilon";
    /// Rotary base of layers without a compressor.
    ROPE_FREQ_BASE: Required "deepseek4.rope.freq_base";
    /// `yarn`.
    ROPE_SCALING_TYPE: Optional "deepseek4.rope.scaling.type";
    /// YaRN factor.
    ROPE_SCALING_FACTOR: Required "deepseek4.rope.scaling.factor";
    /// YaRN original context.
    ROPE_ORIGINAL_CONTEXT: Required "deepseek4.rope.scaling.original_context_length"
        or "deepseek4.rope.scaling.original_max_position_embeddings";
    /// YaRN beta.
    ROPE_BETA_FAST: Required "deepseek4.rope.scaling.yarn_beta_fast"
        or "deepseek4.rope.scaling.beta_fast";
    /// YaRN beta.
    ROPE_BETA_SLOW: Required "deepseek4.rope.scaling.yarn_beta_slow"
        or "deepseek4.rope.scaling.beta_slow";
    /// Routed experts.
    EXPERT_COUNT: Required "deepseek4.expert_count";
    /// Routed experts of a token.
    EXPERT_USED_COUNT: Required "deepseek4.expert_used_count";
    /// Shared experts.
    EXPERT_SHARED_COUNT: Required "deepseek4.expert_shared_count";
    /// Expert width (llama.cpp also takes one a layer).
    EXPERT_FEED_FORWARD: Required "deepseek4.expert_feed_forward_length"
        or "deepseek4.moe_intermediate_size";
    /// Factor of the routed sum.
    EXPERT_WEIGHTS_SCALE: Required "deepseek4.expert_weights_scale";
    /// Whether weights are normalised.
    EXPERT_WEIGHTS_NORM: Required "deepseek4.expert_weights_norm";
    /// 4 = sqrt(softplus).
    EXPERT_GATING_FUNC: Optional "deepseek4.expert_gating_func" or "deepseek4.expert.gating_func";
    /// Absent or 0.
    EXPERT_GROUP_COUNT: Optional "deepseek4.expert_group_count";
    /// Absent or 0.
    EXPERT_GROUP_USED_COUNT: Optional "deepseek4.expert_group_used_count";
    /// Layers routed by table.
    HASH_LAYER_COUNT: Derivable "deepseek4.hash_layer_count" or "deepseek4.mlp.hash_layer_count";
    /// Clamp of routed experts: scalar or one a layer.
    SWIGLU_CLAMP_EXP: Required "deepseek4.swiglu_clamp_exp" or "deepseek4.expert.swiglu_clamp_exp"
        or "deepseek4.expert.silu_limit";
    /// Clamp of shared experts; absent: that of the routed ones.
    SWIGLU_CLAMP_SHEXP: Optional "deepseek4.swiglu_clamp_shexp";
    /// Streams.
    HC_COUNT: Derivable "deepseek4.hyper_connection.count" or "deepseek4.hyper_connection.mult"
        or "deepseek4.hyper_connection.expansion";
    /// Sinkhorn rounds.
    HC_SINKHORN: Required "deepseek4.hyper_connection.sinkhorn_iterations"
        or "deepseek4.hyper_connection.sinkhorn_iters";
    /// Hyper-connection epsilon.
    HC_EPSILON: Required "deepseek4.hyper_connection.epsilon" or "deepseek4.hyper_connection.eps"
        or "deepseek4.hc_eps";
    /// Not to be trusted: some files say 1 and have no MTP tensors.
    NEXTN_LAYERS: Optional "deepseek4.nextn_predict_layers";
    /// Token strings.
    TOKENS: Required "tokenizer.ggml.tokens";
    /// Merges.
    MERGES: Required "tokenizer.ggml.merges";
    /// Token types.
    TOKEN_TYPES: Optional "tokenizer.ggml.token_type";
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn no_key_stands_for_two() {
        let mut names = HashSet::new();
        for spec in ALL {
            assert!(names.insert(spec.canonical), "{}", spec.canonical);
            assert!(
                spec.aliases.iter().all(|a| names.insert(*a)),
                "{}",
                spec.canonical
            );
        }
    }

    #[test]
    fn the_file_s_spelling_is_used_and_the_canonical_one_is_named_when_absent() {
        let mut m = Metadata::new(Path::new("m.gguf"));
        m.push("deepseek4.hyper_connection.mult".to_owned(), 4u32.into())
            .unwrap();
        assert_eq!(m.get_u32(HC_COUNT.name(&m)).unwrap(), 4);
        let e = m.get_f32(HC_EPSILON.name(&m)).unwrap_err();
        assert!(
            e.to_string().contains("deepseek4.hyper_connection.epsilon"),
            "{e}"
        );
    }
}
