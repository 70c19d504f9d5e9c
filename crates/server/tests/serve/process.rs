//! The program as a process: `run` and `serve` over a real file, exit codes, closed pipes, signals.
//! Most of it on a small random model that the test writes; the question that only a trained model
//! can answer on the shipped one.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;

use crate::common::client::{Message, chat, get, post_chat};
use fpx_quant::Format;
use serde_json::Value;
use testkit::fixture::{Fixture, Kind, write_gguf};

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_fourspark"))
}

fn run(args: &[&str]) -> Output {
    program().args(args).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A random model, written once for all tests, and a folder for what one test makes.
struct Files {
    folder: tempfile::TempDir,
    model: &'static Path,
}

impl Files {
    fn new() -> Self {
        static MODEL: LazyLock<PathBuf> = LazyLock::new(|| {
            let model = Path::new(env!("CARGO_TARGET_TMPDIR")).join("random.gguf");
            let fixture = Fixture::new(Kind::T0, 1).unwrap();
            let format = |name: &str| {
                if name.ends_with("tid2eid.weight") {
                    Format::I32
                } else {
                    Format::F32
                }
            };
            write_gguf(&model, &fixture, format).unwrap();
            model
        });
        Self {
            folder: tempfile::tempdir().unwrap(),
            model: &MODEL,
        }
    }

    fn model(&self) -> &str {
        self.model.to_str().unwrap()
    }
}

#[test]
fn run_gives_the_same_answer_every_time_and_in_every_form() {
    let files = Files::new();
    let common = [
        "run",
        "Hello there",
        "--model",
        files.model(),
        "--max-tokens",
        "12",
    ];
    let json = run(&[&common[..], &["--json"]].concat());
    assert!(json.status.success(), "{}", text(&json.stderr));
    let object: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(object["ids"].as_array().unwrap().len(), 12);
    assert_eq!(object["finish"], "length");
    assert_eq!(object["class"], "equal");
    assert_eq!(object["usage"]["completion_tokens"], 12);
    assert!(object["timings"]["decode_tok_per_s"].as_f64().unwrap() > 0.0);
    let plain = run(&common);
    assert!(plain.status.success());
    let answer = object["text"].as_str().unwrap();
    assert_eq!(
        text(&plain.stdout).trim_end_matches('\n'),
        answer.trim_end_matches('\n')
    );
    assert!(text(&plain.stderr).contains("tokens per second"));
    for more in [&["--threads", "1"][..], &["--ctx", "100"], &["--seed", "9"]] {
        let again = run(&[&common[..], &["--json"], more].concat());
        let again: Value = serde_json::from_slice(&again.stdout).unwrap();
        assert_eq!(again["ids"], object["ids"], "{more:?}");
    }
    let hot = |seed: &str| {
        let args = [
            &common[..],
            &["--json", "--temperature", "1", "--seed", seed],
        ]
        .concat();
        let object: Value = serde_json::from_slice(&run(&args).stdout).unwrap();
        object["ids"].clone()
    };
    assert_eq!(hot("1"), hot("1"));
    assert_ne!(hot("1"), hot("2"));
    let raw = run(&[&common[..], &["--raw", "--json"]].concat());
    let raw: Value = serde_json::from_slice(&raw.stdout).unwrap();
    assert_ne!(raw["ids"], object["ids"]);
}

#[test]
fn failures_are_one_line_and_have_their_codes() {
    let files = Files::new();
    let missing = run(&["run", "x", "--model", "/nonexistent/x.gguf"]);
    assert_eq!(missing.status.code(), Some(1));
    let line = text(&missing.stderr);
    assert!(line.starts_with("error: /nonexistent/x.gguf"), "{line}");
    assert_eq!(line.lines().count(), 1);
    assert_eq!(run(&["run"]).status.code(), Some(2));
    assert_eq!(
        run(&["run", "x", "--temperature", "-1"]).status.code(),
        Some(2)
    );
    assert_eq!(run(&["frobnicate"]).status.code(), Some(2));
    assert_eq!(run(&["--help"]).status.code(), Some(0));
    let full = run(&["run", "Hello there", "--model", files.model(), "--ctx", "4"]);
    assert_eq!(full.status.code(), Some(1));
    assert!(
        text(&full.stderr).contains("the context holds 4"),
        "{}",
        text(&full.stderr)
    );
    let open = run(&[
        "serve",
        "--model",
        files.model(),
        "--host",
        "0.0.0.0",
        "--port",
        "0",
    ]);
    assert_eq!(open.status.code(), Some(1));
    assert!(text(&open.stderr).contains("--api-key"));
}

/// A file whose only key names an architecture.
fn write_arch(path: &Path, arch: &str) {
    let mut builder = gguf::GgufBuilder::new();
    builder.set("general.architecture", arch).unwrap();
    builder.create(path).unwrap().finish().unwrap();
}

#[test]
fn files_for_other_engines_are_refused_by_name() {
    let files = Files::new();
    for (arch, named) in [
        ("deepseek41", "V4.1"),
        ("deepseek4-pflash", "PFlash"),
        ("deepseek4-dflash-draft", "drafter"),
        ("llama", "llama"),
    ] {
        let path = files.folder.path().join(format!("{arch}.gguf"));
        write_arch(&path, arch);
        let refused = run(&["run", "x", "--model", path.to_str().unwrap()]);
        assert_eq!(refused.status.code(), Some(1));
        let line = text(&refused.stderr);
        assert!(line.contains(named) && line.contains(arch), "{line}");
        assert_eq!(line.lines().count(), 1, "{line}");
        // Looking at them is fine.
        let seen = run(&["inspect", path.to_str().unwrap()]);
        assert!(seen.status.success() && text(&seen.stdout).contains(arch));
    }
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    let files = Files::new();
    for args in [
        &[
            "run",
            "Hello",
            "--model",
            files.model(),
            "--max-tokens",
            "200",
        ][..],
        &["inspect", files.model(), "--tensors"],
    ] {
        let mut child = program()
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert!(!text(&output.stderr).contains("panic"));
    }
}

#[test]
fn ctrl_c_ends_an_answer_in_order() {
    let files = Files::new();
    let mut child = program()
        .args([
            "run",
            "Hello",
            "--model",
            files.model(),
            "--raw",
            "--ctx",
            "1000000",
        ])
        .args(["--temperature", "1", "--log", "off"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It speaks, so it listens.
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut [0]).unwrap();
    let pid = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-INT", &pid])
            .status()
            .unwrap()
            .success()
    );
    let drained = std::thread::spawn(move || out.read_to_end(&mut Vec::new()));
    let output = child.wait_with_output().unwrap();
    drained.join().unwrap().unwrap();
    assert_eq!(output.status.code(), Some(0));
    let said = text(&output.stderr);
    assert!(said.contains("; interrupted]"), "{said}");
}

#[test]
fn a_conversation_on_the_terminal() {
    let files = Files::new();
    let mut child = program()
        .args([
            "chat",
            "--model",
            files.model(),
            "--max-tokens",
            "4",
            "--system",
            "Be brief.",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = "Hello\nAgain\n/reset\nHello\n/what\n\n/quit\nnever read\n";
    child
        .stdin
        .take()
        .unwrap()
        .write_all(lines.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let said = text(&output.stderr);
    let prompts: Vec<u32> = said
        .lines()
        .filter_map(|l| l.split_once("[prompt ")?.1.split(' ').next()?.parse().ok())
        .collect();
    assert_eq!(prompts.len(), 3, "{said}");
    assert!(prompts[1] > prompts[0], "the second turn carries the first");
    assert_eq!(prompts[2], prompts[0], "forgotten after /reset");
    assert!(said.contains("/what is not known"));
}

#[test]
fn files_are_inspected_and_planned() {
    let files = Files::new();
    let seen = run(&["inspect", files.model(), "--json"]);
    let seen: Value = serde_json::from_slice(&seen.stdout).unwrap();
    assert_eq!(seen["architecture"], "deepseek4");
    let roles = seen["roles"].as_array().unwrap();
    let sum: u64 = roles.iter().map(|r| r["bytes"].as_u64().unwrap()).sum();
    assert_eq!(seen["bytes"], sum);
    let planned = run(&[
        "plan",
        files.model(),
        "--ctx",
        "1000",
        "--parallel",
        "2",
        "--json",
    ]);
    let planned: Value = serde_json::from_slice(&planned.stdout).unwrap();
    let number = |v: &Value| v.as_u64().unwrap();
    assert_eq!(planned["weight_bytes"], sum);
    let want = sum
        + 2 * number(&planned["sequence_bytes"]["total"])
        + number(&planned["buffer_bytes_estimated"]);
    assert_eq!(planned["total_bytes"], want);
}

#[test]
fn files_are_quantised_and_measured() {
    let files = Files::new();
    let small = files.folder.path().join("small.gguf");
    let small = small.to_str().unwrap();
    let made = run(&["quantize", files.model(), small, "--recipe", "q8"]);
    assert!(made.status.success(), "{}", text(&made.stderr));
    assert!(text(&made.stdout).starts_with("blake3 "));
    let again = run(&["quantize", files.model(), small, "--recipe", "q8"]);
    assert!(
        text(&again.stderr).contains("--force"),
        "nothing is overwritten unasked"
    );
    let prose = files.folder.path().join("prose.txt");
    std::fs::write(
        &prose,
        "the engine reads the model and writes the answer ".repeat(20),
    )
    .unwrap();
    let text_args = [
        "--text",
        prose.to_str().unwrap(),
        "--window",
        "64",
        "--windows",
        "2",
    ];
    let kl = |model: &str| {
        let args = [
            "eval",
            "kl",
            "--json",
            "--reference",
            files.model(),
            "--model",
            model,
        ];
        let output = run(&[&args[..], &text_args].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let same = kl(files.model());
    assert_eq!((&same["kl"], &same["top1"]), (&0.0.into(), &1.0.into()));
    let other = kl(small);
    assert!(other["kl"].as_f64().unwrap() > 0.0);
    assert_eq!(other["perplexity_reference"], same["perplexity"]);
    let args = ["eval", "ppl", "--json", "--model", files.model()];
    let ppl = run(&[&args[..], &text_args].concat());
    let ppl: Value = serde_json::from_slice(&ppl.stdout).unwrap();
    assert_eq!(ppl["perplexity"], same["perplexity"]);
    assert_eq!(ppl["scored"], 62);
}

#[test]
fn doctor_says_what_is_here() {
    let output = run(&["doctor"]);
    assert!(output.status.success());
    let said = text(&output.stdout);
    for part in ["threads", "cuda: off: ", "hip: off: ", "shipped model: "] {
        assert!(said.contains(part), "{said}");
    }
    // Found or not, each vendor has a line that says which.
    for (vendor, found) in [("cuda", "cuda:0: "), ("hip", "hip:0: ")] {
        let absent = said.contains(&format!("{vendor} not found: "));
        assert_ne!(absent, said.contains(found), "{said}");
    }
}

#[test]
fn doctor_speaks_json_and_takes_paths_at_their_word() {
    let output = run(&["doctor", "--json", "--hip", "/nowhere/libamdhip64.so"]);
    assert!(output.status.success());
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(said["runtimes"][0]["kind"], "cuda");
    let hip = &said["runtimes"][1];
    assert_eq!(
        (&hip["kind"], &hip["devices"]),
        (&"hip".into(), &Value::Array(vec![]))
    );
    let reason = hip["absent"]["reason"].as_str().unwrap();
    assert!(reason.contains("/nowhere/libamdhip64.so"), "{reason}");
    assert!(said["off"]["cuda"].is_string() && said["known_bad_list"][0]["source"].is_string());
}

#[test]
fn a_device_that_is_not_here_stops_the_start_with_its_reason() {
    let output = run(&["run", "--device", "vulkan:0", "hello"]);
    assert!(!output.status.success());
    let said = text(&output.stderr);
    assert!(said.contains("expected cpu, cuda:N or hip:N"), "{said}");
    // No machine has so many: without the driver its absence is the reason.
    for device in ["cuda:4000", "hip:4000"] {
        let output = run(&["run", "--device", device, "hello"]);
        assert!(!output.status.success(), "{device}");
        let said = text(&output.stderr);
        let kind = device.split(':').next().unwrap();
        let reason = said.contains("the device asked for: ") || said.contains("there are ");
        assert!(reason && said.to_lowercase().contains(kind), "{said}");
        assert!(output.stdout.is_empty());
    }
}

/// A server process on a port of the system's choice.
struct Serving {
    child: Child,
    stderr: BufReader<std::process::ChildStderr>,
    address: SocketAddr,
}

impl Serving {
    fn start(args: &[&str]) -> Self {
        let mut child = program()
            .args(["serve", "--port", "0"])
            .args(args)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        // In its place before anything can fail, so that it is ended in any case.
        let mut this = Self {
            child,
            stderr,
            address: SocketAddr::from(([127, 0, 0, 1], 0)),
        };
        let mut seen = String::new();
        loop {
            let mut line = String::new();
            let read = this.stderr.read_line(&mut line).unwrap();
            assert!(read > 0, "the server ended: {seen}");
            if let Some(address) = line.trim().strip_prefix("listening on http://") {
                this.address = address.parse().unwrap();
                return this;
            }
            seen += &line;
        }
    }

    /// Asks it to stop, as a supervisor does; its exit code and last words.
    fn terminate(mut self) -> (Option<i32>, String) {
        let pid = self.child.id().to_string();
        let kill = Command::new("kill").args(["-TERM", &pid]).status().unwrap();
        assert!(kill.success());
        let code = self.child.wait().unwrap().code();
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).unwrap();
        (code, rest)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn content(answer: &Value) -> String {
    answer["choices"][0]["message"]["content"]
        .as_str()
        .unwrap()
        .to_owned()
}

fn streamed(objects: &[Value]) -> String {
    let texts = objects
        .iter()
        .filter_map(|o| o["choices"][0]["delta"]["content"].as_str());
    texts.collect()
}

#[test]
fn a_server_says_what_run_says_and_stops_when_told() {
    let files = Files::new();
    let args = [
        "run",
        "Hello there",
        "--model",
        files.model(),
        "--max-tokens",
        "12",
        "--json",
    ];
    let want: Value = serde_json::from_slice(&run(&args).stdout).unwrap();
    let serving = Serving::start(&["--model", files.model(), "--drain", "0"]);
    let at = serving.address;
    assert!(at.ip().is_loopback());
    let ask = |more: &str| {
        format!(
            r#"{{"messages": [{{"role": "user", "content": "Hello there"}}], "max_tokens": 12{more}}}"#
        )
    };
    // Several at once: they share passes, and each is what it is alone.
    let streams: Vec<_> = (0..3)
        .map(|_| post_chat(at, &ask(r#", "stream": true"#)))
        .collect();
    assert_eq!(content(&chat(at, &ask("")).json()), want["text"]);
    for stream in streams {
        assert_eq!(
            streamed(&stream.stream().objects()),
            want["text"].as_str().unwrap()
        );
    }
    let props = get(at, "/props").json();
    assert_eq!(props["model"]["file"], files.model());
    assert_eq!(props["model"]["fingerprint"], want["model"]["fingerprint"]);
    assert!(!props["model"]["formats"].as_array().unwrap().is_empty());
    assert_eq!(props["stats"]["length"], 4);
    // A stream that has not ended when the server must.
    let mut stream = post_chat(
        at,
        r#"{"messages": [{"role": "user", "content": "x"}], "max_tokens": 4000, "stream": true,
            "logit_bias": {"1": -100}}"#,
    )
    .stream();
    stream.data();
    let (code, said) = serving.terminate();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("stopped"), "{said}");
    let last = stream.last();
    let Some(Message::Data(last)) = last else {
        panic!("{last:?}");
    };
    assert_eq!(last["error"]["code"], "stopping");
}

#[test]
fn the_shipped_model_knows_the_capital_of_france() {
    testkit::require!(
        fourspark::shipped_model().is_some(),
        "no models/tiny.gguf here"
    );
    let question = "What is the capital of France?";
    let output = run(&["run", question]);
    assert!(output.status.success());
    assert!(text(&output.stdout).contains("Paris"));
    let said = text(&output.stderr);
    assert!(
        said.contains("using the shipped one") && said.contains("tokens per second"),
        "{said}"
    );
    let serving = Serving::start(&[]);
    let body =
        format!(r#"{{"messages": [{{"role": "user", "content": "{question}"}}], "stream": true}}"#);
    let objects = post_chat(serving.address, &body).stream().objects();
    assert!(streamed(&objects).contains("Paris"));
}
