//! The functions we call, with their types, and how they are looked up.
//!
//! Types are those of `hip_runtime_api.h` and `hiprtc.h` (see `abi` for the version). Handles are
//! pointers to structures that only the library knows.

use std::ffi::{c_char, c_void};

use libloading::os::unix::Library;

use crate::fault::Absent;

pub(super) type Handle = *mut c_void;

/// A table of functions, filled from a library.
macro_rules! table {
    ($(#[$doc:meta])* $table:ident { $( $name:ident($($arg:ty),*) -> $out:ty; )* }) => {
        $(#[$doc])*
        #[allow(non_snake_case)] // the vendor's names
        #[derive(Clone, Copy, Debug)]
        pub(super) struct $table {
            $( pub(super) $name: unsafe extern "C" fn($($arg),*) -> $out, )*
        }

        impl $table {
            /// All functions, or the names that are missing.
            #[allow(non_snake_case)] // the vendor's names
            pub(super) fn load(library: &Library, what: &str, file: &str) -> Result<Self, Absent> {
                let mut missing = Vec::new();
                $(
                    // SAFETY: the type is the vendor's declaration of that name.
                    let $name = unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) };
                    if $name.is_err() {
                        missing.push(stringify!($name));
                    }
                )*
                let absent = || Absent {
                    what: what.into(),
                    reason: format!("{file} has no {}", missing.join(", ")),
                };
                Ok(Self {
                    $( $name: *$name.map_err(|_| absent())?, )*
                })
            }
        }
    };
}

table! {
    /// The HIP runtime.
    HipTable {
        hipInit(u32) -> i32;
        hipRuntimeGetVersion(*mut i32) -> i32;
        hipDriverGetVersion(*mut i32) -> i32;
        hipGetDeviceCount(*mut i32) -> i32;
        hipSetDevice(i32) -> i32;
        hipDeviceGetName(*mut c_char, i32, i32) -> i32;
        hipDeviceGetAttribute(*mut i32, i32, i32) -> i32;
        hipDeviceTotalMem(*mut usize, i32) -> i32;
        hipGetErrorName(i32) -> *const c_char;
        hipMemGetInfo(*mut usize, *mut usize) -> i32;
        hipMalloc(*mut Handle, usize) -> i32;
        hipMallocManaged(*mut Handle, usize, u32) -> i32;
        hipHostMalloc(*mut Handle, usize, u32) -> i32;
        hipFree(Handle) -> i32;
        hipHostFree(Handle) -> i32;
        hipMemcpyAsync(Handle, *const c_void, usize, i32, Handle) -> i32;
        hipMemsetAsync(Handle, i32, usize, Handle) -> i32;
        hipStreamCreateWithFlags(*mut Handle, u32) -> i32;
        hipStreamDestroy(Handle) -> i32;
        hipStreamSynchronize(Handle) -> i32;
        hipStreamWaitEvent(Handle, Handle, u32) -> i32;
        hipEventCreateWithFlags(*mut Handle, u32) -> i32;
        hipEventDestroy(Handle) -> i32;
        hipEventRecord(Handle, Handle) -> i32;
        hipEventQuery(Handle) -> i32;
        hipEventSynchronize(Handle) -> i32;
        hipEventElapsedTime(*mut f32, Handle, Handle) -> i32;
        hipModuleLoadData(*mut Handle, *const c_void) -> i32;
        hipModuleUnload(Handle) -> i32;
        hipModuleGetFunction(*mut Handle, Handle, *const c_char) -> i32;
        hipFuncGetAttribute(*mut i32, i32, Handle) -> i32;
        hipModuleLaunchKernel(Handle, u32, u32, u32, u32, u32, u32, u32, Handle, *mut *mut c_void, *mut *mut c_void) -> i32;
        hipStreamBeginCapture(Handle, i32) -> i32;
        hipStreamEndCapture(Handle, *mut Handle) -> i32;
        hipGraphInstantiate(*mut Handle, Handle, *mut Handle, *mut c_char, usize) -> i32;
        hipGraphDestroy(Handle) -> i32;
        hipGraphLaunch(Handle, Handle) -> i32;
        hipGraphExecDestroy(Handle) -> i32;
    }
}

table! {
    /// hipRTC.
    RtcTable {
        hiprtcVersion(*mut i32, *mut i32) -> i32;
        hiprtcCreateProgram(*mut Handle, *const c_char, *const c_char, i32, *const *const c_char, *const *const c_char) -> i32;
        hiprtcCompileProgram(Handle, i32, *const *const c_char) -> i32;
        hiprtcDestroyProgram(*mut Handle) -> i32;
        hiprtcGetProgramLogSize(Handle, *mut usize) -> i32;
        hiprtcGetProgramLog(Handle, *mut c_char) -> i32;
        hiprtcGetCodeSize(Handle, *mut usize) -> i32;
        hiprtcGetCode(Handle, *mut c_char) -> i32;
    }
}

/// Fills a structure of device properties.
pub(super) type Properties = unsafe extern "C" fn(*mut c_void, i32) -> i32;

/// A function that only some versions have.
pub(super) fn properties(library: &Library, name: &str) -> Option<Properties> {
    // SAFETY: both versions have this type; they differ in the structure that is filled.
    let found = unsafe { library.get::<Properties>(name.as_bytes()) };
    found.ok().map(|f| *f)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hip::search;

    #[test]
    fn missing_functions_are_named() {
        let (libc, _) = search::find("C", None, &["libc.so.6"]).unwrap();
        let absent = HipTable::load(&libc, "HIP runtime", "libc.so.6").unwrap_err();
        let said = absent.to_string();
        assert!(
            said.starts_with("HIP runtime: libc.so.6 has no hipInit, "),
            "{said}"
        );
        assert!(said.ends_with("hipGraphExecDestroy"), "{said}");
        assert!(RtcTable::load(&libc, "hipRTC", "libc.so.6").is_err());
        assert!(properties(&libc, "hipGetDevicePropertiesR0600").is_none());
    }
}
