//! The tokenizer and prompt format of a model file, from its `tokenizer.ggml.*` keys.

use std::sync::Arc;

use engine_core::TokenId;
use gguf::{Array, Metadata, Value};
use text::{Generation, PromptFormat, TokenKind, Tokenizer, TokenizerParts};

use crate::error::Error;

/// What turns text into tokens and back.
#[derive(Clone, Debug)]
pub(crate) struct Vocab {
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) format: PromptFormat,
    /// Tokens that end an answer.
    pub(crate) stop_tokens: Arc<[TokenId]>,
    /// Opens a raw prompt.
    pub(crate) bos: Option<TokenId>,
    /// A remark on how the prompt format was chosen, if it was a guess.
    pub(crate) remark: Option<String>,
}

const BOS: &str = "<｜begin▁of▁sentence｜>";
const EOS: &str = "<｜end▁of▁sentence｜>";

impl Vocab {
    /// A tokenizer by itself: the markers are found by their text.
    pub(crate) fn with(tokenizer: Tokenizer, generation: Generation) -> Result<Self, Error> {
        Ok(Self {
            format: PromptFormat::new(&tokenizer, generation)?,
            stop_tokens: tokenizer.special(EOS).into_iter().collect(),
            bos: tokenizer.special(BOS),
            tokenizer: Arc::new(tokenizer),
            remark: None,
        })
    }

    /// The vocabulary of a file.
    pub(crate) fn of(metadata: &Metadata) -> Result<Self, Error> {
        let file = metadata.file().display().to_string();
        let wrong = |source| Error::Text {
            file: file.clone(),
            source,
        };
        let tokens = metadata.get_str_array("tokenizer.ggml.tokens")?;
        let parts = TokenizerParts {
            tokens,
            kinds: &kinds(metadata)?,
            merges: metadata.get_str_array("tokenizer.ggml.merges")?,
            pre: metadata.get_str("tokenizer.ggml.pre")?,
        };
        let tokenizer = Tokenizer::new(parts).map_err(wrong)?;
        let version = metadata.find_str("general.base_model.0.version")?;
        // Taken from what the file says it is, never from its name (which anybody may change).
        let known = Generation::from_version(version);
        let remark = known.is_none().then(|| {
            let version = version.unwrap_or_default();
            format!("version {version:?} is not known: prompts are written as for 0731")
        });
        let generation = known.unwrap_or(Generation::V0731);
        let format = PromptFormat::new(&tokenizer, generation).map_err(wrong)?;
        let id = |key: &str| -> Result<Option<TokenId>, Error> {
            let found = metadata.find_u32(key)?;
            match found {
                Some(id) if id as usize >= tokens.len() => {
                    let expected = format!("a token below {}", tokens.len());
                    Err(metadata.bad_value(key, expected, id).into())
                }
                found => Ok(found),
            }
        };
        let mut stop_tokens = Vec::new();
        for key in ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"] {
            stop_tokens.extend(id(key)?);
        }
        stop_tokens.extend(tokenizer.special(EOS));
        stop_tokens.sort_unstable();
        stop_tokens.dedup();
        let bos = id("tokenizer.ggml.bos_token_id")?;
        Ok(Self {
            bos: bos.or_else(|| tokenizer.special(BOS)),
            tokenizer: Arc::new(tokenizer),
            format,
            stop_tokens: stop_tokens.into(),
            remark,
        })
    }
}

fn kinds(metadata: &Metadata) -> Result<Vec<TokenKind>, Error> {
    const KEY: &str = "tokenizer.ggml.token_type";
    const EXPECTED: &str = "array of i32";
    match metadata.get(KEY) {
        Some(Value::Array(Array::I32(values))) => {
            Ok(values.iter().map(|v| TokenKind::from_ggml(*v)).collect())
        }
        Some(other) => Err(metadata.bad_value(KEY, EXPECTED, other.describe()).into()),
        None => Err(metadata.missing(KEY, EXPECTED).into()),
    }
}
