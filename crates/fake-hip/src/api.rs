//! Devices, memory, streams and events: symbols of the HIP runtime.
#![allow(unreachable_pub, reason = "symbols of the library")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the vendor's declarations are the contract"
)]
#![allow(non_snake_case, reason = "the vendor's names")]

use std::ffi::{c_char, c_void};

use device::driver::{Driver, Place, Raw, Way};

use crate::answers::{ARCH, ARCH_AT, NAME, PROPERTIES, VERSION, attribute, error_name};
use crate::world::{Called, World, code, coded, look, returned, set_device, start, with};

pub(crate) type Handle = *mut c_void;

pub(crate) fn at(raw: Raw) -> Handle {
    std::ptr::with_exposed_provenance_mut(raw as usize)
}

pub(crate) fn raw(handle: Handle) -> Raw {
    handle.expose_provenance() as Raw
}

/// Writes an answer.
unsafe fn put<T>(out: *mut T, value: T) {
    // SAFETY: the declarations' contract: out parameters are valid for a write.
    unsafe { out.write(value) };
}

/// Writes text with a zero, cut to the room.
unsafe fn put_text(out: *mut u8, room: usize, text: &str) {
    let n = text.len().min(room.saturating_sub(1));
    // SAFETY: the declarations' contract: room for so many bytes.
    unsafe {
        out.copy_from_nonoverlapping(text.as_ptr(), n);
        out.add(n).write(0);
    }
}

