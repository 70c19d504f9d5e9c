//! Parking over HTTP: what clients and supervisors see while the model is given up, loaded again, or cannot be.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::client::{Message, Response, chat, get, post_chat, send};
use crate::common::{Server, ask, engine, parts, saying};
use engine_core::Fault;
use fourspark::{Engine, Error, Limits, Phase};
use serde_json::{Value, json};
use server::http::ServeOptions;
use testkit::fake::FakeTarget;

fn post(server: &Server, path: &str, body: &str) -> Response {
    let head = format!("POST {path} HTTP/1.1\r\ncontent-type: application/json");
    send(server.address, &head, body.as_bytes()).read()
}

fn props(server: &Server) -> Value {
    get(server.address, "/props").json()["residency"].clone()
}

fn health(server: &Server) -> (u16, Value) {
    let response = get(server.address, "/health");
    (response.status, response.json()["status"].clone())
}

fn text(response: &Response) -> String {
    let answer = response.json();
    let content = &answer["choices"][0]["message"]["content"];
    content
        .as_str()
        .unwrap_or_else(|| panic!("{answer}"))
        .to_owned()
}

/// A server whose model is made by `make`, which hears how often it was called.
fn start(
    options: ServeOptions,
    mut make: impl FnMut(usize) -> Result<FakeTarget, Error> + Send + 'static,
) -> Server {
    let first = saying("", 64, 1).watch();
    let watch = Arc::new(Mutex::new(first));
    let (mut calls, theirs) = (0, Arc::clone(&watch));
    let make = move || {
        calls += 1;
        let target = make(calls)?;
        *theirs.lock().unwrap() = target.watch();
        Ok(parts(target))
    };
    let engine = Engine::with_loader(make, Limits::default(), None).unwrap();
    let watch = watch.lock().unwrap().clone();
    Server::over(engine, watch, options)
}

fn gone() -> Error {
    Error::Changed {
        file: "model.gguf".to_owned(),
        field: "fingerprint",
        expected: "aa".to_owned(),
        got: "bb".to_owned(),
    }
}

fn until(server: &Server, phase: Phase) {
    let end = Instant::now() + Duration::from_secs(60);
    while server.engine.stats().phase != phase {
        assert!(Instant::now() < end, "in vain: {}", phase.name());
        std::thread::yield_now();
    }
}

