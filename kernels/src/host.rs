//! Executes launches on the CPU: the kernels' host build under the SIMT executor of `kernels/host`.
//!
//! All of the crate's unsafe code that concerns the executor stands in `ffi`. A launch owns the
//! memory its kernels see, with a poisoned zone around every buffer: writes outside are reported,
//! reads outside yield NaN.

use crate::KernelError;
use crate::launch::{Arg, Call};

/// Bytes of the zone on each side of a buffer; also its alignment, as the drivers give it.
const ZONE: usize = 256;
/// What zones and fresh outputs hold: f32 NaN, int -1.
const POISON: u8 = 0xff;

/// A matrix unit's fragment shape, as `gpu/fs_tile.h` emulates it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// mma.sync m16n8k32.
    Nvidia,
    /// WMMA of gfx11.
    Gfx11,
    /// WMMA of gfx12.
    Gfx12,
}

impl Shape {
    /// All of them.
    pub const ALL: &[Self] = &[Self::Nvidia, Self::Gfx11, Self::Gfx12];

    fn suffix(self) -> &'static str {
        match self {
            Self::Nvidia => "",
            Self::Gfx11 => "@gfx11",
            Self::Gfx12 => "@gfx12",
        }
    }

    /// Columns of one step.
    #[must_use]
    pub fn width(self) -> usize {
        if self == Self::Nvidia { 8 } else { 16 }
    }
}

/// A buffer of a [`Host`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferId(usize);

#[derive(Debug)]
struct Memory {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Memory {
    fn zones_hold(&self) -> bool {
        let (before, rest) = self.bytes.split_at(self.start);
        before.iter().chain(&rest[self.len..]).all(|b| *b == POISON)
    }
}

/// The executor with its memory.
#[derive(Debug)]
pub struct Host {
    memory: Vec<Memory>,
    /// Order of blocks, warps and lanes: 0 ascending, 1 descending, else shuffled.
    pub seed: u64,
    /// The matrix unit emulated.
    pub shape: Shape,
}

impl Host {
    /// An executor without buffers.
    #[must_use]
    pub fn new(seed: u64, shape: Shape) -> Self {
        Self {
            memory: Vec::new(),
            seed,
            shape,
        }
    }

    /// A buffer of `len` poisoned bytes that starts `skew` bytes past an aligned address.
    pub fn poisoned(&mut self, len: usize, skew: usize) -> BufferId {
        let bytes = vec![POISON; len + skew + 3 * ZONE];
        let address = bytes.as_ptr().addr() + ZONE;
        let start = address.next_multiple_of(ZONE) - bytes.as_ptr().addr() + skew;
        self.memory.push(Memory { bytes, start, len });
        BufferId(self.memory.len() - 1)
    }

    /// A buffer that holds `data`.
    pub fn load(&mut self, data: &[u8], skew: usize) -> BufferId {
        let id = self.poisoned(data.len(), skew);
        self.bytes_mut(id).copy_from_slice(data);
        id
    }

    /// The bytes of a buffer.
    #[must_use]
    pub fn bytes(&self, id: BufferId) -> &[u8] {
        let m = &self.memory[id.0];
        &m.bytes[m.start..m.start + m.len]
    }

    /// Frees all buffers; their ids are void.
    pub fn clear(&mut self) {
        self.memory.clear();
    }

    fn bytes_mut(&mut self, id: BufferId) -> &mut [u8] {
        let m = &mut self.memory[id.0];
        &mut m.bytes[m.start..m.start + m.len]
    }

    /// Runs a launch on buffers given in the order of its arguments.
    ///
    /// # Errors
    /// `Buffers`, `Bytes`; `Runtime` with the executor's report (divergence, undefined behaviour,
    /// unknown kernel); `OutOfBounds`.
    pub fn launch(&mut self, call: &Call, buffers: &[BufferId]) -> Result<(), KernelError> {
        let lengths = buffers.iter().map(|b| self.memory[b.0].len as u64);
        call.check(lengths)?;
        let mut next = buffers.iter();
        let mut values = Vec::with_capacity(call.args().len());
        for arg in call.args() {
            values.push(match arg {
                // A kernel gets the same address whether it reads or writes, as on a device.
                Arg::Read(_) | Arg::Write(_) => match next.next() {
                    Some(id) => Value::Address(self.bytes_mut(*id).as_mut_ptr()),
                    None => Value::Address(std::ptr::null_mut()),
                },
                Arg::Null => Value::Address(std::ptr::null_mut()),
                Arg::I32(v) => Value::Word(v.cast_unsigned()),
                Arg::U32(v) => Value::Word(*v),
                Arg::F32(v) => Value::Word(v.to_bits()),
            });
        }
        let suffix = if call.matrix { self.shape.suffix() } else { "" };
        let name = format!("{}{suffix}", call.kernel);
        // SAFETY: the kernel reads and writes within the byte counts of `call`, which `Call::check` compared with
        // the buffers that the addresses point to; they are this executor's, which is borrowed for writing.
        unsafe {
            launch_raw(
                &name,
                call.grid,
                call.threads,
                call.shared,
                &mut values,
                self.seed,
            )
        }
        .map_err(|message| KernelError::Runtime {
            runtime: "host executor",
            message,
        })?;
        match buffers.iter().position(|b| !self.memory[b.0].zones_hold()) {
            Some(index) => Err(KernelError::OutOfBounds {
                kernel: call.kernel,
                index,
            }),
            None => Ok(()),
        }
    }
}

/// Names of the kernels that were built in, sorted.
#[must_use]
pub fn kernels() -> Vec<String> {
    let mut names: Vec<String> = (0..).map_while(ffi::name).collect();
    names.sort();
    names
}

pub(crate) use ffi::{Value, launch as launch_raw, sizes};

/// The C interface of `kernels/host/exec.h`.
mod ffi {
    use std::ffi::{CStr, CString, c_char, c_int, c_void};

