//! Folders in every naming and storage become the same model; damaged ones are refused by name.
#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Blob, Kind, Naming, Row, Storage, Tensors, expected};
use ds4_target::{Ds4Meta, GgufSource, Model};
use dspark_draft::weights::DraftModel;
use fpx_quant::{Format, decode_row};
use gguf::Gguf;
use model_tools::convert::{self, DraftSource, Options, Vocabulary};
use model_tools::{Recipe, ToolError};
use serde_json::{Value, json};

struct Dir(tempfile::TempDir);

impl Dir {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn out(&self) -> PathBuf {
        self.path().join("out.gguf")
    }

    fn convert(&self, recipe: &str) -> Result<Gguf, ToolError> {
        let options = Options::new(Recipe::parse(recipe).unwrap());
        convert::target(self.path(), &self.out(), &options, &mut ())?;
        Ok(Gguf::open(self.out(), &gguf::OpenOptions::default()).unwrap())
    }
}

fn values(file: &Gguf, name: &str) -> Vec<f32> {
    let info = file.tensor(name).unwrap();
    let bytes = file.bytes(info);
    if info.format == Format::I32 {
        let (words, _) = bytes.as_chunks::<4>();
        return words
            .iter()
            .map(|w| i32::from_le_bytes(*w) as f32)
            .collect();
    }
    let mut out = vec![f32::NAN; info.row_elems() * info.rows()];
    decode_row(info.format, bytes, &mut out).unwrap();
    out
}

/// Every tensor has the expected shape and, to the bit, the expected values.
fn check(file: &Gguf, rows: &[Row], storage: Storage) {
    assert_eq!(file.tensors().len(), rows.len());
    for row in rows {
        let (name, _, _, kind, shape) = row;
        let info = file.tensor(name).unwrap();
        let ne: Vec<u64> = shape.iter().rev().map(|d| *d as u64).collect();
        assert_eq!(info.shape, ne, "{name}");
        let want = if *kind == Kind::Table {
            Format::I32
        } else {
            Format::F32
        };
        assert_eq!(info.format, want, "{name}");
        for (i, got) in values(file, name).into_iter().enumerate() {
            let want = expected(row, storage, i);
            assert_eq!(
                got.to_bits(),
                want.to_bits(),
                "{name}[{i}]: {got:e} {want:e}"
            );
        }
    }
}

#[test]
fn every_naming_storage_and_spelling_gives_the_model() {
    let rows = common::target_rows();
    let mut metas = Vec::new();
    for (naming, storage, config, shards) in [
        (Naming::Official, Storage::Official, common::config(), 3),
        (Naming::Official, Storage::BF16, common::config(), 1),
        (
            Naming::Official,
            Storage::F16,
            common::transformers_config(),
            2,
        ),
        (
            Naming::Transformers,
            Storage::F32,
            common::transformers_config(),
            1,
        ),
        (
            Naming::Fused,
            Storage::F32,
            common::transformers_config(),
            2,
        ),
    ] {
        let dir = Dir::new();
        let tensors = common::tensors(&rows, naming, storage);
        if shards == 1 {
            common::write_folder(dir.path(), &config, &tensors);
        } else {
            common::write_sharded(dir.path(), &tensors, shards);
            common::write_texts(dir.path(), &config);
        }
        let file = dir.convert("*=F32").unwrap();
        check(&file, &rows, storage);
        let source = GgufSource::new(file);
        let model = Model::load(&source).unwrap();
        assert_eq!(model.weights.n_tensors, rows.len());
        metas.push(model.meta);
    }
    assert!(metas.windows(2).all(|m| m[0] == m[1]));
}

#[test]
fn official_scales_reach_the_smallest_products() {
    // The first block of each official tensor has scale byte 0: values of 2^-136 and up survive.
    let rows = common::target_rows();
    let row = rows
        .iter()
        .find(|r| r.0 == "blk.0.attn_q_a.weight")
        .unwrap();
    let tiny: Vec<f32> = (0..128)
        .map(|i| expected(row, Storage::Official, i))
        .collect();
    assert!(tiny.iter().all(|v| v.abs() < 3e-36) && tiny.iter().any(|v| v.is_subnormal()));
}

