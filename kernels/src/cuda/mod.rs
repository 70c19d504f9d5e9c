//! Runs case lists and measurements on an NVIDIA GPU: sources compiled by NVRTC at start, both
//! libraries found at run time (feature `cuda`).
//!
//! For qualification and measurements: every launch here waits or is captured in a graph. Streams,
//! overlap and memory policy belong to the device layer. All unsafe code stands in `ffi`.

mod ffi;

use std::collections::BTreeMap;
use std::sync::Arc;

use cudarc::driver::{
    CudaContext, CudaFunction, CudaModule, CudaSlice, CudaStream, DriverError, sys,
};
use cudarc::nvrtc::{CompileOptions, compile_ptx_with_opts};

use crate::KernelError;
use crate::cases::Runner;
use crate::image::{self, Source};
use crate::launch::Call;

fn failed(what: &str, error: &DriverError) -> KernelError {
    KernelError::Runtime {
        runtime: "cuda",
        message: format!("{what}: {error}"),
    }
}

/// A buffer of a [`Cuda`]: an address and a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    address: u64,
    len: usize,
}

impl Buffer {
    /// Bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty)] // a buffer is never empty in a way that matters
    pub fn len(self) -> usize {
        self.len
    }

    /// A part of this buffer.
    ///
    /// # Panics
    /// If it ends outside.
    #[must_use]
    pub fn part(self, offset: usize, len: usize) -> Self {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len));
        Self {
            address: self.address + offset as u64,
            len,
        }
    }
}

/// What the driver says about a compiled kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resources {
    /// Registers a thread.
    pub registers: i32,
    /// Bytes of local memory a thread: spills and stack.
    pub local: i32,
    /// Bytes of static shared memory a block.
    pub shared: i32,
}

/// One GPU with the kernels loaded.
#[derive(Debug)]
pub struct Cuda {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    modules: BTreeMap<&'static str, Arc<CudaModule>>,
    functions: BTreeMap<&'static str, CudaFunction>,
    memory: Vec<CudaSlice<u8>>,
}

impl Cuda {
    /// Opens GPU `ordinal` and compiles every source: [`image::KERNELS`] with the contract's flags,
    /// [`image::BENCH`] as the compiler likes it.
    ///
    /// # Errors
    /// `Runtime`: no driver, no NVRTC, no such GPU, or a compilation's log.
    pub fn open(ordinal: usize) -> Result<Self, KernelError> {
        for (library, present) in [
            ("the CUDA driver", ffi::has_driver()),
            ("NVRTC", ffi::has_nvrtc()),
        ] {
            if !present {
                let message = format!("{library} was not found");
                return Err(KernelError::Runtime {
                    runtime: "cuda",
                    message,
                });
            }
        }
        let context = CudaContext::new(ordinal).map_err(|e| failed("open", &e))?;
        let stream = context.new_stream().map_err(|e| failed("stream", &e))?;
        let (major, minor) = context
            .compute_capability()
            .map_err(|e| failed("capability", &e))?;
        let mut modules = BTreeMap::new();
        for (sources, flags) in [
            (image::KERNELS, image::NVRTC_FLAGS),
            (image::BENCH, &["--std=c++17"]),
        ] {
            for source in sources {
                let arch = format!("--gpu-architecture=compute_{major}{minor}");
                modules.insert(source.name, compile(&context, source, flags, arch)?);
            }
        }
        Ok(Self {
            context,
            stream,
            modules,
            functions: BTreeMap::new(),
            memory: Vec::new(),
        })
    }

    /// Name, and multiprocessors.
    ///
    /// # Errors
    /// `Runtime`.
    pub fn describe(&self) -> Result<(String, i32), KernelError> {
        let name = self.context.name().map_err(|e| failed("name", &e))?;
        let count = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        Ok((
            name,
            self.context
                .attribute(count)
                .map_err(|e| failed("attribute", &e))?,
        ))
    }

