//! JSON files of the tiny model.

use serde_json::{Value, json};

use super::*;

/// `config.json` in the official spelling.
pub fn config() -> Value {
    json!({
        "model_type": "deepseek_v4", "num_hidden_layers": 3, "hidden_size": N, "vocab_size": VOCAB,
        "max_position_embeddings": 4096, "num_attention_heads": HEADS, "num_key_value_heads": 1,
        "head_dim": HEAD_DIM, "qk_rope_head_dim": 32, "q_lora_rank": Q_LORA, "o_lora_rank": O_LORA,
        "o_groups": GROUPS, "sliding_window": 8, "index_n_heads": INDEX_HEADS,
        "index_head_dim": INDEX_DIM, "index_topk": 4, "compress_ratios": [0, 4, 8, 0],
        "compress_rope_theta": 160000, "rope_theta": 10000, "n_routed_experts": EXPERTS,
        "num_experts_per_tok": USED, "n_shared_experts": 1, "moe_intermediate_size": FF,
        "routed_scaling_factor": 1.5, "norm_topk_prob": true, "scoring_func": "sqrtsoftplus",
        "swiglu_limit": 10.0, "num_hash_layers": 1, "hc_mult": 4, "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6, "rms_norm_eps": 1e-6, "tie_word_embeddings": false,
        "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 256,
            "beta_fast": 32, "beta_slow": 1}
    })
}

/// The same in transformers' spelling.
pub fn transformers_config() -> Value {
    let mut c = config();
    let o = c.as_object_mut().unwrap();
    for key in [
        "compress_ratios",
        "num_hash_layers",
        "rope_scaling",
        "qk_rope_head_dim",
    ] {
        o.remove(key);
    }
    o.insert("partial_rotary_factor".into(), json!(0.25));
    o.insert(
        "layer_types".into(),
        json!([
            "sliding_attention",
            "compressed_sparse_attention",
            "heavily_compressed_attention"
        ]),
    );
    o.insert(
        "compress_rates".into(),
        json!({"compressed_sparse_attention": 4, "heavily_compressed_attention": 8}),
    );
    o.insert("mlp_layer_types".into(), json!(["hash_moe", "moe", "moe"]));
    o.insert(
        "rope_parameters".into(),
        json!({
            "main": {"rope_type": "default", "rope_theta": 10000.0},
            "compress": {"rope_type": "yarn", "rope_theta": 160000.0, "factor": 16.0,
                "original_max_position_embeddings": 256, "beta_fast": 32, "beta_slow": 1,
                "attention_factor": 1.0}
        }),
    );
    c
}

/// Keys an official checkpoint with a drafter has besides.
pub fn with_draft_keys(mut config: Value) -> Value {
    let o = config.as_object_mut().unwrap();
    o.insert("num_nextn_predict_layers".into(), json!(STAGES));
    o.insert("dspark_block_size".into(), json!(5));
    o.insert("dspark_noise_token_id".into(), json!(10));
    o.insert("dspark_target_layer_ids".into(), json!(CAPTURE));
    o.insert("dspark_markov_rank".into(), json!(RANK));
    config
}

/// `draft_config.json`.
pub fn draft_config() -> Value {
    json!({
        "architecture": "deepseek4-dflash-draft", "block_count": STAGES, "block_size": 5,
        "n_target_layers": CAPTURE.len(), "capture_layer_ids": CAPTURE, "mask_token_id": 10,
        "markov_rank": RANK, "vocab_size": VOCAB, "confidence_dim": N + RANK, "embedding_length": N,
        "sliding_window": 8
    })
}

/// `tokenizer.json` with 90 tokens, two special, one added by hand.
pub fn tokenizer() -> Value {
    let mut vocab = serde_json::Map::new();
    for (i, c) in (b'!'..=b'x').enumerate() {
        vocab.insert((c as char).to_string(), json!(i + 2));
    }
    vocab.insert("ab".into(), json!(90));
    let third = concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    );
    let split = |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    json!({
        "added_tokens": [
            {"id": 0, "content": "<bos>", "special": true},
            {"id": 1, "content": "<eos>", "special": true},
            {"id": 91, "content": "<mine>", "special": false}
        ],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(third),
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}
        ]},
        "model": {"type": "BPE", "vocab": vocab, "merges": [["a", "b"], "b c"]}
    })
}

/// `tokenizer_config.json`.
pub fn tokenizer_config() -> Value {
    json!({
        "bos_token": {"content": "<bos>"}, "eos_token": "<eos>", "pad_token": null,
        "add_bos_token": false, "chat_template": "{{x}}"
    })
}
