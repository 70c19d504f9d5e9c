//! Checkpoints into [`OracleModel`]: original tensor names of spec/ds4-architecture.md 1.4 to the
//! canonical GGUF names, experts stacked.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{OracleConfig, OracleModel, Tensor, config_from_json};
use crate::Error;
use crate::files::{read_json, read_tensors};

const GLOBAL: &[(&str, &str)] = &[
    ("embed.weight", "token_embd.weight"),
    ("norm.weight", "output_norm.weight"),
    ("head.weight", "output.weight"),
    ("hc_head_fn", "output_hc_fn.weight"),
    ("hc_head_base", "output_hc_base.weight"),
    ("hc_head_scale", "output_hc_scale.weight"),
];

const LAYER: &[(&str, &str)] = &[
    ("hc_attn_fn", "hc_attn_fn.weight"),
    ("hc_attn_base", "hc_attn_base.weight"),
    ("hc_attn_scale", "hc_attn_scale.weight"),
    ("hc_ffn_fn", "hc_ffn_fn.weight"),
    ("hc_ffn_base", "hc_ffn_base.weight"),
    ("hc_ffn_scale", "hc_ffn_scale.weight"),
    ("attn_norm.weight", "attn_norm.weight"),
    ("ffn_norm.weight", "ffn_norm.weight"),
    ("attn.wq_a.weight", "attn_q_a.weight"),
    ("attn.q_norm.weight", "attn_q_a_norm.weight"),
    ("attn.wq_b.weight", "attn_q_b.weight"),
    ("attn.wkv.weight", "attn_kv.weight"),
    ("attn.kv_norm.weight", "attn_kv_a_norm.weight"),
    ("attn.attn_sink", "attn_sinks.weight"),
    ("attn.wo_a.weight", "attn_output_a.weight"),
    ("attn.wo_b.weight", "attn_output_b.weight"),
    ("attn.compressor.wkv.weight", "attn_compressor_kv.weight"),
    (
        "attn.compressor.wgate.weight",
        "attn_compressor_gate.weight",
    ),
    ("attn.compressor.ape", "attn_compressor_ape.weight"),
    ("attn.compressor.norm.weight", "attn_compressor_norm.weight"),
    ("attn.indexer.wq_b.weight", "indexer.attn_q_b.weight"),
    ("attn.indexer.weights_proj.weight", "indexer.proj.weight"),
    (
        "attn.indexer.compressor.wkv.weight",
        "indexer_compressor_kv.weight",
    ),
    (
        "attn.indexer.compressor.wgate.weight",
        "indexer_compressor_gate.weight",
    ),
    (
        "attn.indexer.compressor.ape",
        "indexer_compressor_ape.weight",
    ),
    (
        "attn.indexer.compressor.norm.weight",
        "indexer_compressor_norm.weight",
    ),
    ("ffn.gate.weight", "ffn_gate_inp.weight"),
    ("ffn.gate.bias", "exp_probs_b.bias"),
    ("ffn.gate.tid2eid", "ffn_gate_tid2eid.weight"),
    ("ffn.shared_experts.w1.weight", "ffn_gate_shexp.weight"),
    ("ffn.shared_experts.w3.weight", "ffn_up_shexp.weight"),
    ("ffn.shared_experts.w2.weight", "ffn_down_shexp.weight"),
];

const EXPERT: &[(&str, &str)] = &[
    ("w1.weight", "ffn_gate_exps.weight"),
    ("w3.weight", "ffn_up_exps.weight"),
    ("w2.weight", "ffn_down_exps.weight"),
];

fn look_up<'a>(table: &[(&str, &'a str)], name: &str) -> Option<&'a str> {
    table
        .iter()
        .find(|(from, _)| *from == name)
        .map(|(_, to)| *to)
}

/// Canonical name of an original checkpoint tensor, and which expert of it this is.
#[must_use]
pub fn canonical_name(official: &str) -> Option<(String, Option<usize>)> {
    if let Some(name) = look_up(GLOBAL, official) {
        return Some((name.to_owned(), None));
    }
    let (layer, rest) = official.strip_prefix("layers.")?.split_once('.')?;
    let layer: usize = layer.parse().ok()?;
    if let Some(name) = look_up(LAYER, rest) {
        return Some((format!("blk.{layer}.{name}"), None));
    }
    let (expert, part) = rest.strip_prefix("ffn.experts.")?.split_once('.')?;
    let name = look_up(EXPERT, part)?;
    Some((format!("blk.{layer}.{name}"), Some(expert.parse().ok()?)))
}

/// Loads a directory with `config.json` and `model.safetensors` or an index of shards.
///
/// # Errors
/// `Io`, `Json`, `SafeTensors`, `Dtype`, and those of [`OracleModel::new`].
pub fn load_dir(dir: &Path) -> Result<OracleModel, Error> {
    let config = config_from_json(&read_json(&dir.join("config.json"))?)?;
    let index = dir.join("model.safetensors.index.json");
    let mut files = vec![dir.join("model.safetensors")];
    if index.exists() {
        let index = read_json(&index)?;
        let map = index.get("weight_map").and_then(Value::as_object);
        let mut names: Vec<_> = map
            .into_iter()
            .flatten()
            .filter_map(|(_, f)| f.as_str())
            .collect();
        names.sort_unstable();
        names.dedup();
        files = names.into_iter().map(|f| dir.join(f)).collect();
    }
    load_files(config, &files)
}

/// Loads a model of a known shape from safetensors files with original names.
///
/// # Errors
/// `Io`, `SafeTensors`, `Dtype`, and those of [`OracleModel::new`].
pub fn load_files(config: OracleConfig, files: &[PathBuf]) -> Result<OracleModel, Error> {
    let mut tensors = BTreeMap::new();
    let mut experts: BTreeMap<String, BTreeMap<usize, Tensor>> = BTreeMap::new();
    for path in files {
        for (name, tensor) in read_tensors(path)? {
            match canonical_name(&name) {
                Some((name, None)) => drop(tensors.insert(name, tensor)),
                Some((name, Some(e))) => drop(experts.entry(name).or_default().insert(e, tensor)),
                None => return Err(Error::UnknownTensor { name }),
            }
        }
    }
    for (name, parts) in experts {
        tensors.insert(name, stack(&parts));
    }
    OracleModel::new(config, tensors)
}

/// Experts in order of their number. A hole shows as a wrong shape in the check that follows.
fn stack(parts: &BTreeMap<usize, Tensor>) -> Tensor {
    let mut shape = vec![parts.len()];
    shape.extend(parts.values().next().into_iter().flat_map(|t| &t.shape));
    let data = parts.values().flat_map(|t| &t.data).copied().collect();
    Tensor { shape, data }
}
