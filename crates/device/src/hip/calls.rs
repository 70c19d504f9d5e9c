//! The HIP runtime's calls, behind the seam.
//!
//! A device's handle is its number plus one. Every call first makes it the calling thread's device.

use std::ffi::{CStr, CString, c_void};
use std::ptr;

use libloading::os::unix::Library;

use super::reach::Optional;
use super::rtc::Rtc;
use super::table::{Handle, HipTable, Properties, properties};
use super::{Settings, abi, search};
use crate::ability::Ability;
use crate::driver::{
    Class, Code, Driver, DriverError, DriverResult, EarlyLaunch, Facts, FunctionFacts, Geometry,
    Kind, Limits, Memory, Place, Raw, RawArg, SHARE_BYTES, Source, Way,
};
use crate::fault::Absent;

const NAMES: [&str; 5] = [
    "libamdhip64.so",
    "libamdhip64.so.7",
    "libamdhip64.so.6",
    "libamdhip64.so.5",
    "/opt/rocm/lib/libamdhip64.so",
];

/// The HIP runtime.
#[derive(Debug)]
pub struct Hip {
    table: HipTable,
    pub(super) optional: Optional,
    properties: Option<(Properties, usize)>,
    rtc: Result<Rtc, Absent>,
    version: i32,
    file: String,
    /// Keeps the functions of `table` in place.
    _library: Library,
}

/// Calls a function of the table and turns its code into a result.
macro_rules! hip {
    ($self:ident, $name:ident($($arg:expr),* $(,)?)) => {{
        let function = $self.table.$name;
        // SAFETY: the table's types are the vendor's, and the library stays open; handles are live
        // and of this driver by the contract of `Driver`; pointers are to locals of the caller
        // that outlive the call.
        let code = unsafe { function($($arg),*) };
        $self.check(stringify!($name), code)
    }};
}

pub(super) fn at(raw: Raw) -> Handle {
    ptr::with_exposed_provenance_mut(raw as usize)
}

pub(super) fn raw(handle: Handle) -> Raw {
    handle.expose_provenance() as Raw
}

impl Hip {
    pub(super) fn start(settings: &Settings) -> Result<Self, Absent> {
        let what = "HIP runtime";
        let (library, file) = search::find(what, settings.hip.as_deref(), &NAMES)?;
        let table = HipTable::load(&library, what, &file)?;
        let properties = properties(&library, "hipGetDevicePropertiesR0600")
            .map(|f| (f, abi::ARCH_R0600))
            .or_else(|| {
                let old = properties(&library, "hipGetDeviceProperties");
                old.map(|f| (f, abi::ARCH_R0000))
            });
        let rtc = Rtc::find(settings.hiprtc.as_deref(), &library, &file);
        let mut this = Self {
            optional: Optional::load(&library),
            table,
            properties,
            rtc,
            version: 0,
            file,
            _library: library,
        };
        this.ask().map_err(|e| Absent {
            what: what.into(),
            reason: format!("{}: {}: {} ({})", this.file, e.call, e.name, e.code),
        })?;
        Ok(this)
    }

    /// Starts the runtime and asks for its version and devices.
    fn ask(&mut self) -> DriverResult<()> {
        hip!(self, hipInit(0))?;
        let mut version = 0;
        hip!(self, hipRuntimeGetVersion(&raw mut version))?;
        self.version = version;
        match self.count()? {
            0 => Err(DriverError {
                call: "hipGetDeviceCount",
                code: 100, // hipErrorNoDevice
                name: "the runtime has no device".into(),
                class: Class::Call,
            }),
            _ => Ok(()),
        }
    }

    /// The runtime's version as it gives it: 60342134 is 6.3.
    #[must_use]
    pub fn version(&self) -> i32 {
        self.version
    }

    /// The version of the driver below, as it gives it.
    #[must_use]
    pub fn driver_version(&self) -> Option<i32> {
        let mut version = 0;
        hip!(self, hipDriverGetVersion(&raw mut version))
            .ok()
            .map(|()| version)
    }

