//! Giving a target on a device back: what it lists is what it takes, nothing is freed that is still used, and nothing is
//! left, whichever call fails. On the fake device, which runs what is queued late and in a hostile order.
#![cfg(feature = "host-exec")]
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::sync::{Arc, OnceLock};

use device::driver::Driver;
use device::watch::{Fail, Watched};
use device::{Device, Runtime, fake};
use ds4_target::on_device::{DeviceTarget, Settings};
use ds4_target::{CpuTarget, GgufSource, LoadError, Model, Options};
use engine_core::seams::Resident;
use engine_core::{Out, SeqId, Target, TokenId};
use fake::Defect;

fn model() -> Arc<Model> {
    static MODEL: OnceLock<Arc<Model>> = OnceLock::new();
    let load = || {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny.gguf");
        let file = gguf::Gguf::open(&path, &gguf::OpenOptions::default()).unwrap();
        Arc::new(Model::load(&GgufSource::new(file)).unwrap())
    };
    Arc::clone(MODEL.get_or_init(load))
}

fn options() -> Options {
    Options {
        n_ctx: 64,
        n_seq_max: 2,
        verify_max: 4,
        span_max: 16,
        kv_sim: true,
        threads: 1,
    }
}

type Machine = Runtime<Watched<fake::Fake>>;

fn machine(seed: u64) -> Machine {
    fake::runtime(&fake::Settings {
        seed,
        memory: 2 << 30,
        ..fake::Settings::default()
    })
}

fn load<R: Driver>(device: &Device<R>) -> Result<DeviceTarget<R>, LoadError> {
    load_checked(device, false)
}

fn load_checked<R: Driver>(device: &Device<R>, check: bool) -> Result<DeviceTarget<R>, LoadError> {
    let settings = Settings {
        cache: None,
        progress: &mut |_, _| {},
        graph_tokens: 4,
        check,
    };
    DeviceTarget::new(model(), options(), device, settings)
}

fn tokens() -> Vec<TokenId> {
    (0..9).map(|i| (i * 37 + 11) % 4096).collect()
}

/// A sequence of the processor, saved, and the logits of what follows it.
fn expected() -> &'static (Vec<u8>, Vec<u32>) {
    static DONE: OnceLock<(Vec<u8>, Vec<u32>)> = OnceLock::new();
    DONE.get_or_init(|| {
        let mut cpu = CpuTarget::new(model(), options()).unwrap();
        let seq = cpu.open().unwrap();
        common::feed(&mut cpu, seq, &tokens(), Out::None);
        let mut saved = Vec::new();
        cpu.save(seq, &mut saved).unwrap();
        (saved, step(&mut cpu, seq))
    })
}

fn step(t: &mut dyn Target, seq: SeqId) -> Vec<u32> {
    let rows = common::feed(t, seq, &[77], Out::Last);
    rows.iter().map(|v| v.to_bits()).collect()
}

fn taken<R: Driver>(device: &Device<R>) -> u64 {
    let memory = device.memory().unwrap();
    memory.total - memory.free
}

fn counted(residents: &[Resident]) -> u64 {
    residents.iter().filter_map(|r| r.bytes).sum()
}

fn find<'a>(all: &'a [Resident], what: &str) -> &'a Resident {
    all.iter().find(|r| r.what == what).unwrap()
}

/// C-19, A-44: the list is exact; a target that is given back with copies on their way frees what nothing uses; the next
/// one on the same device computes the same bits.
#[test]
fn c_19_what_is_listed_is_freed_once_nothing_uses_it() {
    let (saved, want) = expected();
    for seed in 1..=3 {
        let runtime = machine(seed);
        let device = runtime.open(0).unwrap();
        for _ in 0..2 {
            let mut target = load(&device).unwrap();
            // Steps of one shape: seen, captured, replayed.
            let seq = target.load(&mut saved.as_slice()).unwrap();
            assert_eq!(&step(&mut target, seq), want);
            step(&mut target, seq);
            let all = target.residents();
            assert_eq!(counted(&all), taken(&device), "{all:?}");
            let weights = find(&all, "target weights");
            assert_eq!(weights.place, "fake:0");
            assert!(weights.bytes.unwrap() >= 17_000_000);
            let graphs = find(&all, "target graphs");
            assert_eq!(
                graphs.note.as_deref(),
                Some("1; their bytes are the runtime's")
            );
            // Copies that nobody waits for.
            target.load(&mut saved.as_slice()).unwrap();
            assert_eq!(Box::new(target).retire(), []);
            assert_eq!(taken(&device), 0);
        }
        drop(device);
        let fake = runtime.driver().inner();
        assert_eq!(
            (fake.violations(), fake.alive()),
            (Vec::new(), 0),
            "seed {seed}"
        );
    }
}

