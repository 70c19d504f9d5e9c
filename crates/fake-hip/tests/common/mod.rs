//! Where the library is, and its symbols for tests.
#![allow(dead_code, reason = "each test uses some")]

use std::path::PathBuf;

use device::hip;
use libloading::os::unix::Library;

/// Cargo puts the library beside the tests.
pub(crate) fn file() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    tests.parent().unwrap().join("libfake_hip.so")
}

pub(crate) fn settings() -> hip::Settings {
    hip::Settings {
        hip: Some(file()),
        hiprtc: Some(file()),
    }
}

pub(crate) fn library() -> Library {
    // SAFETY: our own library; it has no initialisers.
    unsafe { Library::new(file()) }.unwrap()
}

/// Sets the order and the delays of the machine that starts next, of two devices; once a process.
pub(crate) fn configure(seed: u64, delay: u32) {
    configure_devices(seed, delay, 2);
}

/// [`configure`], of so many devices.
pub(crate) fn configure_devices(seed: u64, delay: u32, devices: u32) {
    let library = library();
    // SAFETY: the type is that of `control.rs`.
    let configure = unsafe {
        library.get::<unsafe extern "C" fn(u64, u32, u32) -> i32>(b"fs_fake_hip_configure")
    };
    // SAFETY: as above.
    let running = unsafe { configure.unwrap()(seed, delay, devices) };
    assert_eq!(running, 0, "the machine runs already");
    // Open for the life of the process: what was set stays with it.
    std::mem::forget(library);
}

/// How many allocations, streams, events, graphs and modules are alive.
pub(crate) fn alive() -> u64 {
    number("fs_fake_hip_alive")
}

/// How many rules were broken.
pub(crate) fn violations() -> u64 {
    type Call = unsafe extern "C" fn(*mut std::ffi::c_char, usize) -> u64;
    let library = library();
    // SAFETY: the type is that of `control.rs`.
    let violations = unsafe { library.get::<Call>(b"fs_fake_hip_violations") };
    // SAFETY: as above; without room nothing is written.
    unsafe { violations.unwrap()(std::ptr::null_mut(), 0) }
}

/// A number that the machine counts.
pub(crate) fn number(name: &str) -> u64 {
    let library = library();
    // SAFETY: the type is that of `control.rs`.
    let number = unsafe { library.get::<unsafe extern "C" fn() -> u64>(name.as_bytes()) };
    // SAFETY: as above.
    unsafe { number.unwrap()() }
}

/// What the machine can from now on; it runs already.
pub(crate) fn able(bits: u32) {
    let library = library();
    // SAFETY: the type is that of `control.rs`.
    let able = unsafe { library.get::<unsafe extern "C" fn(u32)>(b"fs_fake_hip_able") };
    // SAFETY: as above.
    unsafe { able.unwrap()(bits) };
}
