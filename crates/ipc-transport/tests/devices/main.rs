//! Workers on real devices: rows straight between the region and the device, memory across processes, peers. A
//! device that is not there is a visible skip.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod body;

use std::ffi::OsString;
use std::sync::Arc;

use device::driver::Driver;
use device::{Device, Peers, Runtime, cuda};
use ipc_transport::worker;

fn runtime() -> Result<Runtime<cuda::Cuda>, String> {
    cuda::runtime(&cuda::Settings::default()).map_err(|absent| absent.to_string())
}

/// What the vendor's libraries find themselves by, for a child; as the program hands it down.
fn env() -> Vec<(OsString, OsString)> {
    let listed = switches::host_variables();
    listed
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}

fn device<R: Driver>(runtime: &Runtime<R>) -> Device<R> {
    runtime.open(0).unwrap()
}

#[test]
fn the_worker_of_these_tests() {
    body::child();
}

/// a reply gives the memory back, and the device is done with it.
#[test]
fn a_37_cuda_memory_is_reused_at_once() {
    let found = runtime();
    testkit::require!(
        found.is_ok(),
        "no CUDA: {}",
        found.err().unwrap_or_default()
    );
    body::reuse("cuda:0", 2_000, worker::load);
    body::crowd("cuda:0", worker::load);
}

#[test]
#[ignore = "soak: a hundred thousand steps on a device"]
fn a_37_soak_cuda_memory_is_reused_at_once() {
    let found = runtime();
    testkit::require!(
        found.is_ok(),
        "no CUDA: {}",
        found.err().unwrap_or_default()
    );
    body::reuse("cuda:0", 100_000, worker::load);
}

/// two processes on one device pin the same memory, and see each other's.
#[test]
fn a_36_cuda_pins_in_both_processes_and_a_38_probes_memory() {
    let found = runtime();
    testkit::require!(
        found.is_ok(),
        "no CUDA: {}",
        found.err().unwrap_or_default()
    );
    let here = Arc::new(device(&found.unwrap()));
    let report = body::processes(here, "cuda:0", env(), 500);
    let memory = report.reach.memory;
    testkit::require!(memory.is_yes(), "memory across processes: {memory}");
}

/// two devices, both ways.
#[test]
fn a_39_cuda_peers_are_probed_both_ways() {
    let found = runtime();
    testkit::require!(
        found.is_ok(),
        "no CUDA: {}",
        found.err().unwrap_or_default()
    );
    let runtime = found.unwrap();
    let count = runtime.count().unwrap();
    testkit::require!(count > 1, "{count} CUDA device");
    for (from, to) in [(0, 1), (1, 0)] {
        let can = runtime.peer(from, to).unwrap();
        testkit::require!(can.check().is_ok(), "cuda:{from} to cuda:{to}: {can}");
    }
    let (a, b) = (device(&runtime), runtime.open(1).unwrap());
    let peers = Peers::open(&a, &b).unwrap();
    let again = Peers::open(&b, &a).unwrap_err().to_string();
    assert!(again.contains("PEER_ACCESS_ALREADY_ENABLED"), "{again}");
    drop(peers);
    Peers::open(&b, &a).unwrap();
}
