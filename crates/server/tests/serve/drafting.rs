//! What is told of speculation: in an answer's usage, in `/props`, by `run`; and that nothing is told
//! where the options cannot work.

use std::process::{Command, Output};

use crate::common::client::{chat, get};
use crate::common::{Server, ask, parts, saying};
use engine_core::seams::{Ask, Proposal};
use engine_core::{Drafter, Fault, Pos, SamplePlan, SeqId, Tap, Target, TokenId};
use fourspark::{Engine, Limits, Policy, Speculation};
use serde_json::{Value, json};
use server::http::ServeOptions;

/// Proposes the last token again, and dies at a call.
struct Again {
    calls: usize,
    dies_at: usize,
}

impl Drafter for Again {
    fn propose(
        &mut self,
        _: &mut dyn Target,
        asks: &[Ask],
        _: &[&SamplePlan],
    ) -> Result<Vec<Proposal>, Fault> {
        self.calls += 1;
        if self.calls == self.dies_at {
            return Err(Fault::Lost {
                what: "draft worker".to_owned(),
                why: "killed".to_owned(),
            });
        }
        let propose = |ask: &Ask| Proposal {
            tokens: vec![ask.seed; ask.depth as usize],
            confidence_logits: Vec::new(),
        };
        Ok(asks.iter().map(propose).collect())
    }

    fn tap(&self) -> Tap {
        Tap::default()
    }

    fn observe(&mut self, _: SeqId, _: Pos, _: &[TokenId], _: &[f32]) -> Result<(), Fault> {
        Ok(())
    }

    fn truncate(&mut self, _: SeqId, _: Pos) {}

    fn close(&mut self, _: SeqId) {}
}

fn serving(text: &str, dies_at: usize) -> Server {
    let target = saying(text, 256, 1);
    let watch = target.watch();
    let mut parts = parts(target);
    let drafter = Box::new(Again { calls: 0, dies_at });
    parts.speculation = Some(Speculation {
        policy: Policy::Fixed(3),
        ..Speculation::new(drafter)
    });
    let engine = Engine::from_parts(parts, Limits::default()).unwrap();
    Server::over(engine, watch, ServeOptions::default())
}

#[test]
fn usage_counts_predictions_and_says_when_the_drafter_was_lost() {
    let server = serving("aaaaaaaaab", usize::MAX);
    let answer = chat(server.address, &ask("")).json();
    assert_eq!(answer["choices"][0]["message"]["content"], "aaaaaaaaab");
    let usage = &answer["usage"];
    let details = &usage["completion_tokens_details"];
    // After the first token three spans of two candidates that fit, then b, which is not followed by b.
    assert_eq!(details["accepted_prediction_tokens"], 6);
    assert_eq!(details["rejected_prediction_tokens"], 2);
    assert_eq!(
        usage["completion_tokens"], 11,
        "rejected ones are in no total"
    );
    let ours = &usage["fourspark"];
    assert_eq!(ours["drafting"], json!({"state": "on"}));
    assert_eq!(ours["verify_steps"], 4);
    let counted = &get(server.address, "/props").json()["stats"]["speculation"];
    assert_eq!(
        (&counted["offered"], &counted["matched"]),
        (&json!(8.0), &json!(6.0))
    );
    assert_eq!(counted["survival.1"], 0.75);
    // C-29: the target's own counts stand beside the passes.
    let stats = &get(server.address, "/props").json()["stats"];
    assert_eq!(stats["launches"], stats["passes"]);
    assert_eq!(stats["stalls"], 0);
    assert_eq!(stats["fallbacks"], json!({}));

    let server = serving("aaaaaaaaab", 2);
    for _ in 0..2 {
        let answer = chat(server.address, &ask("")).json();
        assert_eq!(answer["choices"][0]["message"]["content"], "aaaaaaaaab");
        assert_eq!(
            answer["usage"]["fourspark"]["drafting"],
            json!({"state": "lost", "reason": "draft worker failed: killed"})
        );
    }
    let stats = &get(server.address, "/props").json()["stats"];
    assert_eq!(
        stats["fallbacks"],
        json!({"drafter_lost": 1, "drafter_faults": 1})
    );
}

fn run(args: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_fourspark");
    Command::new(program).args(args).output().unwrap()
}

fn object(args: &[&str]) -> Value {
    let output = run(args);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    serde_json::from_slice(&output.stdout).unwrap()
}