/// A wait that fails once proves nothing; the stream's own wait at its end does.
#[test]
fn c_19_a_wait_that_failed_once_frees_all_after_the_next() {
    let (saved, _) = expected();
    let runtime = machine(4);
    let device = runtime.open(0).unwrap();
    let mut target = load(&device).unwrap();
    target.load(&mut saved.as_slice()).unwrap();
    runtime.driver().fail(Some(Fail {
        call: Some("stream_sync"),
        after: 0,
    }));
    assert_eq!(Box::new(target).retire(), []);
    assert!(!runtime.driver().pending(), "it failed");
    assert_eq!(taken(&device), 0);
    drop(device);
    let fake = runtime.driver().inner();
    assert_eq!((fake.violations(), fake.alive()), (Vec::new(), 0));
}

/// A release that the runtime refuses once is made again.
#[test]
fn c_19_no_failure_of_a_call_leaves_anything() {
    for after in [0, 1, 2, 3, 4, 6, 9, 12] {
        let runtime = machine(5);
        let device = runtime.open(0).unwrap();
        let target = load(&device).unwrap();
        runtime.driver().fail(Some(Fail { call: None, after }));
        let left = Box::new(target).retire();
        runtime.driver().fail(None);
        assert!(after < 1 || left.is_empty(), "call {after}: {left:?}");
        drop(device);
        let fake = runtime.driver().inner();
        assert_eq!(
            (fake.violations(), fake.alive()),
            (Vec::new(), 0),
            "call {after}"
        );
    }
}

/// C-20: a load that fails leaves the device as it was, and the next one succeeds.
#[test]
fn c_20_after_a_load_that_failed_the_next_one_succeeds() {
    let (saved, want) = expected();
    let runtime = machine(6);
    let device = runtime.open(0).unwrap();
    for after in [0, 2, 5, 8, 30, 200] {
        runtime.driver().fail(Some(Fail { call: None, after }));
        let error = load(&device).unwrap_err();
        assert!(error.to_string().contains("fake:0"), "{error}");
        assert_eq!(taken(&device), 0, "call {after}");
    }
    let mut target = load(&device).unwrap();
    let seq = target.load(&mut saved.as_slice()).unwrap();
    assert_eq!(&step(&mut target, seq), want);
    assert_eq!(Box::new(target).retire(), []);
    drop(device);
    let fake = runtime.driver().inner();
    assert_eq!((fake.violations(), fake.alive()), (Vec::new(), 0));
}

/// A device whose copies lose a byte is as good as any to a load that does not look.
#[test]
fn bytes_that_arrive_otherwise_are_told_if_a_load_is_checked() {
    let machine = |defect| {
        fake::runtime(&fake::Settings {
            memory: 2 << 30,
            defect,
            ..fake::Settings::default()
        })
    };
    let broken = machine(Some(Defect::CopiesShort));
    let device = broken.open(0).unwrap();
    assert!(load_checked(&device, false).is_ok());
    // Not unwrap_err: a target shown whole takes minutes.
    let Err(error) = load_checked(&device, true) else {
        panic!("a copy lost a byte, and nobody was told");
    };
    let LoadError::Upload {
        file,
        tensor,
        device: id,
        expected,
        got,
        ..
    } = &error
    else {
        panic!("{error}");
    };
    assert!(file.ends_with("tiny.gguf"), "{error}");
    assert!(
        !tensor.is_empty() && expected != got && id == "fake:0",
        "{error}"
    );
    assert_eq!(taken(&device), 0);
    // A sound one is found sound, and gives the same bits.
    let (saved, want) = self::expected();
    let sound = machine(None);
    let device = sound.open(0).unwrap();
    let mut target = load_checked(&device, true).unwrap();
    let seq = target.load(&mut saved.as_slice()).unwrap();
    assert_eq!(&step(&mut target, seq), want);
}
