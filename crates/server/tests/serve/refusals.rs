//! What is refused, with which status, code and name: nothing that a client means is ignored.

use crate::common::client::{chat, get, post_chat, send};
use crate::common::{Server, ask, saying};
use fourspark::Limits;
use server::http::ServeOptions;

#[test]
fn bodies_that_are_not_json_are_refused_with_the_place() {
    let server = Server::start(saying("x", 256, 1));
    let whole = |value: &str| format!("{{\"messages\": [], \"x\": {value}}}");
    let bad: Vec<Vec<u8>> = [
        "NaN",
        "Infinity",
        "-Infinity",
        "+1",
        "01",
        "1.",
        ".5",
        "1e",
        "0x10",
        "1e999",
        "'a'",
        "\"a",
        "\"\u{1}\"",
        "\"\n\"",
        r#""\ud800""#,
        r#""\ud800\u0041""#,
        r#""\x41""#,
        "[1,]",
        "{\"a\":1,}",
        "{a:1}",
        "tru",
        "1 2",
        "// comment\n1",
    ]
    .iter()
    .map(|v| whole(v).into_bytes())
    .chain([
        b"".to_vec(),
        b"{".to_vec(),
        b"{} {}".to_vec(),
        b"\xff\xfe{}".to_vec(),
        b"{\"x\": \"\xc3\"}".to_vec(),
        "[".repeat(500).into_bytes(),
    ])
    .collect();
    for body in bad {
        let head = "POST /v1/chat/completions HTTP/1.1";
        let response = send(server.address, head, &body).read();
        let shown = String::from_utf8_lossy(&body).into_owned();
        assert_eq!(response.status, 400, "{shown}");
        let error = &response.json()["error"];
        assert_eq!(error["code"], "invalid_json", "{shown}");
        assert_eq!(error["type"], "invalid_request_error");
        let message = error["message"].as_str().unwrap();
        assert!(
            message.contains("line 1 column") || message.contains("line 2 column"),
            "{message}"
        );
    }
}