const ASK: [&str; 8] = [
    "run",
    "What is the capital of France?",
    "--ctx",
    "256",
    "--max-tokens",
    "24",
    "--threads",
    "1",
];

/// C-29: a plain run counts the same whenever it runs, on however many threads; a drafting one reads other
/// weights.
#[test]
fn c_29_run_shows_what_the_target_counted() {
    let ask = |more: &[&str]| object(&[&ASK[..6], &["--json"], more].concat());
    let counted = |answer: &Value, name: &str| answer["counters"][name].as_u64().unwrap();
    let one = ask(&["--threads", "1"]);
    let two = ask(&["--threads", "2"]);
    for name in ["passes", "pass_tokens", "weight_bytes", "launches"] {
        assert!(counted(&one, name) > 0, "{name}");
        assert_eq!(counted(&one, name), counted(&two, name), "{name}");
    }
    assert_eq!(one["counters"]["stalls"], 0, "one thread waits for nobody");
    assert_eq!(one["counters"]["fallbacks"], json!({}));
    let drafting = ask(&["--threads", "1", "--draft", "--draft-policy", "fixed:4"]);
    assert_eq!(drafting["ids"], one["ids"]);
    let passes = |a: &Value| counted(a, "passes");
    assert!(passes(&drafting) < passes(&one));
    assert_ne!(
        counted(&drafting, "weight_bytes"),
        counted(&one, "weight_bytes")
    );
    // C-27: the formats of the tensors that were loaded.
    let tensors = one["model"]["tensors"].as_object().unwrap();
    assert!(tensors.len() > 1 && tensors.values().all(|n| n.as_u64() > Some(0)));
}

#[test]
fn run_shows_what_speculation_counted() {
    let plain = object(&[&ASK[..], &["--json", "--stats"]].concat());
    assert_eq!(
        plain["drafter"],
        json!({"on": false, "reason": "no drafter was asked for"})
    );
    assert_eq!(plain["usage"]["drafting"]["state"], "off");
    assert_eq!(plain["stats"]["offered"], 0.0);
    let fixed = [
        "--draft",
        "--draft-policy",
        "fixed:4",
        "--draft-source",
        "backbone",
    ];
    let drafting = object(&[&ASK[..], &["--json", "--stats"], &fixed].concat());
    assert_eq!(drafting["ids"], plain["ids"]);
    let drafter = &drafting["drafter"];
    assert_eq!(
        (&drafter["on"], &drafter["policy"]),
        (&json!(true), &json!("fixed:4"))
    );
    assert_eq!(
        (&drafter["source"], &drafter["depth"]),
        (&json!("backbone"), &json!(5))
    );
    assert_eq!(drafter["pairing"], "made for this model");
    let usage = &drafting["usage"];
    assert_eq!(
        drafting["stats"]["offered"],
        json!(usage["proposed_tokens"].as_f64().unwrap())
    );
    assert!(drafting["stats"]["seconds.draft"].as_f64().unwrap() > 0.0);
    let shown = run(&[&ASK[..], &["--stats", "--draft-source", "suffix"]].concat());
    assert!(shown.status.success());
    let told = String::from_utf8(shown.stderr).unwrap();
    assert!(told.contains("\npasses "), "{told}");
    for name in ["weight_bytes", "launches", "stalls", "fallbacks"] {
        assert!(told.contains(&format!("\n{name} ")), "{name}: {told}");
    }
    assert!(told.contains("drafter: copies of the text; source suffix, policy reward, depth 7"));
    let bare = object(&[&ASK[..], &["--json"]].concat());
    assert_eq!(bare.get("stats"), None, "only where asked for");
}

#[test]
fn options_that_cannot_work_stop_the_start() {
    let cases: [(&[&str], &str); 4] = [
        (
            &["--draft-policy", "ewma"],
            "draft policy: expected a drafter beside it",
        ),
        (
            &["--draft-source", "auto"],
            "draft source: expected a drafter beside it",
        ),
        (
            &["--draft", "--draft-source", "suffix"],
            "draft source: expected backbone or auto",
        ),
        (
            &["--draft", "--draft-policy", "fixed:9"],
            "fixed:N with N up to 8",
        ),
    ];
    for (more, message) in cases {
        let output = run(&[&ASK[..], more].concat());
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{told}");
        assert!(told.contains(message) && output.stdout.is_empty(), "{told}");
    }
    let eval = run(&["eval", "ppl", "--text", "x", "--draft"]);
    assert_eq!(eval.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&eval.stderr).contains("eval predicts given tokens"));
}
