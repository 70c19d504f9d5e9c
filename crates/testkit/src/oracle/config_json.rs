//! `config.json` of a checkpoint into [`OracleConfig`].

use serde_json::Value;

use super::{OracleConfig, Yarn};
use crate::Error;

struct Fields<'a>(&'a Value);

impl Fields<'_> {
    fn get<'v, T>(
        &'v self,
        key: &'static str,
        as_type: impl Fn(&'v Value) -> Option<T>,
    ) -> Result<T, Error> {
        // A slash leads into an object.
        let value = key.split('/').try_fold(self.0, |v, part| v.get(part));
        value.and_then(as_type).ok_or_else(|| Error::Config {
            key,
            why: "absent or of another type".to_owned(),
        })
    }

    fn size(&self, key: &'static str) -> Result<usize, Error> {
        self.get(key, |v| v.as_u64().and_then(|v| usize::try_from(v).ok()))
    }

    fn int(&self, key: &'static str) -> Result<u32, Error> {
        self.get(key, |v| v.as_u64().and_then(|v| u32::try_from(v).ok()))
    }

    fn float(&self, key: &'static str) -> Result<f32, Error> {
        self.get(key, |v| v.as_f64().map(|v| v as f32))
    }

    fn words(&self, key: &'static str) -> Result<Vec<&str>, Error> {
        let list = self.get(key, Value::as_array)?;
        Ok(list.iter().filter_map(Value::as_str).collect())
    }
}

/// Reads `config.json` of a checkpoint.
///
/// # Errors
/// `Config`.
pub fn config_from_json(json: &Value) -> Result<OracleConfig, Error> {
    let f = Fields(json);
    let n_layer = f.size("num_hidden_layers")?;
    let mut ratios = ratios(&f)?;
    ratios.truncate(n_layer);
    if ratios.len() != n_layer {
        let why = format!("{} usable entries for {n_layer} layers", ratios.len());
        return Err(Error::Config {
            key: "compress_ratios",
            why,
        });
    }
    let moe = f.words("mlp_layer_types")?;
    let limit = f.float("swiglu_limit")?;
    let config = OracleConfig {
        n_embd: f.size("hidden_size")?,
        n_vocab: f.size("vocab_size")?,
        n_head: f.size("num_attention_heads")?,
        head_dim: f.size("head_dim")?,
        n_rot: f.size("qk_rope_head_dim")?,
        q_lora_rank: f.size("q_lora_rank")?,
        o_groups: f.size("o_groups")?,
        o_lora_rank: f.size("o_lora_rank")?,
        n_swa: f.size("sliding_window")?,
        index_heads: f.size("index_n_heads")?,
        index_dim: f.size("index_head_dim")?,
        index_top_k: f.size("index_topk")?,
        n_expert: f.size("n_routed_experts")?,
        n_expert_used: f.size("num_experts_per_tok")?,
        n_ff: f.size("moe_intermediate_size")?,
        route_scale: f.float("routed_scaling_factor")?,
        n_hash: moe.iter().take_while(|kind| **kind == "hash_moe").count(),
        clamp_exp: vec![limit; n_layer],
        clamp_shexp: vec![limit; n_layer],
        n_hc: f.size("hc_mult")?,
        sinkhorn_iters: f.size("hc_sinkhorn_iters")?,
        hc_eps: f.float("hc_eps")?,
        rms_eps: f.float("rms_norm_eps")?,
        rope_theta: f.float("rope_parameters/main/rope_theta")?,
        compress_rope_theta: f.float("rope_parameters/compress/rope_theta")?,
        yarn: Yarn {
            factor: f.float("rope_parameters/compress/factor")?,
            orig_ctx: f.int("rope_parameters/compress/original_max_position_embeddings")?,
            beta_fast: f.float("rope_parameters/compress/beta_fast")?,
            beta_slow: f.float("rope_parameters/compress/beta_slow")?,
        },
        context_length: f.int("max_position_embeddings")?,
        ratios,
    };
    config.check(false)?;
    Ok(config)
}

/// The explicit list if there is one, else from the kinds of the layers.
fn ratios(f: &Fields<'_>) -> Result<Vec<usize>, Error> {
    if let Ok(list) = f.get("compress_ratios", Value::as_array) {
        let size = |v: &Value| v.as_u64().and_then(|v| usize::try_from(v).ok());
        return Ok(list.iter().filter_map(size).collect());
    }
    let kinds = f.words("layer_types")?;
    let rate = |kind: &&str| match *kind {
        "sliding_attention" => Ok(0),
        "compressed_sparse_attention" => f.size("compress_rates/compressed_sparse_attention"),
        "heavily_compressed_attention" => f.size("compress_rates/heavily_compressed_attention"),
        other => Err(Error::Config {
            key: "layer_types",
            why: format!("unknown kind {other}"),
        }),
    };
    kinds.iter().map(rate).collect()
}
