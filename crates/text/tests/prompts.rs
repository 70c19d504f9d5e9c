//! Rendered prompts against the published encoders' (data/README.md), byte for byte, and what the
//! bytes cannot show: which parts are special tokens.

#![allow(clippy::unwrap_used, reason = "test helpers")]

mod common;

use std::sync::Arc;

use text::json::{self, Json};
use text::prompt::{Assistant, Block, Part, Task, ToolCall, ToolResult};
use text::tokenizer::Piece;
use text::{Conversation, Generation, Message, Prompt, PromptFormat, Thinking, Tokenizer, ToolDef};

struct Case {
    name: String,
    messages: Vec<Message>,
    tools: Vec<ToolDef>,
    response_format: Option<String>,
    thinking: Thinking,
    generation: Generation,
    keep_reasoning: bool,
}

fn string(value: &Json, key: &str) -> String {
    match value.get(key) {
        Some(Json::String(text)) => text.clone(),
        _ => String::new(),
    }
}

fn array<'a>(value: &'a Json, key: &str) -> &'a [Json] {
    match value.get(key) {
        Some(Json::Array(items)) => items,
        _ => &[],
    }
}

fn part(value: &Json) -> Part {
    match string(value, "type").as_str() {
        "text" => Part::Text(string(value, "text")),
        other => Part::Unsupported(other.to_owned()),
    }
}

fn block(value: &Json) -> Block {
    match string(value, "type").as_str() {
        "tool_result" => Block::ToolResult(ToolResult::text(
            string(value, "id"),
            string(value, "content"),
        )),
        "text" => Block::Text(string(value, "text")),
        other => Block::Unsupported(other.to_owned()),
    }
}

fn task(name: &str) -> Option<Task> {
    Some(match name {
        "action" => Task::Action,
        "query" => Task::Query,
        "authority" => Task::Authority,
        "domain" => Task::Domain,
        "title" => Task::Title,
        "read_url" => Task::ReadUrl,
        _ => return None,
    })
}

fn assistant(value: &Json) -> Message {
    let calls = array(value, "tool_calls").iter().map(|call| {
        let function = call.get("function").unwrap();
        ToolCall {
            id: string(call, "id"),
            name: string(function, "name"),
            arguments: string(function, "arguments"),
        }
    });
    Message::Assistant(Assistant {
        reasoning: value
            .get("reasoning_content")
            .map(|_| string(value, "reasoning_content")),
        text: string(value, "content"),
        calls: calls.collect(),
        open: value.get("wo_eos").is_some(),
        sampled: None,
    })
}

fn message(value: &Json) -> Message {
    let content = string(value, "content");
    match string(value, "role").as_str() {
        "system" => Message::System(content),
        "developer" => Message::Developer(content),
        "latest_reminder" => Message::LatestReminder(content),
        "assistant" => assistant(value),
        "tool" => {
            let mut result = ToolResult::text(string(value, "tool_call_id"), content);
            if let Some(Json::Array(parts)) = value.get("content") {
                result.content = parts.iter().map(part).collect();
            }
            Message::Tool(result)
        }
        "user" if value.get("blocks").is_some() => Message::User {
            blocks: array(value, "blocks").iter().map(block).collect(),
            task: None,
        },
        "user" => Message::User {
            blocks: vec![Block::Text(content)],
            task: task(&string(value, "task")),
        },
        other => panic!("role {other}"),
    }
}

fn cases() -> Vec<Case> {
    let lines = include_str!("data/prompts/cases.jsonl").lines();
    lines
        .map(|line| {
            let value = json::parse(line).unwrap();
            let tool = |t: &Json| ToolDef::from_json(&t.get("function").unwrap().to_string());
            Case {
                name: string(&value, "name"),
                messages: array(&value, "messages").iter().map(message).collect(),
                tools: array(&value, "tools")
                    .iter()
                    .map(|t| tool(t).unwrap())
                    .collect(),
                response_format: value.get("response_format").map(Json::to_string),
                thinking: Thinking::from_effort_name(&string(&value, "thinking")).unwrap(),
                generation: Generation::from_version(Some(&string(&value, "generation"))).unwrap(),
                keep_reasoning: value.get("keep_reasoning").is_some(),
            }
        })
        .collect()
}

