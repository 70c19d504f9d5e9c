//! `serve` with a worker that is killed while clients ask.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, ChildStderr, Stdio};

use serde_json::{Value, json};

use crate::common::client::{chat, get};
use crate::{eventually, exists, names, open_files, program, signal};

pub(crate) struct Serving {
    child: Child,
    stderr: BufReader<ChildStderr>,
    pub(crate) address: SocketAddr,
    /// What it said before it listened.
    said: String,
}

impl Serving {
    /// A server with the shipped drafter.
    pub(crate) fn start(more: &[&str]) -> Self {
        let draft = [
            "--draft",
            "--draft-policy",
            "fixed:4",
            "--draft-source",
            "backbone",
        ];
        Self::start_with(&[&draft[..], more].concat())
    }

    pub(crate) fn start_with(more: &[&str]) -> Self {
        let mut child = program()
            .args(["serve", "--port", "0", "--ctx", "256", "--threads", "1"])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let mut this = Self {
            child,
            stderr,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
            said: String::new(),
        };
        loop {
            let mut line = String::new();
            let read = this.stderr.read_line(&mut line).unwrap();
            assert!(read > 0, "the server ended: {}", this.said);
            if let Some(address) = line.trim().strip_prefix("listening on http://") {
                this.address = address.parse().unwrap();
                return this;
            }
            this.said += &line;
        }
    }

    /// The server's own process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it said before it listened.
    pub(crate) fn said(&self) -> &str {
        &self.said
    }

    pub(crate) fn worker(&self) -> Value {
        get(self.address, "/props").json()["drafter"]["worker"].clone()
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.worker()["pid"].as_u64().map(|pid| pid as u32)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ask(max: usize) -> String {
    let message = json!({"role": "user", "content": "Tell me about the sea."});
    json!({"messages": [message], "max_tokens": max}).to_string()
}

pub(crate) fn text(answer: &Value) -> String {
    answer["choices"][0]["message"]["content"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// shown as shared; killed three times between and during answers; the text
/// stays; nothing piles up in the server.
#[test]
fn a_13_a_killed_worker_changes_no_answer() {
    let before = names();
    let plain = Serving::start(&[]);
    let want = text(&chat(plain.address, &ask(40)).json());
    drop(plain);
    let server = Serving::start(&["--draft-worker", "auto"]);
    assert!(server.said.contains("transport=shared"), "{}", server.said);
    assert!(
        server.said.contains("draft_worker on: draft worker up"),
        "{}",
        server.said
    );
    assert_eq!(text(&chat(server.address, &ask(40)).json()), want);
    let first = server.pid().unwrap();
    let id = server.child.id();
    let open = open_files(id).len();
    signal(first, "-KILL");
    let answer = chat(server.address, &ask(40)).json();
    assert_eq!(text(&answer), want);
    let told = &answer["usage"]["fourspark"]["drafting"]["worker"];
    assert_eq!(told["lost"], 1, "{told}");
    // The next start is a second away; a request keeps it moving.
    eventually("a worker", || server.worker()["state"] == "up");
    let second = server.pid().unwrap();
    assert!(first != second && !exists(first));
    // During an answer.
    let address = server.address;
    let asking = std::thread::spawn(move || chat(address, &ask(200)).json());
    eventually("a step of the second worker", || {
        server.worker()["counts"]["restarts"] == 1
    });
    signal(second, "-KILL");
    asking.join().unwrap();
    assert_eq!(text(&chat(server.address, &ask(40)).json()), want);
    eventually("no dead worker", || !exists(second));
    let children = format!("/proc/{id}/task/{id}/children");
    assert!(
        std::fs::read_to_string(children)
            .unwrap()
            .split_whitespace()
            .count()
            <= 1
    );
    assert!(open_files(id).len() <= open + 4, "{:?}", open_files(id));
    assert_eq!(names(), before);
}

/// Where a worker is required, requests wait outside until it is back.
#[test]
fn a_12_without_its_required_worker_the_server_takes_no_request() {
    let server = Serving::start(&["--draft-worker", "required"]);
    assert_eq!(chat(server.address, &ask(8)).status, 200);
    let want = text(&chat(server.address, &ask(40)).json());
    signal(server.pid().unwrap(), "-KILL");
    // The one that finds out is answered whole.
    let answer = chat(server.address, &ask(40));
    assert_eq!((answer.status, text(&answer.json())), (200, want.clone()));
    let mut refused = 0;
    eventually("another worker", || {
        let answer = chat(server.address, &ask(4));
        if answer.status == 503 {
            let error = &answer.json()["error"];
            assert_eq!(error["code"], "no_draft_worker");
            let message = error["message"].as_str().unwrap();
            assert!(message.starts_with("draft worker restarting"), "{message}");
            refused += 1;
        }
        answer.status == 200
    });
    assert!(refused > 0);
    assert_eq!(text(&chat(server.address, &ask(40)).json()), want);
}

/// a server that is killed, or told to end, leaves no worker and no file.
#[test]
fn a_27_the_worker_does_not_outlive_the_server() {
    let before = names();
    for how in ["-KILL", "-TERM", "-KILL"] {
        let mut server = Serving::start(&["--draft-worker", "required"]);
        let worker = server.pid().unwrap();
        assert!(exists(worker));
        signal(server.child.id(), how);
        let status = server.child.wait().unwrap();
        eventually("the worker's end", || !exists(worker));
        if how == "-TERM" {
            assert_eq!(status.code(), Some(0));
            let mut rest = String::new();
            server.stderr.read_to_string(&mut rest).unwrap();
            assert!(rest.contains("stopped"), "{rest}");
        }
    }
    assert_eq!(names(), before);
}
