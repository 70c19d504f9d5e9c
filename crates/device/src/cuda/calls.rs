//! The CUDA driver's calls, behind the seam.
//!
//! Handles are the driver's pointers as numbers. Every call first makes the device's primary context
//! current on the calling thread, as any thread may call.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_void};
use std::ptr;
use std::sync::Mutex;

use cudarc::driver::sys;
use sys::CUdevice_attribute_enum as A;
use sys::CUfunction_attribute_enum as F;

use super::nvrtc::{self, Nvrtc};
use super::{early, probe, reach};
use crate::ability::Ability;
use crate::device::lock;
use crate::driver::{
    Class, Code, Driver, DriverError, DriverResult, Facts, FunctionFacts, Geometry, Kind, Limits,
    Memory, Place, Raw, RawArg, SHARE_BYTES, Source, Way,
};
use crate::fault::Absent;

/// Codes after which the context is gone (CUDA driver API, `CUresult`: "the process must be
/// terminated" or the context "cannot be used"): deinitialised, ECC, illegal address, timeout, context
/// destroyed, assert, stack error, illegal instruction, misaligned, address space, program counter, launch
/// failure.
const LOST: [i64; 12] = [4, 214, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719];
/// CUDA_ERROR_OUT_OF_MEMORY.
const MEMORY: i64 = 2;
/// CUDA_ERROR_NOT_READY.
const NOT_READY: i64 = 600;
/// CU_STREAM_NON_BLOCKING.
const NON_BLOCKING: u32 = 1;
/// CU_EVENT_DISABLE_TIMING.
const NO_CLOCK: u32 = 2;
/// CU_MEM_ATTACH_GLOBAL.
const ATTACH_GLOBAL: u32 = 1;
/// CU_MEMHOSTALLOC_PORTABLE: pinned for every context.
const PORTABLE: u32 = 1;

/// The CUDA driver.
#[derive(Debug)]
pub struct Cuda {
    version: i32,
    compiler: Result<Nvrtc, String>,
    parameters: bool,
    launch_ex: bool,
    elapsed: probe::Elapsed,
    /// Ordinals by context.
    open: Mutex<BTreeMap<Raw, i32>>,
}

/// Calls the driver and turns its code into a result.
macro_rules! cu {
    ($name:ident($($arg:expr),* $(,)?)) => {{
        // SAFETY: the name was found in the library (`probe`); handles are live and of this driver
        // by the contract of `Driver`; pointers are to locals of the caller that outlive the call.
        let code = unsafe { sys::$name($($arg),*) };
        check(stringify!($name), code)
    }};
}

pub(super) use cu;

pub(super) fn check(call: &'static str, code: sys::CUresult) -> DriverResult<()> {
    if code == sys::cudaError_enum::CUDA_SUCCESS {
        return Ok(());
    }
    let mut text = ptr::null();
    // SAFETY: writes a pointer to a constant, or null for a code it does not know.
    let known = unsafe { sys::cuGetErrorName(code, &raw mut text) };
    let name = if known == sys::cudaError_enum::CUDA_SUCCESS && !text.is_null() {
        // SAFETY: not null, so a zero-terminated constant of the library.
        unsafe { CStr::from_ptr(text) }
            .to_string_lossy()
            .into_owned()
    } else {
        "unknown".into()
    };
    let code = code as i64;
    let class = match code {
        MEMORY => Class::Memory,
        code if LOST.contains(&code) => Class::Lost,
        _ => Class::Call,
    };
    Err(DriverError {
        call,
        code,
        name,
        class,
    })
}

/// A handle as the driver's pointer.
pub(super) fn at<T>(raw: Raw) -> *mut T {
    ptr::with_exposed_provenance_mut(raw as usize)
}

fn raw<T>(pointer: *mut T) -> Raw {
    pointer.expose_provenance() as Raw
}

pub(super) fn current(d: Raw) -> DriverResult<()> {
    cu!(cuCtxSetCurrent(at(d)))
}

pub(super) fn attribute(device: i32, what: sys::CUdevice_attribute) -> DriverResult<u32> {
    let mut value = 0;
    cu!(cuDeviceGetAttribute(&raw mut value, what, device))?;
    Ok(u32::try_from(value).unwrap_or(0))
}

