//! A whole engine on two HIP devices of one process: the model on one, the drafter's layers on the other. Text, and
//! the drafter's context, are the processor's.
#![cfg(feature = "host-exec")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::Path;
use std::sync::{Arc, Once};

use device::{hip, survey};
use ds4_target::GgufSource;
use ds4_target::on_device::Settings;
use ds4_target::pool::Pool;
use dspark_draft::backbone::{LocalBackbone, Options};
use dspark_draft::on_device::DeviceBackbone;
use dspark_draft::weights::DraftModel;
use engine_core::seams::{Ask, Backbone};
use engine_core::{Epoch, Pos, SeqId};
use fourspark::{
    DeviceChoice, DeviceOptions, Draft, DraftDevice, Engine, EngineOptions, Generate, SamplePlan,
};

fn models() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models")
}

/// The machine's order is hostile and its devices are two.
fn configured() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| common::configure(11, 5));
}

fn options(target: DeviceChoice, draft: Option<DraftDevice>) -> EngineOptions {
    let mut options = EngineOptions {
        ctx: Some(64),
        sequences: 2,
        device: DeviceOptions {
            choice: target.into(),
            libraries: survey::Settings {
                hip: common::settings(),
                ..survey::Settings::default()
            },
            ..DeviceOptions::default()
        },
        draft: Draft::File(models().join("tiny-draft.gguf")),
        ..EngineOptions::default()
    };
    options.draft_options.device = draft;
    options.draft_options.policy = Some("fixed:4".parse().unwrap());
    options
}

/// Text of an answer, candidates accepted, and where the drafter's layers ran.
fn answer(options: &EngineOptions, temperature: f32) -> (String, u64, Option<String>) {
    let engine = Engine::load(models().join("tiny.gguf"), options).unwrap();
    let plan = SamplePlan {
        temperature,
        seed: 5,
        ..SamplePlan::greedy()
    };
    let generate = Generate {
        max_tokens: Some(9),
        plan: Arc::new(plan),
        ..Generate::default()
    };
    let answer = engine.complete("The capital of France", &generate).unwrap();
    let text = answer.collect_answer().unwrap().text;
    let stats = engine.stats();
    assert_eq!(stats.drafter_lost, None);
    assert!(stats.proposed_tokens > 0);
    let layers = engine
        .info()
        .draft
        .as_ref()
        .unwrap()
        .layers
        .clone()
        .unwrap();
    (text, stats.accepted_tokens, layers.device.map(|d| d.id))
}

#[test]
fn a_drafter_on_another_device_changes_no_answer_and_no_acceptance() {
    configured();
    let there = DraftDevice::On(DeviceChoice::Hip(1));
    for (temperature, draft, place) in [(0.0, Some(there), "hip:1"), (1.0, None, "hip:0")] {
        let (want, accepted, none) = answer(&options(DeviceChoice::Cpu, None), temperature);
        assert_eq!(none, None);
        let got = answer(&options(DeviceChoice::Hip(0), draft), temperature);
        assert_eq!(got, (want, accepted, Some(place.to_owned())));
    }
}

/// The drafter's rows and context on both devices, and moved from one to the other.
#[test]
fn contexts_on_two_devices_are_the_processor_s() {
    configured();
    let file = gguf::Gguf::open(
        models().join("tiny-draft.gguf"),
        &gguf::OpenOptions::default(),
    );
    let model = Arc::new(DraftModel::load(&GgufSource::new(file.unwrap())).unwrap());
    let runtime = hip::runtime(&common::settings()).unwrap();
    let new = |ordinal| {
        let settings = Settings {
            cache: None,
            progress: &mut |_, _| {},
            graph_tokens: 8,
            check: false,
        };
        let device = runtime.open(ordinal).unwrap();
        let b = DeviceBackbone::new(Arc::clone(&model), Options::default(), &device, settings);
        Box::new(b.unwrap()) as Box<dyn Backbone>
    };
    let local = LocalBackbone::new(
        Arc::clone(&model),
        Arc::new(Pool::new(1)),
        Options::default(),
    );
    let mut all: Vec<Box<dyn Backbone>> = vec![Box::new(local.unwrap()), new(0), new(1)];
    let seq = SeqId(1);
    let width = model.meta.feature_width();
    let mut pos: Pos = 30;
    for n in [3usize, 1, 2, 1] {
        let values = (0..n * width).map(|i| ((i * 37 + n) % 101) as f32 / 50.0 - 1.0);
        let rows: Vec<f32> = values.collect();
        all.iter_mut()
            .for_each(|b| b.observe(seq, pos, &rows).unwrap());
        pos += n as Pos;
        same(&mut all, &model, seq, pos);
    }
    let mut moved = Vec::new();
    all[1].save(seq, &mut moved).unwrap();
    for b in &mut all {
        b.load(SeqId(3), &mut moved.as_slice()).unwrap();
    }
    same(&mut all, &model, SeqId(3), pos);
}

