//! The process around a worker: what it inherits, and that it does not outlive its parent.

#![allow(unsafe_code, reason = "closing descriptors that nothing owns")]

use std::os::fd::{AsFd, RawFd};

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use super::{End, load, run as serve};
use crate::probe::Probe;

/// Runs a worker whose control socket is standard input, for the process `parent`. Call it before the
/// program opens anything or starts a thread.
///
/// # Errors
/// Why it ended, for people.
pub fn run(parent: u32) -> Result<End, String> {
    close_inherited();
    set_parent_process_death_signal(Some(Signal::TERM)).map_err(|e| e.to_string())?;
    // The parent may have ended before the line above: then nobody will send that signal.
    let now = getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
    if u32::try_from(now).ok() != Some(parent) {
        return Err(format!("the parent is process {now}, expected {parent}"));
    }
    let control = std::io::stdin()
        .as_fd()
        .try_clone_to_owned()
        .map_err(|e| format!("standard input: {e}"))?;
    serve(control, None, Probe::default(), load).map_err(|e| e.to_string())
}

/// Closes what a careless parent left open beyond the three standard descriptors.
fn close_inherited() {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else {
        return;
    };
    let number = |name: std::ffi::OsString| name.to_str().and_then(|n| n.parse::<RawFd>().ok());
    let open: Vec<RawFd> = entries
        .flatten()
        .filter_map(|e| number(e.file_name()))
        .filter(|fd| *fd > 2)
        .collect();
    for fd in open {
        // Among them is the one that listed them, which is closed by now.
        if rustix::io::fcntl_getfd(borrowed(fd)).is_ok() {
            // SAFETY: at the program's start nothing owns a descriptor above 2.
            unsafe { rustix::io::close(fd) };
        }
    }
}

fn borrowed(fd: RawFd) -> std::os::fd::BorrowedFd<'static> {
    // SAFETY: only asked whether it is open, and not -1; no one else opens or closes any meanwhile.
    unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) }
}
