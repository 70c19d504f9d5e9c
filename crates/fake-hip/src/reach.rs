//! Memory of the host that is pinned, memory across processes, peers: symbols of the HIP runtime.
//!
//! Device memory lies in files without a name, so that another process that runs this library can map it: its handle
//! says whose file it is. Must not know: how `device::hip` uses it.
#![allow(unreachable_pub, reason = "symbols of the library")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the vendor's declarations are the contract"
)]
#![allow(non_snake_case, reason = "the vendor's names")]

use std::os::fd::{AsRawFd, OwnedFd};

use device::driver::{Driver, Place, Raw, SHARE_BYTES};
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::api::{Handle, at, raw};
use crate::world::{Called, World, code, coded, returned, with};

/// What fresh memory holds: f32 NaN, int -1.
const POISON: u8 = 0xff;
const MAGIC: [u8; 8] = *b"FAKEHIP1";
/// What the machine can, as bits of [`World::able`].
pub(crate) const REGISTERS: u32 = 1;
pub(crate) const SHARES: u32 = 2;
pub(crate) const PEERS: u32 = 4;
/// It shares memory in word only: what one process writes the other does not see.
pub(crate) const SHARES_COPIES: u32 = 8;
/// hipErrorNotSupported.
const NOT_SUPPORTED: i32 = 801;
/// hipErrorInvalidContext: what an opener of its own handle is told.
const OWN_HANDLE: i32 = 201;

/// A mapping, and the file behind it.
#[derive(Debug)]
pub(crate) struct Mapped {
    len: usize,
    /// Closed where it is another process's.
    file: Option<OwnedFd>,
}

/// `hipIpcMemHandle_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct MemHandle([u8; SHARE_BYTES]);

fn rounded(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(rustix::param::page_size().max(1))
}

fn map(file: &OwnedFd, len: usize, flags: MapFlags) -> Called<Raw> {
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the system's choice.
    let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, prot, flags, file, 0) };
    start.map(raw).map_err(|_| code::OUT_OF_MEMORY)
}

/// Takes a mapping among the device's memory, or undoes it.
fn adopt(w: &mut World, start: Raw, bytes: usize, mapped: Mapped) -> Called<()> {
    // SAFETY: mapped, and unmapped only after it was freed; nobody refers to it.
    match coded(unsafe { w.driver.adopt(Place::Device, start, bytes as u64) }) {
        Ok(()) => {
            let start = w.own(start);
            w.mapped.insert(start, mapped);
            Ok(())
        }
        Err(code) => {
            unmap(start, &mapped);
            Err(code)
        }
    }
}

fn unmap(start: Raw, mapped: &Mapped) {
    // SAFETY: mapped by this file with this length; the device's table has let go of it.
    let _ = unsafe { rustix::mm::munmap(at(start), mapped.len) };
}

/// Device memory in a file of its own.
pub(crate) fn alloc(w: &mut World, bytes: usize) -> Called<Raw> {
    let len = rounded(bytes.max(1)).ok_or(code::OUT_OF_MEMORY)?;
    let file = rustix::fs::memfd_create("fake-hip", MemfdFlags::CLOEXEC);
    let file = file.map_err(|_| code::OUT_OF_MEMORY)?;
    rustix::fs::ftruncate(&file, len as u64).map_err(|_| code::OUT_OF_MEMORY)?;
    let start = map(&file, len, MapFlags::SHARED)?;
    let file = Some(file);
    adopt(w, start, bytes, Mapped { len, file })?;
    // SAFETY: fresh and mapped; nobody has its address yet.
    unsafe { at(start).cast::<u8>().write_bytes(POISON, bytes) };
    Ok(start)
}

