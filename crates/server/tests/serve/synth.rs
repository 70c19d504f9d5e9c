//! Made-up weights through the program: measured, asked where a tokenizer fits, and called what they are everywhere.
use std::process::{Command, Output, Stdio};

use crate::common::client::{chat, get};
use crate::common::{Server, ask, saying};
use fourspark::{Engine, EngineOptions, ModelName};
use serde_json::Value;
use server::http::ServeOptions;

const TINY: &str = "synth:tiny,recipe=fp2-fp3-fp4f,seed=0";

fn program(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fourspark"))
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const SMALL: [&str; 10] = [
    "--prefill",
    "16",
    "--depth",
    "0,8",
    "--width",
    "1,2",
    "--streams",
    "2",
    "--rounds",
    "1",
];

fn bench(args: &[&str]) -> Output {
    run(&[args, &SMALL].concat())
}

fn run(args: &[&str]) -> Output {
    let output = program(&[&["bench"], args].concat());
    assert!(output.status.success(), "{}", said(&output));
    output
}

fn report(args: &[&str]) -> Value {
    serde_json::from_slice(&bench(&[args, &["--json"]].concat()).stdout).unwrap()
}

#[test]
fn bench_measures_made_up_weights_and_says_so() {
    let output = bench(&["--model", "synth:tiny", "--json"]);
    assert!(
        said(&output).contains("label synth: synth:tiny,"),
        "{}",
        said(&output)
    );
    let first: Value = serde_json::from_slice(&output.stdout).unwrap();
    let model = &first["model"];
    assert_eq!(
        (&model["label"], &model["name"]),
        (&"synth".into(), &TINY.into())
    );
    assert!(first["load_seconds"].as_f64().unwrap() > 0.0);
    assert_eq!(first["cells"].as_array().unwrap().len(), 1 + 2 * 2 + 1);
    for cell in first["cells"].as_array().unwrap() {
        assert!(cell["seconds"].as_f64().unwrap() > 0.0, "{cell}");
        assert!(cell["weight_bytes"].as_u64().unwrap() > 0, "{cell}");
        assert_eq!(cell["families"], Value::Null, "the processor times none");
    }
    // The whole name makes the same model, another seed or recipe another one.
    let print = |name: &str| report(&["--model", name])["model"]["fingerprint"].clone();
    assert_eq!(print(TINY), model["fingerprint"]);
    assert_ne!(print("synth:tiny,seed=1"), model["fingerprint"]);
    let text = bench(&["--model", "synth:tiny"]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(
        text.starts_with(&format!("label synth: {TINY}, ")),
        "{text}"
    );
    // A file has no label.
    assert_eq!(report(&[])["model"]["label"], Value::Null);
}

/// The executor takes its time: one prompt, one step.
#[cfg(feature = "host-exec")]
#[test]
fn bench_tells_families_and_reads_of_a_device() {
    let report = |device: &str| -> Value {
        let args =
            "--model synth:tiny --json --prefill 2 --depth 0 --width 1 --streams 0 --rounds 1";
        let args: Vec<&str> = args.split(' ').chain(["--device", device]).collect();
        serde_json::from_slice(&run(&args).stdout).unwrap()
    };
    let (there, here) = (report("host"), report("cpu"));
    assert_eq!(there["model"]["fingerprint"], here["model"]["fingerprint"]);
    assert_eq!(there["model"]["label"], "synth");
    assert!(there["read_bytes_per_second"].as_f64().unwrap() > 1e3);
    for at in 0..2 {
        let (cell, on_cpu) = (&there["cells"][at], &here["cells"][at]);
        assert_eq!(cell["weight_bytes"], on_cpu["weight_bytes"], "{cell}");
        let families = cell["families"].as_array().unwrap();
        let of = |name: &str| families.iter().find(|f| f["name"] == name);
        // Attention and experts are in every pass.
        assert!(of("route").is_some() && of("norm").is_some(), "{cell}");
        let launches: u64 = families
            .iter()
            .map(|f| f["launches"].as_u64().unwrap())
            .sum();
        assert!(launches >= 100, "{cell}");
        let times = families.iter().map(|f| f["microseconds"].as_f64().unwrap());
        assert!(
            times.collect::<Vec<_>>().is_sorted_by(|a, b| a >= b),
            "{cell}"
        );
    }
}

#[test]
fn one_of_the_shipped_vocabulary_can_be_asked_and_says_what_it_is() {
    let asked = [
        "run",
        "--model",
        "synth:tiny",
        "--max-tokens",
        "4",
        "--raw",
        "Hi",
    ];
    let output = program(&[&asked[..], &["--json"]].concat());
    assert!(output.status.success(), "{}", said(&output));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(answer["model"]["label"], "synth");
    assert_eq!(answer["usage"]["label"], "synth");
    assert_eq!(answer["model"]["name"], TINY);
    assert_eq!(answer["model"]["file"], Value::Null);
    assert_eq!(answer["ids"].as_array().unwrap().len(), 4);
    assert!(said(&output).contains("label synth"));
    let plain = program(&asked);
    assert!(
        said(&plain).contains("numeric class equal, label synth"),
        "{}",
        said(&plain)
    );
}

#[test]
fn props_and_usage_carry_the_label() {
    let name: ModelName = "synth:tiny,seed=5".parse().unwrap();
    let options = EngineOptions {
        ctx: Some(128),
        ..EngineOptions::default()
    };
    let engine = Engine::load(name, &options).unwrap();
    let watch = saying("", 8, 1).watch();
    let mut server = Server::over(engine, watch, ServeOptions::default());
    let props = get(server.address, "/props").json();
    assert_eq!(props["model"]["label"], "synth");
    let whole = "synth:tiny,recipe=fp2-fp3-fp4f,seed=5";
    assert_eq!(props["model"]["name"], whole);
    let answer = chat(server.address, &ask("\"max_tokens\": 2")).json();
    assert_eq!(answer["model"], whole);
    assert_eq!(answer["usage"]["fourspark"]["label"], "synth");
    let residents = props["residency"]["list"].to_string();
    assert!(residents.contains("made-up weights"), "{residents}");
    server.join();
}

#[test]
fn what_made_up_weights_cannot_be_is_refused_by_name() {
    for (args, code, why) in [
        (
            &["bench", "--model", "synth:huge"][..],
            2,
            "expected flash, pro, tiny, got \"huge\"",
        ),
        (
            &["bench", "--model", "synth:tiny,seed=x"],
            2,
            "expected a number below 2^64",
        ),
        (
            &["run", "--model", "synth:flash", "Hi"],
            1,
            "has 4096 tokens instead of 129280",
        ),
        (
            &["serve", "--model", "synth:flash"],
            1,
            "can be measured, not asked",
        ),
        (
            &["serve", "--model", "synth:tiny", "--model-name", "x"],
            1,
            "go by their own name",
        ),
        (
            &["eval", "ppl", "--model", "synth:tiny", "--text", "x"],
            1,
            "its weights are made up",
        ),
        (
            &["bench", "--model", "synth:pro"],
            1,
            "bytes of the host's memory",
        ),
        (&["bench", "--model", "./synth:tiny"], 1, "synth:tiny"),
    ] {
        let output = program(args);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{args:?}: {}",
            said(&output)
        );
        assert!(said(&output).contains(why), "{args:?}: {}", said(&output));
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}