/// Blocks and saved contexts of all backbones are the first one's.
fn same(all: &mut [Box<dyn Backbone>], model: &DraftModel, seq: SeqId, pos: Pos) {
    let n = model.meta.block * model.meta.stage.n_embd;
    let block: Vec<f32> = (0..n)
        .map(|i| ((i * 13) % 97) as f32 / 50.0 - 1.0)
        .collect();
    let asks = [Ask {
        seq,
        epoch: Epoch(0),
        pos,
        ahead: 0,
        seed: 0,
        depth: 5,
    }];
    let mut answers = Vec::new();
    for b in all.iter_mut() {
        let ticket = b.submit(&asks, &block).unwrap();
        let rows = b.poll(ticket, None).unwrap();
        let both = rows.normed.iter().chain(&rows.pre_norm);
        let bits: Vec<u32> = both.map(|v| v.to_bits()).collect();
        let mut saved = Vec::new();
        b.save(seq, &mut saved).unwrap();
        answers.push((rows.rows, bits, saved));
    }
    for (i, got) in answers.iter().enumerate() {
        assert!(got == &answers[0], "backbone {i} at {pos}");
    }
}

/// The program as cargo builds it beside the tests' folder, if it is there.
fn program() -> Option<std::path::PathBuf> {
    let tests = std::env::current_exe().ok()?;
    let program = tests.parent()?.parent()?.join("fourspark");
    program.is_file().then_some(program)
}

