//! Byte-level BPE with the pre-tokenizer of DeepSeek V3 and V4 (spec/ds4-architecture.md 8.1).
//!
//! Special tokens are never found in text: whoever renders a prompt says which parts are special
//! ([`Piece::Special`]) and everything else is encoded as plain text, so that nothing a user writes
//! can become one. Neither a prefix space nor a BOS is added here.

mod bpe;
mod bytes;
mod decode;
mod split;

use std::collections::HashMap;

use engine_core::TokenId;

use crate::error::TextError;
pub use decode::Decoder;

/// Names of `tokenizer.ggml.pre` with exactly the rules of this module. The similar-looking
/// `deepseek-llm` and `deepseek-coder` split differently and are refused.
const KNOWN_PRE: &[&str] = &["joyai-llm", "deepseek-v3"];

/// What a vocabulary entry is. Values of `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    /// Ordinary text in the byte alphabet (1), and types unknown to this vocabulary family.
    Normal,
    /// A marker of the prompt format (3).
    Control,
    /// A marker whose text is shown (4); for encoding the same as a control token.
    UserDefined,
    /// A placeholder (5).
    Unused,
}

impl TokenKind {
    /// The kind of a file's number.
    #[must_use]
    pub fn from_ggml(value: i32) -> Self {
        match value {
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            _ => Self::Normal,
        }
    }
}

/// A tokenizer as a model file stores it.
#[derive(Clone, Copy, Debug)]
pub struct TokenizerParts<'a> {
    /// `[n_vocab]`: token texts; normal ones in the byte alphabet, others verbatim.
    pub tokens: &'a [String],
    /// `[n_vocab]`: kinds.
    pub kinds: &'a [TokenKind],
    /// Two token texts with a space between, lowest rank first.
    pub merges: &'a [String],
    /// Name of the pre-tokenizer.
    pub pre: &'a str,
}

