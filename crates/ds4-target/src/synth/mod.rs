//! Models of real shapes with made-up weights (label synth), for speed and for tests: `synth:flash`, `synth:pro`,
//! `synth:tiny`, with a recipe of formats and a seed. Every byte follows from seed, tensor name and place
//! (`ds4_kernels::cpu::synth`), so that two machines have the same model and the same fingerprint.
//!
//! They compute what a model of that shape computes, in the same time; what they say means nothing. Experts are chosen
//! nearly evenly, so that a pass of many tokens reads more of them than a trained model's would.
//! Must not know: tokenizers, devices, who measures.

mod recipe;
mod sizes;

use std::fmt;
use std::str::FromStr;

use ds4_kernels::cpu::synth::{Field, Made, ids, key};
use fpx_quant::Format;
use gguf::names::{Dialect, Role, parse, tensor_name};

use crate::source::{Bytes, MetaValue, RawTensor, Source};
use sizes::Sizes;

pub use recipe::Recipe;

/// The word that stands wherever something of such a model is shown: its figures are never a real model's.
pub const LABEL: &str = "synth";

/// How its names begin.
const PREFIX: &str = "synth:";

/// Whose shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// DeepSeek V4 Flash.
    Flash,
    /// DeepSeek V4 Pro.
    Pro,
    /// The small model that ships with the program.
    Tiny,
}

impl Size {
    /// All of them, by name.
    pub const ALL: [(&'static str, Self); 3] = [
        ("flash", Self::Flash),
        ("pro", Self::Pro),
        ("tiny", Self::Tiny),
    ];

    const fn sizes(self) -> &'static Sizes {
        match self {
            Self::Flash => &sizes::FLASH,
            Self::Pro => &sizes::PRO,
            Self::Tiny => &sizes::TINY,
        }
    }
}

/// A model to be made up. As text `synth:SIZE[,recipe=GATE_UP-DOWN-REST][,seed=N]`, the options in any order; printed with
/// both, so that what is printed makes the same model.
///
/// ```
/// let model: ds4_target::synth::Synth = "synth:flash,seed=7".parse().unwrap();
/// assert_eq!(model.to_string(), "synth:flash,recipe=fp2-fp3-fp4f,seed=7");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Synth {
    /// Whose shapes.
    pub size: Size,
    /// Formats of its matrices.
    pub recipe: Recipe,
    /// What its bytes are made from.
    pub seed: u64,
}

impl Synth {
    /// Whether a text means such a model, spelled right or not, and not a file.
    #[must_use]
    pub fn is_meant(text: &str) -> bool {
        text.starts_with(PREFIX)
    }
}

/// Why a name means no model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?}: {what}: expected {expected}, got {got:?}")]
pub struct NameError {
    /// The whole name.
    pub name: String,
    /// Which part of it.
    pub what: &'static str,
    /// What may stand there.
    pub expected: String,
    /// What stands there.
    pub got: String,
}

impl FromStr for Synth {
    type Err = NameError;

    fn from_str(name: &str) -> Result<Self, NameError> {
        let bad = |what, expected: String, got: &str| NameError {
            name: name.to_owned(),
            what,
            expected,
            got: got.to_owned(),
        };
        let Some(rest) = name.strip_prefix(PREFIX) else {
            return Err(bad("beginning", format!("{PREFIX:?}"), name));
        };
        let mut parts = rest.split(',');
        let word = parts.next().unwrap_or_default();
        let sizes = || Size::ALL.map(|(name, _)| name).join(", ");
        let size = Size::ALL.iter().find(|(known, _)| *known == word);
        let (_, size) = size.ok_or_else(|| bad("size", sizes(), word))?;
        let (mut recipe, mut seed) = (None, None);
        for part in parts {
            let option = || bad("option", "recipe=.. or seed=.., each once".into(), part);
            match part.split_once('=') {
                Some(("recipe", text)) if recipe.is_none() => {
                    let read = text.parse();
                    recipe = Some(read.map_err(|expected| bad("recipe", expected, text))?);
                }
                Some(("seed", text)) if seed.is_none() => {
                    let plain = text.bytes().all(|b| b.is_ascii_digit());
                    let read = text.parse().ok().filter(|_| plain);
                    let expected = || "a number below 2^64".into();
                    seed = Some(read.ok_or_else(|| bad("seed", expected(), text))?);
                }
                _ => return Err(option()),
            }
        }
        Ok(Self {
            size: *size,
            recipe: recipe.unwrap_or_default(),
            seed: seed.unwrap_or(0),
        })
    }
}

