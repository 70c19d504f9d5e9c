//! Recorded runs of other implementations, kept under `data/` (provenance: the README beside
//! each), and the models they were made with.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::Error;
use crate::files::read_tensors;
use crate::oracle::{OracleModel, Tensor, load_dir};
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
