//! The crate's errors: a fault of an opened device, and the absence of a runtime.

use std::fmt;

use serde::Serialize;

use crate::ability::Lack;
use crate::driver::{Class, DriverError, Kind, Place};

/// A device by name: `cuda:0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct DeviceId {
    /// Its runtime.
    pub kind: Kind,
    /// Its number there.
    pub ordinal: u32,
    /// Which opened instance of the runtime; two may live in one process.
    #[serde(skip)]
    pub instance: u64,
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.ordinal)
    }
}

/// Why a runtime cannot be used here. A value, not a failure: the engine goes on without it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize)]
#[error("{what}: {reason}")]
pub struct Absent {
    /// What is missing: a library, a symbol, a device.
    pub what: String,
    /// Why, with the names that were tried.
    pub reason: String,
}

/// An error with the errors behind it: a loader's own words are in the second.
pub(crate) fn words(error: &dyn std::error::Error) -> String {
    let mut all = error.to_string();
    let mut behind = error.source();
    while let Some(error) = behind {
        all = format!("{all}: {error}");
        behind = error.source();
    }
    all
}

/// What went wrong on a device. Names the device, the call or the size, and both values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A call of the runtime failed.
    #[error("{device}: {call}: {name} ({code})")]
    Call {
        /// The device.
        device: DeviceId,
        /// The runtime's function.
        call: &'static str,
        /// Its code.
        code: i64,
        /// The code's name.
        name: String,
    },
    /// The device does not answer any more; every later call says the same.
    #[error("{device} is lost: {call}: {name} ({code})")]
    Lost {
        /// The device.
        device: DeviceId,
        /// The call that noticed.
        call: &'static str,
        /// Its code.
        code: i64,
        /// The code's name.
        name: String,
    },
    /// Not enough memory.
    #[error("{device}: {bytes} bytes of {place:?} memory wanted, {free} of {total} free")]
    OutOfMemory {
        /// The device.
        device: DeviceId,
        /// Where.
        place: Place,
        /// Bytes wanted.
        bytes: u64,
        /// Bytes of device memory free.
        free: u64,
        /// Bytes of device memory in all.
        total: u64,
    },
    /// A handle of another device.
    #[error("{what} belongs to {got}, this is {expected}")]
    WrongDevice {
        /// The handle.
        what: &'static str,
        /// The device that was called.
        expected: DeviceId,
        /// The device the handle is of.
        got: DeviceId,
    },
    /// A range outside of its buffer, or two sizes that must be equal.
    #[error("{what}: bytes {start}..{end} of {len}")]
    Range {
        /// Of what.
        what: &'static str,
        /// First byte.
        start: u64,
        /// One past the last byte.
        end: u64,
        /// Bytes there are.
        len: u64,
    },
    /// A launch no device takes.
    #[error("{kernel}: {what}: expected {expected}, got {got}")]
    Launch {
        /// The kernel.
        kernel: String,
        /// Which size.
        what: &'static str,
        /// What is taken.
        expected: String,
        /// What was asked.
        got: u64,
    },
    /// An argument the kernel does not take.
    #[error("{kernel}: argument {index}: expected {expected}, got {got}")]
    Argument {
        /// The kernel.
        kernel: String,
        /// Which, from 0.
        index: usize,
        /// What it takes.
        expected: String,
        /// What was given.
        got: String,
    },
    /// An image in a form the device does not take.
    #[error("{device} does not take an image as {got}")]
    Form {
        /// The device.
        device: DeviceId,
        /// The form given.
        got: &'static str,
    },
    /// A source that the compiler refused.
    #[error("{device}: compiling {source_name} for {arch}: {log}")]
    Compile {
        /// The device.
        device: DeviceId,
        /// The source.
        source_name: String,
        /// The architecture.
        arch: String,
        /// The compiler's words.
        log: String,
    },
    /// Not possible while a stream is being captured.
    #[error("{device}: {what} is not possible while its stream is captured")]
    Capturing {
        /// The device.
        device: DeviceId,
        /// What was asked.
        what: &'static str,
    },
    /// The device is held still.
    #[error("{device} is quiesced: nothing may be submitted")]
    Quiesced {
        /// The device.
        device: DeviceId,
    },
    /// Something else still holds it.
    #[error("{what} is still held {holders} times; retire graphs and drop views first")]
    StillUsed {
        /// What.
        what: &'static str,
        /// How often, the caller not counted.
        holders: usize,
    },
    /// The host has no address for this memory.
    #[error("{place:?} memory cannot be read by the host")]
    NotHost {
        /// Where it lies.
        place: Place,
    },
    /// The wait took too long; the work goes on.
    #[error("{device}: not done within {millis} ms")]
    Deadline {
        /// The device.
        device: DeviceId,
        /// The limit.
        millis: u64,
    },
    /// The runtime has no such device.
    #[error("{kind}:{got}: there are {count} devices")]
    NoDevice {
        /// The runtime.
        kind: Kind,
        /// The number asked for.
        got: u32,
        /// How many there are.
        count: u32,
    },
    /// Not every device can that.
    #[error("{device} cannot {what}: {why}")]
    Unable {
        /// The device.
        device: DeviceId,
        /// What was asked.
        what: &'static str,
        /// Why not.
        why: Lack,
    },
    /// Bytes that one device sent another arrived as others.
    #[error("{from} to {to}: byte {at}: expected {expected:#04x}, got {got:#04x}")]
    Mangled {
        /// The device they left.
        from: DeviceId,
        /// The device they reached.
        to: DeviceId,
        /// The first that differs.
        at: u64,
        /// What was sent.
        expected: u8,
        /// What arrived.
        got: u8,
    },
    /// Every slot of a staging ring was given up after failures.
    #[error("{device}: no staging slot is left of {slots}")]
    NoSlot {
        /// The device.
        device: DeviceId,
        /// How many there were.
        slots: usize,
    },
}

impl Fault {
    /// The device it is of, where it is of one.
    #[must_use]
    pub const fn device(&self) -> Option<DeviceId> {
        match self {
            Self::Call { device, .. }
            | Self::Lost { device, .. }
            | Self::OutOfMemory { device, .. }
            | Self::Form { device, .. }
            | Self::Compile { device, .. }
            | Self::Capturing { device, .. }
            | Self::Quiesced { device }
            | Self::Deadline { device, .. }
            | Self::Unable { device, .. }
            | Self::NoSlot { device, .. } => Some(*device),
            _ => None,
        }
    }

    /// A driver's error on a device.
    pub(crate) fn of(device: DeviceId, e: DriverError) -> Self {
        let DriverError {
            call, code, name, ..
        } = e;
        match e.class {
            Class::Lost => Self::Lost {
                device,
                call,
                code,
                name,
            },
            Class::Call | Class::Memory => Self::Call {
                device,
                call,
                code,
                name,
            },
        }
    }
}