impl fmt::Display for Synth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = Size::ALL.iter().find(|(_, size)| *size == self.size);
        let size = size.map_or("", |(name, _)| name);
        write!(
            f,
            "{PREFIX}{size},recipe={},seed={}",
            self.recipe, self.seed
        )
    }
}

/// A tensor of rows whose bytes were not made yet.
#[must_use]
pub fn tensor(seed: u64, name: &str, shape: Vec<u64>, format: Format) -> Option<RawTensor> {
    // Biases that a router adds to its scores must not choose alone.
    let field = match parse(name) {
        Some((Role::ExpProbsB, _)) if format == Format::F32 => Field::SMALL,
        _ => Field::of(format)?,
    };
    let k = usize::try_from(*shape.first()?).ok()?;
    let rows = shape[1..].iter().try_fold(1u64, |a, n| a.checked_mul(*n))?;
    // A format that does not divide the rows is refused, by name, by whoever binds the tensor.
    let len = format.matrix_bytes(usize::try_from(rows).ok()?, k);
    let len = len.unwrap_or(0);
    let made = Made::new(key(seed, name), field);
    Some(RawTensor {
        bytes: Bytes::of_made(made, len),
        shape,
        format,
    })
}

/// A made-up model as a source.
#[derive(Clone, Debug)]
pub struct SynthSource {
    synth: Synth,
    name: String,
}

impl SynthSource {
    /// The model's source. Nothing is made yet.
    #[must_use]
    pub fn new(synth: &Synth) -> Self {
        Self {
            name: synth.to_string(),
            synth: synth.clone(),
        }
    }

    /// Which model.
    #[must_use]
    pub fn synth(&self) -> &Synth {
        &self.synth
    }

    /// The role and layer of a tensor that this model has.
    fn role(&self, name: &str) -> Option<(Role, Option<u32>)> {
        let (role, layer) = parse(name)?;
        let has = self.synth.size.sizes().structure();
        (has.has(role.presence(), layer) && tensor_name(Dialect::Antirez, role, layer) == name)
            .then_some((role, layer))
    }
}

impl Source for SynthSource {
    fn name(&self) -> &str {
        &self.name
    }

    fn meta(&self, key: &str) -> Option<MetaValue> {
        self.synth.size.sizes().meta(key)
    }

    fn tensor(&self, name: &str) -> Option<RawTensor> {
        let (role, layer) = self.role(name)?;
        let (sizes, seed) = (self.synth.size.sizes(), self.synth.seed);
        let shape = sizes.shape(role, layer);
        if role == Role::FfnGateTid2Eid {
            let (experts, used, tokens) = sizes.table();
            let table = ids(key(seed, name), experts, used, tokens);
            let bytes = table.iter().flat_map(|id| id.to_le_bytes()).collect();
            return Some(RawTensor {
                shape,
                format: Format::I32,
                bytes: Bytes::from_vec(bytes),
            });
        }
        tensor(seed, name, shape, self.synth.recipe.format(role))
    }

    fn tensor_names(&self) -> Vec<String> {
        let structure = self.synth.size.sizes().structure();
        let name = |(role, layer)| tensor_name(Dialect::Antirez, role, layer);
        structure.expected().map(name).collect()
    }
}

#[cfg(test)]
mod tests;