    /// The library's file.
    #[must_use]
    pub fn file(&self) -> &str {
        &self.file
    }

    pub(super) fn check(&self, call: &'static str, code: i32) -> DriverResult<()> {
        if code == abi::SUCCESS {
            return Ok(());
        }
        let name = self.table.hipGetErrorName;
        // SAFETY: takes any number; the answer is a constant of the library or null.
        let text = unsafe { name(code) };
        let name = if text.is_null() {
            "unknown".into()
        } else {
            // SAFETY: not null, so a zero-terminated constant.
            unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned()
        };
        let code = i64::from(code);
        let class = match code {
            abi::OUT_OF_MEMORY => Class::Memory,
            code if abi::LOST.contains(&code) => Class::Lost,
            _ => Class::Call,
        };
        Err(DriverError {
            call,
            code,
            name,
            class,
        })
    }

    pub(super) fn current(&self, d: Raw) -> DriverResult<()> {
        hip!(self, hipSetDevice(d as i32 - 1))
    }

    pub(super) fn attribute(&self, device: i32, what: i32) -> DriverResult<u32> {
        let mut value = 0;
        hip!(self, hipDeviceGetAttribute(&raw mut value, what, device))?;
        Ok(u32::try_from(value).unwrap_or(0))
    }

    fn axes(&self, device: i32, what: [i32; 3]) -> DriverResult<[u32; 3]> {
        let [x, y, z] = what.map(|axis| self.attribute(device, axis));
        Ok([x?, y?, z?])
    }

    /// `gfx1151` of `gfx1151:sramecc-`; empty if the runtime's structure is not one we know.
    fn arch(&self, device: i32) -> DriverResult<String> {
        let Some((function, offset)) = self.properties else {
            return Ok(String::new());
        };
        let mut bytes = vec![0u64; abi::PROPERTIES / 8];
        // SAFETY: the structure is smaller than the room given, and aligned to 8 bytes.
        let code = unsafe { function(bytes.as_mut_ptr().cast(), device) };
        self.check("hipGetDeviceProperties", code)?;
        let bytes: Vec<u8> = bytes.into_iter().flat_map(u64::to_le_bytes).collect();
        Ok(arch_in(&bytes[offset..offset + 256]))
    }

    fn name(&self, device: i32) -> DriverResult<String> {
        let mut text = [0u8; 256];
        hip!(
            self,
            hipDeviceGetName(text.as_mut_ptr().cast(), 256, device)
        )?;
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        Ok(text.to_string_lossy().into_owned())
    }
}

/// The architecture in a property's text, or nothing if it is none.
fn arch_in(text: &[u8]) -> String {
    let text = CStr::from_bytes_until_nul(text).unwrap_or_default();
    let text = text.to_string_lossy();
    let base = text.split(':').next().unwrap_or_default();
    let fits = base.len() > 3
        && base.starts_with("gfx")
        && base[3..].bytes().all(|b| b.is_ascii_hexdigit());
    if fits { base.into() } else { String::new() }
}

#[allow(clippy::missing_safety_doc)] // the trait's contract
impl Driver for Hip {
    fn kind(&self) -> Kind {
        Kind::Hip
    }

