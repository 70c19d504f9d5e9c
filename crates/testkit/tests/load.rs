//! Checkpoints that are not what they should be are refused by name.

// Helpers of a test file are tests too.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use safetensors::{Dtype, tensor::TensorView};
use serde_json::{Value, json};
use testkit::Error;
use testkit::files::{read_json, read_tensors};
use testkit::golden::{hf_dir, hf_golden};
use testkit::oracle::{config_from_json, load_dir, load_files};

fn config() -> Value {
    read_json(&hf_dir().join("config.json")).unwrap()
}

fn write(path: &Path, name: &str, dtype: Dtype, bytes: &[u8]) {
    let n = bytes.len() * 8 / dtype.bitsize();
    let view = TensorView::new(dtype, vec![n], bytes).unwrap();
    let file = safetensors::serialize([(name, view)], None).unwrap();
    std::fs::write(path, file).unwrap();
}

#[test]
fn every_storage_type_widens() {
    let dir = tempfile::tempdir().unwrap();
    let cases: [(Dtype, Vec<u8>); 6] = [
        (Dtype::F32, (-2.5f32).to_le_bytes().to_vec()),
        (Dtype::F16, half::f16::from_f32(-2.5).to_le_bytes().to_vec()),
        (
            Dtype::BF16,
            half::bf16::from_f32(-2.5).to_le_bytes().to_vec(),
        ),
        (Dtype::I32, 77i32.to_le_bytes().to_vec()),
        (Dtype::I64, 77i64.to_le_bytes().to_vec()),
        (Dtype::U8, vec![77]),
    ];
    for (i, (dtype, bytes)) in cases.iter().enumerate() {
        let path = dir.path().join("a.safetensors");
        write(&path, "x", *dtype, bytes);
        let want = if i < 3 { -2.5 } else { 77.0 };
        assert_eq!(read_tensors(&path).unwrap()["x"].data, [want], "{dtype:?}");
    }
    let path = dir.path().join("b.safetensors");
    write(&path, "x", Dtype::F64, &1f64.to_le_bytes());
    assert!(matches!(read_tensors(&path), Err(Error::Dtype { .. })));
}

#[test]
fn unknown_tensors_and_broken_files_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.safetensors");
    let load = |path: PathBuf| load_files(config_from_json(&config()).unwrap(), &[path]);
    write(&path, "mtp.0.norm.weight", Dtype::U8, &[0]);
    let got = load(path.clone());
    assert!(matches!(got, Err(Error::UnknownTensor { name }) if name == "mtp.0.norm.weight"));
    write(&path, "norm.weight", Dtype::U8, &[0; 64]);
    assert!(matches!(
        load(path.clone()),
        Err(Error::MissingTensor { .. })
    ));
    std::fs::write(&path, b"not a file of tensors").unwrap();
    assert!(matches!(load(path), Err(Error::SafeTensors { .. })));
    assert!(matches!(
        load(dir.path().join("none")),
        Err(Error::Io { .. })
    ));
    assert!(matches!(load_dir(dir.path()), Err(Error::Io { .. })));
    std::fs::write(dir.path().join("config.json"), b"{").unwrap();
    assert!(matches!(load_dir(dir.path()), Err(Error::Json { .. })));
    assert!(matches!(
        hf_golden().unwrap().get("none"),
        Err(Error::MissingTensor { .. })
    ));
}

/// D18: a list longer than the model is cut to its layers; without one the kinds decide.
#[test]
fn ratios_come_from_either_list() {
    let mut json = config();
    let want = vec![0, 0, 4, 128, 4, 128];
    assert_eq!(config_from_json(&json).unwrap().ratios, want);
    json["compress_ratios"] = json!([128, 128, 4, 0, 4, 128, 0]);
    assert_eq!(
        config_from_json(&json).unwrap().ratios,
        [128, 128, 4, 0, 4, 128]
    );
    json["compress_ratios"] = json!([0, 0]);
    let got = config_from_json(&json);
    assert!(matches!(
        got,
        Err(Error::Config {
            key: "compress_ratios",
            ..
        })
    ));
    let mut json = config();
    json["layer_types"][2] = json!("linear_attention");
    let got = config_from_json(&json);
    assert!(matches!(
        got,
        Err(Error::Config {
            key: "layer_types",
            ..
        })
    ));
}

/// Trap 48: no shape-bearing key has a default.
#[test]
fn every_key_is_required() {
    let keys = [
        "hidden_size",
        "vocab_size",
        "num_attention_heads",
        "head_dim",
        "qk_rope_head_dim",
        "q_lora_rank",
        "o_groups",
        "o_lora_rank",
        "sliding_window",
        "index_n_heads",
        "index_head_dim",
        "index_topk",
        "n_routed_experts",
        "num_experts_per_tok",
        "moe_intermediate_size",
        "routed_scaling_factor",
        "hc_mult",
        "hc_sinkhorn_iters",
        "hc_eps",
        "rms_norm_eps",
        "rope_parameters",
        "num_hidden_layers",
        "layer_types",
        "mlp_layer_types",
        "swiglu_limit",
        "max_position_embeddings",
        "compress_rates",
    ];
    for key in keys {
        let mut json = config();
        assert!(json.as_object_mut().unwrap().remove(key).is_some(), "{key}");
        assert!(
            matches!(config_from_json(&json), Err(Error::Config { .. })),
            "{key}"
        );
    }
}