    /// Registers and memory of a launch's kernel.
    ///
    /// # Errors
    /// `Runtime`.
    pub fn resources(&mut self, call: &Call) -> Result<Resources, KernelError> {
        let f = self.function(call)?;
        let get = |r: Result<i32, DriverError>| r.map_err(|e| failed("attribute", &e));
        Ok(Resources {
            registers: get(f.num_regs())?,
            local: get(f.local_size_bytes())?,
            shared: get(f.shared_size_bytes())?,
        })
    }

    fn function(&mut self, call: &Call) -> Result<CudaFunction, KernelError> {
        if let Some(f) = self.functions.get(call.kernel) {
            return Ok(f.clone());
        }
        let module = self
            .modules
            .get(call.source)
            .ok_or_else(|| KernelError::Runtime {
                runtime: "cuda",
                message: format!("{} is not loaded", call.source),
            })?;
        let f = module
            .load_function(call.kernel)
            .map_err(|e| failed(call.kernel, &e))?;
        let dynamic = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        if call.shared > 48 << 10 {
            f.set_attribute(dynamic, call.shared.cast_signed())
                .map_err(|e| failed(call.kernel, &e))?;
        }
        self.functions.insert(call.kernel, f.clone());
        Ok(f)
    }

    /// Puts a launch into the stream without waiting for it.
    ///
    /// # Errors
    /// Those of [`Call::check`], `Runtime`.
    pub fn submit(&mut self, call: &Call, buffers: &[Buffer]) -> Result<(), KernelError> {
        call.check(buffers.iter().map(|b| b.len as u64))?;
        let f = self.function(call)?;
        ffi::launch(&self.stream, &f, call, buffers).map_err(|e| failed(call.kernel, &e))
    }

    /// Waits for everything submitted.
    ///
    /// # Errors
    /// `Runtime`: also the failures of launches.
    pub fn wait(&self) -> Result<(), KernelError> {
        self.stream.synchronize().map_err(|e| failed("wait", &e))
    }

    /// Captures what `submit` puts into the stream and replays it: milliseconds of each replay
    /// between two events, after one that does not count.
    ///
    /// # Errors
    /// `Runtime`.
    pub fn time(
        &mut self,
        replays: usize,
        submit: impl FnOnce(&mut Self) -> Result<(), KernelError>,
    ) -> Result<Vec<f32>, KernelError> {
        let say = |e: DriverError| failed("graph", &e);
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.stream.begin_capture(mode).map_err(say)?;
        let submitted = submit(self);
        let graph = self
            .stream
            .end_capture(sys::CUgraphInstantiate_flags(0))
            .map_err(say);
        submitted?;
        let graph = graph?.ok_or_else(|| KernelError::Runtime {
            runtime: "cuda",
            message: "nothing was captured".into(),
        })?;
        let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let mut times = Vec::with_capacity(replays);
        for replay in 0..=replays {
            let start = self.stream.record_event(timed).map_err(say)?;
            graph.launch().map_err(say)?;
            let end = self.stream.record_event(timed).map_err(say)?;
            end.synchronize().map_err(say)?;
            if replay > 0 {
                times.push(start.elapsed_ms(&end).map_err(say)?);
            }
        }
        Ok(times)
    }

    /// Milliseconds of each of several repetitions put straight into the stream, after one that
    /// does not count.
    ///
    /// # Errors
    /// `Runtime`.
    pub fn time_direct(
        &mut self,
        repetitions: usize,
        mut submit: impl FnMut(&mut Self) -> Result<(), KernelError>,
    ) -> Result<Vec<f32>, KernelError> {
        let say = |e: DriverError| failed("time", &e);
        let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let mut times = Vec::with_capacity(repetitions);
        for repetition in 0..=repetitions {
            let start = self.stream.record_event(timed).map_err(say)?;
            submit(self)?;
            let end = self.stream.record_event(timed).map_err(say)?;
            end.synchronize().map_err(say)?;
            if repetition > 0 {
                times.push(start.elapsed_ms(&end).map_err(say)?);
            }
        }
        Ok(times)
    }

    /// A buffer whose contents do not matter yet.
    ///
    /// # Errors
    /// `Runtime`.
    pub fn raw(&mut self, len: usize) -> Result<Buffer, KernelError> {
        let (slice, address) = ffi::alloc(&self.stream, len).map_err(|e| failed("alloc", &e))?;
        self.memory.push(slice);
        Ok(Buffer { address, len })
    }

