//! The special tokens of the prompt format, found by their text: ids differ between vocabularies.

use engine_core::TokenId;

use super::message::Task;
use crate::error::TextError;
use crate::tokenizer::Tokenizer;

pub(crate) const BOS: &str = "<｜begin▁of▁sentence｜>";
pub(crate) const EOS: &str = "<｜end▁of▁sentence｜>";
pub(crate) const USER: &str = "<｜User｜>";
pub(crate) const ASSISTANT: &str = "<｜Assistant｜>";
pub(crate) const THINK: &str = "<think>";
pub(crate) const END_THINK: &str = "</think>";
pub(crate) const DSML: &str = "｜DSML｜";
pub(crate) const REMINDER: &str = "<｜latest_reminder｜>";
pub(crate) const TOOL_RESULT: &str = "<tool_result>";
pub(crate) const END_TOOL_RESULT: &str = "</tool_result>";

/// Markers a vocabulary may lack; they are then plain text, as they are to the reference.
const OPTIONAL: &[&str] = &[
    DSML,
    REMINDER,
    TOOL_RESULT,
    END_TOOL_RESULT,
    Task::Action.marker(),
    Task::Query.marker(),
    Task::Authority.marker(),
    Task::Domain.marker(),
    Task::Title.marker(),
    Task::ReadUrl.marker(),
];

/// The format's special tokens in one vocabulary.
#[derive(Clone, Debug)]
pub(crate) struct Markers {
    /// Text and id of each marker the vocabulary has.
    known: Vec<(&'static str, TokenId)>,
    pub(crate) eos: TokenId,
    pub(crate) think: TokenId,
    pub(crate) end_think: TokenId,
    pub(crate) dsml: Option<TokenId>,
}

impl Markers {
    /// # Errors
    /// `MissingSpecial` for a marker no prompt can do without.
    pub(crate) fn resolve(tokenizer: &Tokenizer) -> Result<Self, TextError> {
        let mut known = Vec::new();
        let mut need = |text: &'static str| {
            let id = tokenizer
                .special(text)
                .ok_or_else(|| TextError::MissingSpecial {
                    text: text.to_owned(),
                })?;
            known.push((text, id));
            Ok(id)
        };
        need(BOS)?;
        need(ASSISTANT)?;
        need(USER)?;
        let eos = need(EOS)?;
        let (think, end_think) = (need(THINK)?, need(END_THINK)?);
        for text in OPTIONAL {
            known.extend(tokenizer.special(text).map(|id| (*text, id)));
        }
        Ok(Self {
            known,
            eos,
            think,
            end_think,
            dsml: tokenizer.special(DSML),
        })
    }

    /// The first marker in the format's own wording: place, length, id.
    pub(crate) fn find(&self, wording: &str) -> Option<(usize, usize, TokenId)> {
        let places = self
            .known
            .iter()
            .filter_map(|(text, id)| wording.find(text).map(|at| (at, text.len(), *id)));
        places.min_by_key(|(at, ..)| *at)
    }
}
