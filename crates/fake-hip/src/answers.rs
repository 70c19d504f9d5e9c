//! What the fake devices say of themselves: an RDNA3.5 processor with shared memory.
//!
//! Numbers of attributes are those of `hipDeviceAttribute_t` (HIP 6.3): their positions in the header.

/// Exact architecture.
pub(crate) const ARCH: &str = "gfx1151";
/// Marketing name.
pub(crate) const NAME: &str = "Fake Radeon 8060S";
/// Version as `hipRuntimeGetVersion` gives it: 6.3.
pub(crate) const VERSION: i32 = 60_342_134;
/// Place of `gcnArchName` in `hipDeviceProp_tR0600`, and the structure's size.
pub(crate) const ARCH_AT: usize = 1160;
pub(crate) const PROPERTIES: usize = 1472;

/// An attribute, if it is one that is asked for.
pub(crate) const fn attribute(what: i32) -> Option<i32> {
    Some(match what {
        16 | 24 => 1,      // integrated, managed memory
        26 | 27 => 1024,   // block x, y
        28 => 64,          // block z
        29 => i32::MAX,    // grid x
        30 | 31 => 65_535, // grid y, z
        56 => 1024,        // threads of a block
        63 => 40,          // compute units
        74 => 64 << 10,    // shared memory of a block
        87 => 32,          // lanes
        _ => return None,
    })
}

/// A function's attribute: threads, shared, local, registers.
pub(crate) const fn function_attribute(what: i32) -> Option<i32> {
    Some(match what {
        0 => 1024,
        1 | 3 => 0,
        4 => 32,
        _ => return None,
    })
}

/// The name of a code.
pub(crate) const fn error_name(code: i32) -> &'static std::ffi::CStr {
    match code {
        0 => c"hipSuccess",
        1 => c"hipErrorInvalidValue",
        2 => c"hipErrorOutOfMemory",
        3 => c"hipErrorNotInitialized",
        17 => c"hipErrorInvalidDevicePointer",
        21 => c"hipErrorInvalidMemcpyDirection",
        98 => c"hipErrorInvalidDeviceFunction",
        101 => c"hipErrorInvalidDevice",
        200 => c"hipErrorInvalidImage",
        201 => c"hipErrorInvalidContext",
        217 => c"hipErrorPeerAccessUnsupported",
        400 => c"hipErrorInvalidHandle",
        500 => c"hipErrorNotFound",
        600 => c"hipErrorNotReady",
        700 => c"hipErrorIllegalAddress",
        704 => c"hipErrorPeerAccessAlreadyEnabled",
        705 => c"hipErrorPeerAccessNotEnabled",
        712 => c"hipErrorHostMemoryAlreadyRegistered",
        713 => c"hipErrorHostMemoryNotRegistered",
        719 => c"hipErrorLaunchFailure",
        801 => c"hipErrorNotSupported",
        _ => c"hipErrorUnknown",
    }
}
