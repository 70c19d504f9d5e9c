//! Hyper-parameters of a draft model, read strictly from metadata (spec/dspark.md 5).
//!
//! Every shape-bearing key must be there; keys that a draft model does not use may be absent. The
//! ranges are those of the public loader. Must not know: tensors' contents, the target's weights.

mod keys;
mod read;

use ds4_target::Ds4Meta;
use ds4_target::source::Source;
use engine_core::mutant::mutant;
use engine_core::seams::TargetInfo;
use engine_core::{LayerId, TokenId};

use self::keys::Keys;
use crate::error::DraftError;
use crate::names::{self, Form};

/// The kind of a Markov head. Others exist and are refused by name (spec/dspark.md 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Markov {
    /// `U + W2 * W1[t]`.
    Vanilla {
        /// Width of `W1`'s rows.
        rank: usize,
    },
}

impl Markov {
    /// Width of `W1`'s rows.
    #[must_use]
    pub const fn rank(self) -> usize {
        match self {
            Self::Vanilla { rank } => rank,
        }
    }
}

/// What the confidence head reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConfidenceInput {
    /// The state before the output norm.
    State,
    /// That and the Markov row of the previous token.
    StateAndMarkov,
}

/// A draft model's hyper-parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct DraftMeta {
    /// The contract the file follows.
    pub form: Form,
    /// Shapes of the stages, in the target's terms: window layers without tables.
    pub stage: Ds4Meta,
    /// Rows of a block, all of them always computed: the most candidates of a draft.
    pub block: usize,
    /// The token of every row but the first.
    pub mask: TokenId,
    /// Target layers whose outputs are the features, in the order of concatenation.
    pub capture: Vec<LayerId>,
    /// The Markov head.
    pub markov: Markov,
    /// The confidence head, if there is one.
    pub confidence: Option<ConfidenceInput>,
    /// The target it was made for, where the file says so.
    pub target_fingerprint: Option<[u8; 32]>,
}

/// Whether a draft model was made for a target. Anything but `Same` deserves a warning: a wrong pair
/// drafts badly, though never wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetMatch {
    /// The file names this target.
    Same,
    /// The file names no target.
    Unrecorded,
    /// The file names another target, or another quantisation of this one.
    Other {
        /// What the file names.
        recorded: [u8; 32],
        /// The target's.
        target: [u8; 32],
    },
}

impl DraftMeta {
    /// Reads and checks the hyper-parameters of a file in either form.
    ///
    /// # Errors
    /// `Load` with `Architecture`, `MissingKey` or `BadKey`, naming the file's own key.
    pub fn read(source: &dyn Source) -> Result<Self, DraftError> {
        let form = read::form_of(source)?;
        let k = Keys { source, form };
        let stage = read::stage(&k)?;
        let block = k.size(names::BLOCK_SIZE, 2..=16)?;
        let mask = k.size(names::MASK_TOKEN, 0..=stage.n_vocab as i64 - 1)? as TokenId;
        let capture = read::capture(&k)?;
        let markov = read::markov(&k)?;
        let confidence = read::confidence(&k, stage.n_embd, markov.rank())?;
        Ok(Self {
            form,
            stage,
            block,
            mask,
            capture,
            markov,
            confidence,
            target_fingerprint: read::fingerprint(&k)?,
        })
    }

    /// Values of one position's features: all captured layers together.
    #[must_use]
    pub fn feature_width(&self) -> usize {
        self.capture.len() * self.stage.n_embd
    }

    /// Inputs of the confidence head; 0 without one.
    #[must_use]
    pub fn confidence_width(&self) -> usize {
        match self.confidence {
            None => 0,
            Some(ConfidenceInput::State) => self.stage.n_embd,
            Some(ConfidenceInput::StateAndMarkov) => self.stage.n_embd + self.markov.rank(),
        }
    }

    /// Checks that the model fits a target: width, vocabulary, layers. `file`: for messages.
    ///
    /// # Errors
    /// `Target`.
    pub fn check_target(&self, file: &str, target: &TargetInfo) -> Result<TargetMatch, DraftError> {
        let agree = |what: &str, expected: String, got: usize, ok: bool| match ok {
            true => Ok(()),
            false => Err(DraftError::Target {
                file: file.to_owned(),
                what: what.to_owned(),
                expected,
                got: got.to_string(),
            }),
        };
        let (d, v) = (self.stage.n_embd, self.stage.n_vocab);
        agree(
            "embedding_length",
            target.n_embd.to_string(),
            d,
            d == target.n_embd,
        )?;
        let same = v == target.n_vocab || mutant(219);
        agree("vocab_size", target.n_vocab.to_string(), v, same)?;
        for layer in &self.capture {
            let ok = layer.index() < target.n_layer;
            let expected = format!("layers below {}", target.n_layer);
            agree("captured layers", expected, layer.index(), ok)?;
        }
        let target = target.fingerprint;
        Ok(match self.target_fingerprint {
            None => TargetMatch::Unrecorded,
            Some(recorded) if recorded == target || mutant(222) => TargetMatch::Same,
            Some(recorded) => TargetMatch::Other { recorded, target },
        })
    }
}