#[test]
fn keys_are_complete_and_typed() {
    let rows = common::target_rows();
    let dir = Dir::new();
    let tensors = common::tensors(&rows, Naming::Official, Storage::BF16);
    common::write_folder(dir.path(), &common::config(), &tensors);
    let mut options = Options::new(Recipe::parse("*=F16").unwrap());
    options.version = Some("0731".to_owned());
    options.extra = vec![("general.license".to_owned(), "apache-2.0".into())];
    let report = convert::target(dir.path(), &dir.out(), &options, &mut ()).unwrap();
    assert_eq!(report.tensors.len(), rows.len());
    assert!(report.ignored.is_empty());
    let file = Gguf::open(dir.out(), &gguf::OpenOptions::default()).unwrap();
    let m = file.metadata();
    assert_eq!(m.get_str("general.architecture").unwrap(), "deepseek4");
    assert_eq!(m.get_str("general.base_model.0.version").unwrap(), "0731");
    assert_eq!(m.get_str("general.license").unwrap(), "apache-2.0");
    assert_eq!(m.get_u32("general.file_type").unwrap(), 1);
    assert_eq!(m.get_str("fourspark.recipe").unwrap(), "*=F16");
    assert_eq!(m.get_str("tokenizer.ggml.model").unwrap(), "gpt2");
    assert_eq!(m.get_str("tokenizer.ggml.pre").unwrap(), "joyai-llm");
    let tokens = m.get_str_array("tokenizer.ggml.tokens").unwrap();
    let types = m.get_i32_array("tokenizer.ggml.token_type").unwrap();
    assert_eq!((tokens.len(), types.len()), (common::VOCAB, common::VOCAB));
    assert_eq!((tokens[0].as_str(), types[0]), ("<bos>", 3));
    assert_eq!((tokens[2].as_str(), types[2]), ("!", 1));
    assert_eq!((tokens[91].as_str(), types[91]), ("<mine>", 4));
    assert_eq!((tokens[92].as_str(), types[92]), ("[PAD92]", 5));
    let merges = m.get_str_array("tokenizer.ggml.merges").unwrap();
    assert_eq!(merges, ["a b", "b c"]);
    assert_eq!(m.get_u32("tokenizer.ggml.bos_token_id").unwrap(), 0);
    assert_eq!(m.get_u32("tokenizer.ggml.eos_token_id").unwrap(), 1);
    assert_eq!(m.find_u32("tokenizer.ggml.padding_token_id").unwrap(), None);
    assert!(!m.get_bool("tokenizer.ggml.add_bos_token").unwrap());
    assert_eq!(m.get_str("tokenizer.chat_template").unwrap(), "{{x}}");
    assert_eq!(
        m.get_u32_array("deepseek4.attention.compress_ratios")
            .unwrap(),
        [0, 4, 8]
    );
    let meta = Ds4Meta::read(&GgufSource::new(file)).unwrap();
    assert_eq!(
        (
            meta.n_rot,
            meta.n_hash,
            meta.window,
            meta.yarn.original_context
        ),
        (32, 1, 8, 256)
    );
}