fn render(case: &Case, tokenizer: &Tokenizer) -> Prompt {
    let format = PromptFormat::new(tokenizer, case.generation).unwrap();
    let conversation = Conversation {
        messages: &case.messages,
        tools: &case.tools,
        response_format: case.response_format.as_deref(),
        thinking: case.thinking,
        keep_reasoning: case.keep_reasoning,
    };
    format.render(&conversation).unwrap()
}

fn golden(name: &str) -> String {
    let path = format!(
        "{}/tests/data/prompts/{name}.txt",
        env!("CARGO_MANIFEST_DIR")
    );
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

#[test]
fn prompts_equal_the_published_encoders() {
    for tokenizer in [common::tiny(), common::tiny_with_all_markers()] {
        let cases = cases();
        assert!(cases.len() >= 55);
        for case in cases {
            let got = render(&case, &tokenizer).to_text(&tokenizer);
            assert_eq!(got, golden(&case.name), "{}", case.name);
        }
    }
}

#[test]
fn every_marker_of_the_format_is_a_special_token() {
    let tokenizer = common::tiny_with_all_markers();
    for case in cases().iter().filter(|c| c.name != "markers_in_text") {
        for piece in render(case, &tokenizer).pieces() {
            if let Piece::Text(text) = piece {
                for marker in common::MARKERS {
                    assert!(!text.contains(marker), "{}: {marker} as text", case.name);
                }
            }
        }
    }
}

/// Trap 44: whatever outside text spells, the special tokens are those of the format.
#[test]
fn markers_in_outside_text_stay_text() {
    let tokenizer = common::tiny_with_all_markers();
    let case = cases()
        .into_iter()
        .find(|c| c.name == "markers_in_text")
        .unwrap();
    let prompt = render(&case, &tokenizer);
    let special = |piece: Piece<'_>| match piece {
        Piece::Special(id) => String::from_utf8(tokenizer.token_bytes(id).unwrap().to_vec()).ok(),
        _ => None,
    };
    let got: Vec<String> = prompt.pieces().filter_map(special).collect();
    let (d, p) = ("｜DSML｜", ["<think>", "</think>"]);
    let mut want = vec!["<｜begin▁of▁sentence｜>"];
    want.extend([d; 9]); // the instructions of the tools block
    want.extend([
        p[0],
        p[0],
        p[1],
        p[1],
        "<｜User｜>",
        "<｜Assistant｜>",
        p[0],
        p[1],
    ]);
    want.extend([d; 8]); // block, invoke, two parameters
    want.extend([
        "<｜end▁of▁sentence｜>",
        "<｜User｜>",
        "<tool_result>",
        "</tool_result>",
    ]);
    want.extend(["<｜Assistant｜>", p[0]]);
    assert_eq!(got, want);
    let ids = prompt.encode(&tokenizer);
    let count = |text: &str| {
        let id = tokenizer.special(text).unwrap();
        ids.iter().filter(|i| **i == id).count()
    };
    assert_eq!(
        (count("<｜begin▁of▁sentence｜>"), count("｜DSML｜")),
        (1, 17)
    );
}

/// The small model's chat template and the ids it was evaluated with.
#[test]
fn the_small_models_prompts_have_their_ids() {
    let tokenizer = common::tiny();
    let format = PromptFormat::new(&tokenizer, Generation::Preview).unwrap();
    let rows: serde_json::Value =
        serde_json::from_str(include_str!("data/tiny_prompts.json")).unwrap();
    let rows = rows.as_array().unwrap();
    assert_eq!(rows.len(), 12);
    for row in rows {
        let messages = [Message::user(row["prompt"].as_str().unwrap())];
        let conversation = Conversation {
            messages: &messages,
            ..Conversation::default()
        };
        let ids = format.render(&conversation).unwrap().encode(&tokenizer);
        let want: Vec<u32> = serde_json::from_value(row["ids"].clone()).unwrap();
        assert_eq!(ids, want, "{row}");
    }
}