    fn count(&self) -> DriverResult<u32> {
        let mut count = 0;
        hip!(self, hipGetDeviceCount(&raw mut count))?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    fn facts(&self, ordinal: u32) -> DriverResult<Facts> {
        let device = ordinal.cast_signed();
        let get = |what| self.attribute(device, what);
        let mut total = 0;
        hip!(self, hipDeviceTotalMem(&raw mut total, device))?;
        Ok(Facts {
            name: self.name(device)?,
            arch: self.arch(device)?,
            memory: total as u64,
            processors: get(abi::attribute::MULTIPROCESSORS)?,
            lanes: get(abi::attribute::WARP_SIZE)?,
            integrated: get(abi::attribute::INTEGRATED)? != 0,
            unified: get(abi::attribute::MANAGED_MEMORY)? != 0,
            limits: Limits {
                threads: get(abi::attribute::MAX_THREADS_PER_BLOCK)?,
                threads_axis: self.axes(device, abi::attribute::MAX_BLOCK)?,
                grid: self.axes(device, abi::attribute::MAX_GRID)?,
                shared: get(abi::attribute::MAX_SHARED_PER_BLOCK)?,
                items_axis: abi::MAX_ITEMS,
            },
            early_launch: EarlyLaunch::Off("HIP has no such launch".into()),
            register: self.register_ability(device)?,
            share: self.share_ability(),
        })
    }

    fn compiler(&self) -> Result<String, String> {
        self.rtc
            .as_ref()
            .map(Rtc::version)
            .map_err(Absent::to_string)
    }

    fn compile(&self, source: &Source<'_>) -> Result<Code, String> {
        self.rtc
            .as_ref()
            .map_err(Absent::to_string)?
            .compile(source)
    }

    fn open(&self, ordinal: u32) -> DriverResult<Raw> {
        let d = Raw::from(ordinal) + 1;
        self.current(d)?;
        Ok(d)
    }

    unsafe fn close(&self, _d: Raw) -> DriverResult<()> {
        // The runtime keeps its one context for the life of the process.
        Ok(())
    }

    unsafe fn memory(&self, d: Raw) -> DriverResult<Memory> {
        self.current(d)?;
        let (mut free, mut total) = (0, 0);
        hip!(self, hipMemGetInfo(&raw mut free, &raw mut total))?;
        Ok(Memory {
            free: free as u64,
            total: total as u64,
        })
    }

    unsafe fn alloc(&self, d: Raw, place: Place, bytes: u64) -> DriverResult<Raw> {
        self.current(d)?;
        let bytes = bytes as usize;
        let mut address = ptr::null_mut();
        match place {
            Place::Device => hip!(self, hipMalloc(&raw mut address, bytes))?,
            Place::Pinned => hip!(self, hipHostMalloc(&raw mut address, bytes, abi::PORTABLE))?,
            Place::Unified => hip!(
                self,
                hipMallocManaged(&raw mut address, bytes, abi::ATTACH_GLOBAL)
            )?,
        }
        Ok(raw(address))
    }

    unsafe fn free(&self, d: Raw, place: Place, address: Raw) -> DriverResult<()> {
        self.current(d)?;
        match place {
            Place::Pinned => hip!(self, hipHostFree(at(address))),
            Place::Device | Place::Unified => hip!(self, hipFree(at(address))),
        }
    }

    unsafe fn stream_create(&self, d: Raw) -> DriverResult<Raw> {
        self.current(d)?;
        let mut stream = ptr::null_mut();
        hip!(
            self,
            hipStreamCreateWithFlags(&raw mut stream, abi::NON_BLOCKING)
        )?;
        Ok(raw(stream))
    }

    unsafe fn stream_destroy(&self, d: Raw, stream: Raw) -> DriverResult<()> {
        self.current(d)?;
        hip!(self, hipStreamDestroy(at(stream)))
    }

    unsafe fn stream_sync(&self, d: Raw, stream: Raw) -> DriverResult<()> {
        self.current(d)?;
        hip!(self, hipStreamSynchronize(at(stream)))
    }

    unsafe fn stream_wait(&self, d: Raw, stream: Raw, event: Raw) -> DriverResult<()> {
        self.current(d)?;
        hip!(self, hipStreamWaitEvent(at(stream), at(event), 0))
    }

    unsafe fn event_create(&self, d: Raw, timed: bool) -> DriverResult<Raw> {
        self.current(d)?;
        let mut event = ptr::null_mut();
        let flags = if timed { 0 } else { abi::NO_CLOCK };
        hip!(self, hipEventCreateWithFlags(&raw mut event, flags))?;
        Ok(raw(event))
    }

    unsafe fn event_destroy(&self, d: Raw, event: Raw) -> DriverResult<()> {
        self.current(d)?;
        hip!(self, hipEventDestroy(at(event)))
    }

    unsafe fn event_record(&self, d: Raw, event: Raw, stream: Raw) -> DriverResult<()> {
        self.current(d)?;
        hip!(self, hipEventRecord(at(event), at(stream)))
    }

    unsafe fn event_done(&self, d: Raw, event: Raw) -> DriverResult<bool> {
        self.current(d)?;
        match hip!(self, hipEventQuery(at(event))) {
            Err(e) if e.code == abi::NOT_READY => Ok(false),
            result => result.map(|()| true),
        }
    }

    unsafe fn event_sync(&self, d: Raw, event: Raw) -> DriverResult<()> {
        self.current(d)?;
        hip!(self, hipEventSynchronize(at(event)))
    }

    unsafe fn event_ms(&self, d: Raw, start: Raw, end: Raw) -> DriverResult<f32> {
        self.current(d)?;
        let mut millis = 0.0;
        hip!(
            self,
            hipEventElapsedTime(&raw mut millis, at(start), at(end))
        )?;
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
        self.current(d)?;
        let kind = match way {
            Way::Up => abi::HOST_TO_DEVICE,
            Way::Down => abi::DEVICE_TO_HOST,
            Way::Within => abi::COPY_DEFAULT,
        };
        let (to, from) = (at(to), at(from).cast_const());
        hip!(
            self,
            hipMemcpyAsync(to, from, bytes as usize, kind, at(stream))
        )
    }

    unsafe fn fill(&self, d: Raw, stream: Raw, to: Raw, byte: u8, bytes: u64) -> DriverResult<()> {
        self.current(d)?;
        hip!(
            self,
            hipMemsetAsync(at(to), byte.into(), bytes as usize, at(stream))
        )
    }

    unsafe fn load(&self, d: Raw, code: &Code) -> DriverResult<Raw> {
        let Code::Hsaco(bytes) = code else {
            return Err(DriverError {
                call: "hipModuleLoadData",
                code: 200, // hipErrorInvalidImage
                name: "not a code object".into(),
                class: Class::Call,
            });
        };
        self.current(d)?;
        let mut module = ptr::null_mut();
        hip!(
            self,
            hipModuleLoadData(&raw mut module, bytes.as_ptr().cast())
        )?;
        Ok(raw(module))
    }

    unsafe fn unload(&self, d: Raw, module: Raw) -> DriverResult<()> {
        self.current(d)?;
        hip!(self, hipModuleUnload(at(module)))
    }

    unsafe fn function(&self, d: Raw, module: Raw, name: &str) -> DriverResult<Raw> {
        self.current(d)?;
        let name = CString::new(name).unwrap_or_default();
        let mut function = ptr::null_mut();
        hip!(
            self,
            hipModuleGetFunction(&raw mut function, at(module), name.as_ptr())
        )?;
        Ok(raw(function))
    }

    unsafe fn argument_sizes(&self, _d: Raw, _function: Raw) -> DriverResult<Option<Vec<u32>>> {
        Ok(None)
    }

    unsafe fn function_facts(&self, d: Raw, function: Raw) -> DriverResult<FunctionFacts> {
        self.current(d)?;
        let get = |what| {
            let mut value = 0;
            hip!(
                self,
                hipFuncGetAttribute(&raw mut value, what, at(function))
            )?;
            Ok(u32::try_from(value).unwrap_or(0))
        };
        Ok(FunctionFacts {
            registers: get(abi::function::REGISTERS)?,
            local: get(abi::function::LOCAL)?,
            shared: get(abi::function::SHARED)?,
            threads: get(abi::function::MAX_THREADS)?,
            waits: false,
        })
    }

    unsafe fn allow_shared(&self, _d: Raw, _function: Raw, _bytes: u32) -> DriverResult<()> {
        // Up to the limit no permission is needed: `hipFuncSetAttribute` takes functions of the
        // program, not of modules.
        Ok(())
    }

    unsafe fn launch(
        &self,
        d: Raw,
        stream: Raw,
        function: Raw,
        geometry: &Geometry,
        args: &[RawArg],
    ) -> DriverResult<()> {
        self.current(d)?;
        // One 8-byte cell an argument: little-endian, so that a 4-byte one stands at its start.
        let mut cells: Vec<u64> = args
            .iter()
            .map(|arg| match *arg {
                RawArg::Address(value, _) | RawArg::Long(value) => value,
                RawArg::Word(value) => value.into(),
            })
            .collect();
        let mut pointers: Vec<*mut c_void> =
            cells.iter_mut().map(|c| ptr::from_mut(c).cast()).collect();
        let ([gx, gy, gz], [tx, ty, tz]) = (geometry.grid, geometry.threads);
        hip!(
            self,
            hipModuleLaunchKernel(
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
            )
        )
    }

    unsafe fn capture_begin(&self, d: Raw, stream: Raw) -> DriverResult<()> {
        self.current(d)?;
        hip!(
            self,
            hipStreamBeginCapture(at(stream), abi::CAPTURE_RELAXED)
        )
    }

    unsafe fn capture_end(&self, d: Raw, stream: Raw) -> DriverResult<Raw> {
        self.current(d)?;
        let mut graph = ptr::null_mut();
        hip!(self, hipStreamEndCapture(at(stream), &raw mut graph))?;
        let (mut exec, none) = (ptr::null_mut(), ptr::null_mut());
        let made = hip!(
            self,
            hipGraphInstantiate(&raw mut exec, graph, none, ptr::null_mut(), 0)
        );
        let ended = hip!(self, hipGraphDestroy(graph));
        if ended.is_err() {
            // Once more: nobody else knows this handle.
            let _ = hip!(self, hipGraphDestroy(graph));
        }
        made?;
        if let Err(e) = ended {
            let _ = hip!(self, hipGraphExecDestroy(exec));
            return Err(e);
        }
        Ok(raw(exec))
    }

    unsafe fn register(&self, d: Raw, address: Raw, bytes: u64) -> DriverResult<()> {
        self.pin(d, address, bytes)
    }

    unsafe fn unregister(&self, d: Raw, address: Raw) -> DriverResult<()> {
        self.unpin(d, address)
    }

    unsafe fn share(&self, d: Raw, address: Raw) -> DriverResult<[u8; SHARE_BYTES]> {
        self.lend(d, address)
    }

    unsafe fn open_shared(
        &self,
        d: Raw,
        handle: &[u8; SHARE_BYTES],
        _bytes: u64,
    ) -> DriverResult<Raw> {
        self.borrow(d, handle)
    }

    unsafe fn close_shared(&self, d: Raw, address: Raw) -> DriverResult<()> {
        self.give_back(d, address)
    }

    fn reaches(&self, from: u32, to: u32) -> DriverResult<Ability> {
        self.peer(from, to)
    }

    unsafe fn reach(&self, d: Raw, other: Raw) -> DriverResult<()> {
        self.enable(d, other)
    }

    unsafe fn unreach(&self, d: Raw, other: Raw) -> DriverResult<()> {
        self.disable(d, other)
    }

    unsafe fn graph_launch(&self, d: Raw, graph: Raw, stream: Raw) -> DriverResult<()> {
        self.current(d)?;
        hip!(self, hipGraphLaunch(at(graph), at(stream)))
    }

    unsafe fn graph_destroy(&self, d: Raw, graph: Raw) -> DriverResult<()> {
        self.current(d)?;
        hip!(self, hipGraphExecDestroy(at(graph)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_are_exact_or_nothing() {
        let read = |text: &str| {
            let mut bytes = [0u8; 256];
            bytes[..text.len()].copy_from_slice(text.as_bytes());
            arch_in(&bytes)
        };
        assert_eq!(read("gfx1151"), "gfx1151");
        assert_eq!(read("gfx90a:sramecc+:xnack-"), "gfx90a");
        for wrong in ["", "gfx", "Radeon 8060S", "\u{1}gfx1100", "gfx11 0"] {
            assert_eq!(read(wrong), "", "{wrong}");
        }
        assert_eq!(arch_in(&[b'g'; 256]), "");
    }
}
