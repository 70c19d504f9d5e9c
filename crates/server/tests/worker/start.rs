//! `run` with a worker: what is told of it, and starts that cannot be.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

const QUESTION: &str = "What is the capital of France?";

/// Arguments that ask for one answer with the shipped drafter.
fn asking(question: &str) -> Vec<&str> {
    let rest = "--ctx 256 --max-tokens 24 --threads 1 --draft";
    ["run", question]
        .into_iter()
        .chain(rest.split(' '))
        .collect()
}

pub(crate) fn ask(question: &str, more: &[&str]) -> Output {
    crate::program()
        .args(asking(question))
        .args(more)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn run(more: &[&str]) -> Output {
    ask(QUESTION, more)
}

/// The same in a shell where no file can be made longer: shared memory among them.
fn run_without_memory(more: &[&str]) -> Output {
    let mut shell = Command::new("bash");
    shell.args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\""]);
    shell
        .arg(env!("CARGO_BIN_EXE_fourspark"))
        .args(asking(QUESTION))
        .args(more);
    shell.stdin(Stdio::null()).output().unwrap()
}

pub(crate) fn said(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

pub(crate) fn object(output: &Output) -> Value {
    assert!(output.status.success(), "{}", said(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// the answer is that of plain decoding; without being asked for there is no worker.
#[test]
fn a_31_the_answer_is_that_of_plain_decoding() {
    let fixed = [
        "--json",
        "--draft-source",
        "backbone",
        "--draft-policy",
        "fixed:4",
    ];
    let plain = object(&run(&["--json", "--draft-policy", "fixed:1"]));
    assert_eq!(
        plain["drafter"]["worker"],
        serde_json::json!({"mode": "off"})
    );
    for (transport, shown) in [
        ("auto", "shared"),
        ("shared", "shared"),
        ("stream", "stream"),
    ] {
        let args = ["--draft-worker", "required", "--draft-transport", transport];
        let answer = object(&run(&[&fixed[..], &args].concat()));
        assert_eq!(answer["ids"], plain["ids"], "{transport}");
        let worker = &answer["drafter"]["worker"];
        assert_eq!(
            (&worker["state"], &worker["transport"]),
            (&"up".into(), &shown.into())
        );
        assert!(worker["counts"]["steps"].as_u64().unwrap() > 2, "{worker}");
        assert_eq!(worker["counts"]["lost"], 0);
        let usage = &answer["usage"]["drafting"];
        assert_eq!(
            (&usage["state"], &usage["worker"]["transport"]),
            (&"on".into(), &shown.into())
        );
    }
    let adaptive = object(&run(&["--json", "--draft-worker", "auto"]));
    assert_eq!(adaptive["ids"], plain["ids"]);
    let stats = run(&["--stats", "--draft-worker", "required"]);
    let told = said(&stats);
    assert!(
        told.contains("\ndraft worker up, transport=shared, cpu, 1 threads; pinned here: no, "),
        "{told}"
    );
    assert!(
        told.contains("\nworker.steps ") && told.contains("\nworker.fallbacks 0\n"),
        "{told}"
    );
}

/// what is required and cannot be ends the program with 78 and the step.
#[test]
fn a_12_a_required_worker_that_cannot_be_is_78() {
    for mode in ["required", "auto"] {
        let output = run_without_memory(&["--draft-worker", mode, "--draft-transport", "shared"]);
        assert_eq!(output.status.code(), Some(78), "{}", said(&output));
        let line = said(&output);
        assert!(
            line.contains("error: the draft worker did not start: step region: "),
            "{line}"
        );
        assert!(output.stdout.is_empty());
    }
    let none = crate::program()
        .args(["run", "x", "--draft-worker", "required"])
        .output()
        .unwrap();
    assert_eq!(none.status.code(), Some(1));
    assert!(
        said(&none).contains("draft worker: expected off without a drafter's model, got required")
    );
    let idle = run(&["--draft-transport", "stream"]);
    assert_eq!(idle.status.code(), Some(1));
    assert!(
        said(&idle).contains("draft transport: expected auto without a draft worker, got stream")
    );
    let idle = run(&["--draft-worker", "off", "--draft-worker-program", "x"]);
    assert_eq!(idle.status.code(), Some(1));
    assert!(
        said(&idle).contains("draft worker program: expected none without a draft worker, got x")
    );
}

/// where the transport is left open a stream is used, and said.
#[test]
fn a_13_without_shared_memory_a_stream_is_used_and_said() {
    let args = ["--json", "--draft-worker", "required"];
    let answer = object(&run_without_memory(&args));
    let worker = &answer["drafter"]["worker"];
    assert_eq!(worker["transport"], "stream");
    let why = worker["degraded"].as_str().unwrap();
    assert!(why.starts_with("shared not possible: "), "{why}");
    let plain = object(&run(&["--json"]));
    assert_eq!(answer["ids"], plain["ids"]);
}
