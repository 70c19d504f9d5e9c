//! What a model is loaded from: a file, or nothing but a name (`ds4_target::synth`).
//!
//! Must not know: devices, drafters.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use ds4_target::source::Source;
use ds4_target::synth::{LABEL, NameError, Synth, SynthSource};
use ds4_target::{Ds4Meta, GgufSource};
use gguf::Gguf;

use crate::error::Error;
use crate::model::{EngineOptions, ModelInfo, RoleFormat};
use crate::shipped::{candidates, shipped_model};
use crate::vocab::Vocab;

/// Which model. As text the name of a made-up one (`synth:..`), or else the path of a file; a file whose name begins so is
/// written with its folder, as `./synth:x`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelName {
    /// A model file.
    File(PathBuf),
    /// Made-up weights.
    Synth(Synth),
}

impl FromStr for ModelName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        match Synth::is_meant(text) {
            true => text.parse().map(Self::Synth),
            false => Ok(Self::File(text.into())),
        }
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Synth(synth) => synth.fmt(f),
        }
    }
}

/// A path is a file's, whatever it is called.
impl<P: AsRef<Path>> From<P> for ModelName {
    fn from(path: P) -> Self {
        Self::File(path.as_ref().to_path_buf())
    }
}

/// A model that was found, nothing of it loaded.
pub(crate) enum Origin {
    File(GgufSource),
    Synth(SynthSource),
}

impl Origin {
    /// # Errors
    /// `File`.
    pub(crate) fn open(name: &ModelName, options: &EngineOptions) -> Result<Self, Error> {
        Ok(match name {
            ModelName::File(path) => Self::File(GgufSource::new(options.open(path)?)),
            ModelName::Synth(synth) => Self::Synth(SynthSource::new(synth)),
        })
    }

    pub(crate) fn source(&self) -> &dyn Source {
        match self {
            Self::File(file) => file,
            Self::Synth(synth) => synth,
        }
    }

    /// The tokenizer: a file's own, or the shipped model's for made-up weights of as many tokens.
    ///
    /// # Errors
    /// `File`, `Text`; `NoTokenizer`, `NoShippedModel` for made-up weights.
    pub(crate) fn vocab(&self, options: &EngineOptions) -> Result<Vocab, Error> {
        let synth = match self {
            Self::File(file) => return Vocab::of(file.file().metadata()),
            Self::Synth(synth) => synth,
        };
        let shipped = shipped_model().ok_or_else(|| Error::NoShippedModel {
            looked: candidates(),
        })?;
        let vocab = Vocab::of(options.open(shipped)?.metadata())?;
        let (tokens, shipped) = (Ds4Meta::read(synth)?.n_vocab, vocab.tokenizer.n_vocab());
        match tokens == shipped {
            true => Ok(vocab),
            false => Err(Error::NoTokenizer {
                model: synth.name().to_owned(),
                tokens,
                shipped,
            }),
        }
    }

    /// Says in `info` what it is.
    pub(crate) fn describe(&self, info: &mut ModelInfo) {
        match self {
            Self::File(source) => {
                let file = source.file();
                info.name = display_name(file);
                info.file = Some(file.path().to_path_buf());
                info.tensor_bytes = file.tensor_bytes();
                let tensors = file.tensors().iter();
                let tensors = tensors.map(|t| (t.name.as_str(), t.format, t.bytes() as u64));
                info.formats = formats(tensors);
            }
            Self::Synth(source) => {
                let names = source.tensor_names();
                let of = |name: &String| Some((name.clone(), source.tensor(name)?));
                let all: Vec<_> = names.iter().filter_map(of).collect();
                let tensors = all.iter();
                let tensors = tensors.map(|(n, t)| (n.as_str(), t.format, t.bytes.len() as u64));
                info.formats = formats(tensors);
                info.tensor_bytes = info.formats.iter().map(|f| f.bytes).sum();
                info.name = source.name().to_owned();
                info.label = Some(LABEL);
            }
        }
    }
}

/// `general.name`, or the file's name when that is missing, empty, not fit to be shown, or reads like made-up weights.
fn display_name(file: &Gguf) -> String {
    let fit = |name: &&str| {
        let name = name.trim();
        let shown = !name.is_empty() && name.len() <= 128 && !name.chars().any(char::is_control);
        shown && !Synth::is_meant(name)
    };
    let given = file.metadata().find_str("general.name").ok().flatten();
    match given.filter(fit) {
        Some(name) => name.trim().to_owned(),
        None => file
            .path()
            .file_stem()
            .map_or_else(|| "model".to_owned(), |s| s.to_string_lossy().into_owned()),
    }
}

/// Sums by role and format of tensors' names, formats and bytes.
fn formats<'a>(
    tensors: impl Iterator<Item = (&'a str, fpx_quant::Format, u64)>,
) -> Vec<RoleFormat> {
    let mut sums: BTreeMap<(String, String), (usize, u64)> = BTreeMap::new();
    for (tensor, format, bytes) in tensors {
        let name = match tensor.strip_prefix("blk.") {
            Some(rest) => rest.split_once('.').map_or(rest, |(_, name)| name),
            None => tensor,
        };
        let role = name.strip_suffix(".weight").unwrap_or(name).to_owned();
        let sum = sums.entry((role, format.to_string())).or_default();
        *sum = (sum.0 + 1, sum.1 + bytes);
    }
    sums.into_iter()
        .map(|((role, format), (tensors, bytes))| RoleFormat {
            role,
            format,
            tensors,
            bytes,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_names_of_made_up_models_or_paths() {
        let name = |text: &str| text.parse::<ModelName>();
        assert_eq!(name("a/b.gguf"), Ok(ModelName::from("a/b.gguf")));
        assert_eq!(name("./synth:tiny"), Ok(ModelName::from("./synth:tiny")));
        let tiny = name("synth:tiny").unwrap();
        assert!(matches!(tiny, ModelName::Synth(_)));
        assert_eq!(tiny.to_string(), "synth:tiny,recipe=fp2-fp3-fp4f,seed=0");
        assert!(name("synth:huge").is_err(), "never taken for a file");
        // A path says what it is.
        assert!(matches!(ModelName::from("synth:tiny"), ModelName::File(_)));
    }
}
