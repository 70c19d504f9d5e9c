//! The draft worker as a process of the program: what it inherits and maps, how it ends, and that the
//! program's text does not depend on it.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "test code")]

#[path = "../common/mod.rs"]
mod common;

mod alone;
mod faults;
mod misdeeds;
mod park;
mod serve;
mod stand_in;
mod start;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

pub(crate) fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_fourspark"))
}

pub(crate) fn models() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models")
}

/// Waits for what takes no time, far beyond that.
pub(crate) fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < until, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a process is there, dead ones that nobody has taken off the list included.
pub(crate) fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

pub(crate) fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").args([name, &pid.to_string()]).status();
    assert!(status.unwrap().success(), "{name} {pid}");
}

/// What a process has open, sorted.
pub(crate) fn open_files(pid: u32) -> Vec<String> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let target = |e: std::fs::DirEntry| std::fs::read_link(e.path()).ok();
    let mut all: Vec<String> = entries
        .flatten()
        .filter_map(target)
        .map(|t| t.to_string_lossy().into_owned())
        .collect();
    all.sort();
    all
}

/// Names in shared memory and in the folder of temporary files.
pub(crate) fn names() -> Vec<PathBuf> {
    let folders = [PathBuf::from("/dev/shm"), std::env::temp_dir()];
    let entries = folders.iter().flat_map(std::fs::read_dir).flatten();
    let ours = |p: &PathBuf| p.to_string_lossy().contains("fourspark");
    let mut all: Vec<PathBuf> = entries.flatten().map(|e| e.path()).filter(ours).collect();
    all.sort();
    all
}