#[test]
fn recipes_apply_while_converting_and_small_tensors_stay_f32() {
    let rows = common::target_rows();
    let dir = Dir::new();
    let tensors = common::tensors(&rows, Naming::Official, Storage::BF16);
    common::write_folder(dir.path(), &common::config(), &tensors);
    let file = dir
        .convert("*=ROCMFP6,experts=ROCMFP4,embed=F16,router=ROCMFP8")
        .unwrap();
    let format = |name: &str| file.tensor(name).unwrap().format.name();
    assert_eq!(format("blk.1.ffn_down_exps.weight"), "ROCMFP4");
    assert_eq!(format("blk.1.attn_q_a.weight"), "ROCMFP6");
    assert_eq!(format("token_embd.weight"), "F16");
    assert_eq!(format("blk.2.ffn_gate_inp.weight"), "ROCMFP8");
    for name in [
        "blk.1.hc_attn_fn.weight",
        "blk.1.attn_compressor_ape.weight",
        "blk.1.attn_sinks.weight",
    ] {
        assert_eq!(format(name), "F32");
    }
    assert_eq!(
        file.metadata().get_str("fourspark.fp6_endpoint").unwrap(),
        "zero"
    );
    Model::load(&GgufSource::new(file)).unwrap();
}

#[test]
fn the_same_folder_gives_the_same_bytes() {
    let rows = common::target_rows();
    let dir = Dir::new();
    let tensors = common::tensors(&rows, Naming::Official, Storage::Official);
    common::write_folder(dir.path(), &common::config(), &tensors);
    let mut seen = Vec::new();
    for _ in 0..2 {
        dir.convert("*=ROCMFP4|F16").unwrap();
        seen.push(fs::read(dir.out()).unwrap());
    }
    assert!(seen[0] == seen[1]);
}

#[test]
fn official_experts_become_mxfp4_without_loss() {
    let rows = common::target_rows();
    let dir = Dir::new();
    let tensors = common::tensors(&rows, Naming::Official, Storage::Official);
    common::write_folder(dir.path(), &common::config(), &tensors);
    let options = Options::new(Recipe::parse("*=F32,experts=MXFP4").unwrap());
    let report = convert::target(dir.path(), &dir.out(), &options, &mut ()).unwrap();
    let mut seen = 0;
    for t in report.tensors.iter().filter(|t| t.role.is_experts()) {
        assert_eq!((t.format, t.nmse), (Format::Mxfp4, 0.0), "{}", t.name);
        seen += 1;
    }
    assert_eq!(seen, 9);
}

fn drafter(source: &DraftSource, out: &Path) -> Result<Gguf, ToolError> {
    let options = Options::new(Recipe::parse("*=F32").unwrap());
    convert::drafter(source, out, &options, &mut ())?;
    Ok(Gguf::open(out, &gguf::OpenOptions::default()).unwrap())
}

