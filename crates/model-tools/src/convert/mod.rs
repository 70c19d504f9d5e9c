//! From a safetensors folder to one GGUF file in the names and keys that engines share.
//!
//! Reads official DeepSeek V4 checkpoints (bf16, or fp8 and fp4 with e8m0 scales) and what
//! transformers saves; writes any recipe, one chunk of one tensor at a time. Source files are
//! mapped: nobody may change them meanwhile. Must not know: what a tokenizer or an engine does with
//! the keys.

mod draft;
mod folder;
mod hyper;
mod json;
mod keys;
mod map;
mod resolve;
mod slots;
mod storage;
mod tokenizer;

use std::path::{Path, PathBuf};

use fpx_quant::Format;
use gguf::{GgufBuilder, Value};

use self::draft::DraftHyper;
use self::folder::Shards;
use self::hyper::Hyper;
use self::keys::Keys;
use self::resolve::{Bound, Resolved, Source};
use crate::error::ToolError;
use crate::progress::{self, Progress};
use crate::recipe::{Choice, Recipe};
use crate::report::{QUANTIZATION_VERSION, Report, TensorReport, dominant, file_type};
use crate::role::{Place, Role};
use crate::stream;

/// What the files do not say.
#[derive(Clone, Debug)]
pub struct Options {
    /// Formats of the output.
    pub recipe: Recipe,
    /// `general.name`; the folder's name if absent.
    pub name: Option<String>,
    /// The version of the model, `general.base_model.0.version`: tells which generation of the
    /// prompt format it was trained with (`preview`, `0731`).
    pub version: Option<String>,
    /// Where the vocabulary comes from.
    pub vocabulary: Vocabulary,
    /// More keys, set last.
    pub extra: Vec<(String, Value)>,
}

/// Where a target's vocabulary comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Vocabulary {
    /// `tokenizer.json` and `tokenizer_config.json` of the folder.
    #[default]
    Folder,
    /// The same, with this pre-tokenizer name whatever its patterns are.
    FolderAs(String),
    /// Numbered place holders, for models without text.
    Numbered,
}

impl Options {
    /// Everything from the folder, in this recipe.
    #[must_use]
    pub fn new(recipe: Recipe) -> Self {
        Self {
            recipe,
            name: None,
            version: None,
            vocabulary: Vocabulary::Folder,
            extra: Vec::new(),
        }
    }
}

/// Converts a target.
///
/// # Errors
/// Any refusal of the folder's files, naming file and tensor or key; `MissingTensor`,
/// `ExtraTensor`; `NoFallback`; `Stopped`. Nothing is left at `output` then.
pub fn target(
    folder: &Path,
    output: &Path,
    options: &Options,
    progress: &mut dyn Progress,
) -> Result<Report, ToolError> {
    let config = folder.join("config.json");
    let hyper = Hyper::read(&config)?;
    let shards = Shards::open_folder(folder)?;
    let slots = slots::target(&hyper);
    let resolved = resolve::resolve(&shards, slots, |name| {
        name.starts_with("mtp.") || name.starts_with(&format!("layers.{}.", hyper.n_layer))
    })?;
    let mut keys = keys::target(&hyper);
    keys.extend(vocabulary_keys(folder, &hyper, &options.vocabulary)?);
    let job = Job {
        arch: "deepseek4",
        stem: folder,
        hyper: &hyper,
        keys,
        resolved,
        digest: digest(&config, &shards)?,
    };
    job.write(output, options, progress)
}

/// Where a drafter's weights are.
#[derive(Clone, Debug)]
pub enum DraftSource {
    /// A file with GGUF's tensor names, its configuration, and the target's `config.json`.
    File {
        /// The safetensors file.
        weights: PathBuf,
        /// `draft_config.json`.
        config: PathBuf,
        /// The target's `config.json`.
        target: PathBuf,
    },
    /// The `mtp.*` tensors of an official folder.
    Official(PathBuf),
}

/// Converts a DSpark drafter (spec/dspark.md 5.1).
///
/// # Errors
/// As [`target`].
pub fn drafter(
    source: &DraftSource,
    output: &Path,
    options: &Options,
    progress: &mut dyn Progress,
) -> Result<Report, ToolError> {
    let (hyper, draft, shards, stem, config);
    match source {
        DraftSource::File {
            weights,
            config: own,
            target,
        } => {
            hyper = Hyper::read(target)?;
            draft = DraftHyper::read(own, &hyper)?;
            shards = Shards::open_files(weights, vec![weights.clone()])?;
            (stem, config) = (weights, own.clone());
        }
        DraftSource::Official(folder) => {
            config = folder.join("config.json");
            hyper = Hyper::read(&config)?;
            shards = Shards::open_folder(folder)?;
            draft = DraftHyper::read_official(&config, &hyper, confidence_inputs(&shards))?;
            stem = folder;
        }
    }
    let is_official = matches!(source, DraftSource::Official(_));
    let resolved = resolve::resolve(&shards, slots::drafter(&hyper, &draft), |name| {
        let other_model = is_official && !name.starts_with("mtp.");
        let unused = name.ends_with(".ffn.gate.bias_vl") || name.ends_with(".ffn.gate.tid2eid");
        other_model || (unused && name.starts_with("mtp."))
    })?;
    let job = Job {
        arch: DraftHyper::ARCH,
        stem,
        hyper: &hyper,
        keys: keys::drafter(&hyper, &draft),
        resolved,
        digest: digest(&config, &shards)?,
    };
    job.write(output, options, progress)
}

