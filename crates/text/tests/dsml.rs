//! Reading answers: reasoning, text and calls are told apart, however the answer is cut and however
//! broken it is. Names like A15 are kinds of faults met in other servers.

#![allow(clippy::unwrap_used, reason = "test helpers")]

mod common;

use common::answers::{
    CALLS, D, Feed, Fixture, Setting, assert_cut_invariant, block, invoke, param,
};
use text::dsml::{AnswerParser, End, Event, Finish, Phase};

const THINKS: Setting = Setting {
    in_reasoning: true,
    ..CALLS
};
const CUT: Setting = Setting {
    end: End::Cut,
    ..CALLS
};

fn weather() -> String {
    let first = invoke(
        "get_weather",
        &[
            param("city", true, "Roma – città"),
            param("days", false, "2"),
        ],
    );
    block(&[first, invoke("now", &[])])
}

#[test]
fn an_answer_with_everything_is_told_apart() {
    let f = Fixture::new();
    let got = f.read(
        &format!("I need two calls.</think>Looking.{}", weather()),
        THINKS,
    );
    let args = |index, fragment: &str| Event::CallArguments {
        index,
        fragment: fragment.into(),
    };
    let want = [
        Event::Reasoning("I need two calls.".into()),
        Event::Content("Looking.".into()),
        Event::CallStart {
            index: 0,
            name: "get_weather".into(),
        },
        args(0, r#"{"city": "Roma – città", "days": 2}"#),
        Event::CallEnd {
            index: 0,
            complete: true,
        },
        Event::CallStart {
            index: 1,
            name: "now".into(),
        },
        args(1, "{}"),
        Event::CallEnd {
            index: 1,
            complete: true,
        },
    ];
    assert_eq!(got.events, want);
    let s = got.summary;
    assert_eq!(
        (s.finish, s.complete, s.repaired, s.malformed),
        (Finish::ToolCalls, 2, 0, 0)
    );
    assert!(!s.in_reasoning);
}

#[test]
fn plain_answers_pass_unchanged() {
    let f = Fixture::new();
    for text in [
        "",
        "Hello",
        "\n\nHello\n\n\n",
        "a < b </p> <b>\n<",
        "\n",
        "</",
        "<|x|> | ‖ ｜",
        "1 <\n\n/ 2",
        "🙂\n",
    ] {
        let got = f.read(text, CALLS);
        assert_eq!(got.answer.content, text);
        assert_eq!(
            (got.summary.finish, got.summary.malformed),
            (Finish::Stop, 0),
            "{text:?}"
        );
        assert_eq!(
            f.read(&format!("{text}</think>{text}"), THINKS)
                .answer
                .reasoning,
            text
        );
    }
}

#[test]
fn a16_every_cut_gives_the_same_events() {
    let f = Fixture::new();
    let answer = format!("Denk – 🙂\n\n</think>Text <\n\n\n{}\n rest\n", weather());
    assert_cut_invariant(&f, &f.pieces(&answer), THINKS);
    // Spelled out in ordinary tokens, with each bar.
    for bar in ["｜", "‖", "|", "||", "｜｜"] {
        let spelled = format!("Text <\n\n\n{}\n rest\n", weather()).replace('｜', bar);
        let feed = [Feed::Bytes(spelled.clone().into_bytes())];
        assert_cut_invariant(&f, &feed, CALLS);
        let got = f.parse(&feed, CALLS);
        let calls = [
            (
                "get_weather",
                r#"{"city": "Roma – città", "days": 2}"#,
                true,
            ),
            ("now", "{}", true),
        ];
        assert_eq!(got.calls(), calls, "{bar}");
        assert_eq!(got.answer.content, "Text <\n\n\n\n rest");
    }
}

#[test]
fn a16_spelled_markup_is_text_when_no_tools_were_offered() {
    let f = Fixture::new();
    let spelled = weather().into_bytes();
    let no_tools = Setting {
        tools: false,
        ..CALLS
    };
    let got = f.parse(&[Feed::Bytes(spelled.clone())], no_tools);
    assert_eq!(got.answer.content.as_bytes(), spelled);
    // The special token is markup all the same: it is never text.
    assert_eq!(f.read(&weather(), no_tools).calls().len(), 2);
}

/// What is not shown does not join what stands beside it: a marker spelled around a tag stays in parts.
#[test]
fn parts_of_a_spelled_marker_do_not_join_over_what_is_left_out() {
    let f = Fixture::new();
    let left_out = [
        format!("\n</{D}invoke></{D}parameter>"),
        format!("<{D}tool_calls>"),
        format!("<{D}unknown>"),
        format!("<{D}\n"),
        "</think>".to_owned(),
        "<think>x</think>".to_owned(),
    ];
    for (tools, end) in [(true, End::Stop), (false, End::Stop), (false, End::Cut)] {
        let setting = Setting {
            tools,
            end,
            ..CALLS
        };
        for between in &left_out {
            let got = f.read(&format!("｜DSML{between}｜"), setting);
            assert_eq!(got.answer.content, "｜DSML\n｜", "{between:?}");
            let apart = f.read(&format!("a <{between} b"), setting);
            assert_eq!(apart.answer.content, "a < b", "{between:?}");
        }
        assert_eq!(
            f.read("one</think>\ntwo", setting).answer.content,
            "one\ntwo"
        );
    }
}

/// A18: how many tokens a step commits decides nothing: events depend on the tokens alone.
#[test]
fn a18_commit_width_changes_nothing() {
    let f = Fixture::new();
    let tokens = f.tokens(&format!("think {D}tool_calls> more</think>{}", weather()));
    let want = f.parse(&tokens, THINKS);
    let (steps, _) = f.steps(&tokens, THINKS);
    for width in 1..=8 {
        let per_commit = steps.chunks(width).map(<[_]>::concat);
        let joined = common::answers::joined(per_commit.flatten());
        assert_eq!(joined, want.events, "width {width}");
    }
    assert_eq!(want.answer.reasoning, format!("think {D}tool_calls> more"));
    assert_eq!(
        want.calls().len(),
        2,
        "markup while thinking is no call, after it is"
    );
}

/// A14: a wrong parameter after a right one: the call was begun and must not be run.
#[test]
fn a14_a_late_fault_leaves_the_call_incomplete() {
    let f = Fixture::new();
    for bad in [
        format!("<{D}parameter xname=\"b\" string=\"true\">y</{D}parameter>"),
        param("a", true, "again"),
        "prose".to_owned(),
    ] {
        let got = f.read(
            &block(&[invoke(
                "f",
                &[param("a", true, "x"), bad.clone(), param("c", true, "z")],
            )]),
            CALLS,
        );
        assert_eq!(got.calls(), [("f", r#"{"a": "x"}"#, false)], "{bad}");
        assert_eq!(
            (got.summary.finish, got.summary.incomplete),
            (Finish::Stop, 1)
        );
        assert_eq!(got.answer.content, "");
    }
}

/// A17: a value may end like a tag and hold text that looks like one.
#[test]
fn a17_values_are_kept_whole() {
    let f = Fixture::new();
    let values = [
        "<",
        "</",
        "a<",
        "a</",
        "｜",
        "</｜",
        "<|DSML|parameter>",
        "</|DSML|parameter>",
        "\n",
        "\n\n\n",
        "x\n",
        "\n\n<",
        "</parameter>",
        "</think",
        "\"\\\u{1}\t",
        "",
        " ",
        "{\"a\": 1}",
        "123",
        "é🙂",
        "<invoke name=\"x\">",
    ];
    for value in values {
        let invoke = invoke("f", &[param("one", true, value), param("two", true, "2")]);
        let feed = f.pieces(&block(&[invoke]));
        let got = f.parse(&feed, CALLS);
        let args: serde_json::Value = serde_json::from_str(&got.answer.calls[0].arguments).unwrap();
        assert_eq!(
            args,
            serde_json::json!({"one": value, "two": "2"}),
            "{value:?}"
        );
        assert_cut_invariant(&f, &feed, CALLS);
    }
    // The closing tag's own letters, as ordinary tokens: `｜DSML｜` spelled out is not the marker.
    let mut feed = f.pieces(&format!(
        "<{D}invoke name=\"f\"><{D}parameter name=\"a\" string=\"true\">"
    ));
    let lookalike = format!("</{D}parameter></{D}invoke>");
    feed.push(Feed::Bytes(lookalike.clone().into_bytes()));
    feed.extend(f.pieces(&format!("</{D}parameter></{D}invoke>")));
    let got = f.parse(&feed, CALLS);
    let args: serde_json::Value = serde_json::from_str(&got.answer.calls[0].arguments).unwrap();
    assert_eq!(args, serde_json::json!({ "a": lookalike }));
    assert_eq!(got.summary.repaired, 0);
}

#[test]
fn text_values_stream_and_json_values_come_whole() {
    let f = Fixture::new();
    let tokens = f.tokens(&block(&[invoke(
        "f",
        &[
            param("a", true, "one two three four"),
            param("b", false, "[1, 2, 3]"),
        ],
    )]));
    let (steps, _) = f.steps(&tokens, CALLS);
    let fragments: Vec<String> = steps
        .into_iter()
        .flatten()
        .filter_map(|e| match e {
            Event::CallArguments { fragment, .. } => Some(fragment),
            _ => None,
        })
        .collect();
    assert!(fragments.len() >= 7, "{fragments:?}");
    assert!(
        fragments.contains(&", \"b\": [1, 2, 3]".to_owned()),
        "{fragments:?}"
    );
}

/// A string stays a string; a value that should be JSON and is not becomes one.
#[test]
fn types_of_values_are_kept() {
    let f = Fixture::new();
    let cases = [
        (true, "123", r#""123""#),
        (true, r#"{"a":1}"#, r#""{\"a\":1}""#),
        (true, "true", r#""true""#),
        (false, "123", "123"),
        (false, " {\"a\" :1.50}\n", "{\"a\" :1.50}"),
        (false, "null", "null"),
        (false, "NaN", r#""NaN""#),
        (false, "01", r#""01""#),
        (false, "Paris", r#""Paris""#),
        (false, "", r#""""#),
        (false, "[1,", r#""[1,""#),
        (false, "'x'", r#""'x'""#),
    ];
    for (is_text, value, want) in cases {
        let got = f.read(&block(&[invoke("f", &[param("k", is_text, value)])]), CALLS);
        assert_eq!(got.answer.calls[0].arguments, format!("{{\"k\": {want}}}"));
        assert!(got.answer.calls[0].complete);
    }
}

/// A19: long reasoning, then a call with no line break before it; a budget that ends early.
#[test]
fn a19_calls_after_long_reasoning_finish_as_calls() {
    let f = Fixture::new();
    let thoughts = "hm ".repeat(5000);
    let call = weather().trim_start().to_owned();
    let got = f.read(&format!("{thoughts}</think>{call}"), THINKS);
    assert_eq!(
        (got.summary.finish, got.summary.complete),
        (Finish::ToolCalls, 2)
    );
    assert_eq!(
        (got.answer.reasoning.len(), got.answer.content.as_str()),
        (15_000, "")
    );
    let cut = Setting {
        end: End::Cut,
        ..THINKS
    };
    for answer in [
        thoughts.clone(),
        format!("{thoughts}</think>"),
        format!("{thoughts}</think>{}", &call[..60]),
    ] {
        let got = f.read(&answer, cut);
        assert_eq!(
            got.summary.finish,
            Finish::Length,
            "never a stop with nothing"
        );
        assert_eq!(got.summary.in_reasoning, !answer.contains("</think>"));
    }
}

/// Cut or ended at every byte: never a panic, never markup, and never a complete call whose closing
/// tag had not come, unless the model ended its turn after a closed parameter.
#[test]
fn an_answer_may_end_anywhere() {
    let f = Fixture::new();
    let answer = format!(
        "Text.{}",
        block(&[invoke(
            "f",
            &[param("a", true, "x\ny"), param("b", false, "[1]")]
        )])
    );
    let closed = answer.find(&format!("</{D}invoke")).unwrap() + format!("</{D}invoke").len();
    let first = answer.find("y</").unwrap() + format!("y</{D}parameter").len();
    for (at, _) in answer.char_indices() {
        if ["｜", "D", "DS", "DSM", "DSML"]
            .iter()
            .any(|p| answer[..at].ends_with(p))
            && !answer[..at].ends_with(D)
        {
            continue; // within the marker, which is one token
        }
        for setting in [CALLS, CUT] {
            let got = f.read(&answer[..at], setting);
            assert!(
                !got.answer.content.contains('<') || answer[..at].ends_with(['<', '/']),
                "{}",
                &answer[..at]
            );
            let complete = got.summary.complete == 1;
            let repaired = setting.end == End::Stop && at >= first;
            if at >= closed || !repaired {
                assert_eq!(complete, at >= closed, "{}", &answer[..at]);
            }
            assert_eq!(
                got.summary.finish == Finish::ToolCalls,
                complete && setting.end == End::Stop
            );
        }
    }
}

#[test]
fn orphan_closings_and_stray_markers_vanish() {
    let f = Fixture::new();
    let orphans = format!("One</{D}parameter> two</{D}invoke></{D}tool_calls> three");
    assert_eq!(f.read(&orphans, CALLS).answer.content, "One two three");
    let stray = format!("a</think>b<think>c</think>d<{D}foo>e");
    let got = f.read(&stray, CALLS);
    assert_eq!(
        (got.answer.content.as_str(), got.answer.reasoning.as_str()),
        ("a\nb\nd\ne", "c")
    );
    let user = f.tokenizer.special("<｜User｜>").unwrap();
    let got = f.parse(
        &[
            Feed::Bytes(b"a".to_vec()),
            Feed::Token(user),
            Feed::Bytes(b"b".to_vec()),
        ],
        CALLS,
    );
    assert_eq!(got.answer.content, "a\nb");
}

#[test]
fn markup_in_reasoning_is_reasoning() {
    let f = Fixture::new();
    let got = f.read(&format!("{}</think>ok", weather()), THINKS);
    assert_eq!(
        (got.answer.reasoning, got.answer.content.as_str()),
        (weather(), "ok")
    );
    assert_eq!(got.answer.calls.len(), 0);
    let reopened = format!(
        "<{D}invoke name=\"f\">{}<think>hm</think>x",
        param("a", true, "b")
    );
    let got = f.read(&reopened, CALLS);
    assert_eq!(got.calls(), [("f", r#"{"a": "b"}"#, false)]);
    assert_eq!(
        (got.answer.reasoning.as_str(), got.answer.content.as_str()),
        ("hm", "x")
    );
}

#[test]
fn a20_the_phase_says_when_a_constraint_applies() {
    let f = Fixture::new();
    let mut parser = AnswerParser::new(&f.format, true, true);
    let mut phases = vec![parser.phase()];
    let answer = format!(
        "hm</think>ok<{D}tool_calls><{D}invoke name=\"f\"><{D}parameter name=\"a\" string=\"true\">v</{D}parameter></{D}invoke></{D}tool_calls>"
    );
    for item in f.pieces(&answer) {
        match item {
            Feed::Token(id) => parser.push(&f.tokenizer, id, &mut Vec::new()),
            Feed::Bytes(bytes) => parser.push_bytes(&bytes, &mut Vec::new()),
        }
        if phases.last() != Some(&parser.phase()) {
            phases.push(parser.phase());
        }
    }
    use Phase::{Content, Reasoning, Syntax, Value};
    assert_eq!(phases, [Reasoning, Content, Syntax, Value, Syntax, Content]);
    assert_eq!(AnswerParser::new(&f.format, false, true).phase(), Content);
}
