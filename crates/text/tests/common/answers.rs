//! Scripted answers: text in which the markers stand for their special tokens.

use text::dsml::{AnswerParser, End, Event, Summary};
use text::{Answer, Generation, PromptFormat, Tokenizer};

pub(crate) const D: &str = "｜DSML｜";

pub(crate) struct Fixture {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) format: PromptFormat,
}

/// What is fed to the parser.
#[derive(Clone, Debug)]
pub(crate) enum Feed {
    Token(u32),
    Bytes(Vec<u8>),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) in_reasoning: bool,
    pub(crate) tools: bool,
    pub(crate) end: End,
}

pub(crate) const CALLS: Setting = Setting {
    in_reasoning: false,
    tools: true,
    end: End::Stop,
};

impl Fixture {
    pub(crate) fn new() -> Self {
        let tokenizer = super::tiny_with_all_markers();
        let format = PromptFormat::new(&tokenizer, Generation::V0731).unwrap();
        Self { tokenizer, format }
    }

    /// Special tokens for the markers `｜DSML｜`, `<think>`, `</think>`; the rest as its bytes.
    pub(crate) fn pieces(&self, answer: &str) -> Vec<Feed> {
        let mut out = Vec::new();
        let mut rest = answer;
        while !rest.is_empty() {
            let markers = ["｜DSML｜", "<think>", "</think>"];
            let found = markers
                .iter()
                .filter_map(|m| rest.find(m).map(|at| (at, *m)))
                .min();
            let (at, marker) = found.unwrap_or((rest.len(), ""));
            if at > 0 {
                out.push(Feed::Bytes(rest.as_bytes()[..at].to_vec()));
            }
            if !marker.is_empty() {
                out.push(Feed::Token(self.tokenizer.special(marker).unwrap()));
            }
            rest = &rest[at + marker.len()..];
        }
        out
    }

    /// The same with the text as the tokens it encodes to.
    pub(crate) fn tokens(&self, answer: &str) -> Vec<Feed> {
        let mut out = Vec::new();
        for piece in self.pieces(answer) {
            match piece {
                Feed::Bytes(bytes) => {
                    let text = String::from_utf8(bytes).unwrap();
                    out.extend(
                        self.tokenizer
                            .encode_text(&text)
                            .into_iter()
                            .map(Feed::Token),
                    );
                }
                token => out.push(token),
            }
        }
        out
    }

    /// Events as they came, a list for every item fed and one for the end.
    pub(crate) fn steps(&self, feed: &[Feed], setting: Setting) -> (Vec<Vec<Event>>, Summary) {
        let mut parser = AnswerParser::new(&self.format, setting.in_reasoning, setting.tools);
        let mut steps = Vec::new();
        for item in feed {
            let mut events = Vec::new();
            match item {
                Feed::Token(id) => parser.push(&self.tokenizer, *id, &mut events),
                Feed::Bytes(bytes) => parser.push_bytes(bytes, &mut events),
            }
            steps.push(events);
        }
        let mut events = Vec::new();
        let summary = parser.finish(setting.end, &mut events);
        steps.push(events);
        (steps, summary)
    }

    pub(crate) fn parse(&self, feed: &[Feed], setting: Setting) -> Parsed {
        let (steps, summary) = self.steps(feed, setting);
        let events = joined(steps.into_iter().flatten());
        let mut answer = Answer::default();
        events.iter().for_each(|e| answer.apply(e));
        check(&events, &answer, &summary);
        Parsed {
            events,
            answer,
            summary,
        }
    }

