//! The kernels of a device by name, and how a launch is put on a stream.

use std::collections::HashMap;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};

use device::cache::{Cache, Recipe};
use device::driver::Driver;
use device::{ArgKind, Code, Device, Geometry, Image, Kernel, Kind, Resources, Stream, View};

use crate::KernelError;
use crate::image::{self, HIPRTC_FLAGS, NVRTC_FLAGS};
use crate::launch::{Arg, Call};

/// Most sources compiled at a time: each takes some hundred megabytes.
const COMPILERS: usize = 8;

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Launches put on streams (those collected into graphs count once, when collected).
    pub launches: u64,
    /// Images loaded: one a source file.
    pub images: u64,
}

/// The kernels of one device. Sources are compiled, or read from the cache, when one of their kernels is first
/// launched, or many at once before that ([`Kernels::compile`]).
#[derive(Debug)]
pub struct Kernels<R: Driver> {
    device: Device<R>,
    cache: Option<Cache>,
    images: HashMap<&'static str, Image<R>>,
    kernels: HashMap<&'static str, Kernel<R>>,
    counts: Counts,
}

impl<R: Driver> Kernels<R> {
    /// Kernels for a device; images come from `cache` where there is one.
    #[must_use]
    pub fn new(device: &Device<R>, cache: Option<Cache>) -> Self {
        Self {
            device: device.clone(),
            cache,
            images: HashMap::new(),
            kernels: HashMap::new(),
            counts: Counts::default(),
        }
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device<R> {
        &self.device
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Columns of a matrix step: 16 on AMD, 8 elsewhere (the host emulates NVIDIA's).
    #[must_use]
    pub fn width(&self) -> usize {
        match self.device.id().kind {
            Kind::Hip => 16,
            Kind::Cpu | Kind::Cuda | Kind::Fake => 8,
        }
    }

    /// Whether the device copies to shared memory by itself, so that kernels keep weights on their way there.
    #[must_use]
    pub fn copies_aside(&self) -> bool {
        self.device.id().kind != Kind::Hip
    }

    /// Compiles sources side by side, or reads them from the cache, and loads them; those that are loaded stay.
    ///
    /// # Errors
    /// As [`Self::put`], of the first source that fails.
    pub fn compile(&mut self, sources: &[&'static str]) -> Result<(), KernelError> {
        let known = |name: &&&str| !self.images.contains_key(**name);
        let names: Vec<&'static str> = sources.iter().filter(known).copied().collect();
        let next = AtomicUsize::new(0);
        let work = || {
            let mut done = Vec::new();
            while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                done.push((*name, self.code(name)));
            }
            done
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = threads.min(COMPILERS).min(names.len());
        let mut codes: Vec<(&'static str, Result<Code, KernelError>)> = std::thread::scope(|s| {
            let running: Vec<_> = (0..threads).map(|_| s.spawn(work)).collect();
            let ended = running.into_iter().map(|t| t.join());
            ended
                .flat_map(|done| done.unwrap_or_else(|panic| resume_unwind(panic)))
                .collect()
        });
        codes.sort_by_key(|(name, _)| names.iter().position(|n| n == name));
        for (name, code) in codes {
            self.keep(name, &code?)?;
        }
        Ok(())
    }

    fn keep(&mut self, name: &'static str, code: &Code) -> Result<(), KernelError> {
        let image = self.device.load(name, code)?;
        self.images.insert(name, image);
        self.counts.images += 1;
        Ok(())
    }

    /// Puts a launch on a stream. `buffers`: in the order of the launch's `Read` and `Write` arguments.
    ///
    /// # Errors
    /// `Buffers`, `Bytes`; `Device` with the compiler's log or the runtime's words; `Include`; `Runtime` where the
    /// host build is asked for and not built in.
    pub fn put(
        &mut self,
        stream: &Stream<R>,
        call: &Call,
        buffers: &[&View<R>],
    ) -> Result<(), KernelError> {
        let lengths = buffers.iter().map(|b| b.len());
        call.check(lengths)?;
        self.load(call)?;
        let mut next = buffers.iter().copied();
        let mut missing = || KernelError::Buffers {
            kernel: call.kernel,
            expected: buffers.len() + 1,
            got: buffers.len(),
        };
        let mut args = Vec::with_capacity(call.args().len());
        for arg in call.args() {
            args.push(match arg {
                Arg::Read(bytes) => {
                    device::Arg::Read(next.next().ok_or_else(&mut missing)?, *bytes)
                }
                Arg::Write(bytes) => {
                    device::Arg::Write(next.next().ok_or_else(&mut missing)?, *bytes)
                }
                Arg::Null => device::Arg::Null,
                Arg::I32(v) => device::Arg::I32(*v),
                Arg::U32(v) => device::Arg::U32(*v),
                Arg::F32(v) => device::Arg::F32(*v),
            });
        }
        let geometry = Geometry {
            grid: call.grid,
            threads: [call.threads, 1, 1],
            shared: call.shared,
        };
        stream.launch(&self.kernels[call.kernel], &geometry, &args)?;
        self.counts.launches += 1;
        Ok(())
    }

    /// Registers and memory of a launch's kernel.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn resources(&mut self, call: &Call) -> Result<Resources, KernelError> {
        self.load(call)?;
        Ok(self.kernels[call.kernel].resources()?)
    }

    /// Makes the launch's kernel if it was not asked for before.
    fn load(&mut self, call: &Call) -> Result<(), KernelError> {
        if self.kernels.contains_key(call.kernel) {
            return Ok(());
        }
        if !self.images.contains_key(call.source) {
            let code = self.code(call.source)?;
            self.keep(call.source, &code)?;
        }
        let signature: Vec<ArgKind> = call.args().iter().map(kind).collect();
        // SAFETY: the kernel is one of this crate's sources, and `call` was made by the launcher beside it: kinds
        // and byte counts of its arguments are what the source states under "shapes", which the case lists hold
        // against every device. Every kernel ends.
        let kernel = unsafe { self.images[call.source].kernel(call.kernel, &signature) }?;
        // SAFETY: every kernel begins with fs_begin, which waits (`tests/begin.rs` reads all of them).
        let kernel = unsafe { kernel.waiting() }?;
        self.kernels.insert(call.kernel, kernel);
        Ok(())
    }

    fn code(&self, name: &'static str) -> Result<Code, KernelError> {
        let options = match self.device.id().kind {
            Kind::Cpu | Kind::Fake => return host(),
            // Measurements of other orders are compiled as the compiler likes it.
            Kind::Cuda if image::BENCH.iter().any(|s| s.name == name) => &NVRTC_FLAGS[..1],
            Kind::Cuda => NVRTC_FLAGS,
            Kind::Hip => HIPRTC_FLAGS,
        };
        let all = image::KERNELS.iter().chain(image::BENCH);
        let source = all.clone().find(|s| s.name == name);
        let source = source.ok_or_else(|| KernelError::Include {
            source_name: "a launch".into(),
            include: name.into(),
        })?;
        let text = &image::assemble(source)?;
        Ok(match &self.cache {
            Some(cache) => cache.image(
                &self.device,
                &Recipe {
                    name,
                    text,
                    options,
                },
            )?,
            None => self.device.compile(name, text, options)?,
        })
    }
}

fn kind(arg: &Arg) -> ArgKind {
    match arg {
        Arg::Read(_) | Arg::Write(_) | Arg::Null => ArgKind::Address,
        Arg::I32(_) | Arg::U32(_) | Arg::F32(_) => ArgKind::Word,
    }
}

#[cfg(feature = "host-exec")]
#[allow(clippy::unnecessary_wraps)] // without the feature it fails
fn host() -> Result<Code, KernelError> {
    Ok(super::module::code(0))
}

#[cfg(not(feature = "host-exec"))]
fn host() -> Result<Code, KernelError> {
    Err(KernelError::Runtime {
        runtime: "cpu",
        message: "this build has no kernels for the host (feature host-exec)".into(),
    })
}
