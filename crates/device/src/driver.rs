//! The seam below the vocabulary: what a runtime can do, as calls on plain handles.
//!
//! A backend implements [`Driver`] and nothing else; ownership, ordering and checks are above it
//! and the same for all. Must not know: who owns what.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::ability::Ability;

/// A handle or an address of a runtime.
pub type Raw = u64;

/// Result of a driver call.
pub type DriverResult<T> = Result<T, DriverError>;

/// Which runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The host's memory and one worker.
    Cpu,
    /// NVIDIA.
    Cuda,
    /// AMD.
    Hip,
    /// The hostile imitation for tests.
    Fake,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Hip => "hip",
            Self::Fake => "fake",
        })
    }
}

impl Kind {
    /// The vendor's runtime and the number that a name like `cuda:1` says; `None` for any other name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<(Self, u32)> {
        let (kind, digits) = name.split_once(':')?;
        let mut known = [Self::Cuda, Self::Hip].into_iter();
        let kind = known.find(|k| k.to_string() == kind)?;
        let plain = digits.bytes().all(|b| b.is_ascii_digit());
        let number = digits.parse().ok().filter(|_| plain)?;
        Some((kind, number))
    }
}

/// What an error means for whoever called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// This call failed; the device goes on.
    Call,
    /// There is not enough memory.
    Memory,
    /// The device is lost: every later call fails as well.
    Lost,
}

/// A failed call, in the runtime's own words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverError {
    /// The function that failed, as the vendor spells it.
    pub call: &'static str,
    /// Its code.
    pub code: i64,
    /// The code's name, or more words.
    pub name: String,
    /// What it means.
    pub class: Class,
}

/// Where a buffer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// The device's memory; the host has no address for it.
    Device,
    /// Host memory that the device copies from and to without a detour.
    Pinned,
    /// One address for host and device (managed memory; on a machine with shared memory the only copy).
    Unified,
}

/// What a launch may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Limits {
    /// Threads of a block.
    pub threads: u32,
    /// Threads of a block along each axis.
    pub threads_axis: [u32; 3],
    /// Blocks of a grid along each axis.
    pub grid: [u32; 3],
    /// Bytes of shared memory a block can be given.
    pub shared: u32,
    /// Blocks times threads along one axis. HIP refuses 2^32 and more (`hipModuleLaunchKernel` in
    /// `hip_runtime_api.h`); CUDA has no such limit.
    pub items_axis: u64,
}

/// Whether kernels may start before the one ahead of them on the stream has ended ([`Driver::launch_early`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EarlyLaunch {
    /// They may.
    On,
    /// They may not, and why.
    Off(String),
}

impl fmt::Display for EarlyLaunch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::On => f.write_str("on"),
            Self::Off(why) => write!(f, "off: {why}"),
        }
    }
}

/// What is known of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Facts {
    /// Marketing name.
    pub name: String,
    /// Exact architecture: `sm_90`, `gfx1151`, `host`.
    pub arch: String,
    /// Bytes of memory.
    pub memory: u64,
    /// Multiprocessors or compute units.
    pub processors: u32,
    /// Lanes of a warp.
    pub lanes: u32,
    /// Whether device and host share their memory.
    pub integrated: bool,
    /// Whether [`Place::Unified`] exists.
    pub unified: bool,
    /// Limits of a launch.
    pub limits: Limits,
    /// Whether it starts kernels early.
    pub early_launch: EarlyLaunch,
    /// Whether it can pin memory of the host that somebody else owns.
    pub register: Ability,
    /// Whether its memory can be opened by other processes.
    pub share: Ability,
}

/// Free and total bytes of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Free now.
    pub free: u64,
    /// In all.
    pub total: u64,
}

/// Blocks and threads of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Blocks along x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y, z.
    pub threads: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
}

/// A kernel argument as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawArg {
    /// An address, and how many bytes from it the kernel may touch.
    Address(Raw, u64),
    /// 32 bits.
    Word(u32),
    /// 64 bits.
    Long(u64),
}

impl RawArg {
    /// Bytes the argument takes in a kernel's parameter list.
    #[must_use]
    pub fn size(self) -> u32 {
        match self {
            Self::Address(..) | Self::Long(_) => 8,
            Self::Word(_) => 4,
        }
    }
}

/// Kernels as functions of this process: the image of the CPU and of the fake device.
///
/// Whoever owns kernels built for the host implements this; the device layer learns no names from it.
pub trait HostModule: fmt::Debug + Send + Sync {
    /// Whether it holds that kernel.
    fn has(&self, kernel: &str) -> bool;

