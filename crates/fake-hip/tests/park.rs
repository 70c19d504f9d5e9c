//! An engine on HIP devices that gives its model up and takes it back: every byte of the devices is free in between, and
//! the text stays.
#![cfg(feature = "host-exec")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::{Path, PathBuf};

use device::{hip, survey};
use fourspark::{
    DeviceChoice, DeviceOptions, Draft, DraftDevice, Engine, EngineOptions, Error, Generate, Phase,
    Resident, UnparkError,
};

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models")
}

fn options(target: DeviceChoice, draft: Option<DraftDevice>) -> EngineOptions {
    let mut options = EngineOptions {
        ctx: Some(64),
        sequences: 1,
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
    options.draft_options.warm_up = Some(0.0);
    options
}

fn load(options: &EngineOptions) -> Engine {
    Engine::load(models().join("tiny.gguf"), options).unwrap()
}

fn text(engine: &Engine) -> String {
    let generate = Generate {
        max_tokens: Some(5),
        ..Generate::default()
    };
    let answer = engine.complete("The capital of France", &generate).unwrap();
    answer.collect_answer().unwrap().text
}

/// Bytes taken on both devices, by anybody.
fn taken() -> u64 {
    let runtime = hip::runtime(&common::settings()).unwrap();
    let memory = runtime.open(0).unwrap().memory().unwrap();
    memory.total - memory.free
}

/// Bytes of devices and of pinned memory in a list.
fn counted(all: &[Resident]) -> u64 {
    let pinned = |r: &&Resident| r.place.starts_with("hip:") || r.note.as_deref() == Some("pinned");
    all.iter().filter(pinned).filter_map(|r| r.bytes).sum()
}

/// A round: what is listed is what is taken, nothing is left while parked, and the text is the processor's.
fn round(engine: &Engine, want: &str, place: &str) {
    assert_eq!(text(engine), want);
    let loaded = engine.residency();
    assert_eq!(loaded.phase, Phase::Loaded);
    assert_eq!(counted(&loaded.residents), taken(), "{loaded:#?}");
    let rows = loaded.residents.iter().find(|r| r.what == "drafter caches");
    assert_eq!(rows.unwrap().place, place);
    let parked = engine.park(true).unwrap();
    assert_eq!(counted(&parked.before), counted(&loaded.residents));
    assert_eq!((counted(&parked.after), taken()), (0, 0), "{parked:#?}");
    let stays: Vec<_> = parked.after.iter().map(|r| r.what).collect();
    assert_eq!(stays, ["tokenizer", "prefix cache", "vendor runtime"]);
    assert_eq!(
        common::alive(),
        0,
        "allocations, streams, events, graphs, modules"
    );
}

/// Somebody else takes the memory meanwhile: the load is refused with the numbers, and nothing is left of it.
fn refused(engine: &Engine) {
    let runtime = hip::runtime(&common::settings()).unwrap();
    let device = runtime.open(0).unwrap();
    let most = device.memory().unwrap().free - (1 << 20);
    let taker = device.alloc(device::Place::Device, most).unwrap();
    let Err(Error::Unpark(UnparkError::Load(why))) = engine.unpark() else {
        panic!("it was loaded");
    };
    assert!(why.to_string().contains("hip:0"), "{why}");
    assert_eq!(engine.residency().phase, Phase::Parked);
    assert_eq!(taken(), most);
    drop(taker);
}

/// A-44, C-20. One test: the machine is one for the process, and its counters are looked at.
#[test]
fn a_44_parking_frees_every_byte_of_the_devices() {
    common::configure(7, 4);
    let want = text(&load(&options(DeviceChoice::Cpu, None)));
    assert_eq!(taken(), 0);
    let engine = load(&options(DeviceChoice::Hip(0), None));
    round(&engine, &want, "hip:0");
    refused(&engine);
    assert!(!engine.unpark().unwrap().already);
    round(&engine, &want, "hip:0");
    let other = DraftDevice::On(DeviceChoice::Hip(1));
    let engine = load(&options(DeviceChoice::Hip(0), Some(other)));
    round(&engine, &want, "hip:1");
    drop(engine);
    assert_eq!((taken(), common::alive()), (0, 0));
    assert_eq!(common::violations(), 0);
}
