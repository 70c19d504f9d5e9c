//! From tokens of one answer to events: the turn's structure, stop strings, and the end. Runs on the
//! engine's thread, so that a stop string ends the answer before another token is drawn.

use std::sync::Arc;

use engine_core::TokenId;
use scheduler::{FinishReason, Flow, Token, Usage};
use text::dsml::{self, End, Phase};
use text::{AnswerParser, Decoder, PromptFormat, StopStrings, TokenKind, Tokenizer};

use crate::answer::{Event, Finish, Outcome};
use crate::prompt::Reading;

#[derive(Debug)]
enum Kind {
    Plain(Decoder),
    Turn(Box<AnswerParser>),
}

/// Reads one answer.
#[derive(Debug)]
pub(crate) struct Reader {
    tokenizer: Arc<Tokenizer>,
    /// Taken at the end.
    kind: Option<Kind>,
    stops: StopStrings,
    stop_string: Option<String>,
    one_call: bool,
    ids: Vec<TokenId>,
    reasoning_tokens: u32,
    /// Events of the parser, reused.
    parsed: Vec<dsml::Event>,
}

impl Reader {
    pub(crate) fn new(
        tokenizer: Arc<Tokenizer>,
        format: &PromptFormat,
        reading: Reading,
        stop: &[String],
        one_call: bool,
    ) -> Self {
        let kind = match reading {
            Reading::Plain => Kind::Plain(Decoder::default()),
            Reading::Turn {
                in_reasoning,
                tools,
            } => Kind::Turn(Box::new(AnswerParser::new(format, in_reasoning, tools))),
        };
        Self {
            tokenizer,
            kind: Some(kind),
            stops: StopStrings::new(stop),
            stop_string: None,
            one_call,
            ids: Vec::new(),
            reasoning_tokens: 0,
            parsed: Vec::new(),
        }
    }

    /// Takes a token; whether the answer is complete.
    pub(crate) fn push(&mut self, token: Token, out: &mut Vec<Event>) -> Flow {
        self.ids.push(token.id);
        match self.kind.as_mut() {
            Some(Kind::Plain(decoder)) => {
                let mut text = String::new();
                // Markers say nothing in plain text either.
                if self.tokenizer.kind(token.id) != Some(TokenKind::Control) {
                    let bytes = self.tokenizer.token_bytes(token.id).unwrap_or_default();
                    decoder.push(bytes, &mut text);
                }
                self.parsed.push(dsml::Event::Content(text));
            }
            Some(Kind::Turn(parser)) => {
                // The token that ends reasoning counts as part of it.
                self.reasoning_tokens += u32::from(parser.phase() == Phase::Reasoning);
                parser.push(&self.tokenizer, token.id, &mut self.parsed);
            }
            None => {}
        }
        self.forward(out)
    }

    /// Ends the answer.
    pub(crate) fn finish(&mut self, reason: &FinishReason, usage: Usage) -> (Vec<Event>, Outcome) {
        let end = match reason {
            FinishReason::StopToken(_) | FinishReason::Satisfied => End::Stop,
            _ => End::Cut,
        };
        let mut out = Vec::new();
        let (mut calls, mut malformed_calls) = (false, 0);
        match self.kind.take() {
            Some(Kind::Plain(mut decoder)) => {
                let mut text = String::new();
                decoder.finish(&mut text);
                self.parsed.push(dsml::Event::Content(text));
            }
            Some(Kind::Turn(parser)) => {
                let summary = parser.finish(end, &mut self.parsed);
                calls = summary.finish == dsml::Finish::ToolCalls;
                malformed_calls = summary.malformed;
            }
            None => {}
        }
        // What is held back at a stop string is not part of the answer.
        if self.stop_string.is_none() {
            self.forward(&mut out);
            let mut held = String::new();
            self.stops.finish(&mut held);
            push_text(held, &mut out);
        }
        let finish = match reason {
            FinishReason::StopToken(_) | FinishReason::Satisfied if calls => Finish::ToolCalls,
            FinishReason::StopToken(_) | FinishReason::Satisfied => Finish::Stop,
            FinishReason::Length => Finish::Length,
            FinishReason::Cancelled => Finish::Cancelled,
            FinishReason::Failed(failure) => Finish::Failed(failure.clone()),
        };
        let outcome = Outcome {
            finish,
            stop_string: self.stop_string.take(),
            ids: std::mem::take(&mut self.ids),
            reasoning_tokens: self.reasoning_tokens,
            malformed_calls,
            usage,
        };
        (out, outcome)
    }

    /// Passes parsed events on, text through the search for stop strings.
    fn forward(&mut self, out: &mut Vec<Event>) -> Flow {
        let mut flow = Flow::Continue;
        let mut parsed = std::mem::take(&mut self.parsed);
        for event in parsed.drain(..) {
            match event {
                dsml::Event::Content(text) => {
                    let mut sure = String::new();
                    self.stop_string = self.stops.push(&text, &mut sure);
                    push_text(sure, out);
                    if self.stop_string.is_some() {
                        flow = Flow::Stop;
                        break;
                    }
                }
                dsml::Event::Reasoning(text) => out.push(Event::Reasoning(text)),
                dsml::Event::CallStart { index, name } => {
                    // Text before a call is complete: nothing can follow that would make it a stop.
                    let mut held = String::new();
                    self.stops.finish(&mut held);
                    push_text(held, out);
                    out.push(Event::CallStart { index, name });
                }
                dsml::Event::CallArguments { index, fragment } => {
                    out.push(Event::CallArguments { index, fragment });
                }
                dsml::Event::CallEnd { index, complete } => {
                    out.push(Event::CallEnd { index, complete });
                    if complete && self.one_call {
                        flow = Flow::Stop;
                        break;
                    }
                }
            }
        }
        parsed.clear();
        self.parsed = parsed;
        flow
    }
}

fn push_text(text: String, out: &mut Vec<Event>) {
    if !text.is_empty() {
        out.push(Event::Text(text));
    }
}
