//! The shipped model on the processor as a device: the answers of the processor.
#![cfg(feature = "host-exec")]
#![allow(clippy::unwrap_used, reason = "test code")]

use std::sync::{Arc, Mutex};

use fourspark::{
    DeviceChoice, DeviceOptions, Draft, DraftDevice, Engine, EngineOptions, Generate, Progress,
    Upload, shipped_model,
};

fn options(choice: DeviceChoice, graphs: bool) -> EngineOptions {
    EngineOptions {
        ctx: Some(64),
        sequences: 1,
        device: DeviceOptions {
            choice: choice.into(),
            graphs,
            ..DeviceOptions::default()
        },
        ..EngineOptions::default()
    }
}

fn answer(options: &EngineOptions) -> (String, Engine) {
    let engine = Engine::load(shipped_model().unwrap(), options).unwrap();
    let generate = Generate {
        max_tokens: Some(5),
        ..Generate::default()
    };
    let answer = engine.complete("The capital of France", &generate).unwrap();
    (answer.collect_answer().unwrap().text, engine)
}

/// C-15: graphs change no token; which way it is stands among the features.
#[test]
fn c_15_the_graphs_switch_changes_no_answer() {
    let (want, cpu) = answer(&options(DeviceChoice::Cpu, true));
    assert!(!want.is_empty() && cpu.info().device.is_none());
    for (graphs, tokens) in [(true, 16), (false, 0)] {
        let (got, engine) = answer(&options(DeviceChoice::Host, graphs));
        assert_eq!(got, want, "graphs {graphs}");
        let device = engine.info().device.clone().unwrap();
        assert_eq!((device.id.as_str(), device.graph_tokens), ("cpu:0", tokens));
    }
}

/// C-15: early launches change no token; the processor has none and says so, whichever way the switch is.
#[test]
fn c_15_the_early_launch_switch_changes_no_answer() {
    let (want, _) = answer(&options(DeviceChoice::Cpu, true));
    for early_launch in [true, false] {
        let mut options = options(DeviceChoice::Host, true);
        options.device.early_launch = early_launch;
        let (got, engine) = answer(&options);
        assert_eq!(got, want, "early launch {early_launch}");
        let said = engine.info().device.as_ref().unwrap().to_string();
        assert!(said.contains("early launch off: one operation"), "{said}");
    }
}

/// C-15: bytes that were read back are the bytes that were sent; who wants to hears of their way, model and drafter.
#[test]
fn c_15_the_check_of_a_load_changes_no_answer() {
    let (want, _) = answer(&options(DeviceChoice::Cpu, true));
    for check_load in [true, false] {
        let heard = Arc::new(Mutex::new(Vec::new()));
        let theirs = Arc::clone(&heard);
        let mut options = options(DeviceChoice::Host, true);
        options.device.check_load = check_load;
        options.device.progress = Progress::new(move |upload| {
            let Upload {
                what, done, total, ..
            } = *upload;
            assert_eq!(upload.device, "cpu:0");
            theirs.lock().unwrap().push((what, done, total));
        });
        options.draft = Draft::Shipped;
        let (got, _) = answer(&options);
        assert_eq!(got, want, "checked: {check_load}");
        let heard = heard.lock().unwrap();
        for what in ["model", "drafter"] {
            let of = heard.iter().filter(|(w, _, _)| *w == what);
            let bytes: Vec<(u64, u64)> = of.map(|(_, done, total)| (*done, *total)).collect();
            assert!(bytes.len() > 10 && bytes.is_sorted(), "{bytes:?}");
            let (done, total) = *bytes.last().unwrap();
            assert!(done == total && total > 1_000_000);
        }
    }
}

/// The device that the drafter's layers run on; `None`: the processor.
fn drafts_on(engine: &Engine) -> Option<String> {
    let layers = engine.info().draft.as_ref().unwrap().layers.clone();
    layers.unwrap().device.as_ref().map(|d| d.id.clone())
}

fn feature(engine: &Engine, name: &str) -> (bool, String) {
    let features = engine.features();
    let one = features.iter().find(|f| f.name == name).unwrap();
    (one.on, one.reason.to_string())
}

/// C-15: where the drafter's layers run changes no token; where that is, is said.
#[test]
fn c_15_the_draft_device_switch_changes_no_answer() {
    let (want, _) = answer(&options(DeviceChoice::Cpu, true));
    let host = DraftDevice::On(DeviceChoice::Host);
    let cpu = DraftDevice::On(DeviceChoice::Cpu);
    let device = Some("cpu:0".to_owned());
    let cases = [
        (DeviceChoice::Host, None, device.clone()),
        (DeviceChoice::Host, Some(DraftDevice::Same), device.clone()),
        (DeviceChoice::Host, Some(cpu), None),
        (DeviceChoice::Cpu, Some(host), device),
        (DeviceChoice::Cpu, None, None),
    ];
    for (target, draft, place) in cases {
        let mut options = options(target, true);
        options.draft = Draft::Shipped;
        options.draft_options.device = draft;
        // Not by costs: the kernels' host build is far dearer than the processor.
        options.draft_options.policy = Some("fixed:3".parse().unwrap());
        let (got, engine) = answer(&options);
        let what = format!("{target}, {draft:?}");
        assert_eq!(got, want, "{what}");
        assert!(engine.stats().proposed_tokens > 0, "{what}");
        assert_eq!(engine.stats().drafter_lost, None, "{what}");
        assert_eq!(drafts_on(&engine), place, "{what}");
        let (on, reason) = feature(&engine, "draft_device");
        assert_eq!(on, place.is_some(), "{what}");
        let drawn = match target {
            DeviceChoice::Cpu => "candidates are drawn on the processor",
            _ => "candidates are drawn on cpu:0",
        };
        assert!(reason.ends_with(drawn), "{what}: {reason}");
    }
}

/// Without a name the processor takes over, which is said and counted; a name is a condition.
#[test]
fn a_place_for_the_drafter_that_cannot_be_is_said_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("experts.gguf");
    std::fs::write(&file, b"no drafter").unwrap();
    let mut options = options(DeviceChoice::Cpu, true);
    options.draft_options.device = Some(DraftDevice::Same);
    let refusal = Engine::load(shipped_model().unwrap(), &options).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "draft device: expected none without a drafter's model, got same"
    );
    options.draft = Draft::Shipped;
    options.draft_options.device = Some(DraftDevice::On(DeviceChoice::Hip(0)));
    // A library that is not there.
    options.device.libraries.hip.hip = Some(file);
    let refusal = Engine::load(shipped_model().unwrap(), &options).unwrap_err();
    assert!(
        refusal.to_string().starts_with("the device asked for: "),
        "{refusal}"
    );
}
