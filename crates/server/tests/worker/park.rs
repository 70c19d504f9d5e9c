//! Parking as a process: the model's files are not mapped any more, the worker is gone, and all of it comes back.

use std::path::Path;

use serde_json::{Value, json};

use super::serve::{Serving, text};
use crate::common::client::{Response, chat, get, send};
use crate::{eventually, exists, program};

fn ask() -> String {
    let message = json!({"role": "user", "content": "Tell me about the sea."});
    json!({"messages": [message], "max_tokens": 40}).to_string()
}

fn post(server: &Serving, path: &str) -> Response {
    send(server.address, &format!("POST {path} HTTP/1.1"), b"").read()
}

/// Model files that a process maps.
fn mapped(pid: u32) -> Vec<String> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let files = maps.lines().filter(|l| l.ends_with(".gguf"));
    let mut files: Vec<String> = files
        .filter_map(|l| Path::new(l).file_name())
        .map(|name| name.to_string_lossy().into_owned())
        .collect();
    files.dedup();
    files.sort();
    files.dedup();
    files
}

fn find<'a>(list: &'a Value, what: &str) -> Option<&'a Value> {
    let items = list["items"].as_array().unwrap();
    items.iter().find(|item| item["what"] == what)
}

/// what is listed is what is there, before and after, twice.
#[test]
fn a_44_parking_frees_the_files_and_ends_the_worker() {
    let server = Serving::start(&["--draft-worker", "required"]);
    let id = server.id();
    let want = text(&chat(server.address, &ask()).json());
    for round in 1..=2 {
        assert_eq!(mapped(id), ["tiny-draft.gguf", "tiny.gguf"]);
        let worker = server.pid().unwrap();
        assert!(exists(worker));
        let parked = post(&server, "/park").json();
        let (before, after) = (&parked["before"], &parked["after"]);
        let place = find(before, "draft worker").unwrap()["place"].clone();
        assert_eq!(place, format!("process {worker}"));
        assert!(
            find(before, "draft worker").unwrap()["bytes"]
                .as_u64()
                .unwrap()
                > 0
        );
        for file in ["model file", "drafter file", "target caches"] {
            let bytes = find(before, file).unwrap()["bytes"].as_u64().unwrap();
            assert!(bytes > 0, "{file}");
            assert!(find(after, file).is_none(), "{file}");
        }
        assert!(
            find(after, "draft worker").is_none() && after["bytes"] == 0,
            "{after}"
        );
        // As soon as it was answered.
        assert!(!exists(worker), "round {round}");
        assert_eq!(mapped(id), [""; 0]);
        assert_eq!(get(server.address, "/health").json()["status"], "parked");
        let props = get(server.address, "/props").json();
        let drafter = &props["drafter"];
        assert_eq!(
            (&drafter["on"], &drafter["worker"]["state"]),
            (&json!(false), &json!("parked"))
        );
        assert_eq!(
            (&drafter["worker"]["pid"], &props["residency"]["bytes"]),
            (&Value::Null, &json!(0))
        );
        let answer = chat(server.address, &ask()).json();
        assert_eq!(text(&answer), want, "round {round}");
        let usage = &answer["usage"]["fourspark"];
        assert!(usage["loading_ms"].as_f64().unwrap() > 0.0, "{usage}");
        assert_eq!(usage["drafting"]["worker"]["state"], "up");
        let next = server.pid().unwrap();
        assert!(next != worker && exists(next));
        assert_eq!(
            get(server.address, "/props").json()["residency"]["unparks"],
            round
        );
    }
}

/// The drafter in the program goes with the model.
#[test]
fn a_server_that_nobody_asks_parks_by_itself() {
    let server = Serving::start(&["--park-idle", "1"]);
    assert!(
        server
            .said()
            .contains("parking on: when asked to, and after 1s"),
        "{}",
        server.said()
    );
    let state = || get(server.address, "/health").json()["status"].clone();
    eventually("a park", || state() == "parked");
    assert_eq!(mapped(server.id()), [""; 0]);
    assert_eq!(chat(server.address, &ask()).status, 200);
    eventually("another park", || state() == "parked");
    let residency = get(server.address, "/props").json()["residency"].clone();
    assert_eq!(
        (&residency["idle_parks"], &residency["waited_for_load"]),
        (&json!(2), &json!(1))
    );
}

#[test]
fn a_time_that_cannot_be_parsed_stops_the_start() {
    for bad in ["-1", "soon", "1.5", "", "99999999999"] {
        let out = program()
            .args(["serve", "--port", "0", &format!("--park-idle={bad}")])
            .output();
        let out = out.unwrap();
        assert_eq!(out.status.code(), Some(2), "{bad:?}");
        assert!(
            String::from_utf8(out.stderr)
                .unwrap()
                .contains("--park-idle")
        );
    }
}
