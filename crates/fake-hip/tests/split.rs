//! A model whose layers are shared by HIP devices of one process, through the real HIP module: the target's bits, an
//! engine's text, the gate's arms; what is parked is free on every device.
#![cfg(feature = "host-exec")]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use device::{hip, survey};
use ds4_target::on_device::{DeviceTarget, Settings, Share, equal_shares};
use ds4_target::{CpuTarget, GgufSource, Model, Options};
use engine_core::{LayerId, Out, Pos, SeqId, Span, Tap, Target, TokenId, Want};
use fourspark::{
    DeviceChoice, DeviceOptions, Devices, Draft, DraftDevice, Engine, EngineOptions, Error,
    Generate, Phase, Resident,
};
use qualify::identity::{self, Choice, Means, Pair, Size, Vendor, Wish};

/// What the machine can, as `control.rs` numbers it: everything, and everything but peers.
const ALL: u32 = 7;
const NO_PEERS: u32 = 3;

/// The machine is one for the process: three devices in a hostile order. Tests take turns.
fn turn() -> MutexGuard<'static, ()> {
    static ONCE: Once = Once::new();
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    ONCE.call_once(|| common::configure_devices(21, 5, 3));
    turn
}

fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models")
}

fn model() -> Arc<Model> {
    let file = gguf::Gguf::open(models().join("tiny.gguf"), &gguf::OpenOptions::default());
    Arc::new(Model::load(&GgufSource::new(file.unwrap())).unwrap())
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Logits and features of a pass, of which `keep` tokens are committed.
fn pass(t: &mut dyn Target, seq: SeqId, tokens: &[TokenId], keep: usize) -> [Vec<u32>; 2] {
    let pos = t.pos(seq).unwrap();
    let span = Span {
        seq,
        pos,
        range: 0..tokens.len(),
        out: Out::All,
        want: Want::Logits,
        tap: Tap {
            layers: [5, 1].map(LayerId).into_iter().collect(),
        },
    };
    let ticket = t.submit(tokens, &[span]).unwrap();
    let rows = t.wait(ticket, None).unwrap();
    let got = [bits(&rows.logits), bits(&rows.features)];
    t.commit(seq, pos + keep as Pos);
    got
}

fn saved(t: &dyn Target, seq: SeqId) -> Vec<u8> {
    let mut bytes = Vec::new();
    t.save(seq, &mut bytes).unwrap();
    bytes
}

/// A chunk, a step, a verify of four of which two stand, and steps from there, by way of peers and of the host, on two
/// devices and on three.
#[test]
fn layers_on_hip_devices_give_the_bits_of_the_processor() {
    let _turn = turn();
    let (model, runtime) = (model(), hip::runtime(&common::settings()).unwrap());
    // The library is open from here on.
    let options = Options {
        n_ctx: 128,
        n_seq_max: 2,
        verify_max: 4,
        span_max: 32,
        kv_sim: true,
        threads: 1,
    };
    for (devices, able) in [(&[0, 1][..], ALL), (&[2, 0, 1], NO_PEERS)] {
        common::able(able);
        let layers = equal_shares(&model, &options, None, devices.len()).unwrap();
        let shares = devices.iter().zip(layers).map(|(ordinal, layers)| Share {
            device: runtime.open(*ordinal).unwrap(),
            layers,
        });
        let shares: Vec<_> = shares.collect();
        let settings = Settings {
            cache: None,
            progress: &mut |_, _| {},
            graph_tokens: 4,
            check: true,
        };
        let (model, options) = (Arc::clone(&model), options.clone());
        let split =
            DeviceTarget::split(Arc::clone(&model), options.clone(), None, &shares, settings);
        let mut split = split.unwrap();
        split.poison().unwrap();
        let mut cpu = CpuTarget::new(model, options).unwrap();
        let seq = cpu.open().unwrap();
        assert_eq!(split.open().unwrap(), seq);
        let mut at = 0;
        let ids: Vec<TokenId> = (0..40).map(|i| (i * 37 + 11) % 4096).collect();
        for (n, keep) in [(19, 19), (1, 1), (4, 2), (1, 1), (1, 1)] {
            let want = pass(&mut cpu, seq, &ids[at..at + n], keep);
            let got = pass(&mut split, seq, &ids[at..at + n], keep);
            assert!(got == want, "{devices:?}: answers at {at}");
            let same = saved(&split, seq) == saved(&cpu, seq);
            assert!(same, "{devices:?}: state at {at}");
            at += keep;
        }
        let (counts, edges) = (split.counts(), devices.len() as u64 - 1);
        let crossed = 5 * edges;
        let want = if able == ALL {
            (crossed, 0)
        } else {
            (0, crossed)
        };
        assert_eq!((counts.straight, counts.staged), want);
        assert_eq!(Box::new(split).retire(), []);
    }
    common::able(ALL);
    drop(runtime);
    assert_eq!((common::alive(), common::violations()), (0, 0));
}

fn options(devices: &str, draft: Option<DraftDevice>) -> EngineOptions {
    let mut options = EngineOptions {
        ctx: Some(64),
        sequences: 1,
        device: DeviceOptions {
            choice: devices.parse::<Devices>().unwrap(),
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

fn text(engine: &Engine) -> String {
    let generate = Generate {
        max_tokens: Some(6),
        ..Generate::default()
    };
    let answer = engine.complete("The capital of France", &generate).unwrap();
    let text = answer.collect_answer().unwrap().text;
    assert_eq!(engine.stats().drafter_lost, None);
    text
}

fn engine(devices: &str, draft: Option<DraftDevice>) -> Engine {
    Engine::load(models().join("tiny.gguf"), &options(devices, draft)).unwrap()
}

fn feature(engine: &Engine, name: &str) -> (bool, String) {
    let features = engine.features();
    let one = features.iter().find(|f| f.name == name).unwrap();
    (one.on, one.reason.to_string())
}

/// Bytes taken on the machine, by anybody.
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

/// an engine over a split, its drafter on one of the devices: the text of the processor, who runs what is said, and
/// a park gives back every byte of every device.
#[test]
fn a_44_an_engine_over_two_devices_gives_the_text_of_the_processor() {
    let _turn = turn();
    let want = text(&engine("cpu", None));
    let other = DraftDevice::On(DeviceChoice::Hip(0));
    let cases = [
        (
            "hip:0,hip:1",
            None,
            "hip:1",
            "0 to 3 on hip:0, 4 to 6 on hip:1",
        ),
        (
            "hip:1=0-1,hip:0=2-6",
            Some(other),
            "hip:0",
            "0 to 1 on hip:1, 2 to 6 on hip:0",
        ),
    ];
    for (devices, draft, last, shares) in cases {
        let engine = engine(devices, draft);
        for round in ["loaded", "loaded again"] {
            assert_eq!(text(&engine), want, "{devices}, {round}");
            let (on, said) = feature(&engine, "layer_split");
            assert!(on && said.starts_with("layers "), "{said}");
            assert!(
                said.contains("straight: bytes were seen to arrive"),
                "{said}"
            );
            if draft.is_some() {
                assert!(said.contains(shares), "{said}");
            }
            let (on, said) = feature(&engine, "draft_device");
            let drawn = format!("candidates are drawn on {last}");
            assert!(on && said.ends_with(&drawn), "{said}");
            let loaded = engine.residency();
            assert_eq!(counted(&loaded.residents), taken(), "{loaded:#?}");
            for place in ["hip:0", "hip:1"] {
                let weights = |r: &&Resident| r.what == "target weights" && r.place == place;
                assert_eq!(
                    loaded.residents.iter().filter(weights).count(),
                    1,
                    "{place}"
                );
            }
            let layers = loaded.residents.iter().find(|r| r.what == "drafter caches");
            assert_eq!(layers.unwrap().place, last);
            let parked = engine.park(true).unwrap();
            assert_eq!((counted(&parked.after), taken()), (0, 0), "{parked:#?}");
            assert_eq!(common::alive(), 0, "{devices}, {round}");
            assert_eq!(engine.residency().phase, Phase::Parked);
            engine.unpark().unwrap();
        }
        let device = engine.info().device.clone().unwrap();
        assert_eq!(device.split.as_ref().unwrap().crossings.len(), 1);
        assert!(engine.stats().proposed_tokens > 0);
    }
    assert_eq!((taken(), common::alive(), common::violations()), (0, 0, 0));
}

/// What cannot be shared so stops the start with both values; a device that is not there is named.
#[test]
fn an_engine_refuses_layers_that_nobody_runs() {
    let _turn = turn();
    for (devices, want) in [
        (
            "hip:0=0-2,hip:1=4-6",
            "hip:1 begins with layer 4, expected layer 3: nobody runs layer 3",
        ),
        (
            "hip:0=0-3,hip:1=4-41",
            "hip:1 ends with layer 41, expected 6, the model's last",
        ),
        ("hip:0,hip:9", "hip:9: there are 3 devices"),
    ] {
        let refused = Engine::load(models().join("tiny.gguf"), &options(devices, None));
        let Err(error) = refused else {
            panic!("{devices}: it was loaded");
        };
        assert!(error.to_string().contains(want), "{error}");
        assert!(!matches!(error, Error::Draft(_)), "{error}");
    }
    assert_eq!((common::alive(), common::violations()), (0, 0));
}

/// The executor takes its time: a few windows of the short ratio are all that is run.
const SIZE: Size = Size {
    prompt: 13,
    budget: 8,
    neighbours: [(0, 1), (2, 2), (4, 3), (1, 4), (3, 5)],
    neighbour_budget: 3,
};

fn pair() -> Pair {
    let wish = Wish {
        devices: Choice::of(&["hip:0", "hip:1"]).unwrap(),
        libraries: survey::Settings {
            hip: common::settings(),
            ..survey::Settings::default()
        },
        ..Wish::default()
    };
    let means = Means::find(&wish).unwrap();
    let both = means.split(Vendor::Hip).unwrap();
    assert!(
        both.starts_with("hip:0, ") && both.contains("; hip:1, "),
        "{both}"
    );
    assert!(means.split(Vendor::Cuda).unwrap_err().contains("--device"));
    let (target, draft) = (models().join("tiny.gguf"), models().join("tiny-draft.gguf"));
    let prompt = qualify::profile::frozen_prompt("paragraph").unwrap().ids;
    Pair::load(&target, &draft, prompt, means).unwrap()
}

/// Runs a split's arms of these names, all of them if none is named; how many there were.
fn hold(size: &Size, names: &[&str]) -> usize {
    let pair = pair();
    let mut arms = identity::full(&pair.means);
    arms.retain(|arm| {
        let name = arm.name.strip_prefix("split hip ");
        name.is_some_and(|name| names.is_empty() || names.contains(&name))
    });
    assert!(arms.len() >= names.len().max(1), "{names:?}");
    let outcome = identity::run(&pair, &arms, size, None, &mut |_| {}).unwrap();
    let different: Vec<_> = outcome.different().collect();
    assert!(outcome.passed(), "{different:#?}");
    for row in &outcome.rows[1..] {
        let told = &row.evidence;
        assert!(told.contains("; hip:1, Fake Radeon"), "{told}");
        assert!(told.contains(" crossings straight and 0 through"), "{told}");
    }
    arms.len()
}

#[test]
fn one_result_is_fed_on_two_devices() {
    let _turn = turn();
    let names = ["chunk whole", "chunk 1", "to the processor and back"];
    assert_eq!(hold(&SIZE, &names), names.len());
}

#[test]
fn one_result_is_generated_on_two_devices() {
    let _turn = turn();
    let names = [
        "width 5 rising",
        "neighbours 5 backbone",
        "drafter there sampled",
    ];
    assert_eq!(hold(&SIZE, &names), names.len());
}

#[test]
#[ignore = "soak: every arm of two devices on the executor takes minutes"]
fn one_result_holds_in_every_arm_of_two_devices() {
    let _turn = turn();
    let arms = hold(&Size { budget: 24, ..SIZE }, &[]);
    println!("soak: {arms} arms equal on two devices");
}