#[test]
fn a_44_a_parked_server_says_so_and_a_request_loads_the_model() {
    let server = start(ServeOptions::default(), |_| Ok(saying("abc", 256, 2)));
    let before = chat(server.address, &ask(""));
    assert_eq!(before.json()["usage"]["fourspark"]["loading_ms"], 0.0);
    assert_eq!(health(&server), (200, json!("ok")));
    let loaded = props(&server);
    assert_eq!(loaded["state"], "loaded");
    let bytes = FakeTarget::BYTES;
    assert_eq!(loaded["list"]["items"][0]["what"], "target caches");
    assert_eq!(
        (&loaded["bytes"], &loaded["list"]["bytes"]),
        (&json!(bytes), &json!(bytes))
    );
    let parked = post(&server, "/park", "");
    assert_eq!(parked.status, 200);
    let parked = parked.json();
    assert_eq!(
        (&parked["status"], &parked["already"]),
        (&json!("parked"), &json!(false))
    );
    assert_eq!(parked["before"]["bytes"], bytes);
    assert_eq!(parked["after"]["bytes"], 0);
    let after = parked["after"]["items"].as_array().unwrap();
    let named: Vec<_> = after.iter().map(|r| r["what"].as_str().unwrap()).collect();
    assert_eq!(named, ["tokenizer", "prefix cache"]);
    assert!(after.iter().all(|r| r["note"].is_string()), "{parked}");
    assert_eq!(health(&server), (200, json!("parked")));
    let now = props(&server);
    assert_eq!(
        (&now["state"], &now["bytes"]),
        (&json!("parked"), &json!(0))
    );
    assert_eq!(get(server.address, "/v1/models").status, 200);
    let again = post(&server, "/park", r#"{"wait": true}"#).json();
    assert_eq!(
        (&again["already"], &again["before"]),
        (&json!(true), &again["after"])
    );
    let answer = chat(server.address, &ask(""));
    assert_eq!(text(&answer), text(&before));
    let usage = &answer.json()["usage"]["fourspark"];
    let ms = |name: &str| usage[name].as_f64().unwrap();
    assert!(ms("loading_ms") > 0.0 && ms("loading_ms") <= ms("queued_ms"));
    assert_eq!(health(&server), (200, json!("ok")));
    let now = props(&server);
    let counts = ["parks", "unparks", "waited_for_load", "failed_loads"].map(|c| now[c].clone());
    assert_eq!(counts, [json!(1), json!(1), json!(1), json!(0)]);
}

#[test]
fn the_model_is_loaded_when_asked_for() {
    let server = start(ServeOptions::default(), |_| Ok(saying("abc", 256, 2)));
    let here = post(&server, "/unpark", "").json();
    assert_eq!(
        (&here["status"], &here["already"]),
        (&json!("loaded"), &json!(true))
    );
    post(&server, "/park", "{}");
    let loaded = post(&server, "/unpark", "{}").json();
    assert_eq!(loaded["already"], false);
    assert_eq!(loaded["now"]["bytes"], FakeTarget::BYTES);
    let answer = chat(server.address, &ask(""));
    assert_eq!(answer.json()["usage"]["fourspark"]["loading_ms"], 0.0);
}

#[test]
fn a_park_waits_for_answers_or_says_how_many_there_are() {
    let server = start(ServeOptions::default(), |_| {
        Ok(saying("abc", 256, 2).gated())
    });
    let mut stream = post_chat(server.address, &ask(r#""stream": true"#)).stream();
    stream.data();
    server.watch.await_passes(1);
    let busy = post(&server, "/park", r#"{"wait": false}"#);
    let error = &busy.json()["error"];
    assert_eq!(
        (busy.status, &error["code"]),
        (409, &json!("requests_in_progress"))
    );
    assert_eq!(error["in_progress"], 1);
    let head = "POST /park HTTP/1.1";
    let parking = send(server.address, head, b"");
    until(&server, Phase::Parking);
    assert_eq!(
        health(&server),
        (200, json!("ok")),
        "it answers what it has"
    );
    server.watch.release();
    let objects = stream.objects();
    assert_eq!(
        objects.last().unwrap()["choices"][0]["finish_reason"],
        "stop"
    );
    assert_eq!(parking.read().json()["already"], false);
}

#[test]
fn orders_are_checked() {
    let options = ServeOptions {
        api_key: Some("secret".to_owned()),
        ..ServeOptions::default()
    };
    let server = start(options, |_| Ok(saying("abc", 256, 2)));
    for path in ["/park", "/unpark"] {
        assert_eq!(post(&server, path, "").status, 401);
        let head = format!("POST {path} HTTP/1.1\r\nx-api-key: secret");
        let order = |body: &str| send(server.address, &head, body.as_bytes()).read();
        assert_eq!(order("[]").status, 400);
        assert_eq!(order("{").json()["error"]["code"], "invalid_json");
        let get = format!("GET {path} HTTP/1.1\r\nx-api-key: secret");
        assert_eq!(send(server.address, &get, b"").read().status, 405);
    }
    let head = "POST /park HTTP/1.1\r\nx-api-key: secret";
    let refused = send(server.address, head, br#"{"wait": 1}"#).read();
    assert_eq!(
        (refused.status, &refused.json()["error"]["param"]),
        (400, &json!("wait"))
    );
    assert_eq!(server.engine.stats().parks, 0);
    assert_eq!(health(&server), (200, json!("ok")), "without a key");
}

#[test]
fn a_load_that_fails_is_a_503_and_the_next_one_may_succeed() {
    let server = start(ServeOptions::default(), |call| match call {
        2..=4 => Err(gone()),
        _ => Ok(saying("abc", 256, 2)),
    });
    post(&server, "/park", "");
    let refused = |response: Response| {
        assert_eq!(response.status, 503);
        assert_eq!(response.header("retry-after"), Some("1"));
        let error = response.json()["error"].clone();
        assert_eq!(error["code"], "load_failed");
        let message = error["message"].as_str().unwrap();
        let why = "model.gguf has changed since it was loaded: fingerprint: expected aa, got bb";
        assert_eq!(message, format!("the model could not be loaded: {why}"));
    };
    refused(post(&server, "/unpark", ""));
    refused(chat(server.address, &ask("")));
    // A stream has begun by then.
    let messages: Vec<_> = post_chat(server.address, &ask(r#""stream": true"#))
        .stream()
        .collect();
    let Some(Message::Data(last)) = messages.last() else {
        panic!("{messages:?}");
    };
    assert_eq!(last["error"]["code"], "load_failed");
    assert_eq!(health(&server), (200, json!("parked")));
    let now = props(&server);
    assert_eq!(
        (&now["state"], &now["failed_loads"]),
        (&json!("parked"), &json!(3))
    );
    assert!(now["reason"].as_str().unwrap().contains("has changed"));
    assert_eq!(text(&chat(server.address, &ask(""))), "abc");
    assert_eq!(props(&server)["reason"], Value::Null);
}

/// A parked server whose next load waits until it is told to go on.
fn slow(options: ServeOptions) -> (Server, Receiver<()>, Sender<()>) {
    let (began, begun) = channel();
    let (go, gate) = channel::<()>();
    let server = start(options, move |call| {
        if call == 2 {
            began.send(()).unwrap();
            // A test that failed has gone: the load must end.
            let _ = gate.recv();
        }
        Ok(saying("abc", 256, 2))
    });
    post(&server, "/park", "");
    (server, begun, go)
}

#[test]
fn a_client_that_leaves_during_a_load_is_not_answered() {
    for stream in [false, true] {
        let (server, begun, go) = slow(ServeOptions::default());
        let client = post_chat(server.address, &ask(&format!(r#""stream": {stream}"#)));
        begun.recv().unwrap();
        assert_eq!(health(&server), (200, json!("loading")));
        drop(client);
        let end = Instant::now() + Duration::from_secs(60);
        while server.engine.stats().cancelled == 0 {
            assert!(Instant::now() < end, "in vain");
            std::thread::yield_now();
        }
        go.send(()).unwrap();
        assert_eq!(text(&chat(server.address, &ask(""))), "abc");
        let stats = server.engine.stats();
        assert_eq!((stats.cancelled, stats.stopped, stats.unparks), (1, 1, 1));
    }
}

#[test]
fn a_park_during_a_load_follows_it() {
    let (server, begun, go) = slow(ServeOptions::default());
    let unpark = send(server.address, "POST /unpark HTTP/1.1", b"");
    begun.recv().unwrap();
    let park = send(server.address, "POST /park HTTP/1.1", b"");
    go.send(()).unwrap();
    assert_eq!(unpark.read().json()["already"], false);
    assert_eq!(park.read().json()["status"], "parked");
    until(&server, Phase::Parked);
}

#[test]
fn a_parked_server_stops() {
    let mut server = start(ServeOptions::default(), |call| {
        assert!(call == 1, "nothing is loaded for its end");
        Ok(saying("abc", 256, 2))
    });
    post(&server, "/park", "");
    server.join();
    assert!(std::net::TcpStream::connect(server.address).is_err());
}

#[test]
fn a_server_stops_during_a_load() {
    let options = ServeOptions {
        drain: Duration::ZERO,
        ..ServeOptions::default()
    };
    let (mut server, begun, go) = slow(options);
    let waiting = post_chat(server.address, &ask(""));
    begun.recv().unwrap();
    server.stop();
    let end = Instant::now() + Duration::from_secs(60);
    while !server.engine.stats().dead {
        assert!(Instant::now() < end, "in vain");
        std::thread::yield_now();
    }
    go.send(()).unwrap();
    let answer = waiting.read();
    assert_eq!(
        (answer.status, &answer.json()["error"]["code"]),
        (503, &json!("stopping"))
    );
    server.join();
}

#[test]
fn an_engine_of_parts_stays_loaded() {
    let target = saying("abc", 256, 2);
    let watch = target.watch();
    let server = Server::over(
        engine(target, Limits::default()),
        watch,
        ServeOptions::default(),
    );
    let refused = post(&server, "/park", "");
    assert_eq!(
        (refused.status, &refused.json()["error"]["code"]),
        (409, &json!("cannot_park"))
    );
    assert_eq!(text(&chat(server.address, &ask(""))), "abc");
}

#[test]
fn a_fault_of_an_answer_is_no_failed_load() {
    let lost = || Fault::Lost {
        what: "cpu:0".to_owned(),
        why: "on fire".to_owned(),
    };
    let server = start(ServeOptions::default(), move |_| {
        Ok(saying("abc", 256, 1).failing_at(2, lost()))
    });
    let failed = chat(server.address, &ask(""));
    assert_eq!(
        (failed.status, &failed.json()["error"]["code"]),
        (500, &json!("engine_failed"))
    );
}
