//! Numbers of the HIP interface.
//!
//! Source of all of them: `include/hip/hip_runtime_api.h` and `hip_deprecated.h` of github.com/ROCm/HIP
//! at c5e11fcac (HIP 6.3), values printed by a C program that includes these headers for x86-64.
//! Enumerators of `hipDeviceAttribute_t` have no written values there: these are their positions,
//! which that header has kept since the attributes were sorted (HIP 4.3; stated by its comments, not
//! tried on older ones).

/// `hipError_t`.
pub(super) const SUCCESS: i32 = 0;
/// `hipErrorOutOfMemory`.
pub(super) const OUT_OF_MEMORY: i64 = 2;
/// `hipErrorNotReady`.
pub(super) const NOT_READY: i64 = 600;
/// Codes after which the device is gone: `hipErrorDeinitialized`, `hipErrorECCNotCorrectable`,
/// `hipErrorIllegalAddress`, `hipErrorLaunchTimeOut`, `hipErrorContextIsDestroyed`, `hipErrorAssert`,
/// `hipErrorLaunchFailure`.
pub(super) const LOST: [i64; 7] = [4, 214, 700, 702, 709, 710, 719];

/// `hipMemcpyKind`.
pub(super) const HOST_TO_DEVICE: i32 = 1;
pub(super) const DEVICE_TO_HOST: i32 = 2;
/// `hipMemcpyDefault`: the runtime looks where both addresses lie.
pub(super) const COPY_DEFAULT: i32 = 4;

/// `hipStreamNonBlocking`.
pub(super) const NON_BLOCKING: u32 = 1;
/// `hipEventDisableTiming`.
pub(super) const NO_CLOCK: u32 = 2;
/// `hipHostMallocPortable`.
pub(super) const PORTABLE: u32 = 1;
/// `hipHostRegisterPortable`.
pub(super) const REGISTER_PORTABLE: u32 = 1;
/// `hipIpcMemLazyEnablePeerAccess`.
pub(super) const LAZY_PEERS: u32 = 1;
/// `hipMemAttachGlobal`.
pub(super) const ATTACH_GLOBAL: u32 = 1;
/// `hipStreamCaptureModeRelaxed`.
pub(super) const CAPTURE_RELAXED: i32 = 2;

/// `hipDeviceAttribute_t`.
pub(super) mod attribute {
    pub(in crate::hip) const INTEGRATED: i32 = 16;
    pub(in crate::hip) const MANAGED_MEMORY: i32 = 24;
    pub(in crate::hip) const MAX_BLOCK: [i32; 3] = [26, 27, 28];
    pub(in crate::hip) const MAX_GRID: [i32; 3] = [29, 30, 31];
    pub(in crate::hip) const MAX_THREADS_PER_BLOCK: i32 = 56;
    pub(in crate::hip) const MULTIPROCESSORS: i32 = 63;
    pub(in crate::hip) const MAX_SHARED_PER_BLOCK: i32 = 74;
    pub(in crate::hip) const WARP_SIZE: i32 = 87;
    pub(in crate::hip) const HOST_REGISTER: i32 = 90;
}

/// `hipFunction_attribute`.
pub(super) mod function {
    pub(in crate::hip) const MAX_THREADS: i32 = 0;
    pub(in crate::hip) const SHARED: i32 = 1;
    pub(in crate::hip) const LOCAL: i32 = 3;
    pub(in crate::hip) const REGISTERS: i32 = 4;
}

/// Place of `gcnArchName` (256 characters) in `hipDeviceProp_tR0600`, 1472 bytes: what
/// `hipGetDevicePropertiesR0600` fills (HIP 6.0 and newer).
pub(super) const ARCH_R0600: usize = 1160;
/// The same in `hipDeviceProp_tR0000`, 792 bytes: what `hipGetDeviceProperties` filled before.
pub(super) const ARCH_R0000: usize = 396;
/// Room for either, and for what a later version may append.
pub(super) const PROPERTIES: usize = 8192;

/// Blocks times threads along an axis must stay below 2^32 (`hipModuleLaunchKernel`, "total work items").
pub(super) const MAX_ITEMS: u64 = u32::MAX as u64;
