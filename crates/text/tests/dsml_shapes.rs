//! The grid of shapes in which models write calls, whole and broken (A15): no markup in the text,
//! every well-formed call is there.

#![allow(clippy::unwrap_used, reason = "test helpers")]

mod common;

use common::answers::{
    CALLS, D, Fixture, assert_cut_invariant, block, invoke, param, single_bytes,
};
use text::dsml::Finish;

/// A15: the grid of shapes. No markup in the text, every well-formed call is there.
#[test]
fn a15_every_shape_gives_its_calls_and_leaks_nothing() {
    let f = Fixture::new();
    let mut shapes = 0;
    for wrapper in ["", "tool_calls", "function_calls"] {
        for terminated in [true, false] {
            for count in 1..=3 {
                for prose in 0..8u32 {
                    for form in 0..4 {
                        check_shape(&f, wrapper, terminated, count, prose, form);
                        shapes += 1;
                    }
                }
            }
        }
    }
    assert_eq!(shapes, 576);
}

fn check_shape(f: &Fixture, wrapper: &str, terminated: bool, count: usize, prose: u32, form: u32) {
    let say = |bit: u32, text: &str| {
        if prose & bit > 0 {
            text.to_owned()
        } else {
            String::new()
        }
    };
    let (params, args) = match form {
        0 => (param("a", true, "x"), r#"{"a": "x"}"#),
        1 => (
            format!("<{D}parameter name=\"a\" string=\"true\"/>"),
            r#"{"a": ""}"#,
        ),
        2 => (
            format!("<{D}parameter name=\"a\" string=\"true\">x"),
            r#"{"a": "x"}"#,
        ),
        _ => (
            format!(
                "<{D}parameter name=\"a\" string=\"false\">[1]\n<{D}parameter name=\"b\" string=\"true\">y"
            ),
            r#"{"a": [1], "b": "y"}"#,
        ),
    };
    let mut answer = say(1, "Before.") + "\n\n";
    if !wrapper.is_empty() {
        answer += &format!("<{D}{wrapper}>\n");
    }
    let calls = vec![invoke("f", &[params]); count];
    answer += &calls.join(&format!("\n{}\n", say(2, "Between.")));
    if terminated && !wrapper.is_empty() {
        answer += &format!("\n</{D}{wrapper}>");
    }
    answer += &say(4, "\nAfter.");
    let feed = f.pieces(&answer);
    let got = f.parse(&feed, CALLS);
    assert_eq!(got.calls(), vec![("f", args, true); count], "{answer}");
    let content: String = got.answer.content.split_whitespace().collect();
    let between = say(2, "Between.").repeat(count - 1);
    assert_eq!(
        content,
        say(1, "Before.") + &between + &say(4, "After."),
        "{answer}"
    );
    assert_eq!(got.answer.content, got.answer.content.trim(), "{answer}");
    assert_eq!(got.summary.finish, Finish::ToolCalls);
    assert_eq!(f.parse(&single_bytes(&feed), CALLS), got);
}

#[test]
fn a15_one_malformed_sibling_does_not_hide_the_others() {
    let f = Fixture::new();
    let good = invoke("f", &[param("a", true, "x")]);
    let bad = [
        format!(
            "<{D}invoke xname=\"f\">\n{}\n</{D}invoke>",
            param("a", true, "x")
        ),
        format!(
            "<{D}invoke name=f>\n{}\n</{D}invoke>",
            param("a", true, "x")
        ),
        format!("<{D}invoke>\n</{D}invoke>"),
        format!(
            "<{D}invoke name=\"g\">\nprose\n{}\n</{D}invoke>",
            param("a", true, "x")
        ),
        format!(
            "<{D}invoke name=\"g\"\n{}\n</{D}invoke>",
            param("a", true, "x")
        ),
        format!(
            "<{D}invoke name=\"g\">\n<{D}parameter xname=\"a\" string=\"true\">x</{D}parameter>\n</{D}invoke>"
        ),
        format!(
            "<{D}invoke name=\"g\">\n<{D}parameter name=\"a\" string=\"yes\">x</{D}parameter>\n</{D}invoke>"
        ),
        param("orphan", true, "x"),
        format!("<{D}invoke name=\"unterminated\">\n"),
        format!("{D}{D}<{D}nonsense a=\"b\"></{D}nonsense>"),
    ];
    for bad in bad {
        for order in [
            [&good, &bad, &good],
            [&bad, &good, &good],
            [&good, &good, &bad],
        ] {
            let answer = block(&order.map(Clone::clone));
            let got = f.read(&answer, CALLS);
            assert_eq!(got.calls(), [("f", r#"{"a": "x"}"#, true); 2], "{answer}");
            assert_eq!(got.answer.content, "", "{answer}");
            assert!(got.summary.malformed > 0, "{answer}");
            assert_cut_invariant(&f, &f.pieces(&answer), CALLS);
        }
    }
}