fn limits(device: i32) -> DriverResult<Limits> {
    let get = |what| attribute(device, what);
    Ok(Limits {
        threads: get(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        threads_axis: [
            get(A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X)?,
            get(A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y)?,
            get(A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z)?,
        ],
        grid: [
            get(A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X)?,
            get(A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y)?,
            get(A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z)?,
        ],
        shared: get(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        items_axis: u64::MAX,
    })
}

/// One 8-byte cell an argument: little-endian, so that a 4-byte one stands at its start.
fn cells(args: &[RawArg]) -> Vec<u64> {
    let cell = |arg: &RawArg| match *arg {
        RawArg::Address(value, _) | RawArg::Long(value) => value,
        RawArg::Word(value) => value.into(),
    };
    args.iter().map(cell).collect()
}

/// Where the arguments are.
fn pointers(cells: &mut [u64]) -> Vec<*mut c_void> {
    cells.iter_mut().map(|c| ptr::from_mut(c).cast()).collect()
}

pub(super) fn handle(ordinal: u32) -> DriverResult<i32> {
    let mut device = 0;
    cu!(cuDeviceGet(&raw mut device, ordinal.cast_signed()))?;
    Ok(device)
}

fn name(device: i32) -> DriverResult<String> {
    let mut text = [0u8; 256];
    cu!(cuDeviceGetName(text.as_mut_ptr().cast(), 256, device))?;
    let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
    Ok(text.to_string_lossy().into_owned())
}

impl Cuda {
    /// Starts the driver, whose names were all found.
    pub(super) fn start(compiler: Result<Nvrtc, String>) -> Result<Self, Absent> {
        let absent = |e: DriverError| Absent {
            what: "CUDA driver".into(),
            reason: format!("{}: {} ({})", e.call, e.name, e.code),
        };
        cu!(cuInit(0)).map_err(absent)?;
        let mut version = 0;
        cu!(cuDriverGetVersion(&raw mut version)).map_err(absent)?;
        let this = Self {
            version,
            compiler,
            parameters: probe::has(probe::PARAMETERS),
            launch_ex: probe::has(early::SYMBOL),
            elapsed: probe::elapsed()?,
            open: Mutex::default(),
        };
        match this.count().map_err(absent)? {
            0 => Err(Absent {
                what: "CUDA device".into(),
                reason: "the driver has none".into(),
            }),
            _ => Ok(this),
        }
    }

    /// The CUDA version of the driver: 13000 is 13.0.
    #[must_use]
    pub fn version(&self) -> i32 {
        self.version
    }
}

#[allow(clippy::missing_safety_doc)] // the trait's contract
impl Driver for Cuda {
    fn kind(&self) -> Kind {
        Kind::Cuda
    }

    fn count(&self) -> DriverResult<u32> {
        let mut count = 0;
        cu!(cuDeviceGetCount(&raw mut count))?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    fn facts(&self, ordinal: u32) -> DriverResult<Facts> {
        let device = handle(ordinal)?;
        let get = |what| attribute(device, what);
        let mut memory = 0;
        cu!(cuDeviceTotalMem_v2(&raw mut memory, device))?;
        let major = get(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = get(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok(Facts {
            name: name(device)?,
            arch: format!("sm_{major}{minor}"),
            memory: memory as u64,
            processors: get(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            lanes: get(A::CU_DEVICE_ATTRIBUTE_WARP_SIZE)?,
            integrated: get(A::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0,
            unified: get(A::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY)? != 0,
            limits: limits(device)?,
            early_launch: early::state(self.version, self.launch_ex, major, minor),
            register: reach::register_ability(device)?,
            share: reach::share_ability(device)?,
        })
    }

    fn compiler(&self) -> Result<String, String> {
        self.compiler
            .as_ref()
            .map(Nvrtc::version)
            .map_err(Clone::clone)
    }

    fn compile(&self, source: &Source<'_>) -> Result<Code, String> {
        self.compiler.as_ref().map_err(Clone::clone)?;
        nvrtc::compile(source)
    }

    fn open(&self, ordinal: u32) -> DriverResult<Raw> {
        let device = handle(ordinal)?;
        let mut context = ptr::null_mut();
        cu!(cuDevicePrimaryCtxRetain(&raw mut context, device))?;
        lock(&self.open).insert(raw(context), device);
        Ok(raw(context))
    }

    unsafe fn close(&self, d: Raw) -> DriverResult<()> {
        // The context is counted by the driver: the entry stays for the other openings of the device.
        let device = lock(&self.open).get(&d).copied();
        device.map_or(Ok(()), |device| cu!(cuDevicePrimaryCtxRelease_v2(device)))
    }

    unsafe fn memory(&self, d: Raw) -> DriverResult<Memory> {
        current(d)?;
        let (mut free, mut total) = (0, 0);
        cu!(cuMemGetInfo_v2(&raw mut free, &raw mut total))?;
        Ok(Memory {
            free: free as u64,
            total: total as u64,
        })
    }

    unsafe fn alloc(&self, d: Raw, place: Place, bytes: u64) -> DriverResult<Raw> {
        current(d)?;
        let bytes = bytes as usize;
        let mut address = 0;
        match place {
            Place::Device => cu!(cuMemAlloc_v2(&raw mut address, bytes))?,
            Place::Unified => cu!(cuMemAllocManaged(&raw mut address, bytes, ATTACH_GLOBAL))?,
            Place::Pinned => {
                let mut host = ptr::null_mut();
                cu!(cuMemHostAlloc(&raw mut host, bytes, PORTABLE))?;
                address = raw(host);
            }
        }
        Ok(address)
    }

    unsafe fn free(&self, d: Raw, place: Place, address: Raw) -> DriverResult<()> {
        current(d)?;
        match place {
            Place::Pinned => cu!(cuMemFreeHost(at(address))),
            Place::Device | Place::Unified => cu!(cuMemFree_v2(address)),
        }
    }

    unsafe fn stream_create(&self, d: Raw) -> DriverResult<Raw> {
        current(d)?;
        let mut stream = ptr::null_mut();
        cu!(cuStreamCreate(&raw mut stream, NON_BLOCKING))?;
        Ok(raw(stream))
    }

    unsafe fn stream_destroy(&self, d: Raw, stream: Raw) -> DriverResult<()> {
        current(d)?;
        cu!(cuStreamDestroy_v2(at(stream)))
    }

    unsafe fn stream_sync(&self, d: Raw, stream: Raw) -> DriverResult<()> {
        current(d)?;
        cu!(cuStreamSynchronize(at(stream)))
    }

    unsafe fn stream_wait(&self, d: Raw, stream: Raw, event: Raw) -> DriverResult<()> {
        current(d)?;
        cu!(cuStreamWaitEvent(at(stream), at(event), 0))
    }

    unsafe fn event_create(&self, d: Raw, timed: bool) -> DriverResult<Raw> {
        current(d)?;
        let mut event = ptr::null_mut();
        let flags = if timed { 0 } else { NO_CLOCK };
        cu!(cuEventCreate(&raw mut event, flags))?;
        Ok(raw(event))
    }

    unsafe fn event_destroy(&self, d: Raw, event: Raw) -> DriverResult<()> {
        current(d)?;
        cu!(cuEventDestroy_v2(at(event)))
    }

    unsafe fn event_record(&self, d: Raw, event: Raw, stream: Raw) -> DriverResult<()> {
        current(d)?;
        cu!(cuEventRecord(at(event), at(stream)))
    }

    unsafe fn event_done(&self, d: Raw, event: Raw) -> DriverResult<bool> {
        current(d)?;
        match cu!(cuEventQuery(at(event))) {
            Err(e) if e.code == NOT_READY => Ok(false),
            result => result.map(|()| true),
        }
    }

    unsafe fn event_sync(&self, d: Raw, event: Raw) -> DriverResult<()> {
        current(d)?;
        cu!(cuEventSynchronize(at(event)))
    }

    unsafe fn event_ms(&self, d: Raw, start: Raw, end: Raw) -> DriverResult<f32> {
        current(d)?;
        let mut millis = 0.0;
        let elapsed = self.elapsed;
        // SAFETY: as in `cu!`; both events are live.
        let code = unsafe { elapsed(&raw mut millis, at(start), at(end)) };
        check("cuEventElapsedTime", code)?;
        Ok(millis)
    }

    unsafe fn copy(
        &self,
        d: Raw,
        stream: Raw,
        way: Way,
        to: Raw,
        from: Raw,
        bytes: u64,
    ) -> DriverResult<()> {
        current(d)?;
        let bytes = bytes as usize;
        match way {
            Way::Up => cu!(cuMemcpyHtoDAsync_v2(
                to,
                at::<c_void>(from),
                bytes,
                at(stream)
            )),
            Way::Down => cu!(cuMemcpyDtoHAsync_v2(at(to), from, bytes, at(stream))),
            Way::Within => cu!(cuMemcpyAsync(to, from, bytes, at(stream))),
        }
    }

    unsafe fn fill(&self, d: Raw, stream: Raw, to: Raw, byte: u8, bytes: u64) -> DriverResult<()> {
        current(d)?;
        cu!(cuMemsetD8Async(to, byte, bytes as usize, at(stream)))
    }

    unsafe fn load(&self, d: Raw, code: &Code) -> DriverResult<Raw> {
        current(d)?;
        // PTX is text that must end with a zero.
        let text: Vec<u8>;
        let bytes = match code {
            Code::Ptx(ptx) => {
                text = ptx.iter().copied().chain([0]).collect();
                &text
            }
            Code::Cubin(cubin) => cubin,
            Code::Hsaco(_) | Code::Host(_) => return Err(form()),
        };
        let mut module = ptr::null_mut();
        cu!(cuModuleLoadData(&raw mut module, bytes.as_ptr().cast()))?;
        Ok(raw(module))
    }

    unsafe fn unload(&self, d: Raw, module: Raw) -> DriverResult<()> {
        current(d)?;
        cu!(cuModuleUnload(at(module)))
    }

    unsafe fn function(&self, d: Raw, module: Raw, name: &str) -> DriverResult<Raw> {
        current(d)?;
        let name = CString::new(name).unwrap_or_default();
        let mut function = ptr::null_mut();
        cu!(cuModuleGetFunction(
            &raw mut function,
            at(module),
            name.as_ptr()
        ))?;
        Ok(raw(function))
    }

    unsafe fn argument_sizes(&self, d: Raw, function: Raw) -> DriverResult<Option<Vec<u32>>> {
        if !self.parameters {
            return Ok(None);
        }
        current(d)?;
        let mut sizes = Vec::new();
        loop {
            let (mut offset, mut size) = (0, 0);
            let index = sizes.len();
            let result = cu!(cuFuncGetParamInfo(
                at(function),
                index,
                &raw mut offset,
                &raw mut size
            ));
            match result {
                Ok(()) => sizes.push(size as u32),
                // Past the last parameter: CUDA_ERROR_INVALID_VALUE.
                Err(e) if e.code == 1 => return Ok(Some(sizes)),
                Err(e) => return Err(e),
            }
        }
    }

    unsafe fn function_facts(&self, d: Raw, function: Raw) -> DriverResult<FunctionFacts> {
        current(d)?;
        let get = |what| {
            let mut value = 0;
            cu!(cuFuncGetAttribute(&raw mut value, what, at(function)))?;
            Ok(u32::try_from(value).unwrap_or(0))
        };
        Ok(FunctionFacts {
            registers: get(F::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            local: get(F::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
            shared: get(F::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            threads: get(F::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            waits: early::waits(
                get(F::CU_FUNC_ATTRIBUTE_PTX_VERSION)?,
                get(F::CU_FUNC_ATTRIBUTE_BINARY_VERSION)?,
            ),
        })
    }

    unsafe fn allow_shared(&self, d: Raw, function: Raw, bytes: u32) -> DriverResult<()> {
        current(d)?;
        let what = F::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        cu!(cuFuncSetAttribute(at(function), what, bytes.cast_signed()))
    }

    unsafe fn launch(
        &self,
        d: Raw,
        stream: Raw,
        function: Raw,
        geometry: &Geometry,
        args: &[RawArg],
    ) -> DriverResult<()> {
        current(d)?;
        let mut cells = cells(args);
        let mut pointers = pointers(&mut cells);
        let ([gx, gy, gz], [tx, ty, tz]) = (geometry.grid, geometry.threads);
        cu!(cuLaunchKernel(
            at(function),
            gx,
            gy,
            gz,
            tx,
            ty,
            tz,
            geometry.shared,
            at(stream),
            pointers.as_mut_ptr(),
            ptr::null_mut()
        ))
    }

    unsafe fn launch_early(
        &self,
        d: Raw,
        stream: Raw,
        function: Raw,
        geometry: &Geometry,
        args: &[RawArg],
    ) -> DriverResult<()> {
        current(d)?;
        let mut cells = cells(args);
        let mut pointers = pointers(&mut cells);
        let mut attribute = early::attribute();
        let config = early::config(geometry, at(stream), &mut attribute);
        cu!(cuLaunchKernelEx(
            &raw const config,
            at(function),
            pointers.as_mut_ptr(),
            ptr::null_mut()
        ))
    }

    unsafe fn capture_begin(&self, d: Raw, stream: Raw) -> DriverResult<()> {
        current(d)?;
        // Relaxed: buffers may be freed and made by this thread meanwhile. Nothing of that is
        // captured, and the graph's own buffers are held.
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
        cu!(cuStreamBeginCapture_v2(at(stream), mode))
    }

    unsafe fn capture_end(&self, d: Raw, stream: Raw) -> DriverResult<Raw> {
        current(d)?;
        let mut graph = ptr::null_mut();
        cu!(cuStreamEndCapture(at(stream), &raw mut graph))?;
        let mut exec = ptr::null_mut();
        let made = cu!(cuGraphInstantiateWithFlags(&raw mut exec, graph, 0));
        let ended = cu!(cuGraphDestroy(graph));
        if ended.is_err() {
            // Once more: nobody else knows this handle.
            let _ = cu!(cuGraphDestroy(graph));
        }
        made?;
        if let Err(e) = ended {
            let _ = cu!(cuGraphExecDestroy(exec));
            return Err(e);
        }
        Ok(raw(exec))
    }

    unsafe fn register(&self, d: Raw, address: Raw, bytes: u64) -> DriverResult<()> {
        reach::register(d, address, bytes)
    }

    unsafe fn unregister(&self, d: Raw, address: Raw) -> DriverResult<()> {
        reach::unregister(d, address)
    }

    unsafe fn share(&self, d: Raw, address: Raw) -> DriverResult<[u8; SHARE_BYTES]> {
        reach::share(d, address)
    }

    unsafe fn open_shared(
        &self,
        d: Raw,
        handle: &[u8; SHARE_BYTES],
        _bytes: u64,
    ) -> DriverResult<Raw> {
        reach::open_shared(d, handle)
    }

    unsafe fn close_shared(&self, d: Raw, address: Raw) -> DriverResult<()> {
        reach::close_shared(d, address)
    }

    fn reaches(&self, from: u32, to: u32) -> DriverResult<Ability> {
        reach::reaches(from, to)
    }

    unsafe fn reach(&self, d: Raw, other: Raw) -> DriverResult<()> {
        reach::reach(d, other)
    }

    unsafe fn unreach(&self, d: Raw, other: Raw) -> DriverResult<()> {
        reach::unreach(d, other)
    }

    unsafe fn graph_launch(&self, d: Raw, graph: Raw, stream: Raw) -> DriverResult<()> {
        current(d)?;
        cu!(cuGraphLaunch(at(graph), at(stream)))
    }

    unsafe fn graph_destroy(&self, d: Raw, graph: Raw) -> DriverResult<()> {
        current(d)?;
        cu!(cuGraphExecDestroy(at(graph)))
    }
}

/// `Device::load` compares the form before: not reached.
fn form() -> DriverError {
    DriverError {
        call: "cuModuleLoadData",
        code: 200, // CUDA_ERROR_INVALID_IMAGE
        name: "not an image for CUDA".into(),
        class: Class::Call,
    }
}
