//! Nothing is left behind by workers that end, fail or never come up. One test in a process of its own: it
//! counts the process's descriptors and threads.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "test code")]

#[path = "worker/toy.rs"]
#[allow(dead_code, reason = "shared with the other tests")]
mod toy;

#[path = "worker/common.rs"]
#[allow(dead_code, reason = "shared with the other tests")]
mod common;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::{CHOICES, Caller, perform, threads, toy_plan, toys};
use ipc_transport::probe::Probe;
use ipc_transport::remote::RemoteBackbone;

fn count(folder: &str) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

fn shared_names() -> Vec<String> {
    let names = std::fs::read_dir("/dev/shm")
        .into_iter()
        .flatten()
        .flatten();
    names
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect()
}

/// whatever point fails, in the handshake or after it, on either side.
#[test]
fn a_26_no_descriptor_thread_or_file_is_left() {
    let all = || {
        (
            count("/proc/self/fd"),
            count("/proc/self/task"),
            shared_names(),
        )
    };
    let before = all();
    let mut failed_starts = 0;
    for choice in CHOICES {
        for worker_side in [false, true] {
            for at in 0..30 {
                let seen = Arc::new(AtomicUsize::new(0));
                let probe = Probe::new(move |_| match seen.fetch_add(1, Ordering::SeqCst) == at {
                    true => Err(io::Error::other("made to fail")),
                    false => Ok(()),
                });
                let mut plan = toy_plan(choice);
                let theirs = if worker_side {
                    probe
                } else {
                    plan.probe = probe;
                    Probe::default()
                };
                let (threads, _) = threads(toys, theirs);
                let Ok(mut remote) = RemoteBackbone::start(plan, Box::new(threads)) else {
                    failed_starts += 1;
                    continue;
                };
                let mut caller = Caller::new(at as u64, toy::dims(), toy::saved_range);
                for _ in 0..25 {
                    // A call may fail with the worker; that is not what is asked here.
                    let _ = perform(&mut remote, &caller.next());
                }
            }
        }
    }
    assert!(failed_starts >= 12, "{failed_starts}");
    assert_eq!(all(), before);
}