/// A part of a rendered prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// A token of the prompt format.
    Special(TokenId),
    /// Text that is only ever text. Neighbouring texts are encoded as one.
    Text(&'a str),
    /// Tokens taken over as they are: what the model sampled, which need not be what its text
    /// would encode to.
    Tokens(&'a [TokenId]),
}

/// Encodes text to tokens and back.
#[derive(Clone, Debug, PartialEq)]
pub struct Tokenizer {
    /// `[n_vocab + 1]`: where each token's bytes start in `bytes`.
    starts: Vec<u32>,
    bytes: Vec<u8>,
    kinds: Vec<TokenKind>,
    specials: HashMap<String, TokenId>,
    byte_tokens: [TokenId; 256],
    merges: bpe::Merges,
}

impl Tokenizer {
    /// Checks the parts and builds the tables.
    ///
    /// A normal token with characters outside the byte alphabet (files that list markers without
    /// marking them) stands for its literal text and takes part in no merge.
    ///
    /// # Errors
    /// Any [`TextError`] but those of prompts.
    pub fn new(parts: TokenizerParts<'_>) -> Result<Self, TextError> {
        if !KNOWN_PRE.contains(&parts.pre) {
            return Err(TextError::UnknownPreTokenizer {
                got: parts.pre.to_owned(),
                known: KNOWN_PRE,
            });
        }
        if parts.kinds.len() != parts.tokens.len() {
            return Err(TextError::Length {
                what: "token types",
                expected: parts.tokens.len(),
                got: parts.kinds.len(),
            });
        }
        let mut this = Self {
            starts: vec![0],
            bytes: Vec::new(),
            kinds: parts.kinds.to_vec(),
            specials: HashMap::new(),
            byte_tokens: [TokenId::MAX; 256],
            merges: bpe::Merges::with_capacity(parts.merges.len()),
        };
        let ordinary = this.add_tokens(parts)?;
        for (index, text) in parts.merges.iter().enumerate() {
            this.add_merge(&ordinary, index, text)?;
        }
        Ok(this)
    }

    /// Stores all tokens; returns the ordinary ones by their text in the file.
    fn add_tokens<'p>(
        &mut self,
        parts: TokenizerParts<'p>,
    ) -> Result<HashMap<&'p str, TokenId>, TextError> {
        let mut ordinary = HashMap::with_capacity(parts.tokens.len());
        let mut all = HashMap::with_capacity(parts.tokens.len());
        for (id, (text, kind)) in (0u32..).zip(parts.tokens.iter().zip(parts.kinds)) {
            let decoded = match kind {
                TokenKind::Normal => bytes::bytes_of_text(text),
                _ => None,
            };
            if let Some(decoded) = &decoded {
                ordinary.insert(text.as_str(), id);
                if let &[byte] = decoded.as_slice() {
                    self.byte_tokens[usize::from(byte)] = id;
                }
            } else if *kind != TokenKind::Unused {
                self.specials.insert(text.clone(), id);
            }
            if *kind != TokenKind::Unused
                && let Some(first) = all.insert(text.as_str(), id)
            {
                let text = text.clone();
                return Err(TextError::DuplicateToken {
                    first,
                    second: id,
                    text,
                });
            }
            self.bytes
                .extend_from_slice(decoded.as_deref().unwrap_or(text.as_bytes()));
            let end = u32::try_from(self.bytes.len()).map_err(|_| TextError::Length {
                what: "bytes of all tokens",
                expected: u32::MAX as usize,
                got: self.bytes.len(),
            })?;
            self.starts.push(end);
        }
        match (0..=255u8).find(|b| self.byte_tokens[usize::from(*b)] == TokenId::MAX) {
            Some(byte) => Err(TextError::MissingByte { byte }),
            None => Ok(ordinary),
        }
    }

    fn add_merge(
        &mut self,
        ordinary: &HashMap<&str, TokenId>,
        index: usize,
        text: &str,
    ) -> Result<(), TextError> {
        let halves = text
            .split_once(' ')
            .filter(|(l, r)| !l.is_empty() && !r.is_empty() && !r.contains(' '));
        let Some((left, right)) = halves else {
            let got = text.to_owned();
            return Err(TextError::BadMerge { index, got });
        };
        let find = |text: &str| {
            ordinary
                .get(text)
                .copied()
                .ok_or_else(|| TextError::MergeToken {
                    index,
                    text: text.to_owned(),
                })
        };
        let merge = bpe::Merge {
            rank: index as u32,
            joined: find(&format!("{left}{right}"))?,
        };
        self.merges.add(find(left)?, find(right)?, merge);
        Ok(())
    }

    /// Tokens of the vocabulary.
    #[must_use]
    pub fn n_vocab(&self) -> usize {
        self.kinds.len()
    }

    /// The kind of a token; `None` outside the vocabulary.
    #[must_use]
    pub fn kind(&self, id: TokenId) -> Option<TokenKind> {
        self.kinds.get(id as usize).copied()
    }

    /// The special token with this text.
    #[must_use]
    pub fn special(&self, text: &str) -> Option<TokenId> {
        self.specials.get(text).copied()
    }

    /// The bytes a token stands for; `None` outside the vocabulary.
    #[must_use]
    pub fn token_bytes(&self, id: TokenId) -> Option<&[u8]> {
        let start = *self.starts.get(id as usize)? as usize;
        let end = *self.starts.get(id as usize + 1)? as usize;
        self.bytes.get(start..end)
    }

    /// Appends the tokens of a rendered prompt.
    pub fn encode_into(&self, pieces: &[Piece<'_>], out: &mut Vec<TokenId>) {
        let mut scratch = bpe::Scratch::default();
        let mut joined = String::new();
        let mut rest = pieces;
        while let Some((first, tail)) = rest.split_first() {
            match first {
                Piece::Special(id) => out.push(*id),
                Piece::Tokens(ids) => out.extend_from_slice(ids),
                Piece::Text(text) if !matches!(tail.first(), Some(Piece::Text(_))) => {
                    if joined.is_empty() {
                        self.encode_str(text, &mut scratch, out);
                    } else {
                        joined.push_str(text);
                        self.encode_str(&joined, &mut scratch, out);
                        joined.clear();
                    }
                }
                Piece::Text(text) => joined.push_str(text),
            }
            rest = tail;
        }
    }

    /// The tokens of a rendered prompt.
    #[must_use]
    pub fn encode(&self, pieces: &[Piece<'_>]) -> Vec<TokenId> {
        let mut out = Vec::new();
        self.encode_into(pieces, &mut out);
        out
    }

    /// The tokens of plain text.
    #[must_use]
    pub fn encode_text(&self, text: &str) -> Vec<TokenId> {
        self.encode(&[Piece::Text(text)])
    }

    fn encode_str(&self, text: &str, scratch: &mut bpe::Scratch, out: &mut Vec<TokenId>) {
        split::for_each_piece(text, |piece| {
            let ids = piece.bytes().map(|b| self.byte_tokens[usize::from(b)]);
            scratch.merge(&self.merges, ids, out);
        });
    }

    /// The bytes of tokens, specials with their text.
    ///
    /// # Errors
    /// `BadToken`.
    pub fn decode(&self, ids: &[TokenId]) -> Result<Vec<u8>, TextError> {
        let mut out = Vec::new();
        for &got in ids {
            let n_vocab = self.n_vocab();
            let bytes = self.token_bytes(got);
            out.extend_from_slice(bytes.ok_or(TextError::BadToken { got, n_vocab })?);
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests;
