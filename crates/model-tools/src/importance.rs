//! Importance matrices: how much each input column of a matrix matters, measured from activations.
//!
//! Format: llama.cpp's imatrix GGUF (`general.type` = `imatrix`; for each weight NAME two F32
//! tensors, `NAME.in_sum2` `[k, matrices]` with sums of squared inputs and `NAME.counts`
//! `[1, matrices]`). Must not know: recipes, encoders.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fpx_quant::{Format, decode_row};
use gguf::{Gguf, GgufBuilder, OpenOptions, TensorInfo};

use crate::error::ToolError;

const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";
/// Least importance of a column, relative to the mean of its matrix: a column whose inputs were
/// never anything but zero must not let the encoder ruin its block.
const FLOOR: f32 = 1e-6;

/// Mean squared inputs of weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Importance {
    path: PathBuf,
    tensors: BTreeMap<String, Columns>,
}

/// Sums of one weight.
#[derive(Clone, Debug, PartialEq)]
pub struct Columns {
    /// `[matrices, k]`: sums of squared inputs.
    pub sums: Vec<f32>,
    /// `[matrices]`: how many inputs were summed.
    pub counts: Vec<f32>,
}

impl Importance {
    /// Reads an imatrix GGUF.
    ///
    /// # Errors
    /// `Gguf`, or `Key`, `Storage`, `Value` naming the tensor.
    pub fn read(path: &Path) -> Result<Self, ToolError> {
        let file = Gguf::open(path, &OpenOptions::default())?;
        let kind = file
            .metadata()
            .find_str("general.type")?
            .unwrap_or("nothing");
        if kind != "imatrix" {
            return Err(ToolError::key(path, "general.type", "imatrix", kind));
        }
        let mut tensors = BTreeMap::new();
        for info in file.tensors() {
            let Some(name) = info.name.strip_suffix(SUMS) else {
                continue;
            };
            let counts = file.tensor(&format!("{name}{COUNTS}"))?;
            let columns = Columns {
                sums: floats(&file, info)?,
                counts: floats(&file, counts)?,
            };
            if columns.counts.len() != info.rows() {
                let got = format!("{} counts", columns.counts.len());
                return Err(storage(
                    path,
                    &counts.name,
                    format!("{} counts", info.rows()),
                    got,
                ));
            }
            tensors.insert(name.to_owned(), columns);
        }
        Ok(Self {
            path: path.to_path_buf(),
            tensors,
        })
    }

    /// From sums taken here. `path`: what to call it in messages.
    #[must_use]
    pub fn from_columns(path: &Path, tensors: BTreeMap<String, Columns>) -> Self {
        Self {
            path: path.to_path_buf(),
            tensors,
        }
    }

    /// Writes an imatrix GGUF.
    ///
    /// # Errors
    /// `Gguf`.
    pub fn write(&self, path: &Path) -> Result<(), ToolError> {
        let mut builder = GgufBuilder::new();
        builder.set("general.type", "imatrix")?;
        for (name, c) in &self.tensors {
            let n = c.counts.len() as u64;
            let k = c.sums.len() as u64 / n.max(1);
            builder.tensor(&format!("{name}{SUMS}"), &[k, n], Format::F32)?;
            builder.tensor(&format!("{name}{COUNTS}"), &[1, n], Format::F32)?;
        }
        let mut writer = builder.create(path)?;
        let bytes = |v: &[f32]| v.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        for (name, c) in &self.tensors {
            writer.write(&format!("{name}{SUMS}"), &bytes(&c.sums))?;
            writer.write(&format!("{name}{COUNTS}"), &bytes(&c.counts))?;
        }
        writer.finish()?;
        Ok(())
    }

    /// Whether a weight has entries.
    #[must_use]
    pub fn covers(&self, weight: &str) -> bool {
        self.tensors.contains_key(weight)
    }

    /// Importance of the columns of matrix `matrix` of `matrices` of a weight, `[k]`. `None` without
    /// entries, or for an expert that saw no input.
    ///
    /// # Errors
    /// `Storage` if the shapes differ, `Value` for entries that are not finite and not negative.
    pub fn columns(
        &self,
        weight: &str,
        matrix: usize,
        matrices: usize,
        k: usize,
    ) -> Result<Option<Vec<f32>>, ToolError> {
        let Some(c) = self.tensors.get(weight) else {
            return Ok(None);
        };
        if c.counts.len() != matrices || c.sums.len() != matrices * k {
            let expected = format!("{matrices} matrices of {k} columns");
            let got = format!(
                "{} matrices, {} columns in all",
                c.counts.len(),
                c.sums.len()
            );
            return Err(storage(&self.path, weight, expected, got));
        }
        let sums = &c.sums[matrix * k..(matrix + 1) * k];
        let is_bad = |v: &f32| !(v.is_finite() && *v >= 0.0);
        if let Some(i) = sums.iter().position(is_bad) {
            return Err(ToolError::Value {
                path: self.path.clone(),
                tensor: weight.to_owned(),
                index: (matrix * k + i) as u64,
                expected: "a finite sum of squares".to_owned(),
                got: sums[i].to_string(),
            });
        }
        let mean = sums.iter().sum::<f32>() / k as f32;
        if !(c.counts[matrix] > 0.0 && mean > 0.0 && mean.is_finite()) {
            return Ok(None);
        }
        // Only ratios matter to an encoder: relative to the mean, no column overflows or vanishes.
        Ok(Some(sums.iter().map(|s| (s / mean).max(FLOOR)).collect()))
    }
}

fn floats(file: &Gguf, info: &TensorInfo) -> Result<Vec<f32>, ToolError> {
    if info.format != Format::F32 {
        return Err(storage(
            file.path(),
            &info.name,
            "F32".to_owned(),
            info.format.to_string(),
        ));
    }
    let mut out = vec![0f32; info.row_elems() * info.rows()];
    decode_row(info.format, file.bytes(info), &mut out).map_err(|source| ToolError::Format {
        tensor: info.name.clone(),
        source,
    })?;
    Ok(out)
}

fn storage(path: &Path, tensor: &str, expected: String, got: String) -> ToolError {
    ToolError::Storage {
        path: path.to_path_buf(),
        tensor: tensor.to_owned(),
        expected,
        got,
    }
}