fn device_of(w: &World, device: i32) -> Called<()> {
    match u32::try_from(device) {
        Ok(d) if d < w.devices => Ok(()),
        _ => Err(code::INVALID_DEVICE),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn hipInit(_flags: u32) -> i32 {
    start();
    returned(with(|_| Ok(())))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipRuntimeGetVersion(out: *mut i32) -> i32 {
    returned(with(|_| {
        // SAFETY: the declaration's contract.
        unsafe { put(out, VERSION) };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDriverGetVersion(out: *mut i32) -> i32 {
    returned(with(|_| {
        // SAFETY: the declaration's contract.
        unsafe { put(out, VERSION) };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGetDeviceCount(out: *mut i32) -> i32 {
    returned(with(|w| {
        // SAFETY: the declaration's contract.
        unsafe { put(out, w.devices.cast_signed()) };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn hipSetDevice(device: i32) -> i32 {
    returned(set_device(device))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDeviceGetName(out: *mut c_char, room: i32, device: i32) -> i32 {
    returned(with(|w| {
        device_of(w, device)?;
        // SAFETY: the declaration's contract.
        unsafe { put_text(out.cast(), usize::try_from(room).unwrap_or(0), NAME) };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDeviceGetAttribute(out: *mut i32, what: i32, device: i32) -> i32 {
    returned(with(|w| {
        device_of(w, device)?;
        let value = match what {
            // hipDeviceAttributeHostRegisterSupported.
            90 => i32::from(w.able & crate::reach::REGISTERS != 0),
            _ => attribute(what).ok_or(code::INVALID_VALUE)?,
        };
        // SAFETY: the declaration's contract.
        unsafe { put(out, value) };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDeviceTotalMem(out: *mut usize, device: i32) -> i32 {
    returned(with(|w| {
        device_of(w, device)?;
        // SAFETY: the fake driver takes any number as device; `out` by the declaration's contract.
        unsafe { put(out, coded(w.driver.memory(World::d()))?.total as usize) };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGetDevicePropertiesR0600(out: *mut c_void, device: i32) -> i32 {
    returned(with(|w| {
        device_of(w, device)?;
        let out = out.cast::<u8>();
        // SAFETY: the declaration's contract: room for the structure.
        unsafe {
            out.write_bytes(0, PROPERTIES);
            put_text(out.add(ARCH_AT), 256, &format!("{ARCH}:xnack-"));
        }
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn hipGetErrorName(code: i32) -> *const c_char {
    error_name(code).as_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemGetInfo(free: *mut usize, total: *mut usize) -> i32 {
    returned(with(|w| {
        // SAFETY: the fake driver takes any number as device; out parameters by the declaration.
        unsafe {
            let memory = coded(w.driver.memory(World::d()))?;
            put(free, memory.free as usize);
            put(total, memory.total as usize);
        }
        Ok(())
    }))
}

unsafe fn alloc(out: *mut Handle, bytes: usize, place: Place) -> i32 {
    returned(with(|w| {
        // SAFETY: the fake driver takes any number as device.
        let block = coded(unsafe { w.driver.alloc(World::d(), place, bytes as u64) })?;
        let block = w.own(block);
        // SAFETY: the declarations' contract.
        unsafe { put(out, at(block)) };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMalloc(out: *mut Handle, bytes: usize) -> i32 {
    returned(with(|w| {
        let block = crate::reach::alloc(w, bytes)?;
        // SAFETY: the declaration's contract.
        unsafe { put(out, at(block)) };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMallocManaged(out: *mut Handle, bytes: usize, _flags: u32) -> i32 {
    // SAFETY: the declaration's contract.
    unsafe { alloc(out, bytes, Place::Unified) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipHostMalloc(out: *mut Handle, bytes: usize, _flags: u32) -> i32 {
    // SAFETY: the declaration's contract.
    unsafe { alloc(out, bytes, Place::Pinned) }
}

/// Frees a block of this process.
fn free(block: Handle, pinned: bool) -> i32 {
    returned(with(|w| {
        let start = raw(block);
        let is_pinned = w.driver.block(start).map(|b| b.place == Place::Pinned);
        if is_pinned.is_some_and(|p| p != pinned) {
            return Err(code::INVALID_VALUE);
        }
        w.free(start)
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn hipFree(block: Handle) -> i32 {
    free(block, false)
}

#[unsafe(no_mangle)]
pub extern "C" fn hipHostFree(block: Handle) -> i32 {
    free(block, true)
}

#[unsafe(no_mangle)]
pub extern "C" fn hipMemcpyAsync(
    to: Handle,
    from: *const c_void,
    bytes: usize,
    kind: i32,
    stream: Handle,
) -> i32 {
    returned(with(|w| {
        w.is_own(raw(stream))?;
        let way = match kind {
            1 => Way::Up,
            2 => Way::Down,
            3 | 4 => Way::Within,
            _ => return Err(21), // hipErrorInvalidMemcpyDirection
        };
        let (to, from) = (raw(to), raw(from.cast_mut()));
        for address in [to, from] {
            // 17 is hipErrorInvalidDevicePointer: another device's memory, without peer access.
            w.reach(address).map_err(|_| 17)?;
        }
        // SAFETY: a live stream; addresses are looked up when the operation runs.
        coded(unsafe {
            w.driver
                .copy(World::d(), raw(stream), way, to, from, bytes as u64)
        })
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn hipMemsetAsync(to: Handle, value: i32, bytes: usize, stream: Handle) -> i32 {
    returned(with(|w| {
        w.is_own(raw(stream))?;
        let byte = value.to_le_bytes()[0];
        // SAFETY: as in `hipMemcpyAsync`.
        coded(unsafe {
            w.driver
                .fill(World::d(), raw(stream), raw(to), byte, bytes as u64)
        })
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipStreamCreateWithFlags(out: *mut Handle, _flags: u32) -> i32 {
    returned(with(|w| {
        // SAFETY: the fake driver takes any number as device; `out` by the declaration's contract.
        let stream = coded(unsafe { w.driver.stream_create(World::d()) })?;
        let stream = w.own(stream);
        // SAFETY: as above.
        unsafe { put(out, at(stream)) };
        Ok(())
    }))
}

/// A call on a handle of the current device.
fn on(
    handle: Handle,
    f: impl FnOnce(&World, Raw) -> Result<(), device::driver::DriverError>,
) -> i32 {
    returned(with(|w| {
        w.is_own(raw(handle))?;
        coded(f(w, raw(handle)))
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn hipStreamDestroy(stream: Handle) -> i32 {
    // SAFETY: a live stream of this device.
    let ended = on(stream, |w, s| unsafe {
        w.driver.stream_destroy(World::d(), s)
    });
    if ended == code::SUCCESS {
        look(|w| w.disown(raw(stream)));
    }
    ended
}

#[unsafe(no_mangle)]
pub extern "C" fn hipStreamSynchronize(stream: Handle) -> i32 {
    // SAFETY: a live stream of this device.
    on(stream, |w, s| unsafe {
        w.driver.stream_sync(World::d(), s)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn hipStreamWaitEvent(stream: Handle, event: Handle, _flags: u32) -> i32 {
    // Events of another device may be waited for.
    // SAFETY: a live stream of this device; the event is looked up.
    on(stream, |w, s| unsafe {
        w.driver.stream_wait(World::d(), s, raw(event))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipEventCreateWithFlags(out: *mut Handle, flags: u32) -> i32 {
    returned(with(|w| {
        // SAFETY: the fake driver takes any number as device; `out` by the declaration's contract.
        let event = coded(unsafe { w.driver.event_create(World::d(), flags & 2 == 0) })?;
        let event = w.own(event);
        // SAFETY: as above.
        unsafe { put(out, at(event)) };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn hipEventDestroy(event: Handle) -> i32 {
    // SAFETY: a live event of this device.
    let ended = on(event, |w, e| unsafe {
        w.driver.event_destroy(World::d(), e)
    });
    if ended == code::SUCCESS {
        look(|w| w.disown(raw(event)));
    }
    ended
}

#[unsafe(no_mangle)]
pub extern "C" fn hipEventRecord(event: Handle, stream: Handle) -> i32 {
    returned(with(|w| {
        // Both must be of one device.
        w.is_own(raw(event))?;
        w.is_own(raw(stream))?;
        // SAFETY: live handles, found above.
        coded(unsafe { w.driver.event_record(World::d(), raw(event), raw(stream)) })
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn hipEventQuery(event: Handle) -> i32 {
    returned(with(|w| {
        w.is_own(raw(event))?;
        // SAFETY: a live event.
        match coded(unsafe { w.driver.event_done(World::d(), raw(event)) })? {
            true => Ok(()),
            false => Err(code::NOT_READY),
        }
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn hipEventSynchronize(event: Handle) -> i32 {
    // SAFETY: a live event of this device.
    on(event, |w, e| unsafe { w.driver.event_sync(World::d(), e) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipEventElapsedTime(out: *mut f32, start: Handle, end: Handle) -> i32 {
    returned(with(|w| {
        w.is_own(raw(start))?;
        w.is_own(raw(end))?;
        // SAFETY: live events; `out` by the declaration's contract.
        unsafe {
            let ms = coded(w.driver.event_ms(World::d(), raw(start), raw(end)))?;
            put(out, ms);
        }
        Ok(())
    }))
}
