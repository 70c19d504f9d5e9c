//! Reads an answer token by token. The special token `｜DSML｜` makes a tag whatever surrounds it;
//! reasoning ends only at the special token `</think>`, and markup inside reasoning is reasoning.
//!
//! Tags spelled out in ordinary tokens are read too when tools were offered, with the bars
//! U+FF5C, U+2016, `|` and doubled ones: some models write them so. Inside a value that a special
//! token opened they are text, so that a value may contain anything. When no tools were offered,
//! spelled-out tags are text.
//!
//! Repairs are few: a missing closing tag before another tag, or before the end of the turn after at
//! least one closed parameter. Anything else that is wrong makes no call, and none of its markup is
//! shown.

use engine_core::TokenId;

use super::event::{End, Event, Summary};
use super::lead::{self, Lead};
use super::structure::{State, Structure};
use super::tag::{self, Tag};
use crate::prompt::PromptFormat;
use crate::tokenizer::{Decoder, TokenKind, Tokenizer};

/// What the next token would be part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Reasoning: no constraint applies.
    Reasoning,
    /// The reply.
    Content,
    /// Tags and what stands between them.
    Syntax,
    /// An argument's value.
    Value,
}

#[derive(Clone, Debug)]
struct OpenTag {
    /// The text before the marker.
    lead: String,
    inside: String,
    /// Whether a special token made it.
    special: bool,
    /// Whether an attribute's value is open.
    quoted: bool,
}

/// Turns the tokens of one answer into events.
#[derive(Clone, Debug)]
pub struct AnswerParser {
    think: TokenId,
    end_think: TokenId,
    dsml: Option<TokenId>,
    tools: bool,
    decoder: Decoder,
    text: String,
    /// Text that may be the start of a tag.
    held: String,
    tag: Option<OpenTag>,
    structure: Structure,
}

impl AnswerParser {
    /// A parser for an answer to a prompt of `format`. `in_reasoning`: as the prompt says
    /// ([`crate::Prompt::ends_in_reasoning`]); `tools`: whether tools were offered.
    #[must_use]
    pub fn new(format: &PromptFormat, in_reasoning: bool, tools: bool) -> Self {
        let markers = format.markers();
        Self {
            think: markers.think,
            end_think: markers.end_think,
            dsml: markers.dsml,
            tools,
            decoder: Decoder::default(),
            text: String::new(),
            held: String::new(),
            tag: None,
            structure: Structure::new(in_reasoning),
        }
    }

