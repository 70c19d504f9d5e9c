//! A prompt in the making: special tokens, text, and tokens taken over as they are.
//!
//! Two ways to write: [`Builder::format`] for wording of the format itself, in which the markers
//! become special tokens, and [`Builder::text`] for everything that came from outside, which stays
//! text whatever it contains.

use std::ops::Range;
use std::sync::Arc;

use engine_core::TokenId;

use super::markers::Markers;
use crate::tokenizer::{Piece, Tokenizer};

#[derive(Clone, Debug)]
enum Segment {
    Special(TokenId),
    Text(Range<usize>),
    Tokens(Arc<[TokenId]>, Range<usize>),
}

/// A rendered prompt.
#[derive(Clone, Debug, Default)]
pub struct Prompt {
    segments: Vec<Segment>,
    text: String,
    in_reasoning: bool,
}

impl Prompt {
    /// Its parts.
    pub fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        self.segments.iter().map(|segment| match segment {
            Segment::Special(id) => Piece::Special(*id),
            Segment::Text(range) => Piece::Text(&self.text[range.clone()]),
            Segment::Tokens(tokens, range) => Piece::Tokens(&tokens[range.clone()]),
        })
    }

    /// Its tokens.
    #[must_use]
    pub fn encode(&self, tokenizer: &Tokenizer) -> Vec<TokenId> {
        tokenizer.encode(&self.pieces().collect::<Vec<_>>())
    }

    /// Whether the model's next token is part of its reasoning: the prompt ends with an opened and
    /// unclosed `<think>`.
    #[must_use]
    pub const fn ends_in_reasoning(&self) -> bool {
        self.in_reasoning
    }

    /// The prompt as text, markers spelled out: for people, not for encoding.
    #[must_use]
    pub fn to_text(&self, tokenizer: &Tokenizer) -> String {
        let mut bytes = Vec::new();
        for piece in self.pieces() {
            let ids = match &piece {
                Piece::Special(id) => std::slice::from_ref(id),
                Piece::Tokens(ids) => ids,
                Piece::Text(text) => {
                    bytes.extend_from_slice(text.as_bytes());
                    continue;
                }
            };
            for id in ids {
                bytes.extend_from_slice(tokenizer.token_bytes(*id).unwrap_or_default());
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Writes a [`Prompt`].
#[derive(Debug)]
pub(crate) struct Builder<'m> {
    markers: &'m Markers,
    prompt: Prompt,
}

impl<'m> Builder<'m> {
    pub(crate) fn new(markers: &'m Markers) -> Self {
        Self {
            markers,
            prompt: Prompt::default(),
        }
    }

    /// Text from outside: never a special token.
    pub(crate) fn text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        let start = self.prompt.text.len();
        self.prompt.text.push_str(text);
        let end = self.prompt.text.len();
        match self.prompt.segments.last_mut() {
            Some(Segment::Text(range)) => range.end = end,
            _ => self.prompt.segments.push(Segment::Text(start..end)),
        }
    }

    /// The format's own wording: its markers are special tokens, as far as the vocabulary has them.
    pub(crate) fn format(&mut self, wording: &str) {
        let mut rest = wording;
        while let Some((at, len, id)) = self.markers.find(rest) {
            self.text(&rest[..at]);
            self.special(id);
            rest = &rest[at + len..];
        }
        self.text(rest);
    }

    fn special(&mut self, id: TokenId) {
        self.prompt.segments.push(Segment::Special(id));
        self.follow(id);
    }

    /// Tokens as they were sampled.
    pub(crate) fn tokens(&mut self, tokens: &Arc<[TokenId]>, range: Range<usize>) {
        tokens[range.clone()].iter().for_each(|id| self.follow(*id));
        let segment = Segment::Tokens(Arc::clone(tokens), range);
        self.prompt.segments.push(segment);
    }

    fn follow(&mut self, id: TokenId) {
        if id == self.markers.think {
            self.prompt.in_reasoning = true;
        } else if id == self.markers.end_think || id == self.markers.eos {
            self.prompt.in_reasoning = false;
        }
    }

    pub(crate) fn markers(&self) -> &'m Markers {
        self.markers
    }

    pub(crate) fn finish(self) -> Prompt {
        self.prompt
    }
}