    /// An argument with an address of its own.
    pub(crate) enum Value {
        Address(*mut u8),
        Word(u32),
    }

    #[repr(C)]
    struct Launch {
        kernel: *const c_char,
        grid: [u32; 3],
        threads: u32,
        shared_bytes: u32,
        args: u32,
        values: *mut *mut c_void,
        sizes: *const u32,
        seed: u64,
    }

    unsafe extern "C" {
        fn fs_host_launch(launch: *const Launch, message: *mut c_char, room: usize) -> c_int;
        fn fs_host_kernel_name(index: u32) -> *const c_char;
        fn fs_host_kernel_sizes(kernel: *const c_char, sizes: *mut u32) -> c_int;
    }

    /// Sizes of a kernel's arguments.
    pub(crate) fn sizes(kernel: &str) -> Option<Vec<u32>> {
        let name = CString::new(kernel).ok()?;
        let mut sizes = [0u32; crate::launch::MAX_ARGS];
        // SAFETY: a zero-terminated name and room for the most arguments a kernel takes (16).
        let found = unsafe { fs_host_kernel_sizes(name.as_ptr(), sizes.as_mut_ptr()) };
        Some(sizes[..usize::try_from(found).ok()?].to_vec())
    }

    /// Runs a launch on the calling thread.
    ///
    /// # Safety
    /// Every address in `values` is valid for the bytes that the kernel reads and writes there, and nobody else
    /// touches those bytes during the call.
    ///
    /// # Errors
    /// The executor's report.
    pub(crate) unsafe fn launch(
        name: &str,
        grid: [u32; 3],
        threads: u32,
        shared: u32,
        values: &mut [Value],
        seed: u64,
    ) -> Result<(), String> {
        let name = CString::new(name).map_err(|e| e.to_string())?;
        let sizes: Vec<u32> = values
            .iter()
            .map(|v| match v {
                Value::Address(_) => size_of::<*mut u8>() as u32,
                Value::Word(_) => 4,
            })
            .collect();
        let mut addresses: Vec<*mut c_void> = values
            .iter_mut()
            .map(|v| match v {
                Value::Address(a) => (&raw mut *a).cast(),
                Value::Word(w) => (&raw mut *w).cast(),
            })
            .collect();
        let launch = Launch {
            kernel: name.as_ptr(),
            grid,
            threads,
            shared_bytes: shared,
            args: addresses.len() as u32,
            values: addresses.as_mut_ptr(),
            sizes: sizes.as_ptr(),
            seed,
        };
        let mut message = [0u8; 640];
        // SAFETY: every pointer in `launch` lives until the call returns and the message buffer has
        // the stated size. The executor refuses unknown names and arguments whose number or sizes
        // differ from the kernel's. What the kernel touches is the caller's promise.
        let rc = unsafe {
            fs_host_launch(
                &raw const launch,
                message.as_mut_ptr().cast(),
                message.len(),
            )
        };
        if rc == 0 {
            return Ok(());
        }
        let text = CStr::from_bytes_until_nul(&message).unwrap_or_default();
        Err(text.to_string_lossy().into_owned())
    }

    pub(super) fn name(index: u32) -> Option<String> {
        // SAFETY: takes a number, returns null or a string constant of the kernel table.
        let name = unsafe { fs_host_kernel_name(index) };
        if name.is_null() {
            return None;
        }
        // SAFETY: not null, so a zero-terminated constant.
        let name = unsafe { CStr::from_ptr(name) };
        Some(name.to_string_lossy().into_owned())
    }
}
