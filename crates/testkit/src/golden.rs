//! Recorded runs of other implementations, kept under `data/` (provenance: the README beside
//! each), and the models they were made with.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::Error;
use crate::files::{read_json, read_tensors};
use crate::oracle::draft::{DraftConfig, OracleDraft};
use crate::oracle::{OracleConfig, OracleModel, Tensor, load_dir};
use crate::require::workspace;

/// Named arrays of a recorded run. Integers are held as f32 (all are below 2^24).
#[derive(Clone, Debug)]
pub struct Golden {
    tensors: BTreeMap<String, Tensor>,
}

impl Golden {
    /// An array by name.
    ///
    /// # Errors
    /// `MissingTensor`.
    pub fn get(&self, name: &str) -> Result<&Tensor, Error> {
        self.tensors.get(name).ok_or_else(|| Error::MissingTensor {
            name: name.to_owned(),
        })
    }

    /// Whether there is such an array.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// An array of non-negative integers.
    ///
    /// # Errors
    /// `MissingTensor`.
    pub fn ids(&self, name: &str) -> Result<Vec<u32>, Error> {
        Ok(self.get(name)?.data.iter().map(|v| *v as u32).collect())
    }
}

fn data(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("data")
        .join(path)
}

/// Directory of the small random model of the recorded transformers run: `config.json` and
/// `model.safetensors` with original names, f32.
#[must_use]
pub fn hf_dir() -> PathBuf {
    data("hf-golden")
}

/// That model.
///
/// # Errors
/// Those of [`load_dir`].
pub fn hf_model() -> Result<OracleModel, Error> {
    load_dir(&hf_dir())
}

/// The recorded run. Names: `data/hf-golden/README.md`.
///
/// # Errors
/// Those of [`read_tensors`].
pub fn hf_golden() -> Result<Golden, Error> {
    let tensors = read_tensors(&hf_dir().join("golden.safetensors"))?;
    Ok(Golden { tensors })
}

/// The checkpoint of the small trained model, if the caller has put it (or a link to it) at
/// `target/fixtures/tiny-model`.
#[must_use]
pub fn tiny_dir() -> Option<PathBuf> {
    let dir = workspace().join("target/fixtures/tiny-model");
    dir.join("config.json").exists().then_some(dir)
}

/// Twelve short prompts run on the small model. Names: `data/tiny-golden/README.md`.
///
/// # Errors
/// Those of [`read_tensors`].
pub fn tiny_dev() -> Result<Golden, Error> {
    let tensors = read_tensors(&data("tiny-golden/tiny_dev.safetensors"))?;
    Ok(Golden { tensors })
}

/// 1100 tokens of prose run on the small model. Names: `data/tiny-golden/README.md`.
///
/// # Errors
/// Those of [`read_tensors`].
pub fn tiny_long() -> Result<Golden, Error> {
    let tensors = read_tensors(&data("tiny-golden/tiny_long.safetensors"))?;
    Ok(Golden { tensors })
}

/// A file of the small trained model or its drafter, if it lies in `models` or in `target/fixtures`.
#[must_use]
pub fn model_file(name: &str) -> Option<PathBuf> {
    let places = ["models", "target/fixtures"].map(|dir| workspace().join(dir).join(name));
    places.into_iter().find(|path| path.exists())
}

/// The drafter of the small trained model, with its target's shape: `draft_config.json` and
/// `draft.safetensors` beside the checkpoint.
///
/// # Errors
/// Those of [`read_tensors`] and of [`OracleDraft::new`]; `Config` for a key that is absent.
pub fn tiny_draft(target: &OracleConfig) -> Result<Option<OracleDraft>, Error> {
    let Some(dir) = tiny_dir().filter(|dir| dir.join("draft.safetensors").exists()) else {
        return Ok(None);
    };
    let json = read_json(&dir.join("draft_config.json"))?;
    let size = |key: &'static str| {
        let value = json.get(key).and_then(serde_json::Value::as_u64);
        value.map(|v| v as usize).ok_or_else(|| Error::Config {
            key,
            why: "absent or no number".to_owned(),
        })
    };
    let capture = json.get("capture_layer_ids").and_then(|v| v.as_array());
    let layers = capture
        .into_iter()
        .flatten()
        .filter_map(serde_json::Value::as_u64);
    let (n, rank) = (size("block_count")?, size("markov_rank")?);
    let stage = OracleConfig {
        ratios: vec![0; n],
        n_hash: 0,
        clamp_exp: vec![target.clamp_exp[0]; n],
        clamp_shexp: vec![target.clamp_shexp[0]; n],
        ..target.clone()
    };
    let config = DraftConfig {
        block: size("block_size")?,
        mask: size("mask_token_id")? as u32,
        capture: layers.map(|l| l as usize).collect(),
        rank,
        confidence_markov: size("confidence_dim")? == stage.n_embd + rank,
        stage,
    };
    OracleDraft::new(config, read_tensors(&dir.join("draft.safetensors"))?).map(Some)
}
