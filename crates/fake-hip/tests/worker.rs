//! A draft worker on the stand-in's devices: what copies straight from shared memory must be waited for, as nothing runs
//! there before somebody waits; both processes pin; a machine that cannot is told and counted.
#![cfg(feature = "host-exec")]
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "../../ipc-transport/tests/devices/body.rs"]
mod body;
mod common;

use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use device::{AnyDevice, hip};
use ds4_target::GgufSource;
use ds4_target::on_device::Settings;
use dspark_draft::backbone::Options;
use dspark_draft::on_device::DeviceBackbone;
use dspark_draft::weights::DraftModel;
use gguf::{Gguf, OpenOptions};
use ipc_transport::handshake::Configure;
use ipc_transport::remote::Choice;
use ipc_transport::worker::{Layers, Loaded, dims};

/// The machine is one for the process, and its order hostile.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    static ONCE: Once = Once::new();
    ONCE.call_once(|| common::configure(11, 5));
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn here() -> Arc<dyn AnyDevice> {
    let runtime = hip::runtime(&common::settings()).unwrap();
    Arc::new(runtime.open(0).unwrap())
}

/// As a worker of the program loads it, with the library's file given.
fn load(configure: &Configure) -> Result<Loaded, String> {
    let file = Gguf::open(&configure.file, &OpenOptions::default()).unwrap();
    let model = Arc::new(DraftModel::load(&GgufSource::new(file)).unwrap());
    let options = Options {
        n_seq_max: configure.dims.n_seq_max as usize,
        verify_max: configure.verify_max as usize,
        kv_round: configure.kv_round,
    };
    let settings = Settings {
        cache: None,
        progress: &mut |_, _| {},
        graph_tokens: 16,
        check: false,
    };
    let runtime = hip::runtime(&common::settings()).unwrap();
    let device = runtime.open(1).unwrap();
    let dims = dims(&model, &options);
    let layers = DeviceBackbone::new(model, options, &device, settings).unwrap();
    Ok(Loaded {
        backbone: Layers::Device(Box::new(layers)),
        dims,
        device: "hip:1".to_owned(),
    })
}

#[test]
fn the_worker_of_these_tests() {
    body::child();
}

/// the parent overwrites what a reply gave back at once, and no answer changes.
#[test]
fn a_37_memory_is_reused_at_once() {
    let _turn = turn();
    body::reuse("hip:1", 48, load);
}

#[test]
fn a_37_more_asks_than_a_pass_takes_are_gathered() {
    let _turn = turn();
    body::crowd("hip:1", load);
}

/// two processes, a device each: both pin the same memory and the probe's bytes go both ways.
#[test]
fn a_36_both_processes_pin_and_a_38_memory_is_probed() {
    let _turn = turn();
    let vendor = tempfile::tempdir().unwrap();
    for name in ["libamdhip64.so", "libhiprtc.so"] {
        std::os::unix::fs::symlink(common::file(), vendor.path().join(name)).unwrap();
    }
    let env = vec![("LD_LIBRARY_PATH".into(), vendor.path().into())];
    let report = body::processes(here(), "hip:1", env, 8);
    assert_eq!(report.reach.memory.to_string(), "yes");
    assert_eq!(
        common::number("fs_fake_hip_alive"),
        0,
        "registrations and probes have ended"
    );
}

/// a machine that pins nothing costs a copy, which is told with the machine's own reason and counted.
#[test]
fn a_36_what_cannot_be_pinned_is_copied_told_and_counted() {
    const NOTHING: u32 = 0;
    const ALL: u32 = 7;
    let _turn = turn();
    let draft = body::Draft::new(4);
    let mut plan = draft.plan(Choice::Shared, "hip:1");
    plan.device = Some(here());
    common::able(NOTHING);
    // Facts are those of when a device was opened: this one was opened before, and asks the machine.
    let (launch, given) = body::thread(load);
    let mut pair = body::Pair::new(&draft, plan, launch, &given);
    let report = pair.run(12);
    common::able(ALL);
    let there = report.reach.pinned_there.to_string();
    let want =
        "no, hip:1 cannot pin memory of the host: the device says no to HostRegisterSupported";
    assert_eq!(there, want);
    let here = report.reach.pinned_here.to_string();
    assert!(
        here.contains("hipHostRegister: hipErrorNotSupported (801)"),
        "{here}"
    );
    let memory = report.reach.memory.to_string();
    assert!(memory.contains("hipErrorNotSupported"), "{memory}");
    assert_eq!((report.direct, report.unpinned), (0, 2), "{report:?}");
    let shown = pair.remote.watch().to_string();
    assert!(
        shown.contains("; pinned here: no, hip:0: hipHostRegister"),
        "{shown}"
    );
    assert!(
        shown.contains("; pinned in the worker: no, hip:1 cannot"),
        "{shown}"
    );
}