#[test]
fn drafters_come_from_their_own_file_or_from_an_official_folder() {
    let rows = common::draft_rows();
    let dir = Dir::new();
    let p = |name: &str| dir.path().join(name);
    let tensors = common::tensors(&rows, Naming::Gguf, Storage::BF16);
    common::write_file(&p("draft.safetensors"), tensors.iter());
    fs::write(p("draft_config.json"), common::draft_config().to_string()).unwrap();
    fs::write(p("config.json"), common::config().to_string()).unwrap();
    let own = DraftSource::File {
        weights: p("draft.safetensors"),
        config: p("draft_config.json"),
        target: p("config.json"),
    };
    let bias: Row = (
        "dflash.dspark.confidence.bias".into(),
        String::new(),
        String::new(),
        Kind::Small,
        vec![1],
    );
    let file = drafter(&own, &dir.out()).unwrap();
    assert_eq!(values(&file, &bias.0), [0.0], "an absent bias is zero");
    let m = file.metadata();
    let arch = "deepseek4-dflash-draft";
    assert_eq!(m.get_str("general.architecture").unwrap(), arch);
    let key = |k: &str| m.get_u32(&format!("{arch}.{k}")).unwrap();
    assert_eq!(key("block_count"), 2);
    assert_eq!(key("dflash.block_size"), 5);
    assert_eq!(key("dflash.mask_token_id"), 10);
    assert_eq!(key("dflash.n_target_layers"), 2);
    assert_eq!(key("dflash.dspark.markov_rank"), 32);
    assert_eq!(key("dflash.dspark.confidence_dim"), 192);
    assert_eq!(key("dflash.dspark.vocab_size"), 96);
    assert_eq!(key("hash_layer_count"), 0);
    let capture = m
        .get_u32_array(&format!("{arch}.dflash.capture_layer_ids"))
        .unwrap();
    assert_eq!(capture, [1, 2]);
    assert!(m.find_str_array("tokenizer.ggml.tokens").unwrap().is_none());
    let loaded = DraftModel::load(&GgufSource::new(file.clone())).unwrap();
    assert_eq!((loaded.meta.block, loaded.meta.mask), (5, 10));
    for row in &rows {
        for (i, got) in values(&file, &row.0).into_iter().enumerate() {
            assert_eq!(got, expected(row, Storage::BF16, i), "{}[{i}]", row.0);
        }
    }

    let mut all = common::tensors(&common::target_rows(), Naming::Official, Storage::Official);
    all.extend(common::tensors(&rows, Naming::Official, Storage::Official));
    let vision = Blob("F32", vec![4], vec![0; 16]);
    all.insert("mtp.0.ffn.gate.bias_vl".to_owned(), vision);
    common::write_folder(dir.path(), &common::with_draft_keys(common::config()), &all);
    let official = DraftSource::Official(dir.path().to_path_buf());
    let file = drafter(&official, &dir.out()).unwrap();
    for row in &rows {
        for (i, got) in values(&file, &row.0).into_iter().enumerate() {
            assert_eq!(got, expected(row, Storage::Official, i), "{}[{i}]", row.0);
        }
    }
    // The target of the same folder leaves the drafter out.
    let options = Options::new(Recipe::parse("*=F32").unwrap());
    let report = convert::target(dir.path(), &dir.out(), &options, &mut ()).unwrap();
    assert!(report.ignored.iter().all(|n| n.starts_with("mtp.")) && !report.ignored.is_empty());
}