    /// Sizes of the kernel's arguments in bytes, in order, if it can tell.
    fn argument_sizes(&self, kernel: &str) -> Option<Vec<u32>> {
        let _ = kernel;
        None
    }

    /// Runs a launch to its end on the calling thread.
    ///
    /// # Safety
    /// Every address in `args` is valid for reads and writes of its byte count, nobody else touches
    /// those bytes during the call, and `args` are what the kernel takes.
    ///
    /// # Errors
    /// Its own words; the device is lost then, as after a fault in a GPU's kernel.
    unsafe fn launch(
        &self,
        kernel: &str,
        geometry: &Geometry,
        args: &[RawArg],
    ) -> Result<(), String>;
}

/// A compiled image.
#[derive(Clone, Debug)]
pub enum Code {
    /// NVIDIA's assembly text (PTX).
    Ptx(Vec<u8>),
    /// NVIDIA's machine code.
    Cubin(Vec<u8>),
    /// AMD's code object.
    Hsaco(Vec<u8>),
    /// Functions of this process.
    Host(Arc<dyn HostModule>),
}

impl Code {
    /// Its form, for messages.
    #[must_use]
    pub fn form(&self) -> &'static str {
        match self {
            Self::Ptx(_) => "PTX",
            Self::Cubin(_) => "cubin",
            Self::Hsaco(_) => "code object",
            Self::Host(_) => "host functions",
        }
    }
}

/// What a compiler is given.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// For its messages.
    pub name: &'a str,
    /// The text, includes in place.
    pub text: &'a str,
    /// Options besides the architecture.
    pub options: &'a [&'a str],
    /// Architecture, as [`Facts::arch`] spells it.
    pub arch: &'a str,
}

/// What the driver says about a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FunctionFacts {
    /// Registers a thread.
    pub registers: u32,
    /// Bytes of local memory a thread: spills and stack.
    pub local: u32,
    /// Bytes of static shared memory a block.
    pub shared: u32,
    /// Most threads a block.
    pub threads: u32,
    /// Whether its code was built for an architecture whose kernels can wait for the one ahead.
    pub waits: bool,
}

/// Bytes of a handle to memory that another process may open: `CU_IPC_HANDLE_SIZE` (CUDA driver API),
/// `HIP_IPC_HANDLE_SIZE` (`hip_runtime_api.h`).
pub const SHARE_BYTES: usize = 64;

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Host to device.
    Up,
    /// Device to host.
    Down,
    /// Device to device.
    Within,
}