/// Inputs of an official drafter's confidence head; 0 without one.
fn confidence_inputs(shards: &Shards) -> u32 {
    let suffix = "confidence_head.proj.weight";
    let name = shards.names().find(|n| n.ends_with(suffix));
    let shape = name.and_then(|n| shards.get(n)).map(|raw| raw.shape);
    let inputs = shape.and_then(|s| s.last()).copied().unwrap_or(0);
    u32::try_from(inputs).unwrap_or(u32::MAX)
}

/// BLAKE3 of the configuration and of every weight file, in order.
fn digest(config: &Path, shards: &Shards) -> Result<String, ToolError> {
    let mut hash = blake3::Hasher::new();
    let text = std::fs::read(config).map_err(ToolError::io(config, "read"))?;
    hash.update(&text);
    for (_, bytes) in shards.contents() {
        hash.update(bytes);
    }
    Ok(hash.finalize().to_hex().to_string())
}

fn vocabulary_keys(folder: &Path, h: &Hyper, from: &Vocabulary) -> Result<Keys, ToolError> {
    let pre = match from {
        Vocabulary::Folder => None,
        Vocabulary::FolderAs(name) => Some(name.as_str()),
        Vocabulary::Numbered => return Ok(tokenizer::numbered(h.n_vocab)),
    };
    tokenizer::keys(&tokenizer::Files { folder, pre }, h.n_vocab)
}

/// A conversion whose sources are bound.
struct Job<'a> {
    arch: &'static str,
    stem: &'a Path,
    hyper: &'a Hyper,
    keys: Keys,
    resolved: Resolved<'a>,
    digest: String,
}

impl Job<'_> {
    fn write(
        self,
        output: &Path,
        options: &Options,
        progress: &mut dyn Progress,
    ) -> Result<Report, ToolError> {
        let choices = self.choices(&options.recipe)?;
        let mut builder = GgufBuilder::new();
        for (key, value) in self.general(options, &choices) {
            builder.set(&key, value)?;
        }
        for (key, value) in self.keys.iter().chain(&options.extra) {
            builder.set(key, value.clone())?;
        }
        for (bound, (_, choice)) in self.resolved.bound.iter().zip(&choices) {
            builder.tensor(&bound.slot.name, &bound.slot.shape, choice.format)?;
        }
        let mut writer = builder.create(output)?;
        let total = builder.tensors().iter().map(|t| t.bytes() as u64).sum();
        progress.begin("convert", choices.len() as u64, total);
        let mut tensors = Vec::new();
        for ((bound, (place, choice)), info) in self
            .resolved
            .bound
            .iter()
            .zip(&choices)
            .zip(builder.tensors())
        {
            let nmse = self.write_one(&mut writer, bound, choice.format)?;
            let bytes = info.bytes() as u64;
            progress::done(progress, &bound.slot.name, bytes)?;
            tensors.push(TensorReport {
                name: bound.slot.name.clone(),
                role: place.role,
                shape: bound.slot.shape.clone(),
                format: choice.format,
                instead_of: choice.instead_of,
                bytes,
                nmse,
            });
        }
        Ok(Report {
            tensors,
            ignored: self.resolved.ignored,
            written: writer.finish()?,
        })
    }

    fn choices(&self, recipe: &Recipe) -> Result<Vec<(Place, Choice)>, ToolError> {
        let choose = |bound: &Bound<'_>| {
            let name = &bound.slot.name;
            let place = Role::of(name).expect("every slot has a role");
            // Fits: shapes are 32-bit.
            let choice = recipe.choose(place, name, bound.slot.shape[0] as usize)?;
            Ok((place, choice))
        };
        self.resolved.bound.iter().map(choose).collect()
    }

    fn general(&self, options: &Options, choices: &[(Place, Choice)]) -> Keys {
        let elems = |b: &Bound<'_>| b.slot.shape.iter().product::<u64>();
        let formats = self.resolved.bound.iter().zip(choices);
        let most = dominant(formats.map(|(b, (_, c))| (c.format, elems(b))));
        let stem = self.stem.file_stem().unwrap_or_default().to_string_lossy();
        let name = options.name.clone().unwrap_or_else(|| stem.into_owned());
        let mut keys: Keys = vec![
            ("general.architecture".into(), self.arch.into()),
            ("general.type".into(), "model".into()),
            ("general.name".into(), name.clone().into()),
            ("general.file_type".into(), file_type(most).into()),
            (
                "general.quantization_version".into(),
                QUANTIZATION_VERSION.into(),
            ),
        ];
        if let Some(version) = &options.version {
            keys.push(("general.base_model.count".into(), 1u32.into()));
            keys.push(("general.base_model.0.name".into(), name.into()));
            keys.push((
                "general.base_model.0.version".into(),
                version.clone().into(),
            ));
        }
        keys.push(("fourspark.recipe".into(), options.recipe.text().into()));
        keys.push(("fourspark.source_blake3".into(), self.digest.clone().into()));
        keys
    }

    fn write_one(
        &self,
        writer: &mut gguf::Writer,
        bound: &Bound<'_>,
        format: Format,
    ) -> Result<f64, ToolError> {
        let name = &bound.slot.name;
        match &bound.source {
            Source::Rows(rows) => {
                let loss = stream::write_tensor(writer, name, |out| {
                    stream::encode(rows, format, &|_| Ok(None), out)
                })?;
                Ok(loss.nmse())
            }
            Source::Table(raw) => {
                writer.write(name, &resolve::table(raw, self.hyper.n_expert)?)?;
                Ok(0.0)
            }
            Source::Zeros => {
                let n: u64 = bound.slot.shape.iter().product();
                writer.write(name, &vec![0; 4 * n as usize])?;
                Ok(0.0)
            }
        }
    }
}
