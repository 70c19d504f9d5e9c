//! From one GGUF file to another with a recipe.
//!
//! Keys are kept, tensors keep names, shapes and order; a tensor that already has its format is
//! copied byte for byte. The same source, recipe and importance give the same file. The source must
//! not change meanwhile. Must not know: checkpoints, engines.

use std::fs::File;
use std::path::{Path, PathBuf};

use fpx_quant::{Format, decode_row};
use gguf::{Gguf, GgufBuilder, TensorInfo, Value};

use crate::error::ToolError;
use crate::importance::Importance;
use crate::progress::{self, Progress};
use crate::recipe::{Choice, Recipe};
use crate::report::{QUANTIZATION_VERSION, Report, TensorReport, dominant, file_type};
use crate::role::{Kind, Place, Role};
use crate::stream::{self, RowSource};

/// How to quantise.
#[derive(Clone, Debug)]
pub struct Options {
    /// Formats of the output.
    pub recipe: Recipe,
    /// Weights of the encoders' errors.
    pub importance: Option<Importance>,
    /// More keys, set last.
    pub extra: Vec<(String, Value)>,
}

impl Options {
    /// This recipe and nothing else.
    #[must_use]
    pub fn new(recipe: Recipe) -> Self {
        Self {
            recipe,
            importance: None,
            extra: Vec::new(),
        }
    }
}

/// Writes `source` to `output` by a recipe.
///
/// # Errors
/// `Storage` for a tensor of no known role, `NoFallback`, `Format` for a source that cannot be
/// decoded, `Value`, `Stopped`. Nothing is left at `output` then.
pub fn quantize(
    source: &Gguf,
    output: &Path,
    options: &Options,
    progress: &mut dyn Progress,
) -> Result<Report, ToolError> {
    let plan = plan(source, &options.recipe)?;
    let mut builder = GgufBuilder::new();
    builder.set_all(source.metadata())?;
    let elems = |t: &TensorInfo| t.row_elems() as u64 * t.rows() as u64;
    let most = dominant(plan.iter().map(|p| (p.choice.format, elems(p.info))));
    builder.set("general.file_type", file_type(most))?;
    builder.set("general.quantization_version", QUANTIZATION_VERSION)?;
    builder.set("fourspark.recipe", options.recipe.text())?;
    let paths: Vec<PathBuf> = source.parts().map(Path::to_path_buf).collect();
    builder.set("fourspark.source_blake3", digest(&paths)?)?;
    for (key, value) in &options.extra {
        builder.set(key, value.clone())?;
    }
    for p in &plan {
        builder.tensor(&p.info.name, &p.info.shape, p.choice.format)?;
    }
    let mut writer = builder.create(output)?;
    let total = builder.tensors().iter().map(|t| t.bytes() as u64).sum();
    progress.begin("quantize", plan.len() as u64, total);
    let mut tensors = Vec::new();
    for (p, out) in plan.iter().zip(builder.tensors()) {
        let nmse = write_one(source, &mut writer, p, options.importance.as_ref())?;
        let bytes = out.bytes() as u64;
        progress::done(progress, &p.info.name, bytes)?;
        tensors.push(TensorReport {
            name: p.info.name.clone(),
            role: p.place.role,
            shape: p.info.shape.clone(),
            format: p.choice.format,
            instead_of: p.choice.instead_of,
            bytes,
            nmse,
        });
    }
    Ok(Report {
        tensors,
        ignored: Vec::new(),
        written: writer.finish()?,
    })
}

/// A tensor and what becomes of it.
struct Planned<'a> {
    info: &'a TensorInfo,
    place: Place,
    choice: Choice,
}

fn plan<'a>(source: &'a Gguf, recipe: &Recipe) -> Result<Vec<Planned<'a>>, ToolError> {
    let one = |info: &'a TensorInfo| {
        let place = Role::of(&info.name).ok_or_else(|| ToolError::Storage {
            path: source.path().to_path_buf(),
            tensor: info.name.clone(),
            expected: "a tensor of a DeepSeek V4 target or of its drafter".to_owned(),
            got: "a name without a role".to_owned(),
        })?;
        let choice = recipe.choose(place, &info.name, info.row_elems())?;
        let is_table = place.role.kind() == Kind::Table;
        if is_table != (info.format == Format::I32) {
            return Err(ToolError::Storage {
                path: source.path().to_path_buf(),
                tensor: info.name.clone(),
                expected: if is_table { "I32" } else { "weights" }.to_owned(),
                got: info.format.to_string(),
            });
        }
        Ok(Planned {
            info,
            place,
            choice,
        })
    };
    source.tensors().iter().map(one).collect()
}

/// BLAKE3 of all parts of a model, in order.
fn digest(paths: &[PathBuf]) -> Result<String, ToolError> {
    let mut hash = blake3::Hasher::new();
    for path in paths {
        let file = File::open(path).map_err(ToolError::io(path, "open"))?;
        hash.update_reader(file)
            .map_err(ToolError::io(path, "read"))?;
    }
    Ok(hash.finalize().to_hex().to_string())
}

fn write_one(
    source: &Gguf,
    writer: &mut gguf::Writer,
    p: &Planned<'_>,
    importance: Option<&Importance>,
) -> Result<f64, ToolError> {
    let name = &p.info.name;
    if p.info.format == p.choice.format {
        writer.write(name, source.bytes(p.info))?;
        return Ok(0.0);
    }
    let rows = TensorRows::new(source, p);
    let weights = |matrix| match importance {
        Some(i) => i.columns(name, matrix, rows.matrices, rows.k()),
        None => Ok(None),
    };
    let loss = stream::write_tensor(writer, name, |out| {
        stream::encode(&rows, p.choice.format, &weights, out)
    })?;
    Ok(loss.nmse())
}

/// Rows of a tensor of a file, decoded.
struct TensorRows<'a> {
    source: &'a Gguf,
    info: &'a TensorInfo,
    matrices: usize,
}

impl<'a> TensorRows<'a> {
    fn new(source: &'a Gguf, p: &Planned<'a>) -> Self {
        // Only experts have columns of their own each; other stacks are one matrix.
        let experts = p.info.shape.get(2).copied().unwrap_or(1);
        let matrices = if p.place.role.is_experts() {
            experts as usize
        } else {
            1
        };
        Self {
            source,
            info: p.info,
            matrices,
        }
    }
}

impl RowSource for TensorRows<'_> {
    fn name(&self) -> &str {
        &self.info.name
    }

    fn matrices(&self) -> usize {
        self.matrices
    }

    fn rows(&self) -> usize {
        self.info.rows() / self.matrices
    }

    fn k(&self) -> usize {
        self.info.row_elems()
    }

    fn read(&self, matrix: usize, first: usize, out: &mut [f32]) -> Result<(), ToolError> {
        let bytes = self.source.bytes(self.info);
        let row_bytes = bytes.len() / self.info.rows();
        let row = matrix * self.rows() + first;
        let n = out.len() / self.k();
        let bytes = &bytes[row * row_bytes..(row + n) * row_bytes];
        decode_row(self.info.format, bytes, out).map_err(|source| ToolError::Format {
            tensor: self.info.name.clone(),
            source,
        })?;
        if let Some(i) = out.iter().position(|v| !v.is_finite()) {
            return Err(ToolError::Value {
                path: self.source.path().to_path_buf(),
                tensor: self.info.name.clone(),
                index: (row * self.k() + i) as u64,
                expected: "a finite number".to_owned(),
                got: out[i].to_string(),
            });
        }
        Ok(())
    }
}
