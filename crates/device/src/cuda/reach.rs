//! Calls that not every driver or device has: pinning memory of the host, memory across processes, peers.
//!
//! Each name is asked for before it is called; without it the ability says so. Must not know: who asks.

use std::ptr;

use cudarc::driver::sys;
use sys::CUdevice_attribute_enum as A;

use super::calls::{at, attribute, check, cu, current, handle};
use super::probe;
use crate::ability::{Ability, Lack};
use crate::driver::{DriverResult, Raw, SHARE_BYTES};

/// What this file calls.
pub(super) const OPTIONAL: [&str; 8] = [
    "cuCtxDisablePeerAccess",
    "cuCtxEnablePeerAccess",
    "cuDeviceCanAccessPeer",
    "cuIpcCloseMemHandle",
    "cuIpcGetMemHandle",
    "cuIpcOpenMemHandle_v2",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
];

/// CU_MEMHOSTREGISTER_PORTABLE: pinned for every context.
const PORTABLE: u32 = 1;
/// CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.
const LAZY_PEERS: u32 = 1;

/// Says no for the first name that the library has not.
fn names(wanted: &[&'static str]) -> Ability {
    match wanted.iter().find(|name| !probe::has(name)) {
        Some(name) => Ability::No(Lack::Call(name)),
        None => Ability::Yes,
    }
}

/// Whether the device pins memory of the host (`CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED`).
pub(super) fn register_ability(device: i32) -> DriverResult<Ability> {
    let named = names(&["cuMemHostRegister_v2", "cuMemHostUnregister"]);
    let can = attribute(device, A::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED)?;
    Ok(match named {
        Ability::Yes => Ability::when(can != 0, Lack::Device("HOST_REGISTER_SUPPORTED")),
        no @ Ability::No(_) => no,
    })
}

/// Whether other processes can open its memory: on Linux, with one address space for host and device, and not on
/// integrated devices (CUDA programming guide, "Interprocess Communication").
pub(super) fn share_ability(device: i32) -> DriverResult<Ability> {
    let named = names(&[
        "cuIpcGetMemHandle",
        "cuIpcOpenMemHandle_v2",
        "cuIpcCloseMemHandle",
    ]);
    let unified = attribute(device, A::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING)? != 0;
    let integrated = attribute(device, A::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0;
    Ok(match named {
        Ability::Yes if !cfg!(target_os = "linux") => {
            Ability::No(Lack::Kind("handles to memory are for Linux"))
        }
        Ability::Yes if integrated => Ability::No(Lack::Kind("it is integrated")),
        Ability::Yes => Ability::when(unified, Lack::Device("UNIFIED_ADDRESSING")),
        no @ Ability::No(_) => no,
    })
}

pub(super) fn register(d: Raw, address: Raw, bytes: u64) -> DriverResult<()> {
    current(d)?;
    cu!(cuMemHostRegister_v2(at(address), bytes as usize, PORTABLE))
}

pub(super) fn unregister(d: Raw, address: Raw) -> DriverResult<()> {
    current(d)?;
    cu!(cuMemHostUnregister(at(address)))
}

pub(super) fn share(d: Raw, address: Raw) -> DriverResult<[u8; SHARE_BYTES]> {
    current(d)?;
    let mut handle = sys::CUipcMemHandle {
        reserved: [0; SHARE_BYTES],
    };
    cu!(cuIpcGetMemHandle(ptr::from_mut(&mut handle), address))?;
    Ok(handle.reserved.map(|c| c.to_ne_bytes()[0]))
}

pub(super) fn open_shared(d: Raw, handle: &[u8; SHARE_BYTES]) -> DriverResult<Raw> {
    current(d)?;
    let handle = sys::CUipcMemHandle {
        reserved: handle.map(|b| std::ffi::c_char::from_ne_bytes([b])),
    };
    let mut address = 0;
    cu!(cuIpcOpenMemHandle_v2(&raw mut address, handle, LAZY_PEERS))?;
    Ok(address)
}

pub(super) fn close_shared(d: Raw, address: Raw) -> DriverResult<()> {
    current(d)?;
    cu!(cuIpcCloseMemHandle(address))
}

pub(super) fn reaches(from: u32, to: u32) -> DriverResult<Ability> {
    if let no @ Ability::No(_) = names(&OPTIONAL[..3]) {
        return Ok(no);
    }
    let (from, to) = (handle(from)?, handle(to)?);
    let mut can = 0;
    cu!(cuDeviceCanAccessPeer(&raw mut can, from, to))?;
    Ok(Ability::when(
        can != 0,
        Lack::Device("cuDeviceCanAccessPeer"),
    ))
}

pub(super) fn reach(d: Raw, other: Raw) -> DriverResult<()> {
    current(d)?;
    cu!(cuCtxEnablePeerAccess(at(other), 0))
}

pub(super) fn unreach(d: Raw, other: Raw) -> DriverResult<()> {
    current(d)?;
    cu!(cuCtxDisablePeerAccess(at(other)))
}
