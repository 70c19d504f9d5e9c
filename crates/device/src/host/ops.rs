//! Operations on host memory, and the unsafe code that performs them.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::driver::{Geometry, HostModule, Raw, RawArg};

/// An event: which record it waits for, and which has fired.
#[derive(Debug, Default)]
pub(super) struct Gate {
    pub(super) requested: AtomicU64,
    pub(super) fired: AtomicU64,
    /// Time of the last firing, in nanoseconds or ticks.
    pub(super) at: AtomicU64,
}

impl Gate {
    pub(super) fn done(&self) -> bool {
        self.fired.load(Ordering::Acquire) >= self.requested.load(Ordering::Acquire)
    }
}

/// One operation of a stream.
#[derive(Clone)]
pub(super) enum Op {
    Copy {
        to: Raw,
        from: Raw,
        bytes: u64,
    },
    Fill {
        to: Raw,
        byte: u8,
        bytes: u64,
    },
    Launch {
        module: Arc<dyn HostModule>,
        kernel: Arc<str>,
        geometry: Geometry,
        args: Vec<RawArg>,
    },
    Record(Arc<Gate>, u64),
    Wait(Arc<Gate>, u64),
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Copy { to, from, bytes } => write!(f, "copy {bytes} {from:#x} -> {to:#x}"),
            Self::Fill { to, bytes, .. } => write!(f, "fill {bytes} {to:#x}"),
            Self::Launch { kernel, .. } => write!(f, "launch {kernel}"),
            Self::Record(..) => f.write_str("record"),
            Self::Wait(..) => f.write_str("wait"),
        }
    }
}

impl Op {
    /// Address ranges it touches.
    pub(super) fn ranges(&self) -> Vec<(Raw, u64)> {
        match self {
            Self::Copy { to, from, bytes } => vec![(*from, *bytes), (*to, *bytes)],
            Self::Fill { to, bytes, .. } => vec![(*to, *bytes)],
            Self::Launch { args, .. } => args
                .iter()
                .filter_map(|arg| match arg {
                    RawArg::Address(address, bytes) if *address != 0 => Some((*address, *bytes)),
                    _ => None,
                })
                .collect(),
            Self::Record(..) | Self::Wait(..) => Vec::new(),
        }
    }
}

/// Performs an operation whose ranges were found to be live. Only one operation of a machine runs at
/// a time. `Err` is a kernel's own report.
pub(super) fn run(op: &Op) -> Result<(), String> {
    match op {
        Op::Copy { to, from, bytes } => {
            let source = std::ptr::with_exposed_provenance::<u8>(*from as usize);
            let destination = std::ptr::with_exposed_provenance_mut::<u8>(*to as usize);
            // SAFETY: both ranges are live blocks of host memory; the device's owners keep the host
            // away from them until the operation is done, and no other operation runs.
            unsafe { std::ptr::copy(source, destination, *bytes as usize) };
            Ok(())
        }
        Op::Fill { to, byte, bytes } => {
            let destination = std::ptr::with_exposed_provenance_mut::<u8>(*to as usize);
            // SAFETY: as above.
            unsafe { std::ptr::write_bytes(destination, *byte, *bytes as usize) };
            Ok(())
        }
        Op::Launch {
            module,
            kernel,
            geometry,
            args,
        } => {
            let call = || {
                // SAFETY: the ranges are live and nobody else's; the arguments were compared with the
                // signature that the maker of the kernel vouched for.
                unsafe { module.launch(kernel, geometry, args) }
            };
            catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| Err("panicked".into()))
        }
        Op::Record(..) | Op::Wait(..) => Ok(()),
    }
}