    /// Fills a buffer from host memory of the same length and waits.
    ///
    /// # Errors
    /// `Runtime`; `Bytes` if the lengths differ.
    pub fn fill_from(&mut self, data: &[u8], to: Buffer) -> Result<(), KernelError> {
        if data.len() != to.len {
            let (expected, got) = (to.len as u64, data.len() as u64);
            return Err(KernelError::Bytes {
                kernel: "fill_from",
                index: 0,
                expected,
                got,
            });
        }
        ffi::upload(&self.stream, data, to).map_err(|e| failed("upload", &e))
    }

    /// Copies a buffer onto another one of the same length, without waiting.
    ///
    /// # Errors
    /// `Runtime`.
    pub fn copy(&mut self, from: Buffer, to: Buffer) -> Result<(), KernelError> {
        ffi::copy(&self.stream, from, to).map_err(|e| failed("copy", &e))
    }
}

fn compile(
    context: &Arc<CudaContext>,
    source: &Source,
    flags: &[&str],
    arch: String,
) -> Result<Arc<CudaModule>, KernelError> {
    let options = CompileOptions {
        options: flags
            .iter()
            .map(|f| (*f).to_string())
            .chain([arch.clone()])
            .collect(),
        name: Some(source.name.into()),
        ..CompileOptions::default()
    };
    let ptx = compile_ptx_with_opts(image::assemble(source)?, options).map_err(|e| {
        let message = match &e {
            cudarc::nvrtc::CompileError::CompileError { log, .. } => {
                log.to_string_lossy().into_owned()
            }
            other => other.to_string(),
        };
        KernelError::Compile {
            program: "NVRTC",
            source_name: source.name.into(),
            target: arch,
            message,
        }
    })?;
    context
        .load_module(ptx)
        .map_err(|e| failed(source.name, &e))
}

/// Compiles every source without a GPU, for a machine that has NVRTC only. PTX bytes by source.
///
/// # Errors
/// `Runtime` without NVRTC, `Compile`.
pub fn compile_only(arch: &str) -> Result<Vec<(&'static str, usize)>, KernelError> {
    if !ffi::has_nvrtc() {
        let message = "NVRTC was not found".to_string();
        return Err(KernelError::Runtime {
            runtime: "cuda",
            message,
        });
    }
    let mut sizes = Vec::new();
    for source in image::KERNELS.iter().chain(image::BENCH) {
        let flags = image::NVRTC_FLAGS.iter().map(|f| (*f).to_string());
        let options = CompileOptions {
            options: flags
                .chain([format!("--gpu-architecture={arch}")])
                .collect(),
            name: Some(source.name.into()),
            ..CompileOptions::default()
        };
        let ptx = compile_ptx_with_opts(image::assemble(source)?, options).map_err(|e| {
            KernelError::Compile {
                program: "NVRTC",
                source_name: source.name.into(),
                target: arch.into(),
                message: e.to_string(),
            }
        })?;
        sizes.push((source.name, ptx.to_src().len()));
    }
    Ok(sizes)
}

impl Runner for Cuda {
    type Buffer = Buffer;

    fn load(&mut self, data: &[u8], skew: usize) -> Result<Buffer, KernelError> {
        let buffer = self.raw(data.len() + skew)?.part(skew, data.len());
        ffi::upload(&self.stream, data, buffer).map_err(|e| failed("upload", &e))?;
        Ok(buffer)
    }

    fn poisoned(&mut self, len: usize) -> Result<Buffer, KernelError> {
        self.load(&vec![0xff; len], 0)
    }

    fn launch(&mut self, call: &Call, buffers: &[Buffer]) -> Result<(), KernelError> {
        self.submit(call, buffers)?;
        self.wait()
    }

    fn read(&mut self, buffer: Buffer) -> Result<Vec<u8>, KernelError> {
        ffi::download(&self.stream, buffer).map_err(|e| failed("download", &e))
    }

    fn reset(&mut self) {
        self.memory.clear();
    }

    fn width(&self) -> usize {
        8
    }
}