/// A runtime's calls.
///
/// # Safety of the methods
/// Handles are live and were made by this driver for the device `d`; memory named by an operation
/// is live and nobody else's until the operation has completed. The types above keep both promises.
#[allow(clippy::missing_safety_doc)] // one contract for all methods, above
pub trait Driver: fmt::Debug + Send + Sync + 'static {
    /// Which runtime this is.
    fn kind(&self) -> Kind;
    /// How many devices it has.
    fn count(&self) -> DriverResult<u32>;
    /// Describes a device without opening it.
    fn facts(&self, ordinal: u32) -> DriverResult<Facts>;
    /// Name and version of the compiler, or why there is none.
    fn compiler(&self) -> Result<String, String>;
    /// Compiles a source. `Err` is the log.
    fn compile(&self, source: &Source<'_>) -> Result<Code, String>;
    /// Opens a device and gives its handle.
    fn open(&self, ordinal: u32) -> DriverResult<Raw>;
    /// Closes a device.
    unsafe fn close(&self, d: Raw) -> DriverResult<()>;
    /// Memory left.
    unsafe fn memory(&self, d: Raw) -> DriverResult<Memory>;
    /// Allocates.
    unsafe fn alloc(&self, d: Raw, place: Place, bytes: u64) -> DriverResult<Raw>;
    /// Frees.
    unsafe fn free(&self, d: Raw, place: Place, address: Raw) -> DriverResult<()>;
    /// Makes a stream that orders itself after no other.
    unsafe fn stream_create(&self, d: Raw) -> DriverResult<Raw>;
    /// Destroys an idle stream.
    unsafe fn stream_destroy(&self, d: Raw, stream: Raw) -> DriverResult<()>;
    /// Waits until the stream has done everything.
    unsafe fn stream_sync(&self, d: Raw, stream: Raw) -> DriverResult<()>;
    /// Makes later work of the stream wait for the event's last record.
    unsafe fn stream_wait(&self, d: Raw, stream: Raw, event: Raw) -> DriverResult<()>;
    /// Makes an event, with a clock or without.
    unsafe fn event_create(&self, d: Raw, timed: bool) -> DriverResult<Raw>;
    /// Destroys an event.
    unsafe fn event_destroy(&self, d: Raw, event: Raw) -> DriverResult<()>;
    /// The event fires when the stream's work up to now is done.
    unsafe fn event_record(&self, d: Raw, event: Raw, stream: Raw) -> DriverResult<()>;
    /// Whether it has fired.
    unsafe fn event_done(&self, d: Raw, event: Raw) -> DriverResult<bool>;
    /// Waits until it fires.
    unsafe fn event_sync(&self, d: Raw, event: Raw) -> DriverResult<()>;
    /// Milliseconds between two timed events that have fired.
    unsafe fn event_ms(&self, d: Raw, start: Raw, end: Raw) -> DriverResult<f32>;
    /// Copies in stream order.
    unsafe fn copy(
        &self,
        d: Raw,
        stream: Raw,
        way: Way,
        to: Raw,
        from: Raw,
        bytes: u64,
    ) -> DriverResult<()>;
    /// Fills with a byte in stream order.
    unsafe fn fill(&self, d: Raw, stream: Raw, to: Raw, byte: u8, bytes: u64) -> DriverResult<()>;
    /// Loads an image.
    unsafe fn load(&self, d: Raw, code: &Code) -> DriverResult<Raw>;
    /// Unloads it.
    unsafe fn unload(&self, d: Raw, module: Raw) -> DriverResult<()>;
    /// Finds a kernel. The handle lives as long as the module.
    unsafe fn function(&self, d: Raw, module: Raw, name: &str) -> DriverResult<Raw>;
    /// Sizes of its arguments, if the runtime can tell.
    unsafe fn argument_sizes(&self, d: Raw, function: Raw) -> DriverResult<Option<Vec<u32>>>;
    /// Registers and memory of a kernel.
    unsafe fn function_facts(&self, d: Raw, function: Raw) -> DriverResult<FunctionFacts>;
    /// Allows a kernel that much dynamic shared memory.
    unsafe fn allow_shared(&self, d: Raw, function: Raw, bytes: u32) -> DriverResult<()>;
    /// Starts a kernel in stream order.
    unsafe fn launch(
        &self,
        d: Raw,
        stream: Raw,
        function: Raw,
        geometry: &Geometry,
        args: &[RawArg],
    ) -> DriverResult<()>;
    /// Starts a kernel that may begin before the one ahead of it on the stream has ended; both wait for their
    /// predecessor before they touch memory, so that the outcome is that of [`Self::launch`]. Asked for only where
    /// the facts say [`EarlyLaunch::On`] and the function `waits`.
    unsafe fn launch_early(
        &self,
        d: Raw,
        stream: Raw,
        function: Raw,
        geometry: &Geometry,
        args: &[RawArg],
    ) -> DriverResult<()> {
        // SAFETY: the caller's promise covers it.
        unsafe { self.launch(d, stream, function, geometry, args) }
    }
    /// From now on the stream's operations are collected, not run.
    unsafe fn capture_begin(&self, d: Raw, stream: Raw) -> DriverResult<()>;
    /// Ends collecting and makes a graph that can be launched.
    unsafe fn capture_end(&self, d: Raw, stream: Raw) -> DriverResult<Raw>;
    /// Pins memory of the host that somebody else owns: whole pages, mapped until [`Self::unregister`].
    unsafe fn register(&self, d: Raw, address: Raw, bytes: u64) -> DriverResult<()>;
    /// Ends that.
    unsafe fn unregister(&self, d: Raw, address: Raw) -> DriverResult<()>;
    /// A handle to an allocation, given by its first address.
    unsafe fn share(&self, d: Raw, address: Raw) -> DriverResult<[u8; SHARE_BYTES]>;
    /// Opens another process's allocation of so many bytes.
    unsafe fn open_shared(
        &self,
        d: Raw,
        handle: &[u8; SHARE_BYTES],
        bytes: u64,
    ) -> DriverResult<Raw>;
    /// Closes it.
    unsafe fn close_shared(&self, d: Raw, address: Raw) -> DriverResult<()>;
    /// Whether one device, by number, says that it can reach another's memory.
    fn reaches(&self, from: u32, to: u32) -> DriverResult<Ability>;
    /// Lets device `d` reach the memory of the opened device `other`.
    unsafe fn reach(&self, d: Raw, other: Raw) -> DriverResult<()>;
    /// Ends that.
    unsafe fn unreach(&self, d: Raw, other: Raw) -> DriverResult<()>;
    /// Runs a graph in stream order.
    unsafe fn graph_launch(&self, d: Raw, graph: Raw, stream: Raw) -> DriverResult<()>;
    /// Destroys a graph that does not run.
    unsafe fn graph_destroy(&self, d: Raw, graph: Raw) -> DriverResult<()>;
}