/// Converts a folder changed by `change`; the refusal must contain every part.
fn refused(change: impl FnOnce(&mut Tensors, &mut Value), parts: &[&str]) {
    let dir = Dir::new();
    let mut tensors = common::tensors(&common::target_rows(), Naming::Official, Storage::Official);
    let mut config = common::config();
    change(&mut tensors, &mut config);
    common::write_folder(dir.path(), &config, &tensors);
    let error = dir.convert("*=F32").unwrap_err().to_string();
    for part in parts {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert!(!dir.out().exists());
}

#[test]
fn damaged_tensors_are_refused_naming_file_and_tensor() {
    let file = "model.safetensors";
    refused(
        |t, _| drop(t.remove("layers.1.ffn.experts.2.w3.weight")),
        &[
            "blk.1.ffn_up_exps.weight",
            "layers.1.ffn.experts.2.w3.weight",
        ],
    );
    refused(
        |t, _| {
            drop(t.insert(
                "layers.1.attn.extra".into(),
                Blob("F32", vec![1], vec![0; 4]),
            ))
        },
        &[file, "layers.1.attn.extra", "without a place"],
    );
    refused(
        |t, _| {
            drop(t.insert(
                "layers.2.attn_norm.bias".into(),
                Blob("F32", vec![1], vec![0; 4]),
            ))
        },
        &[file, "layers.2.attn_norm.bias"],
    );
}

#[test]
fn wrong_shapes_scales_and_values_are_refused() {
    refused(
        |t, _| t.get_mut("norm.weight").unwrap().1 = vec![2, 80],
        &["norm.weight", "[160]", "[2, 80]"],
    );
    refused(
        |t, _| drop(t.remove("layers.0.attn.wq_b.scale")),
        &["layers.0.attn.wq_b.weight", "scales beside it"],
    );
    refused(
        |t, _| t.get_mut("layers.0.attn.wq_b.scale").unwrap().1 = vec![1, 2],
        &["layers.0.attn.wq_b.scale", "[2, 1]", "[1, 2]"],
    );
    refused(
        |t, _| t.get_mut("layers.0.attn.wq_b.scale").unwrap().2[1] = 0xff,
        &["layers.0.attn.wq_b.scale", "element 1", "NaN"],
    );
    refused(
        |t, _| t.get_mut("layers.0.attn.wq_b.weight").unwrap().2[33] = 0x7f,
        &["layers.0.attn.wq_b.weight", "element 33", "NaN"],
    );
    refused(
        |t, _| t.get_mut("layers.0.attn.attn_sink").unwrap().2[4..8].fill(0xff),
        &["attn_sink", "element 1"],
    );
    refused(
        |t, _| t.get_mut("layers.0.ffn.gate.tid2eid").unwrap().2[8] = 4,
        &["tid2eid", "element 2", "below 4", "got 4"],
    );
    refused(
        |t, _| t.get_mut("layers.0.attn.wkv.weight").unwrap().0 = "F8_E5M2",
        &["layers.0.attn.wkv.weight", "F8_E5M2"],
    );
}

#[test]
fn wrong_configurations_are_refused_naming_the_key() {
    let set = |key: &'static str, v: Value| {
        move |_: &mut Tensors, c: &mut Value| drop(c.as_object_mut().unwrap().insert(key.into(), v))
    };
    refused(
        set("hc_mult", json!(2)),
        &["config.json", "hc_mult", "expected 4, got 2"],
    );
    refused(
        set("scoring_func", json!("softmax")),
        &["scoring_func", "sqrtsoftplus", "softmax"],
    );
    refused(
        set("compress_ratios", json!([0, 4])),
        &["compress_ratios", "at least 3"],
    );
    refused(
        set("compress_ratios", json!([0, 4, 2, 0])),
        &["compress_ratios"],
    );
    refused(
        set("layer_types", json!(vec!["sliding_attention"; 3])),
        &["compress_ratios", "layer_types"],
    );
    refused(
        set("mlp_layer_types", json!(["moe", "moe", "moe"])),
        &["num_hash_layers", "0 as"],
    );
    refused(set("hidden_size", json!(null)), &["hidden_size", "nothing"]);
    refused(set("head_dim", json!(-1)), &["head_dim", "got -1"]);
    refused(
        set("qk_rope_head_dim", json!(31)),
        &["qk_rope_head_dim", "even"],
    );
    refused(
        set("rope_scaling", json!({"type": "linear"})),
        &["rope_scaling.type", "linear"],
    );
    refused(
        set("rope_scaling", json!(null)),
        &["rope_scaling", "factor", "nothing"],
    );
    refused(
        set("model_type", json!("deepseek_v3")),
        &["model_type", "deepseek_v3"],
    );
    refused(
        set("swiglu_limit", json!("x")),
        &["swiglu_limit", "a finite number"],
    );
}

#[test]
fn shards_and_index_must_agree() {
    let dir = Dir::new();
    let tensors = common::tensors(&common::target_rows(), Naming::Official, Storage::BF16);
    common::write_sharded(dir.path(), &tensors, 2);
    common::write_texts(dir.path(), &common::config());
    dir.convert("*=F16").unwrap();
    let index = dir.path().join("model.safetensors.index.json");
    let good: Value = serde_json::from_slice(&fs::read(&index).unwrap()).unwrap();
    let edit = |change: &dyn Fn(&mut serde_json::Map<String, Value>), parts: &[&str]| {
        let mut v = good.clone();
        change(v["weight_map"].as_object_mut().unwrap());
        fs::write(&index, v.to_string()).unwrap();
        let error = dir.convert("*=F16").unwrap_err().to_string();
        assert!(parts.iter().all(|p| error.contains(p)), "{error}");
    };
    edit(
        &|m| drop(m.remove("embed.weight")),
        &["weight_map.embed.weight", "got nothing"],
    );
    edit(
        &|m| drop(m.insert("ghost".into(), json!("model-00001.safetensors"))),
        &["weight_map.ghost", "none in model-00001"],
    );
    edit(
        &|m| drop(m.insert("ghost".into(), json!("../model-00001.safetensors"))),
        &["weight_map", "without folders"],
    );
    edit(
        &|m| drop(m.insert("ghost".into(), json!("no.safetensors"))),
        &["no.safetensors", "open"],
    );
    fs::write(&index, good.to_string()).unwrap();
    let shard = dir.path().join("model-00001.safetensors");
    let bytes = fs::read(&shard).unwrap();
    fs::write(&shard, &bytes[..bytes.len() - 1]).unwrap();
    let error = dir.convert("*=F16").unwrap_err().to_string();
    assert!(error.contains("model-00001.safetensors"), "{error}");
}

