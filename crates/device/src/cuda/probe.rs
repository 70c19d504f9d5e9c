//! Asks for the library and for every name before the first call.

use cudarc::driver::sys;

use crate::fault::{Absent, words};

/// What `calls` calls. From driver 11.4 on all of them exist (`cuGraphInstantiateWithFlags` is the
/// newest; CUDA driver API, "Graph Management").
pub(super) const SYMBOLS: [&str; 36] = [
    "cuCtxSetCurrent",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuFuncGetAttribute",
    "cuFuncSetAttribute",
    "cuGetErrorName",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuInit",
    "cuLaunchKernel",
    "cuMemAllocManaged",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemcpyAsync",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
];

/// The streams' part of the list.
pub(super) const STREAMS: [&str; 6] = [
    "cuStreamBeginCapture_v2",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];

/// Tells the sizes of a kernel's parameters, from driver 12.4 on.
pub(super) const PARAMETERS: &str = "cuFuncGetParamInfo";

/// Whether the driver's library has a name.
pub(super) fn has(symbol: &str) -> bool {
    if !present() {
        return false;
    }
    // SAFETY: the library was found, so that this opens it instead of panicking.
    let library = unsafe { sys::culib() };
    // SAFETY: the address is only compared with null; nothing is called.
    unsafe { library.get::<*const ()>(symbol.as_bytes()) }.is_ok()
}

/// Milliseconds between two events.
pub(super) type Elapsed =
    unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> sys::CUresult;

/// The form of it that every driver has; the bindings of 13.0 only name the one of 12.8 and later.
pub(super) fn elapsed() -> Result<Elapsed, Absent> {
    // SAFETY: called after `driver` found the library, so that this does not panic.
    let library = unsafe { sys::culib() };
    // SAFETY: the type is that of the CUDA driver API, "Event Management".
    let found = unsafe { library.get::<Elapsed>(b"cuEventElapsedTime") };
    found.map(|f| *f).map_err(|e| Absent {
        what: "CUDA driver".into(),
        reason: words(&e),
    })
}

fn present() -> bool {
    // SAFETY: looks for the library, calls nothing in it.
    unsafe { sys::is_culib_present() }
}

/// The library with everything in it, or what is missing.
pub(super) fn driver() -> Result<(), Absent> {
    if !present() {
        return Err(Absent {
            what: "CUDA driver".into(),
            reason: "no library libcuda.so or libcuda.so.1 was found".into(),
        });
    }
    let missing: Vec<&str> = SYMBOLS
        .into_iter()
        .chain(STREAMS)
        .filter(|name| !has(name))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Absent {
        what: "CUDA driver".into(),
        reason: format!(
            "the library has no {}: it is older than 11.4",
            missing.join(", ")
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_that_is_called_is_asked_for() {
        let text = concat!(include_str!("calls.rs"), include_str!("reach.rs"));
        let called = |start: &str| -> Vec<String> {
            text.match_indices(start)
                .map(|(at, _)| {
                    let rest = &text[at + start.len()..];
                    let end = rest.find(['(', ')', ',', ';']).unwrap();
                    rest[..end].to_string()
                })
                .filter(|name| name.starts_with("cu") && name.as_bytes()[2].is_ascii_uppercase())
                .collect()
        };
        let mut calls = called("cu!(");
        calls.extend(called("sys::"));
        assert!(calls.len() > 40, "{calls:?}");
        let more = super::super::reach::OPTIONAL;
        for name in more {
            assert!(calls.iter().any(|c| c == name), "{name} is not called");
        }
        let optional = |n: &&String| {
            let n = n.as_str();
            [PARAMETERS, super::super::early::SYMBOL].contains(&n) || more.contains(&n)
        };
        for name in calls.iter().filter(|n| !optional(n)) {
            let known = SYMBOLS.contains(&name.as_str()) || STREAMS.contains(&name.as_str());
            assert!(known, "{name} is called, but not asked for");
        }
        for name in SYMBOLS.iter().chain(&STREAMS) {
            assert!(calls.iter().any(|c| c == name), "{name} is not called");
        }
    }

    #[test]
    fn absence_names_the_library() {
        match driver() {
            Ok(()) => assert!(has("cuInit")),
            Err(absent) => {
                assert!(absent.reason.contains("libcuda") || absent.reason.contains("has no"));
            }
        }
    }
}