/// What the driver has let go of.
pub(crate) fn freed(w: &mut World, start: Raw) {
    if let Some(mapped) = w.mapped.remove(&start) {
        unmap(start, &mapped);
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn hipHostRegister(start: Handle, bytes: usize, _flags: u32) -> i32 {
    returned(with(|w| {
        w.can(REGISTERS, NOT_SUPPORTED)?;
        // SAFETY: the declaration's contract: mapped until it is unregistered.
        coded(unsafe { w.driver.register(World::d(), raw(start), bytes as u64) })
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn hipHostUnregister(start: Handle) -> i32 {
    returned(with(|w| {
        let before = w.driver.violations().len();
        // SAFETY: the driver looks the address up.
        let ended = coded(unsafe { w.driver.unregister(World::d(), raw(start)) });
        w.stop_at_violations(before);
        ended
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipIpcGetMemHandle(out: *mut MemHandle, start: Handle) -> i32 {
    returned(with(|w| {
        w.can(SHARES, NOT_SUPPORTED)?;
        w.is_own(raw(start))?;
        let mapped = w.mapped.get(&raw(start)).ok_or(code::INVALID_VALUE)?;
        let file = mapped.file.as_ref().ok_or(code::INVALID_VALUE)?;
        let mut handle = [0; SHARE_BYTES];
        handle[..8].copy_from_slice(&MAGIC);
        handle[8..12].copy_from_slice(&std::process::id().to_le_bytes());
        handle[12..16].copy_from_slice(&file.as_raw_fd().to_le_bytes());
        handle[16..24].copy_from_slice(&(mapped.len as u64).to_le_bytes());
        handle[24] = u8::from(w.able & SHARES_COPIES != 0);
        // SAFETY: the declaration's contract.
        unsafe { out.write(MemHandle(handle)) };
        Ok(())
    }))
}

/// Whose file a handle means, its number there, its size, and whether only a copy of it is shared.
fn read(handle: &MemHandle) -> Called<(u32, i32, usize, bool)> {
    let bytes = &handle.0;
    let word = |from: usize| {
        let mut word = [0; 4];
        word.copy_from_slice(&bytes[from..from + 4]);
        word
    };
    if bytes[..8] != MAGIC {
        return Err(code::INVALID_VALUE);
    }
    let len =
        u64::from(u32::from_le_bytes(word(16))) | u64::from(u32::from_le_bytes(word(20))) << 32;
    let len = usize::try_from(len).map_err(|_| code::INVALID_VALUE)?;
    let (pid, fd) = (u32::from_le_bytes(word(8)), i32::from_le_bytes(word(12)));
    Ok((pid, fd, len, bytes[24] != 0))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipIpcOpenMemHandle(
    out: *mut Handle,
    handle: MemHandle,
    _flags: u32,
) -> i32 {
    returned(with(|w| {
        let (pid, fd, len, copies) = read(&handle)?;
        if pid == std::process::id() {
            return Err(OWN_HANDLE);
        }
        let path = format!("/proc/{pid}/fd/{fd}");
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty());
        let file = file.map_err(|_| code::INVALID_VALUE)?;
        let size = rustix::fs::fstat(&file).map_err(|_| code::INVALID_VALUE)?;
        if usize::try_from(size.st_size).ok() != Some(len) {
            return Err(code::INVALID_VALUE);
        }
        let flags = match copies {
            true => MapFlags::PRIVATE,
            false => MapFlags::SHARED,
        };
        let start = map(&file, len, flags)?;
        adopt(w, start, len, Mapped { len, file: None })?;
        // SAFETY: the declaration's contract.
        unsafe { out.write(at(start)) };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn hipIpcCloseMemHandle(start: Handle) -> i32 {
    returned(with(|w| {
        w.is_own(raw(start))?;
        let theirs = w.mapped.get(&raw(start)).is_some_and(|m| m.file.is_none());
        if !theirs {
            return Err(code::INVALID_VALUE);
        }
        w.free(raw(start))
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDeviceCanAccessPeer(out: *mut i32, from: i32, to: i32) -> i32 {
    returned(with(|w| {
        let known = |d: i32| u32::try_from(d).is_ok_and(|d| d < w.devices);
        if !known(from) || !known(to) {
            return Err(code::INVALID_DEVICE);
        }
        let can = from != to && w.able & PEERS != 0;
        // SAFETY: the declaration's contract.
        unsafe { out.write(i32::from(can)) };
        Ok(())
    }))
}

/// The current device and another one.
fn pair(w: &World, other: i32) -> Called<(u32, u32)> {
    let current = World::d() as u32 - 1;
    match u32::try_from(other) {
        Ok(other) if other < w.devices && other != current => Ok((current, other)),
        _ => Err(code::INVALID_DEVICE),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn hipDeviceEnablePeerAccess(other: i32, _flags: u32) -> i32 {
    returned(with(|w| {
        let pair = pair(w, other)?;
        // 217 is hipErrorPeerAccessUnsupported, 704 hipErrorPeerAccessAlreadyEnabled.
        w.can(PEERS, 217)?;
        w.peers.insert(pair).then_some(()).ok_or(704)
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn hipDeviceDisablePeerAccess(other: i32) -> i32 {
    returned(with(|w| {
        let pair = pair(w, other)?;
        // 705 is hipErrorPeerAccessNotEnabled.
        w.peers.remove(&pair).then_some(()).ok_or(705)
    }))
}
