//! Chat completions, whole and streamed: objects as clients of the OpenAI API expect them.

use crate::common::client::{chat, get, post_chat};
use crate::common::{Server, ask, saying};
use serde_json::{Value, json};

fn deltas(objects: &[Value], field: &str) -> String {
    let texts = objects
        .iter()
        .filter_map(|o| o["choices"][0]["delta"][field].as_str());
    texts.collect()
}

#[test]
fn a_whole_answer() {
    let server = Server::start(saying("Paris.", 256, 2));
    let response = chat(server.address, &ask(r#""model": "gpt-4o", "seed": 7"#));
    assert_eq!(response.status, 200);
    let mut answer = response.json();
    let id = answer["id"].as_str().unwrap();
    assert!(id.starts_with("chatcmpl-") && id.len() > 20, "{id}");
    assert!(answer["created"].as_u64().unwrap() > 1_700_000_000);
    let own = answer["usage"]["fourspark"].take();
    assert_eq!(own["numeric_class"], "equal");
    assert_eq!(own["seed"], 7);
    assert!(own["decode_tok_per_s"].as_f64().unwrap() > 0.0);
    assert_eq!(answer["object"], "chat.completion");
    // Whatever model was asked for, the answer says which one it was.
    assert_eq!(answer["model"], "scripted");
    assert_eq!(answer["system_fingerprint"], "fs-0707070707070707-equal");
    let want = json!([{
        "index": 0,
        "message": {"role": "assistant", "content": "Paris.", "refusal": null},
        "logprobs": null,
        "finish_reason": "stop",
    }]);
    assert_eq!(answer["choices"], want);
    // BOS, user, two bytes, assistant, end of thinking.
    let want = json!({
        "prompt_tokens": 6,
        "completion_tokens": 7,
        "total_tokens": 13,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
        "fourspark": null,
    });
    assert_eq!(answer["usage"], want);
}

#[test]
fn a_streamed_answer() {
    let server = Server::start(saying("Grüße, 你好 🙂", 256, 2));
    let body = ask(r#""stream": true, "stream_options": {"include_usage": true}"#);
    let objects = post_chat(server.address, &body).stream().objects();
    let first = &objects[0];
    assert_eq!(
        first["choices"][0]["delta"],
        json!({"role": "assistant", "content": ""})
    );
    // One token is one byte here: characters come whole all the same.
    assert_eq!(deltas(&objects, "content"), "Grüße, 你好 🙂");
    assert_eq!(objects.len(), 1 + 11 + 1 + 1);
    for object in &objects {
        assert_eq!(object["object"], "chat.completion.chunk");
        assert_eq!(
            (&object["id"], &object["created"]),
            (&first["id"], &first["created"])
        );
        assert_eq!(object["model"], "scripted");
    }
    let (usage, chunks) = objects.split_last().unwrap();
    assert!(
        chunks
            .iter()
            .all(|c| c["usage"].is_null() && c.get("usage").is_some())
    );
    let reasons: Vec<_> = chunks
        .iter()
        .map(|c| &c["choices"][0]["finish_reason"])
        .collect();
    let (last, others) = reasons.split_last().unwrap();
    assert!(others.iter().all(|r| r.is_null()));
    assert_eq!(**last, "stop");
    assert_eq!(chunks.last().unwrap()["choices"][0]["delta"], json!({}));
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["completion_tokens"], 21);
    // Without being asked for, usage does not appear at all.
    let objects = post_chat(server.address, &ask(r#""stream": true"#))
        .stream()
        .objects();
    assert!(objects.iter().all(|o| o.get("usage").is_none()));
}

#[test]
fn reasoning_comes_apart_from_the_answer() {
    let server = Server::start(saying("Let me see.{/think}Four.", 2048, 2));
    for on in [
        r#""reasoning_effort": "low""#,
        r#""thinking": {"type": "enabled"}"#,
        r#""think": true"#,
        r#""chat_template_kwargs": {"enable_thinking": true}"#,
        r#""reasoning": {"effort": "high"}"#,
    ] {
        let answer = chat(server.address, &ask(on)).json();
        let message = &answer["choices"][0]["message"];
        assert_eq!(message["reasoning_content"], "Let me see.", "{on}");
        assert_eq!(message["content"], "Four.");
        let details = &answer["usage"]["completion_tokens_details"];
        assert_eq!(details["reasoning_tokens"], 12);
        let body = ask(&format!(r#"{on}, "stream": true"#));
        let objects = post_chat(server.address, &body).stream().objects();
        assert_eq!(deltas(&objects, "reasoning_content"), "Let me see.");
        assert_eq!(deltas(&objects, "content"), "Four.");
    }
    // Whoever says no is obeyed, whatever else is said.
    let off = r#""reasoning_effort": "high", "thinking": {"type": "disabled"}"#;
    let answer = chat(server.address, &ask(off)).json();
    let message = &answer["choices"][0]["message"];
    assert_eq!(message.get("reasoning_content"), None);
    // Cut off within the reasoning: a length, not a stop with nothing.
    let cut = r#""reasoning_effort": "low", "max_tokens": 5"#;
    let answer = chat(server.address, &ask(cut)).json();
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(
        answer["choices"][0]["message"]["reasoning_content"],
        "Let m"
    );
}

const CALLS: &str = "Looking.\n\n<{dsml}tool_calls>\n<{dsml}invoke name=\"weather\">\n\
    <{dsml}parameter name=\"city\" string=\"true\">Oslo < \"x\"</{dsml}parameter>\n\
    <{dsml}parameter name=\"days\" string=\"false\">3</{dsml}parameter>\n</{dsml}invoke>\n\
    <{dsml}invoke name=\"time\">\n</{dsml}invoke>\n</{dsml}tool_calls>";

const TOOLS: &str = r#""tools": [
    {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}},
    {"type": "function", "function": {"name": "time"}}]"#;

#[test]
fn tool_calls_whole_and_streamed() {
    let server = Server::start(saying(CALLS, 8192, 2));
    let answer = chat(server.address, &ask(TOOLS)).json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], "Looking.");
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    let functions: Vec<_> = calls
        .iter()
        .map(|c| {
            let arguments = c["function"]["arguments"].as_str().unwrap();
            let arguments: Value = serde_json::from_str(arguments).unwrap();
            (c["function"]["name"].as_str().unwrap(), arguments)
        })
        .collect();
    let weather = json!({"city": "Oslo < \"x\"", "days": 3});
    assert_eq!(
        functions,
        [("weather", weather.clone()), ("time", json!({}))]
    );
    assert_ne!(calls[0]["id"], calls[1]["id"]);
    assert!(calls.iter().all(|c| c["type"] == "function"));

    let body = ask(&format!(r#"{TOOLS}, "stream": true"#));
    let objects = post_chat(server.address, &body).stream().objects();
    let mut arguments = [String::new(), String::new()];
    let mut names = Vec::new();
    for object in &objects {
        for call in object["choices"][0]["delta"]["tool_calls"]
            .as_array()
            .into_iter()
            .flatten()
        {
            let index = call["index"].as_u64().unwrap() as usize;
            // Id and name stand in the first piece only.
            if let Some(name) = call["function"]["name"].as_str() {
                assert!(call["id"].as_str().unwrap().starts_with("call_"));
                names.push((index, name.to_owned()));
            } else {
                assert_eq!(call.get("id"), None);
            }
            arguments[index] += call["function"]["arguments"].as_str().unwrap();
        }
    }
    assert_eq!(names, [(0, "weather".to_owned()), (1, "time".to_owned())]);
    let read: Vec<Value> = arguments
        .iter()
        .map(|a| serde_json::from_str(a).unwrap())
        .collect();
    assert_eq!(read, [weather, json!({})]);
    assert_eq!(deltas(&objects, "content"), "Looking.");
    let end = objects.last().unwrap();
    assert_eq!(end["choices"][0]["finish_reason"], "tool_calls");
}

#[test]
fn one_call_at_a_time_if_asked_and_none_if_forbidden() {
    let server = Server::start(saying(CALLS, 8192, 2));
    let body = ask(&format!(r#"{TOOLS}, "parallel_tool_calls": false"#));
    let answer = chat(server.address, &body).json();
    let calls = answer["choices"][0]["message"]["tool_calls"]
        .as_array()
        .unwrap();
    assert_eq!(calls.len(), 1);
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
    let with = chat(server.address, &ask(TOOLS)).json()["usage"]["prompt_tokens"].clone();
    let body = ask(&format!(r#"{TOOLS}, "tool_choice": "none""#));
    let without = chat(server.address, &body).json()["usage"]["prompt_tokens"].clone();
    assert!(
        with.as_u64() > without.as_u64(),
        "tools are not even offered"
    );
    assert_eq!(without, 6);
}

/// The prompt of the only request so far, as text.
fn prompt(server: &Server) -> String {
    let passes = server.watch.passes();
    let tokens = passes.iter().flatten().flat_map(|s| s.tokens.iter());
    // Every ordinary token is a byte; specials are left out.
    let bytes: Vec<u8> = tokens
        .filter_map(|t| u8::try_from(t.checked_sub(12)?).ok())
        .collect();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn a_schema_reaches_the_prompt_as_it_was_spelled() {
    let server = Server::start(saying("", 8192, 1));
    let tools = r#""tools": [{"type": "function", "function": {"parameters":
        {"zeta":1.50,"alpha":[],"x":{"b":"\u00e9","a":1e2}}, "name": "f"}}]"#;
    assert_eq!(chat(server.address, &ask(tools)).status, 200);
    let want =
        r#"{"parameters": {"zeta": 1.5, "alpha": [], "x": {"b": "é", "a": 100.0}}, "name": "f"}"#;
    let prompt = prompt(&server);
    assert!(prompt.contains(want), "{prompt}");
}

#[test]
fn a_tool_round_and_a_continued_turn_are_understood() {
    let server = Server::start(saying("Cold.", 8192, 2));
    let body = format!(
        r#"{{"messages": [
            {{"role": "system", "content": [{{"type": "text", "text": "Be "}}, {{"type": "text", "text": "brief."}}]}},
            {{"role": "user", "content": "Oslo?"}},
            {{"role": "assistant", "content": null, "reasoning_content": "", "tool_calls": [
                {{"id": "call_1", "type": "function", "function": {{"name": "weather", "arguments": "{{}}"}}}}]}},
            {{"role": "tool", "tool_call_id": "call_1", "content": "-3"}}], {TOOLS}}}"#
    );
    let answer = chat(server.address, &body).json();
    assert_eq!(
        answer["choices"][0]["message"]["content"], "Cold.",
        "{answer}"
    );
    let body = r#"{"messages": [{"role": "user", "content": "Oslo?"},
        {"role": "assistant", "content": "Co", "prefix": true}]}"#;
    let answer = chat(server.address, body).json();
    assert_eq!(answer["choices"][0]["message"]["content"], "ld.");
}

#[test]
fn stop_strings_end_the_answer_and_are_not_part_of_it() {
    let server = Server::start(saying("one two three", 256, 2));
    for (stop, want) in [
        (r#""stop": " tw""#, "one"),
        (r#""stop": ["xyz", "three", "e t"]"#, "on"),
        (r#""stop": ["three!"]"#, "one two three"),
        (r#""stop": null"#, "one two three"),
    ] {
        let answer = chat(server.address, &ask(stop)).json();
        assert_eq!(answer["choices"][0]["message"]["content"], want, "{stop}");
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        let body = ask(&format!(r#"{stop}, "stream": true"#));
        let objects = post_chat(server.address, &body).stream().objects();
        assert_eq!(deltas(&objects, "content"), want);
    }
    let answer = chat(server.address, &ask(r#""stop": " tw""#)).json();
    // No token is drawn after the one that completes the string.
    assert_eq!(answer["usage"]["completion_tokens"], 6);
    assert_eq!(answer["usage"]["fourspark"]["stop_string"], " tw");
}

#[test]
fn lengths_are_obeyed_and_clamped_to_the_context() {
    let server = Server::start(saying(&"x".repeat(500), 64, 2));
    for (more, want) in [
        (r#""max_tokens": 3"#, 3),
        (r#""max_tokens": 9, "max_completion_tokens": 4"#, 4),
        (r#""max_tokens": 384000"#, 64 - 6),
        (r#""max_tokens": 18446744073709551615"#, 64 - 6),
        ("", 64 - 6),
    ] {
        let answer = chat(server.address, &ask(more)).json();
        assert_eq!(answer["usage"]["completion_tokens"], want, "{more}");
        assert_eq!(answer["choices"][0]["finish_reason"], "length");
    }
}

#[test]
fn seeds_repeat_and_sampling_fields_count() {
    // Flat logits: what is drawn is noise alone.
    let target = testkit::fake::FakeTarget::new(268, 256, 4).with_logits(|_| vec![0.0; 268]);
    let server = Server::start(target);
    let say = |more: &str| {
        let body = ask(&format!(r#""max_tokens": 20, {more}"#));
        let answer = chat(server.address, &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()["choices"][0]["message"]["content"].clone()
    };
    let hot = say(r#""temperature": 1, "seed": 5"#);
    assert_eq!(hot, say(r#""temperature": 1, "seed": 5"#));
    assert_ne!(hot, say(r#""temperature": 1, "seed": 6"#));
    assert_ne!(
        say(r#""temperature": 1"#),
        say(r#""temperature": 1"#),
        "fresh seeds"
    );
    assert_eq!(
        say(r#""temperature": 1, "seed": -1"#),
        say(r#""temperature": 1, "seed": -1"#)
    );
    // Token 77 is the letter A; a bias makes it certain.
    let biased = r#""logit_bias": {"77": 100}"#;
    assert_eq!(say(biased), "A".repeat(20));
    // And a penalty makes it give way.
    let penalised = r#""logit_bias": {"77": 1, "78": 0.5}, "presence_penalty": 2"#;
    assert!(say(penalised).as_str().unwrap().starts_with("AB"));
}

#[test]
fn health_models_and_props() {
    let server = Server::start(saying("x", 256, 3));
    let health = get(server.address, "/health");
    assert_eq!(
        (health.status, health.json()),
        (200, json!({"status": "ok"}))
    );
    assert_eq!(get(server.address, "/").status, 200);
    let models = get(server.address, "/v1/models?client_version=1").json();
    assert_eq!(models["object"], "list");
    assert_eq!(models["data"][0]["id"], "scripted");
    assert_eq!(models["data"][0]["context_length"], 256);
    assert_eq!(get(server.address, "/v1/models/scripted").status, 200);
    let other = get(server.address, "/v1/models/other");
    assert_eq!(
        (other.status, &other.json()["error"]["code"]),
        (404, &json!("model_not_found"))
    );
    chat(server.address, &ask(""));
    let props = get(server.address, "/props").json();
    assert_eq!(props["numeric_class"], "equal");
    assert_eq!(props["limits"]["context"], 256);
    assert_eq!(props["limits"]["sequences"], 3);
    assert_eq!(props["model"]["fingerprint"].as_str().unwrap().len(), 64);
    assert_eq!(props["default_generation_settings"]["temperature"], 0.0);
    assert_eq!(props["default_generation_settings"]["thinking"], "off");
    assert_eq!(
        (&props["stats"]["in_flight"], &props["stats"]["stopped"]),
        (&json!(0), &json!(1))
    );
    let switches = props["switches"].as_array().unwrap();
    assert!(
        switches
            .iter()
            .any(|s| s["name"] == "cpu.isa" && s["value"] == "auto")
    );
    let features = props["features"].as_array().unwrap();
    let off: Vec<_> = features.iter().filter(|f| f["on"] == false).collect();
    assert!(off.iter().any(|f| f["name"] == "draft"));
    assert!(
        features
            .iter()
            .all(|f| f["reason"].as_str().is_some_and(|r| !r.is_empty()))
    );
}