#[test]
fn the_prompt_says_whether_the_answer_starts_in_reasoning() {
    let tokenizer = common::tiny();
    let starts = |name: &str| {
        let case = cases().into_iter().find(|c| c.name == name).unwrap();
        render(&case, &tokenizer).ends_in_reasoning()
    };
    assert!(starts("think_simple") && starts("tools_system_think") && starts("systems_only"));
    assert!(!starts("chat_simple") && !starts("tool_round_chat"));
    assert!(!starts("assistant_open_think") && !starts("think_ends_with_assistant"));
}

fn sampled(tokens: &[u32], thinking: Thinking, keep: bool, then: &[Message]) -> Vec<u32> {
    let tokenizer = common::tiny();
    let format = PromptFormat::new(&tokenizer, Generation::Preview).unwrap();
    let mut messages = vec![Message::user("q")];
    messages.push(Message::Assistant(Assistant {
        text: "never written".into(),
        sampled: Some(Arc::from(tokens)),
        ..Assistant::default()
    }));
    messages.extend_from_slice(then);
    let conversation = Conversation {
        messages: &messages,
        thinking,
        keep_reasoning: keep,
        ..Conversation::default()
    };
    format.render(&conversation).unwrap().encode(&tokenizer)
}

#[test]
fn sampled_turns_are_written_as_sampled() {
    const USER: u32 = 3;
    const ASSISTANT: u32 = 4;
    const THINK: u32 = 5;
    const END: u32 = 6;
    let q = common::tiny().encode_text("q")[0];
    let on = Thinking::from_effort_name("low").unwrap();
    let turn = [900, 901, END, 902, 903, 1];
    let more = [Message::user("q")];
    let opened = [0, USER, q, ASSISTANT];
    let want = |parts: &[&[u32]]| [&opened[..], &parts.concat()].concat();
    let again = [USER, q, ASSISTANT];
    // Reasoning dropped: what follows `</think>`, after the closed opening.
    assert_eq!(
        sampled(&turn, on, false, &more),
        want(&[&[END, 902, 903, 1], &again, &[THINK]])
    );
    // Kept, with and without the sampled end of sentence.
    for turn in [&turn[..], &turn[..5]] {
        assert_eq!(
            sampled(turn, on, true, &more),
            want(&[&[THINK, 900, 901, END, 902, 903, 1], &again, &[THINK]])
        );
    }
    // A thinking turn replayed in chat mode; a chat turn replayed in thinking mode.
    assert_eq!(
        sampled(&turn, Thinking::Off, false, &[]),
        want(&[&[END, 902, 903, 1]])
    );
    assert_eq!(
        sampled(&[902, 1], on, true, &[]),
        want(&[&[THINK, END, 902, 1]])
    );
    // Cut off while thinking: nothing of it can stay when reasoning is dropped.
    assert_eq!(sampled(&[], on, true, &[]), want(&[&[THINK, END, 1]]));
}

#[test]
fn missing_markers_and_bad_schemas_are_named() {
    let plain = common::without_specials();
    let error = PromptFormat::new(&plain, Generation::Preview).unwrap_err();
    assert!(error.to_string().contains("begin"), "{error}");
    let tokenizer = common::tiny();
    let format = PromptFormat::new(&tokenizer, Generation::Preview).unwrap();
    let conversation = Conversation {
        response_format: Some("{]"),
        ..Conversation::default()
    };
    let error = format.render(&conversation).unwrap_err();
    assert!(error.to_string().contains("byte 1"), "{error}");
}
