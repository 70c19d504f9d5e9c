//! Modules, kernels, launches and graphs: symbols of the HIP runtime.
#![allow(unreachable_pub, reason = "symbols of the library")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the vendor's declarations are the contract"
)]
#![allow(non_snake_case, reason = "the vendor's names")]

use std::ffi::{CStr, c_char, c_void};
use std::sync::Arc;

use device::driver::{Driver, Raw};
use device::{Code, Geometry, RawArg};

use crate::answers::{ARCH, function_attribute};
use crate::api::{Handle, at, raw};
use crate::modules::{self, Function, Kernels};
use crate::world::{Called, World, code, coded, returned, with};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipModuleLoadData(out: *mut Handle, image: *const c_void) -> i32 {
    // SAFETY: an image has at least 16 bytes; a real one begins with a longer header.
    let head = unsafe { image.cast::<[u8; 16]>().read_unaligned() };
    returned(with(|w| {
        let length = modules::length(&head)?;
        // SAFETY: the image says its length, and its maker wrote so many bytes.
        let bytes = unsafe { std::slice::from_raw_parts(image.cast::<u8>(), length) };
        let loaded = modules::read(bytes, ARCH)?;
        let host = Code::Host(Arc::new(Kernels::all()));
        // SAFETY: the fake driver takes any number as device.
        let module = coded(unsafe { w.driver.load(World::d(), &host) })?;
        w.modules.insert(module, loaded);
        let module = w.own(module);
        // SAFETY: the declaration's contract.
        unsafe { out.write(at(module)) };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipModuleUnload(module: Handle) -> i32 {
    returned(with(|w| {
        let module = raw(module);
        w.is_own(module)?;
        w.disown(module);
        w.modules.remove(&module);
        let gone: Vec<Raw> = w
            .functions
            .iter()
            .filter(|(_, f)| f.module == module)
            .map(|(at, _)| *at)
            .collect();
        for function in gone {
            w.functions.remove(&function);
            w.disown(function);
        }
        // SAFETY: a live module, found above.
        coded(unsafe { w.driver.unload(World::d(), module) })
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipModuleGetFunction(
    out: *mut Handle,
    module: Handle,
    name: *const c_char,
) -> i32 {
    // SAFETY: the declaration's contract.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    returned(with(|w| {
        let module = raw(module);
        w.is_own(module)?;
        let known = w.modules.get(&module).is_some_and(|m| m.has(&name));
        let sizes = device::HostModule::argument_sizes(&Kernels::all(), &name);
        let (true, Some(sizes)) = (known, sizes) else {
            return Err(500); // hipErrorNotFound
        };
        // SAFETY: a live module, found above.
        let function = coded(unsafe { w.driver.function(World::d(), module, &name) })?;
        w.functions.insert(function, Function { module, sizes });
        let function = w.own(function);
        // SAFETY: the declaration's contract.
        unsafe { out.write(at(function)) };
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipFuncGetAttribute(out: *mut i32, what: i32, function: Handle) -> i32 {
    returned(with(|w| {
        w.is_own(raw(function))?;
        let value = function_attribute(what).ok_or(code::INVALID_VALUE)?;
        // SAFETY: the declaration's contract.
        unsafe { out.write(value) };
        Ok(())
    }))
}

/// An argument of 4 or 8 bytes at an address. Eight bytes that point into memory are an address.
unsafe fn argument(w: &World, value: *const c_void, size: u32) -> Called<RawArg> {
    if size == 4 {
        // SAFETY: the declaration's contract: a pointer to the argument.
        return Ok(RawArg::Word(unsafe {
            value.cast::<u32>().read_unaligned()
        }));
    }
    // SAFETY: as above.
    let value = unsafe { value.cast::<u64>().read_unaligned() };
    if value == 0 {
        return Ok(RawArg::Address(0, 0));
    }
    Ok(match w.reach(value)? {
        Some(bytes) => RawArg::Address(value, bytes),
        None => RawArg::Long(value),
    })
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments, reason = "the vendor's declaration")]
pub unsafe extern "C" fn hipModuleLaunchKernel(
    function: Handle,
    gx: u32,
    gy: u32,
    gz: u32,
    tx: u32,
    ty: u32,
    tz: u32,
    shared: u32,
    stream: Handle,
    values: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> i32 {
    returned(with(|w| {
        let (function, stream) = (raw(function), raw(stream));
        w.is_own(stream)?;
        w.is_own(function)
            .map_err(|_| code::INVALID_DEVICE_FUNCTION)?;
        let sizes = &w
            .functions
            .get(&function)
            .ok_or(code::INVALID_HANDLE)?
            .sizes;
        if !extra.is_null() || values.is_null() {
            return Err(code::INVALID_VALUE);
        }
        let mut args = Vec::with_capacity(sizes.len());
        for (i, size) in sizes.iter().enumerate() {
            // SAFETY: the declaration's contract: a pointer for each argument of the kernel.
            args.push(unsafe { argument(w, *values.add(i), *size) }?);
        }
        let geometry = Geometry {
            grid: [gx, gy, gz],
            threads: [tx, ty, tz],
            shared,
        };
        // SAFETY: live handles, found above; memory is looked up when the operation runs.
        coded(unsafe {
            w.driver
                .launch(World::d(), stream, function, &geometry, &args)
        })
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipStreamBeginCapture(stream: Handle, _mode: i32) -> i32 {
    returned(with(|w| {
        w.is_own(raw(stream))?;
        // SAFETY: a live stream.
        coded(unsafe { w.driver.capture_begin(World::d(), raw(stream)) })
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipStreamEndCapture(stream: Handle, out: *mut Handle) -> i32 {
    returned(with(|w| {
        w.is_own(raw(stream))?;
        // SAFETY: a live stream; `out` by the declaration's contract.
        let graph = coded(unsafe { w.driver.capture_end(World::d(), raw(stream)) })?;
        let graph = w.own(graph);
        // SAFETY: as above.
        unsafe { out.write(at(graph)) };
        Ok(())
    }))
}

/// The fake driver has one handle for a graph and what runs it: instantiating gives it a second name, with a
/// bit that no handle has.
const RUNS: Raw = 1 << 62;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGraphInstantiate(
    out: *mut Handle,
    graph: Handle,
    _node: *mut Handle,
    _log: *mut c_char,
    _room: usize,
) -> i32 {
    returned(with(|w| {
        w.is_own(raw(graph))?;
        let exec = w.own(raw(graph) | RUNS);
        // SAFETY: the declaration's contract.
        unsafe { out.write(at(exec)) };
        Ok(())
    }))
}

/// Frees the driver's graph once neither name is left.
fn forget(w: &mut World, handle: Raw) -> Called<()> {
    w.is_own(handle)?;
    w.disown(handle);
    let (graph, exec) = (handle & !RUNS, handle | RUNS);
    if w.is_own(graph).is_ok() || w.is_own(exec).is_ok() {
        return Ok(());
    }
    // SAFETY: a live graph under its last name.
    coded(unsafe { w.driver.graph_destroy(World::d(), graph) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGraphDestroy(graph: Handle) -> i32 {
    returned(with(|w| forget(w, raw(graph))))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGraphExecDestroy(exec: Handle) -> i32 {
    returned(with(|w| forget(w, raw(exec))))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGraphLaunch(exec: Handle, stream: Handle) -> i32 {
    returned(with(|w| {
        w.is_own(raw(exec))?;
        w.is_own(raw(stream))?;
        let graph = raw(exec) & !RUNS;
        // SAFETY: live handles, found above.
        coded(unsafe { w.driver.graph_launch(World::d(), graph, raw(stream)) })
    }))
}