/// What a request says, and the code and name it is refused with.
const FIELDS: &[(&str, &str, &str)] = &[
    // Not supported.
    (r#""n": 2"#, "unsupported_parameter", "n"),
    (r#""n": "1""#, "unsupported_parameter", "n"),
    (r#""logprobs": true"#, "unsupported_parameter", "logprobs"),
    (
        r#""top_logprobs": 5"#,
        "unsupported_parameter",
        "top_logprobs",
    ),
    (
        r#""response_format": {"type": "json_object"}"#,
        "unsupported_parameter",
        "response_format",
    ),
    (
        r#""response_format": {"type": "json_schema", "json_schema": {}}"#,
        "unsupported_parameter",
        "response_format",
    ),
    (
        r#""tool_choice": "required""#,
        "unsupported_parameter",
        "tool_choice",
    ),
    (
        r#""tool_choice": {"type": "function", "function": {"name": "f"}}"#,
        "unsupported_parameter",
        "tool_choice",
    ),
    (
        r#""tools": [{"type": "web_search"}]"#,
        "unsupported_parameter",
        "tools[0].type",
    ),
    (
        r#""tools": [{"type": "function", "function": {"name": "f", "strict": true}}]"#,
        "unsupported_parameter",
        "tools[0].function.strict",
    ),
    (
        r#""functions": [{"name": "f"}]"#,
        "unsupported_parameter",
        "functions",
    ),
    (
        r#""modalities": ["text", "audio"]"#,
        "unsupported_parameter",
        "modalities",
    ),
    (
        r#""guided_json": {}"#,
        "unsupported_parameter",
        "guided_json",
    ),
    (
        r#""grammar": "root ::= x""#,
        "unsupported_parameter",
        "grammar",
    ),
    (r#""min_tokens": 4"#, "unsupported_parameter", "min_tokens"),
    (
        r#""ignore_eos": true"#,
        "unsupported_parameter",
        "ignore_eos",
    ),
    (r#""mirostat": 2"#, "unsupported_parameter", "mirostat"),
    (
        r#""thinking": {"type": "enabled", "budget_tokens": 100}"#,
        "unsupported_parameter",
        "thinking.budget_tokens",
    ),
    (
        r#""chat_template_kwargs": {"add_vision_id": true}"#,
        "unsupported_parameter",
        "chat_template_kwargs.add_vision_id",
    ),
    // Wrong types and ranges.
    (r#""temperature": "hot""#, "invalid_value", "temperature"),
    (r#""temperature": -0.1"#, "invalid_value", "temperature"),
    (r#""temperature": 2.1"#, "invalid_value", "temperature"),
    (r#""top_p": 1.01"#, "invalid_value", "top_p"),
    (r#""top_k": 1.5"#, "invalid_value", "top_k"),
    (r#""min_p": -1"#, "invalid_value", "min_p"),
    (
        r#""presence_penalty": 3"#,
        "invalid_value",
        "presence_penalty",
    ),
    (
        r#""frequency_penalty": true"#,
        "invalid_value",
        "frequency_penalty",
    ),
    (r#""repeat_penalty": 0"#, "invalid_value", "repeat_penalty"),
    (r#""seed": 1.5"#, "invalid_value", "seed"),
    (r#""max_tokens": 0"#, "invalid_value", "max_tokens"),
    (r#""max_tokens": -5"#, "invalid_value", "max_tokens"),
    (
        r#""max_completion_tokens": "many""#,
        "invalid_value",
        "max_completion_tokens",
    ),
    (r#""stop": 5"#, "invalid_value", "stop"),
    (r#""stop": """#, "invalid_value", "stop"),
    (r#""stop": ["a", 1]"#, "invalid_value", "stop"),
    (r#""stream": 1"#, "invalid_value", "stream"),
    (
        r#""stream_options": {"include_usage": true}"#,
        "invalid_value",
        "stream_options",
    ),
    (r#""model": 7"#, "invalid_value", "model"),
    (r#""logit_bias": {"268": 1}"#, "invalid_value", "logit_bias"),
    (r#""logit_bias": {"x": 1}"#, "invalid_value", "logit_bias"),
    (
        r#""logit_bias": {"5": "a"}"#,
        "invalid_value",
        "logit_bias.5",
    ),
    (
        r#""reasoning_effort": "extreme""#,
        "invalid_value",
        "reasoning_effort",
    ),
    (
        r#""thinking": {"type": "maybe"}"#,
        "invalid_value",
        "thinking.type",
    ),
    (r#""thinking": true"#, "invalid_value", "thinking"),
    (
        r#""tool_choice": "sometimes""#,
        "invalid_value",
        "tool_choice",
    ),
    (
        r#""tools": [{"type": "function"}]"#,
        "invalid_value",
        "tools[0].function",
    ),
    (
        r#""tools": [{"type": "function", "function": {"name": ""}}]"#,
        "invalid_value",
        "tools[0].function.name",
    ),
    (
        r#""response_format": {"type": "xml"}"#,
        "invalid_value",
        "response_format.type",
    ),
    (
        r#""parallel_tool_calls": "no""#,
        "invalid_value",
        "parallel_tool_calls",
    ),
];

#[test]
fn fields_are_refused_by_name() {
    let server = Server::start(saying("x", 256, 1));
    for (more, code, param) in FIELDS {
        let response = chat(server.address, &ask(more));
        assert_eq!(response.status, 400, "{more}");
        let error = &response.json()["error"];
        assert_eq!(
            (&error["code"], &error["param"]),
            (&(*code).into(), &(*param).into()),
            "{more}"
        );
        let message = error["message"].as_str().unwrap();
        let name = param.split('.').next_back().unwrap();
        assert!(message.contains(name), "{more}: {message}");
    }
    assert_eq!(server.engine.stats().submitted, 0);
}

#[test]
fn messages_are_refused_by_their_place() {
    let server = Server::start(saying("x", 256, 1));
    let cases: &[(&str, &str, &str)] = &[
        ("{}", "invalid_value", "messages"),
        ("[]", "invalid_value", "request"),
        (r#"{"messages": "hi"}"#, "invalid_value", "messages"),
        (r#"{"messages": []}"#, "invalid_value", "messages"),
        (r#"{"messages": ["hi"]}"#, "invalid_value", "messages[0]"),
        (
            r#"{"messages": [{"content": "x"}]}"#,
            "invalid_value",
            "messages[0].role",
        ),
        (
            r#"{"messages": [{"role": "user"}]}"#,
            "invalid_value",
            "messages[0].content",
        ),
        (
            r#"{"messages": [{"role": "king", "content": "x"}]}"#,
            "invalid_value",
            "messages[0].role",
        ),
        (
            r#"{"messages": [{"role": "user", "content": 5}]}"#,
            "invalid_value",
            "messages[0].content",
        ),
        (
            r#"{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}"#,
            "unsupported_parameter",
            "messages[0].content[0]",
        ),
        (
            r#"{"messages": [{"role": "tool", "content": "x"}]}"#,
            "invalid_value",
            "messages[0].tool_call_id",
        ),
        (
            r#"{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}"#,
            "invalid_value",
            "messages[1].role",
        ),
        (
            r#"{"messages": [{"role": "assistant", "content": "y", "prefix": true}]}"#,
            "invalid_value",
            "messages",
        ),
        (
            r#"{"messages": [{"role": "assistant", "content": "y", "prefix": true}, {"role": "user", "content": "x"}]}"#,
            "invalid_value",
            "messages[0].prefix",
        ),
    ];
    for (body, code, param) in cases {
        let response = chat(server.address, body);
        assert_eq!(response.status, 400, "{body}");
        let error = &response.json()["error"];
        assert_eq!(
            (&error["code"], &error["param"]),
            (&(*code).into(), &(*param).into()),
            "{body}"
        );
    }
}

#[test]
fn what_changes_nothing_is_accepted() {
    let server = Server::start(saying("x", 4096, 1));
    for more in [
        r#""n": 1, "logprobs": false, "top_logprobs": 0, "response_format": {"type": "text"}"#,
        r#""tools": [], "tool_choice": "auto", "functions": [], "modalities": ["text"]"#,
        r#""user": "u", "metadata": {"a": 1}, "store": false, "service_tier": "auto""#,
        r#""prediction": {"type": "content", "content": "x"}, "some_new_field": {"deep": [1]}"#,
        r#""temperature": null, "stop": null, "seed": null, "max_tokens": null, "stream": null"#,
        r#""top_k": -1, "top_p": 0, "typical_p": 1, "mirostat": 0, "min_tokens": 0"#,
    ] {
        let response = chat(server.address, &ask(more));
        assert_eq!(response.status, 200, "{more}: {}", response.body);
    }
}

#[test]
fn a_prompt_that_is_too_long_is_recognised_by_clients() {
    let server = Server::start(saying("x", 64, 1));
    let body = |n: usize| {
        let text = "y".repeat(n);
        format!(r#"{{"messages": [{{"role": "user", "content": "{text}"}}]}}"#)
    };
    // Four tokens around the text; one position must be left for the answer.
    assert_eq!(chat(server.address, &body(59)).status, 200);
    for n in [60, 61, 500] {
        for stream in [false, true] {
            let mut text = body(n);
            if stream {
                text.insert_str(1, r#""stream": true, "#);
            }
            let response = chat(server.address, &text);
            assert_eq!(
                response.status, 400,
                "an error before the stream is a status"
            );
            let error = &response.json()["error"];
            assert_eq!(error["code"], "context_length_exceeded");
            assert_eq!(error["type"], "invalid_request_error");
            assert_eq!(
                (&error["n_prompt_tokens"], &error["n_ctx"]),
                (&(n + 4).into(), &64.into())
            );
            let message = error["message"].as_str().unwrap();
            assert!(
                message.contains("maximum context length is 64 tokens"),
                "{message}"
            );
            assert!(
                message.contains(&format!("resulted in {} tokens", n + 4)),
                "{message}"
            );
        }
    }
}

#[test]
fn paths_methods_sizes_and_encodings() {
    let options = ServeOptions {
        body_limit: 1000,
        ..ServeOptions::default()
    };
    let server = Server::with(saying("x", 4096, 1), Limits::default(), options);
    let at = server.address;
    let missing = get(at, "/v1/nothing");
    assert_eq!(
        (missing.status, &missing.json()["error"]["code"]),
        (404, &"not_found".into())
    );
    let wrong = get(at, "/v1/chat/completions");
    assert_eq!(wrong.status, 405);
    assert_eq!(wrong.json()["error"]["code"], "method_not_allowed");
    assert_eq!(wrong.header("allow"), Some("POST"));
    assert_eq!(send(at, "DELETE /health HTTP/1.1", b"").read().status, 405);
    let large = chat(at, &ask(&format!(r#""x": "{}""#, "y".repeat(1000))));
    assert_eq!(large.status, 413);
    let error = &large.json()["error"];
    assert_eq!(error["code"], "request_too_large");
    assert!(error["message"].as_str().unwrap().contains("1000 bytes"));
    let head = "POST /v1/chat/completions HTTP/1.1\r\ncontent-encoding: gzip";
    let packed = send(at, head, b"\x1f\x8b").read();
    assert_eq!(
        (packed.status, &packed.json()["error"]["code"]),
        (415, &"unsupported_encoding".into())
    );
    // Queries and identity encoding are fine.
    let head = "POST /v1/chat/completions?beta=true HTTP/1.1\r\ncontent-encoding: identity";
    assert_eq!(send(at, head, ask("").as_bytes()).read().status, 200);
}

#[test]
fn a_key_is_asked_for_if_one_is_set() {
    let options = ServeOptions {
        api_key: Some("secret".to_owned()),
        ..ServeOptions::default()
    };
    let server = Server::with(saying("x", 256, 1), Limits::default(), options);
    let with = |header: &str| {
        let head = format!("GET /v1/models HTTP/1.1{header}");
        send(server.address, &head, b"").read()
    };
    for header in [
        "\r\nauthorization: Bearer secret",
        "\r\nauthorization: bearer secret",
        "\r\nx-api-key: secret",
    ] {
        assert_eq!(with(header).status, 200, "{header}");
    }
    for header in [
        "",
        "\r\nauthorization: Bearer secre",
        "\r\nauthorization: Bearer secrets",
        "\r\nauthorization: Basic secret",
        "\r\nauthorization: secret",
        "\r\nx-api-key: SECRET",
    ] {
        let refused = with(header);
        assert_eq!(refused.status, 401, "{header}");
        let error = &refused.json()["error"];
        assert_eq!(error["type"], "authentication_error");
        assert_eq!(error["code"], "invalid_api_key");
    }
    assert_eq!(get(server.address, "/health").status, 200);
    assert_eq!(chat(server.address, &ask("")).status, 401);
    // Without a key set, whatever is presented is ignored.
    let open = Server::start(saying("x", 256, 1));
    let head = "GET /v1/models HTTP/1.1\r\nauthorization: Bearer whatever";
    assert_eq!(send(open.address, head, b"").read().status, 200);
}

#[test]
fn a_full_queue_is_said_before_the_stream() {
    let limits = Limits {
        queue: 1,
        ..Limits::default()
    };
    let target = saying("x", 256, 1).gated();
    let server = Server::with(target, limits, ServeOptions::default());
    let first = post_chat(server.address, &ask(""));
    server.watch.await_passes(1);
    let mut second = post_chat(server.address, &ask(r#""stream": true"#)).stream();
    second.data();
    assert_eq!(server.engine.stats().queued, 1);
    for more in ["", r#""stream": true"#] {
        let refused = chat(server.address, &ask(more));
        assert_eq!(refused.status, 429);
        assert_eq!(refused.header("retry-after"), Some("1"));
        let error = &refused.json()["error"];
        assert_eq!(
            (&error["type"], &error["code"]),
            (&"rate_limit_error".into(), &"queue_full".into())
        );
    }
    server.watch.release();
    assert_eq!(first.read().status, 200);
    assert!(second.objects().len() >= 2);
}
