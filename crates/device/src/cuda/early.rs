//! Kernels that start before the one ahead of them has ended: when CUDA has that, and how it is asked for
//! (CUDA programming guide, "Programmatic Dependent Launch and Synchronization").
//!
//! Must not know: which kernels wait.

use cudarc::driver::sys;
use sys::CUlaunchAttributeID_enum as Id;

use crate::driver::{EarlyLaunch, Geometry};

/// From driver 11.8 on.
pub(super) const SYMBOL: &str = "cuLaunchKernelEx";
/// The first driver whose graphs keep the order of such launches (CUDA 12.3, "Edge Data" of graphs), in the form of
/// `cuDriverGetVersion`.
const DRIVER: i32 = 12_030;
/// The first architecture that has the kernel's wait (PTX ISA, `griddepcontrol`: sm_90), as major * 10 + minor.
pub(super) const ARCH: u32 = 90;

/// Whether a device of compute capability `major`.`minor` starts kernels early under a driver that has the symbol or not.
pub(super) fn state(driver: i32, present: bool, major: u32, minor: u32) -> EarlyLaunch {
    let off = |why| EarlyLaunch::Off(why);
    if major * 10 + minor < ARCH {
        return off(format!(
            "compute capability {major}.{minor}, from 9.0 on kernels can wait for the one ahead"
        ));
    }
    if !present {
        return off(format!("the driver's library has no {SYMBOL}"));
    }
    if driver < DRIVER {
        let (major, minor) = (driver / 1000, driver % 1000 / 10);
        return off(format!(
            "the driver is of CUDA {major}.{minor}, graphs take it from 12.3 on"
        ));
    }
    EarlyLaunch::On
}

/// Whether code of these versions (`CU_FUNC_ATTRIBUTE_PTX_VERSION`, `.._BINARY_VERSION`) has the wait: both, as code
/// written for an older architecture is translated without it.
pub(super) fn waits(ptx: u32, binary: u32) -> bool {
    ptx.min(binary) >= ARCH
}

/// Lets a launch start while the kernel ahead of it on the stream runs.
pub(super) fn attribute() -> sys::CUlaunchAttribute {
    sys::CUlaunchAttribute {
        id: Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        pad: [0; 4],
        value: sys::CUlaunchAttributeValue {
            programmaticStreamSerializationAllowed: 1,
        },
    }
}

/// A launch on a stream with one attribute, which must outlive the call.
pub(super) fn config(
    geometry: &Geometry,
    stream: sys::CUstream,
    attribute: &mut sys::CUlaunchAttribute,
) -> sys::CUlaunchConfig {
    let ([x, y, z], [tx, ty, tz]) = (geometry.grid, geometry.threads);
    sys::CUlaunchConfig {
        gridDimX: x,
        gridDimY: y,
        gridDimZ: z,
        blockDimX: tx,
        blockDimY: ty,
        blockDimZ: tz,
        sharedMemBytes: geometry.shared,
        hStream: stream,
        attrs: attribute,
        numAttrs: 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_the_reason() {
        assert_eq!(state(13_000, true, 9, 0), EarlyLaunch::On);
        assert_eq!(state(12_030, true, 12, 0), EarlyLaunch::On);
        let off = |driver, present, major, minor| state(driver, present, major, minor).to_string();
        assert_eq!(
            off(13_000, false, 9, 0),
            "off: the driver's library has no cuLaunchKernelEx"
        );
        assert_eq!(
            off(13_000, true, 8, 6),
            "off: compute capability 8.6, from 9.0 on kernels can wait for the one ahead"
        );
        assert_eq!(
            off(12_020, true, 9, 0),
            "off: the driver is of CUDA 12.2, graphs take it from 12.3 on"
        );
    }

    #[test]
    fn code_of_an_older_architecture_does_not_wait() {
        assert!(waits(90, 90) && waits(100, 120));
        assert!(!waits(80, 90), "translated by the driver");
        assert!(!waits(86, 86) && !waits(0, 90));
    }

    #[test]
    fn the_launch_says_what_it_was_given() {
        let geometry = Geometry {
            grid: [7, 5, 3],
            threads: [64, 2, 1],
            shared: 1000,
        };
        let mut attribute = attribute();
        let stream = std::ptr::without_provenance_mut(0x40);
        let at: *mut sys::CUlaunchAttribute = &raw mut attribute;
        let c = config(&geometry, stream, &mut attribute);
        assert_eq!([c.gridDimX, c.gridDimY, c.gridDimZ], [7, 5, 3]);
        assert_eq!([c.blockDimX, c.blockDimY, c.blockDimZ], [64, 2, 1]);
        assert_eq!((c.sharedMemBytes, c.hStream), (1000, stream));
        assert_eq!((c.attrs, c.numAttrs), (at, 1));
        // 6 in cuda.h.
        assert_eq!(attribute.id as u32, 6);
        // SAFETY: the field that was written.
        let allowed = unsafe { attribute.value.programmaticStreamSerializationAllowed };
        assert_eq!(allowed, 1);
    }
}
