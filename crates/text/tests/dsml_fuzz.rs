//! Random answers: what was written is read back, and nothing that is read breaks the invariants of
//! `common::answers::check` or depends on how it was cut.

#![allow(clippy::unwrap_used, reason = "test helpers")]

mod common;

use std::sync::LazyLock;

use common::answers::{CALLS, D, Feed, Fixture, Setting};
use proptest::prelude::*;
use text::dsml::End;
use text::prompt::{Assistant, ToolCall};
use text::{Conversation, Message};

static FIXTURE: LazyLock<Fixture> = LazyLock::new(Fixture::new);

fn json_value() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        (-1000i32..1000).prop_map(|n| (f64::from(n) / 64.0).into()),
        "[ -~]{0,12}|[<>/｜|\"\\\\\n\t\u{1}é🙂DSML]{0,12}".prop_map(Into::into),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Into::into),
            prop::collection::btree_map("[a-z\"<é]{0,4}", inner, 0..4)
                .prop_map(|m| serde_json::Value::Object(m.into_iter().collect())),
        ]
    })
}

/// Parameter names hold no quotes: the format cannot carry them.
fn arguments() -> impl Strategy<Value = serde_json::Value> {
    prop::collection::btree_map("[a-z_<>é 0-9]{1,8}", json_value(), 0..4)
        .prop_map(|m| serde_json::Value::Object(m.into_iter().collect()))
}

/// The tokens the model's turn is written as.
fn written(content: &str, calls: &[(String, serde_json::Value)]) -> Vec<u32> {
    let calls = calls.iter().map(|(name, arguments)| ToolCall {
        id: String::new(),
        name: name.clone(),
        arguments: arguments.to_string(),
    });
    let turn = Assistant {
        text: content.to_owned(),
        calls: calls.collect(),
        open: true,
        ..Assistant::default()
    };
    let conversation = Conversation {
        messages: &[Message::user("q"), Message::Assistant(turn)],
        ..Conversation::default()
    };
    let prompt = FIXTURE.format.render(&conversation).unwrap();
    let tokens = prompt.encode(&FIXTURE.tokenizer);
    // The turn's opening is the only `</think>` that is a token.
    let end_think = FIXTURE.tokenizer.special("</think>").unwrap();
    let opening = tokens.iter().rposition(|id| *id == end_think).unwrap();
    tokens[opening + 1..].to_vec()
}

fn check_round_trip(content: &str, calls: &[(String, serde_json::Value)]) {
    let tokens = written(content, calls);
    let feed: Vec<Feed> = tokens.into_iter().map(Feed::Token).collect();
    // Without tools, text that spells markup is text; the calls' own markup is special either way.
    let got = FIXTURE.parse(
        &feed,
        Setting {
            tools: false,
            ..CALLS
        },
    );
    assert_eq!(got.answer.content, content);
    assert_eq!((got.summary.malformed, got.summary.repaired), (0, 0));
    assert_eq!(got.answer.calls.len(), calls.len());
    for (call, (name, arguments)) in got.answer.calls.iter().zip(calls) {
        let read: serde_json::Value = serde_json::from_str(&call.arguments).unwrap();
        assert_eq!((&call.name, &read), (name, arguments));
    }
}

/// Pieces that answers, whole and broken, are made of.
const PIECES: &[&str] = &[
    "<",
    "</",
    ">",
    "\n",
    "\n\n",
    " ",
    "text",
    "é🙂",
    "\"",
    "/",
    "｜",
    "|",
    "DSML",
    "x=\"y\"",
    "{\"a\": [1",
    "]}",
    "7",
    "tool_calls",
    "function_calls",
    "invoke",
    "parameter",
    " name=\"f\"",
    " string=\"true\"",
    " string=\"false\"",
];

fn answer() -> impl Strategy<Value = String> {
    let whole = |s: &'static str| Just(s.replace("D!", D));
    let piece = prop_oneof![
        4 => prop::sample::select(PIECES).prop_map(ToString::to_string),
        2 => Just(D.to_owned()),
        1 => prop::sample::select(vec!["<think>", "</think>"]).prop_map(ToString::to_string),
        2 => whole("\n\n<D!tool_calls>\n"),
        2 => whole("\n</D!tool_calls>"),
        4 => whole("<D!invoke name=\"f\">\n"),
        3 => whole("\n</D!invoke>"),
        3 => whole("<D!parameter name=\"a\" string=\"true\">"),
        2 => whole("<D!parameter name=\"b\" string=\"false\">"),
        1 => whole("<D!parameter name=\"c\" string=\"true\"/>"),
        4 => whole("</D!parameter>"),
        1 => whole("<|DSML|invoke name=\"s\">"),
        1 => whole("<|DSML|parameter name=\"t\">"),
        1 => whole("</|DSML|parameter>"),
    ];
    prop::collection::vec(piece, 0..24).prop_map(|p| p.concat())
}

fn setting() -> impl Strategy<Value = Setting> {
    (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(in_reasoning, tools, stops)| Setting {
        in_reasoning,
        tools,
        end: if stops { End::Stop } else { End::Cut },
    })
}

fn check_any(answer: &str, setting: Setting, cuts: &[usize]) {
    let f = &*FIXTURE;
    let feed = f.pieces(answer);
    let got = f.parse(&feed, setting);
    assert!(
        !got.answer.content.contains(D),
        "{answer:?} leaks {:?}",
        got.answer.content
    );
    let mut cut = Vec::new();
    for item in &feed {
        match item {
            Feed::Bytes(bytes) => {
                let mut rest = bytes.as_slice();
                for at in cuts {
                    let (head, tail) = rest.split_at((*at).min(rest.len()));
                    cut.push(Feed::Bytes(head.to_vec()));
                    rest = tail;
                }
                cut.push(Feed::Bytes(rest.to_vec()));
            }
            token => cut.push(token.clone()),
        }
    }
    assert_eq!(f.parse(&cut, setting), got, "{answer:?} cut {cuts:?}");
    assert_eq!(
        f.parse(&f.tokens(answer), setting),
        got,
        "{answer:?} as tokens"
    );
}

type Calls = Vec<(String, serde_json::Value)>;

fn calls() -> impl Strategy<Value = Calls> {
    prop::collection::vec(("[a-zA-Z_<>é]{1,8}", arguments()), 0..4)
}

fn cuts() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(0usize..9, 0..9)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_answer_keeps_the_invariants(answer in answer(), setting in setting(), cuts in cuts()) {
        check_any(&answer, setting, &cuts);
    }

    #[test]
    fn what_is_written_is_read_back(content in "[ -~\n<｜é🙂]{0,20}", calls in calls()) {
        check_round_trip(&content, &calls);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200_000))]

    #[test]
    #[ignore = "soak: minutes of random answers"]
    fn soak_any_answer_keeps_the_invariants(answer in answer(), setting in setting(), cuts in cuts()) {
        check_any(&answer, setting, &cuts);
    }

    #[test]
    #[ignore = "soak: minutes of random calls"]
    fn soak_what_is_written_is_read_back(content in "[ -~\n<｜é🙂]{0,20}", calls in calls()) {
        check_round_trip(&content, &calls);
    }
}