    /// What the next token would be part of.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match self.structure.state {
            State::Reasoning => Phase::Reasoning,
            _ if self.tag.is_some() => Phase::Syntax,
            State::Value { .. } => Phase::Value,
            State::Outside if !self.structure.in_block => Phase::Content,
            _ => Phase::Syntax,
        }
    }

    /// Reads a token. The end of sentence is not one of the answer: call [`Self::finish`].
    pub fn push(&mut self, tokenizer: &Tokenizer, id: TokenId, out: &mut Vec<Event>) {
        if id == self.think || id == self.end_think || Some(id) == self.dsml {
            self.end_text(out);
            self.marker(id, tokenizer, out);
            return;
        }
        // Other markers of the format say nothing within an answer.
        if tokenizer.kind(id) == Some(TokenKind::Control) {
            self.end_text(out);
            self.leave_out(out);
        } else {
            self.push_bytes(tokenizer.token_bytes(id).unwrap_or_default(), out);
        }
    }

    /// Reads ordinary text, cut anywhere.
    pub fn push_bytes(&mut self, bytes: &[u8], out: &mut Vec<Event>) {
        let mut text = std::mem::take(&mut self.text);
        self.decoder.push(bytes, &mut text);
        self.read(&text, out);
        text.clear();
        self.text = text;
    }

    /// Ends the answer.
    pub fn finish(mut self, end: End, out: &mut Vec<Event>) -> Summary {
        self.end_text(out);
        if let Some(tag) = self.tag.take() {
            self.broken_tag(&tag, out);
        }
        self.structure.plain(&self.held, out);
        self.structure.finish(end, out)
    }

    /// An incomplete character before a marker or the end will not be completed.
    fn end_text(&mut self, out: &mut Vec<Event>) {
        let mut rest = String::new();
        self.decoder.finish(&mut rest);
        self.read(&rest, out);
    }

    fn marker(&mut self, id: TokenId, tokenizer: &Tokenizer, out: &mut Vec<Event>) {
        if self.structure.state == State::Reasoning {
            if id == self.end_think {
                self.structure.state = State::Outside;
            } else if id != self.think {
                let bytes = tokenizer.token_bytes(id).unwrap_or_default();
                let text = String::from_utf8_lossy(bytes).into_owned();
                out.push(Event::Reasoning(text));
            }
        } else if Some(id) == self.dsml {
            self.open_tag(true, out);
        } else if id == self.think {
            self.tag = None;
            self.leave_out(out);
            self.structure.begin_reasoning(out);
        } else {
            self.leave_out(out);
        }
    }

    /// A token that is not shown and is part of no tag: what stands before it is not completed by what
    /// follows it.
    fn leave_out(&mut self, out: &mut Vec<Event>) {
        let held = std::mem::take(&mut self.held);
        self.structure.plain(&held, out);
        self.structure.leave_out();
    }

    /// Whether tags spelled out count here.
    fn reads_spelled(&self) -> bool {
        self.tools && self.structure.state != State::Value { special: true }
    }

    fn read(&mut self, text: &str, out: &mut Vec<Event>) {
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let plain = match (self.structure.state, &self.tag) {
                (State::Reasoning, _) => rest.len(),
                (_, Some(_)) => 0,
                _ if !self.held.is_empty() => 0,
                _ => rest.find(lead::starts).unwrap_or(rest.len()),
            };
            let len = if plain > 0 { plain } else { c.len_utf8() };
            let (head, tail) = rest.split_at(len);
            if plain > 0 {
                self.structure.plain(head, out);
            } else if self.tag.is_some() {
                self.tag_char(c, out);
            } else {
                self.held.push(c);
                self.try_lead(out);
            }
            rest = tail;
        }
    }

    /// Gives up held-back characters from the front until the rest may be a tag's start again.
    fn try_lead(&mut self, out: &mut Vec<Event>) {
        while !self.held.is_empty() {
            match lead::read(&self.held, self.reads_spelled()) {
                Lead::Partial => return,
                Lead::Spelled => return self.open_tag(false, out),
                Lead::No => {
                    let first = self.held.remove(0);
                    self.structure.plain(first.encode_utf8(&mut [0; 4]), out);
                }
            }
        }
    }

    fn open_tag(&mut self, special: bool, out: &mut Vec<Event>) {
        if let Some(mut tag) = self.tag.take() {
            // A tag within a tag: the outer one never ended.
            let inner = tag.inside.rfind('<').unwrap_or(tag.inside.len());
            self.held = tag.inside.split_off(inner);
            self.broken_tag(&tag, out);
        }
        let lead = std::mem::take(&mut self.held);
        self.tag = Some(OpenTag {
            lead,
            inside: String::new(),
            special,
            quoted: false,
        });
    }

    fn tag_char(&mut self, c: char, out: &mut Vec<Event>) {
        let Some(mut tag) = self.tag.take() else {
            return;
        };
        tag.quoted ^= c == '"';
        if c == '>' && !tag.quoted {
            return self.whole_tag(&tag, out);
        }
        tag.inside.push(c);
        if c == '\n' || tag.inside.len() > tag::MAX_LEN {
            return self.broken_tag(&tag, out);
        }
        self.tag = Some(tag);
    }

    /// A tag without its end. A closing one is taken for whole, an opening one makes no call.
    fn broken_tag(&mut self, tag: &OpenTag, out: &mut Vec<Event>) {
        if !tag.special && !tag::may_become_known(&tag.inside) {
            return self
                .structure
                .plain(&format!("{}{}", tag.lead, tag.inside), out);
        }
        if lead::is_closing(&tag.lead) {
            return self
                .structure
                .apply(tag::read(&tag.inside, true), tag.special, out);
        }
        match tag::read(&tag.inside, false) {
            Tag::OpenInvoke(_) => self.structure.malformed_call(out),
            Tag::OpenParameter(_) => self.structure.spoil(out),
            _ => self.structure.count_malformed(),
        }
    }

    fn whole_tag(&mut self, tag: &OpenTag, out: &mut Vec<Event>) {
        let read = tag::read(&tag.inside, lead::is_closing(&tag.lead));
        if read == Tag::Unknown && !tag.special {
            return self
                .structure
                .plain(&format!("{}{}>", tag.lead, tag.inside), out);
        }
        let breaks = lead::breaks(&tag.lead);
        let own = match (&read, self.structure.state) {
            (Tag::Unknown, _) => breaks,
            // Line breaks before the value's own closing tag are the value's; before another tag,
            // which the value should have been closed before, one is the markup's.
            (Tag::CloseParameter, State::Value { .. }) => breaks,
            (_, State::Value { .. }) => breaks.saturating_sub(1),
            _ => 0,
        };
        self.structure.plain(&tag.lead[..own], out);
        self.structure.apply(read, tag.special, out);
    }
}
