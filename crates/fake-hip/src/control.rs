//! Symbols for tests: how the machine behaves, which call fails, what it noticed.
#![allow(unreachable_pub, reason = "symbols of the library")]

use std::ffi::c_char;

use device::fake::Settings;

use crate::world::{WANTED, is_running, lock, look};

/// Sets up the machine that `hipInit` starts. 0, or 1 if it runs already.
#[unsafe(no_mangle)]
pub extern "C" fn fs_fake_hip_configure(seed: u64, delay: u32, devices: u32) -> i32 {
    *lock(&WANTED) = Some(Settings {
        seed,
        delay,
        devices,
        memory: 1 << 30,
        ..Settings::default()
    });
    i32::from(is_running())
}

/// What the machine can from now on: 1 pin memory of the host, 2 share memory with processes, 4 let devices reach each
/// other, 8 share copies only.
#[unsafe(no_mangle)]
pub extern "C" fn fs_fake_hip_able(bits: u32) {
    look(|w| w.able = bits);
}

/// Calls so far.
#[unsafe(no_mangle)]
pub extern "C" fn fs_fake_hip_calls() -> u64 {
    look(|w| w.calls).unwrap_or(0)
}

/// Lets the `n`-th call from now fail with a code; 0: none.
#[unsafe(no_mangle)]
pub extern "C" fn fs_fake_hip_fail(n: u64, code: i32) {
    look(|w| w.fails = (n > 0).then_some((w.calls + n, code)));
}

/// Whether a failure is still to come.
#[unsafe(no_mangle)]
pub extern "C" fn fs_fake_hip_pending() -> i32 {
    i32::from(look(|w| w.fails.is_some()).unwrap_or(false))
}

/// How many allocations, streams, events, graphs and modules are alive.
#[unsafe(no_mangle)]
pub extern "C" fn fs_fake_hip_alive() -> u64 {
    look(|w| w.driver.alive() as u64).unwrap_or(0)
}

/// How many rules were broken so far; the last one's words go to `text`, cut at `room` bytes with a zero.
///
/// # Safety
/// `text` has room for `room` bytes, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fs_fake_hip_violations(text: *mut c_char, room: usize) -> u64 {
    let all = look(|w| w.driver.violations()).unwrap_or_default();
    let last = all.last().map_or("", String::as_str);
    if !text.is_null() && room > 0 {
        let n = last.len().min(room - 1);
        // SAFETY: the caller's promise; n + 1 bytes at most.
        unsafe {
            text.cast::<u8>().copy_from_nonoverlapping(last.as_ptr(), n);
            text.add(n).write(0);
        }
    }
    all.len() as u64
}
