//! Reading safetensors and JSON files.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::Value;

use crate::Error;
use crate::oracle::Tensor;

/// Every tensor of a file by its name, widened to f32. Integers must be below 2^24.
///
/// # Errors
/// `Io`, `SafeTensors`, `Dtype`.
pub fn read_tensors(path: &Path) -> Result<BTreeMap<String, Tensor>, Error> {
    let at = || path.to_owned();
    let bytes = std::fs::read(path).map_err(|source| Error::Io { path: at(), source })?;
    let parsed = SafeTensors::deserialize(&bytes)
        .map_err(|source| Error::SafeTensors { path: at(), source })?;
    let tensors = parsed.tensors();
    tensors
        .into_iter()
        .map(|(name, view)| widen(&name, &view).map(|t| (name, t)))
        .collect()
}

fn widen(name: &str, view: &TensorView<'_>) -> Result<Tensor, Error> {
    fn each<const N: usize>(bytes: &[u8], f: impl Fn([u8; N]) -> f32) -> Vec<f32> {
        bytes.as_chunks::<N>().0.iter().map(|b| f(*b)).collect()
    }
    let b = view.data();
    let data = match view.dtype() {
        Dtype::F32 => each(b, f32::from_le_bytes),
        Dtype::F16 => each(b, |b| half::f16::from_le_bytes(b).to_f32()),
        Dtype::BF16 => each(b, |b| half::bf16::from_le_bytes(b).to_f32()),
        Dtype::U8 => each(b, |[b]| f32::from(b)),
        Dtype::I32 => each(b, |b| i32::from_le_bytes(b) as f32),
        Dtype::I64 => each(b, |b| i64::from_le_bytes(b) as f32),
        other => {
            let got = format!("{other:?}");
            return Err(Error::Dtype {
                name: name.to_owned(),
                got,
            });
        }
    };
    Ok(Tensor {
        shape: view.shape().to_vec(),
        data,
    })
}

/// A parsed JSON file.
///
/// # Errors
/// `Io`, `Json`.
pub fn read_json(path: &Path) -> Result<Value, Error> {
    let path_buf = || path.to_owned();
    let bytes = std::fs::read(path).map_err(|source| Error::Io {
        path: path_buf(),
        source,
    })?;
    serde_json::from_slice(&bytes).map_err(|source| Error::Json {
        path: path_buf(),
        source,
    })
}