#[test]
fn tokenizers_are_checked() {
    let dir = Dir::new();
    let tensors = common::tensors(&common::target_rows(), Naming::Official, Storage::BF16);
    common::write_folder(dir.path(), &common::config(), &tensors);
    let file = dir.path().join("tokenizer.json");
    let refuse = |change: &dyn Fn(&mut Value), parts: &[&str]| {
        let mut v = common::tokenizer();
        change(&mut v);
        fs::write(&file, v.to_string()).unwrap();
        let error = dir.convert("*=F16").unwrap_err().to_string();
        assert!(parts.iter().all(|p| error.contains(p)), "{error}");
    };
    refuse(
        &|v| v["model"]["vocab"]["ab"] = json!(96),
        &["model.vocab.ab", "below 96"],
    );
    refuse(
        &|v| v["model"]["vocab"]["ab"] = json!(3),
        &["model.vocab", "an id of its own"],
    );
    refuse(
        &|v| v["model"]["type"] = json!("Unigram"),
        &["model.type", "BPE"],
    );
    refuse(
        &|v| v["model"]["merges"][0] = json!(["a"]),
        &["model.merges"],
    );
    let odd =
        |v: &mut Value| v["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = json!(r"\d");
    refuse(&odd, &["pre_tokenizer", "joyai-llm"]);
    fs::write(&file, common::tokenizer().to_string()).unwrap();
    let mut config = common::config();
    config["eos_token_id"] = json!(2);
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let error = dir.convert("*=F16").unwrap_err().to_string();
    assert!(
        error.contains("config.json: eos_token_id: expected 1"),
        "{error}"
    );
    fs::write(dir.path().join("config.json"), common::config().to_string()).unwrap();
    let mut options = Options::new(Recipe::parse("*=F16").unwrap());
    options.vocabulary = Vocabulary::FolderAs("other".to_owned());
    convert::target(dir.path(), &dir.out(), &options, &mut ()).unwrap();
    let written = Gguf::open(dir.out(), &gguf::OpenOptions::default()).unwrap();
    assert_eq!(
        written.metadata().get_str("tokenizer.ggml.pre").unwrap(),
        "other"
    );
    fs::remove_file(&file).unwrap();
    assert!(dir.convert("*=F16").is_err());
    options.vocabulary = Vocabulary::Numbered;
    convert::target(dir.path(), &dir.out(), &options, &mut ()).unwrap();
}

#[test]
fn a_stopped_conversion_leaves_nothing() {
    struct Stop(u32);
    impl model_tools::Progress for Stop {
        fn done(&mut self, _: &str, _: u64) -> bool {
            self.0 -= 1;
            self.0 > 0
        }
    }
    let dir = Dir::new();
    let tensors = common::tensors(&common::target_rows(), Naming::Official, Storage::BF16);
    common::write_folder(dir.path(), &common::config(), &tensors);
    let options = Options::new(Recipe::parse("*=F16").unwrap());
    let result = convert::target(dir.path(), &dir.out(), &options, &mut Stop(5));
    assert!(matches!(result, Err(ToolError::Stopped)));
    let left: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(left.len(), 4, "{left:?}");
}
