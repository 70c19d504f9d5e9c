//! The shipped model on the processor as a device: the answers of the processor.
#![cfg(feature = "host-exec")]
#![allow(clippy::unwrap_used, reason = "test code")]

use fourspark::{
    DeviceChoice, DeviceOptions, Draft, Engine, EngineOptions, Generate, shipped_model,
};

fn options(choice: DeviceChoice, graphs: bool) -> EngineOptions {
    EngineOptions {
        ctx: Some(64),
        sequences: 1,
        device: DeviceOptions {
            choice,
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
        let device = engine.info().device.as_ref().unwrap();
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

#[test]
fn a_drafter_beside_a_device_changes_no_answer() {
    let (want, _) = answer(&options(DeviceChoice::Cpu, true));
    let mut options = options(DeviceChoice::Host, true);
    options.draft = Draft::Shipped;
    let (got, engine) = answer(&options);
    assert_eq!(got, want);
    assert!(engine.stats().proposed_tokens > 0);
}
