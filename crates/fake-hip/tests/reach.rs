//! Device memory across two processes, over the library: the probe's two halves see each other's bytes, and what is
//! no shared memory is noticed. Peers and pinned memory that the machine does not have are told by name.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::io::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use device::shared::{self, Handle, Probe};
use device::{Peers, Place, hip};

/// The machine is one for the process; tests take turns.
static TURN: Mutex<()> = Mutex::new(());

const ALL: u32 = 7;
const SHARES: u32 = 2;
const PEERS: u32 = 4;
const COPIES: u32 = 8;

struct Turn(#[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl Drop for Turn {
    fn drop(&mut self) {
        common::able(ALL);
    }
}

fn turn() -> Turn {
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    Turn(turn)
}

const CHILD: &str = "--skip=child-that-answers";

/// What the other process says of memory it was given a handle of.
fn answered(handle: &Handle, seed: u64) -> String {
    let hex: String = handle.0.iter().map(|b| format!("{b:02x}")).collect();
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "a_38_memory_is_seen_by_two_processes",
            "--exact",
            "--nocapture",
        ])
        .args([CHILD, &format!("--skip={hex}"), &format!("--skip={seed}")])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout).into_owned();
    let line = said.lines().find_map(|l| l.strip_prefix("answer: "));
    line.unwrap_or_else(|| panic!("{said}")).to_owned()
}

/// The child's part.
fn answer() {
    let args: Vec<String> = std::env::args().collect();
    let words: Vec<&str> = args
        .iter()
        .filter_map(|a| a.strip_prefix("--skip="))
        .collect();
    let [_, hex, seed] = words[..] else {
        panic!("{words:?}");
    };
    let mut handle = Handle([0; 64]);
    for (i, byte) in handle.0.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap();
    }
    let runtime = hip::runtime(&common::settings()).unwrap();
    let device = runtime.open(1).unwrap();
    let said = shared::answer(&device, &handle, seed.parse().unwrap());
    let said = said.err().unwrap_or_else(|| "yes".to_owned());
    let mut out = std::io::stdout().lock();
    out.write_all(format!("\nanswer: {said}\n").as_bytes())
        .unwrap();
}

/// an allocation of its own, a handle, and bytes that went both ways; a wrong seed, a machine that shares copies
/// only, one that shares nothing, and a handle of this process are told apart.
#[test]
fn a_38_memory_is_seen_by_two_processes() {
    if std::env::args().any(|a| a == CHILD) {
        return answer();
    }
    let _turn = turn();
    let runtime = hip::runtime(&common::settings()).unwrap();
    let device = runtime.open(0).unwrap();
    let probe = Probe::new(&device, 11).unwrap();
    let early = probe.check().unwrap_err();
    assert!(early.starts_with("byte "), "nobody answered yet: {early}");
    assert_eq!(answered(&probe.handle(), 11), "yes");
    assert_eq!(probe.check(), Ok(()));
    let other = answered(&probe.handle(), 12);
    assert!(
        other.starts_with("byte 0 of the memory: expected"),
        "{other}"
    );
    let own = shared::answer(&device, &probe.handle(), 11).unwrap_err();
    assert!(own.contains("hipErrorInvalidContext"), "{own}");
    common::able(ALL | COPIES);
    let probe = Probe::new(&device, 13).unwrap();
    assert_eq!(answered(&probe.handle(), 13), "yes", "it sees a copy");
    let mangled = probe.check().unwrap_err();
    assert!(mangled.starts_with("byte "), "{mangled}");
    common::able(ALL & !SHARES);
    let none = device.lend(4096).unwrap_err().to_string();
    assert!(none.contains("hipErrorNotSupported"), "{none}");
}

/// two devices of one machine, both ways, or the device's own no.
#[test]
fn a_39_peers_are_opened_when_asked_for_and_probed_both_ways() {
    let _turn = turn();
    let runtime = hip::runtime(&common::settings()).unwrap();
    let (a, b) = (runtime.open(0).unwrap(), runtime.open(1).unwrap());
    let (near, far) = (
        a.alloc(Place::Device, 4096).unwrap(),
        b.alloc(Place::Device, 4096).unwrap(),
    );
    let stream = a.stream().unwrap();
    let peers = Peers::open(&a, &b).unwrap();
    stream.fill(&near.view(), 0x5a).unwrap();
    peers.copy(&stream, &near.view(), &far.view()).unwrap();
    stream.sync().unwrap();
    let mut got = vec![0; 4096];
    b.stream().unwrap().read_now(&far.view(), &mut got).unwrap();
    assert_eq!(got, vec![0x5a; 4096]);
    let third = hip::runtime(&common::settings()).unwrap().open(1).unwrap();
    let strange = Peers::open(&a, &third).unwrap_err().to_string();
    assert!(strange.contains("a peer belongs to"), "{strange}");
    drop(peers);
    common::able(ALL & !PEERS);
    assert_eq!(
        runtime.peer(0, 1).unwrap().to_string(),
        "no: the device says no to hipDeviceCanAccessPeer"
    );
    let no = Peers::open(&a, &b).unwrap_err().to_string();
    assert!(
        no.contains("hip:0 cannot reach another device's memory"),
        "{no}"
    );
}