    pub(crate) fn read(&self, answer: &str, setting: Setting) -> Parsed {
        self.parse(&self.pieces(answer), setting)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parsed {
    pub(crate) events: Vec<Event>,
    pub(crate) answer: Answer,
    pub(crate) summary: Summary,
}

impl Parsed {
    /// Name, arguments, completeness of each call.
    pub(crate) fn calls(&self) -> Vec<(&str, &str, bool)> {
        let calls = self.answer.calls.iter();
        calls
            .map(|c| (c.name.as_str(), c.arguments.as_str(), c.complete))
            .collect()
    }
}

/// Neighbouring events of one kind made one.
pub(crate) fn joined(events: impl Iterator<Item = Event>) -> Vec<Event> {
    let mut out: Vec<Event> = Vec::new();
    for event in events {
        match (out.last_mut(), &event) {
            (Some(Event::Reasoning(a)), Event::Reasoning(b))
            | (Some(Event::Content(a)), Event::Content(b)) => a.push_str(b),
            (
                Some(Event::CallArguments {
                    index: i,
                    fragment: a,
                }),
                Event::CallArguments {
                    index: j,
                    fragment: b,
                },
            ) if i == j => a.push_str(b),
            _ => out.push(event),
        }
    }
    out
}

/// What holds for any answer: calls are numbered, begin, get arguments and end in order; arguments
/// are a JSON object; the summary counts them.
fn check(events: &[Event], answer: &Answer, summary: &Summary) {
    let (mut open, mut ended) = (None, 0);
    for event in events {
        match event {
            Event::CallStart { index, .. } => {
                assert_eq!((open, *index), (None, ended), "{events:?}");
                open = Some(*index);
            }
            Event::CallArguments { index, .. } => assert_eq!(open, Some(*index), "{events:?}"),
            Event::CallEnd { index, .. } => {
                assert_eq!(open.take(), Some(*index), "{events:?}");
                ended += 1;
            }
            Event::Content(text) | Event::Reasoning(text) => assert!(!text.is_empty()),
        }
    }
    assert_eq!(open, None, "a call never ended: {events:?}");
    for call in &answer.calls {
        let value: serde_json::Value = serde_json::from_str(&call.arguments)
            .unwrap_or_else(|e| panic!("{}: {e}", call.arguments));
        assert!(value.is_object(), "{}", call.arguments);
        assert!(!call.name.is_empty());
    }
    let complete = answer.calls.iter().filter(|c| c.complete).count();
    assert_eq!(summary.complete, complete);
    assert_eq!(summary.complete + summary.incomplete, answer.calls.len());
    assert!(summary.repaired <= summary.complete);
}

pub(crate) fn param(name: &str, is_text: bool, value: &str) -> String {
    format!("<{D}parameter name=\"{name}\" string=\"{is_text}\">{value}</{D}parameter>")
}

pub(crate) fn invoke(name: &str, params: &[String]) -> String {
    format!(
        "<{D}invoke name=\"{name}\">\n{}\n</{D}invoke>",
        params.join("\n")
    )
}

pub(crate) fn block(invokes: &[String]) -> String {
    format!(
        "\n\n<{D}tool_calls>\n{}\n</{D}tool_calls>",
        invokes.join("\n")
    )
}

/// Every way to cut the ordinary bytes of an answer in two (also within a character).
fn cuts(feed: &[Feed]) -> Vec<Vec<Feed>> {
    let mut out = Vec::new();
    for (index, item) in feed.iter().enumerate() {
        let Feed::Bytes(bytes) = item else { continue };
        for at in 0..=bytes.len() {
            let mut cut = feed[..index].to_vec();
            cut.push(Feed::Bytes(bytes[..at].to_vec()));
            cut.push(Feed::Bytes(bytes[at..].to_vec()));
            cut.extend_from_slice(&feed[index + 1..]);
            out.push(cut);
        }
    }
    out
}

pub(crate) fn single_bytes(feed: &[Feed]) -> Vec<Feed> {
    let mut out = Vec::new();
    for item in feed {
        match item {
            Feed::Bytes(bytes) => out.extend(bytes.iter().map(|b| Feed::Bytes(vec![*b]))),
            token => out.push(token.clone()),
        }
    }
    out
}

/// A16: all cuts, and one byte at a time, give the events of the whole.
pub(crate) fn assert_cut_invariant(f: &Fixture, feed: &[Feed], setting: Setting) {
    let want = f.parse(feed, setting);
    for cut in cuts(feed) {
        assert_eq!(f.parse(&cut, setting), want, "{cut:?}");
    }
    assert_eq!(f.parse(&single_bytes(feed), setting), want);
}