/// What `run --json` says over the library as if it were the vendor's.
fn run(program: &Path, more: &[&str]) -> serde_json::Value {
    let vendor = tempfile::tempdir().unwrap();
    for name in ["libamdhip64.so", "libhiprtc.so"] {
        std::os::unix::fs::symlink(common::file(), vendor.path().join(name)).unwrap();
    }
    let words = [
        "run",
        "The capital of France",
        "--json",
        "--max-tokens",
        "9",
    ];
    let output = std::process::Command::new(program)
        .args(words)
        .args(["--ctx", "64", "--draft", "--draft-policy", "fixed:4"])
        .args(["--temperature", "1", "--seed", "3"])
        .args(more)
        .env("LD_LIBRARY_PATH", vendor.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_program_drafts_on_another_device() {
    let program = testkit::require_some!(program(), "the program is not built beside the tests");
    let want = run(&program, &[]);
    let got = run(&program, &["--device", "hip:0", "--draft-device", "hip:1"]);
    assert_eq!(got["ids"], want["ids"]);
    let numbers = ["proposed_tokens", "accepted_tokens"];
    for name in numbers {
        assert_eq!(got["usage"][name], want["usage"][name], "{name}");
    }
    let layers = &got["drafter"]["layers"];
    assert_eq!(layers["device"], "hip:1", "{layers}");
    assert_eq!(layers["chains"], "hip:0", "{layers}");
    assert_eq!(layers["fallbacks"], 0, "{layers}");
    assert_eq!(want["drafter"]["layers"]["device"], "cpu");
}

/// The model's layers on both devices, the drafter where the model ends or where it was put.
#[test]
fn the_program_shares_layers_between_devices() {
    let program = testkit::require_some!(program(), "the program is not built beside the tests");
    let want = run(&program, &[]);
    for (more, layers, chains) in [
        (&["--device", "hip:0,hip:1"][..], "hip:1", "hip:1"),
        (
            &["--device", "hip:1=0-2,hip:0=3-6", "--draft-device", "hip:1"],
            "hip:1",
            "hip:0",
        ),
    ] {
        let got = run(&program, more);
        assert_eq!(got["ids"], want["ids"], "{more:?}");
        let drafter = &got["drafter"]["layers"];
        assert_eq!(drafter["device"], layers, "{drafter}");
        assert_eq!(drafter["chains"], chains, "{drafter}");
        let fallbacks = &got["counters"]["fallbacks"];
        assert_eq!(fallbacks, &serde_json::json!({}), "{more:?}");
    }
}

/// the program's worker pins what both map, and says on each side whether and why not.
#[test]
fn a_36_the_program_tells_of_both_sides() {
    let program = testkit::require_some!(program(), "the program is not built beside the tests");
    let want = run(&program, &[]);
    let worker = |more: &[&str]| {
        let got = run(&program, &[more, &["--draft-worker", "required"]].concat());
        assert_eq!(got["ids"], want["ids"], "{more:?}");
        let worker = got["drafter"]["worker"].clone();
        let said = |at: &str| worker.pointer(at).cloned().unwrap();
        let count = |name: &str| said(&format!("/counts/{name}")).as_u64().unwrap();
        let on = ["/pinned/parent/on", "/pinned/worker/on", "/memory/probe/on"];
        let on = on.map(|at| said(at) == true);
        let why = ["/pinned/parent/reason", "/pinned/worker/reason"];
        let why = why.map(|at| said(at).as_str().unwrap_or_default().to_owned());
        assert_eq!(count("unpinned"), 0, "{worker}");
        assert_eq!(said("/memory/used"), false);
        (on, why, count("direct"), count("steps"))
    };
    let none = || String::new();
    let (on, why, direct, steps) = worker(&["--device", "hip:0", "--draft-device", "hip:1"]);
    assert_eq!((on, why), ([true; 3], [none(), none()]));
    assert!(steps > 0 && direct == steps, "{direct} of {steps}");
    let (on, why, direct, _) = worker(&["--device", "hip:0", "--draft-device", "cpu"]);
    assert_eq!((on, direct), ([true, false, false], 0));
    assert_eq!(why[1], "the drafter's layers run on the processor");
    let (on, why, direct, steps) = worker(&["--draft-device", "hip:0"]);
    assert_eq!((on, direct), ([false, true, false], steps));
    assert_eq!(why[0], "the model runs on the processor");
    let stream = ["--device", "hip:0", "--draft-transport", "stream"];
    let (on, why, direct, _) = worker(&stream);
    assert_eq!((on, direct), ([false, false, true], 0));
    assert_eq!(why, [(); 2].map(|()| "rows travel by a stream".to_owned()));
}

/// a worker's layers run on the device that is named, else on the model's.
#[test]
fn a_02_a_worker_drafts_on_a_device() {
    let program = testkit::require_some!(program(), "the program is not built beside the tests");
    let want = run(&program, &[]);
    for (more, place) in [
        (
            &["--device", "hip:0", "--draft-device", "hip:1"][..],
            "hip:1",
        ),
        (&["--device", "hip:1"][..], "hip:1"),
        (&["--draft-device", "hip:0"][..], "hip:0"),
    ] {
        let more = [more, &["--draft-worker", "required"]].concat();
        let got = run(&program, &more);
        assert_eq!(got["ids"], want["ids"], "{more:?}");
        let accepted = "accepted_tokens";
        assert_eq!(got["usage"][accepted], want["usage"][accepted], "{more:?}");
        let drafter = &got["drafter"];
        assert_eq!(drafter["layers"]["device"], place, "{drafter}");
        assert_eq!(drafter["layers"]["fallbacks"], 0, "{drafter}");
        assert_eq!(drafter["worker"]["mode"], "required", "{drafter}");
        let device = drafter["worker"]["device"].as_str().unwrap();
        assert!(device.starts_with(place), "{drafter}");
    }
}
