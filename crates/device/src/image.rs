//! Loaded images and the kernels in them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::driver::{Driver, EarlyLaunch, FunctionFacts, Geometry, Raw};
use crate::fault::{DeviceId, Fault};
use crate::owned::{Held, Module};

/// Registers and memory of a kernel.
pub type Resources = FunctionFacts;

/// Dynamic shared memory that needs no permission, on every runtime (CUDA programming guide, "48 KB").
const FREE_SHARED: u32 = 48 << 10;

/// What a kernel's parameter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgKind {
    /// An address: 8 bytes.
    Address,
    /// 4 bytes.
    Word,
    /// 8 bytes that are no address.
    Long,
}

impl ArgKind {
    fn size(self) -> u32 {
        match self {
            Self::Address | Self::Long => 8,
            Self::Word => 4,
        }
    }
}

impl fmt::Display for ArgKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Address => "an address",
            Self::Word => "4 bytes",
            Self::Long => "8 bytes",
        })
    }
}

/// An image loaded on a device.
#[derive(Debug)]
pub struct Image<R: Driver> {
    name: String,
    module: Arc<Module<R>>,
}

impl<R: Driver> Image<R> {
    pub(crate) fn new(name: &str, module: Module<R>) -> Self {
        Self {
            name: name.into(),
            module: Arc::new(module),
        }
    }

    /// The name it was loaded under.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its device.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.module.device.id
    }

    /// Finds a kernel, and compares its parameters with `signature` where the runtime can tell
    /// (the host can; CUDA from driver 12.4 on; HIP cannot).
    ///
    /// # Safety
    /// The kernel has this signature. Launched with arguments that fit it, it touches no memory but
    /// the byte counts its arguments name, and ends.
    ///
    /// # Errors
    /// `Argument` if the runtime knows other sizes, `Call` (also for an unknown name), `Lost`.
    pub unsafe fn kernel(&self, name: &str, signature: &[ArgKind]) -> Result<Kernel<R>, Fault> {
        self.module.device.alive()?;
        let raw = self.module.function(name)?;
        if let Some(sizes) = self.module.argument_sizes(raw)? {
            let ours: Vec<u32> = signature.iter().map(|kind| kind.size()).collect();
            if sizes != ours {
                let differs = |(a, b): (&u32, &u32)| a != b;
                let index = sizes.iter().zip(&ours).position(differs);
                return Err(Fault::Argument {
                    kernel: name.into(),
                    index: index.unwrap_or(sizes.len().min(ours.len())),
                    expected: format!("sizes {sizes:?}"),
                    got: format!("{ours:?}"),
                });
            }
        }
        Ok(Kernel {
            name: name.into(),
            module: Arc::clone(&self.module),
            raw,
            signature: signature.to_vec(),
            shared: AtomicU32::new(FREE_SHARED),
            early: false,
        })
    }
}

/// A kernel of an image. Holds the image.
#[derive(Debug)]
pub struct Kernel<R: Driver> {
    name: String,
    module: Arc<Module<R>>,
    raw: Raw,
    signature: Vec<ArgKind>,
    /// Dynamic shared memory allowed so far.
    shared: AtomicU32,
    /// Whether it may start before the kernel ahead of it has ended.
    early: bool,
}

impl<R: Driver> Kernel<R> {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its parameters.
    #[must_use]
    pub fn signature(&self) -> &[ArgKind] {
        &self.signature
    }

    /// Its device.
    #[must_use]
    pub fn device(&self) -> DeviceId {
        self.module.device.id
    }

    /// Registers and memory it needs.
    ///
    /// # Errors
    /// `Call`, `Lost`.
    pub fn resources(&self) -> Result<Resources, Fault> {
        self.module.facts(self.raw)
    }

    /// The kernel, started early from now on where the device does that and the image was built for it: behind
    /// another such kernel of its stream, before that one has ended. Behind anything else it starts in full order.
    ///
    /// # Safety
    /// Every thread of it waits for the kernel ahead before it touches memory that a kernel writes.
    ///
    /// # Errors
    /// `Call`, `Lost`.
    pub unsafe fn waiting(mut self) -> Result<Self, Fault> {
        self.early =
            self.module.device.facts.early_launch == EarlyLaunch::On && self.resources()?.waits;
        Ok(self)
    }

    /// Whether it may start early, were the device's early launches not turned off.
    #[must_use]
    pub fn early(&self) -> bool {
        self.early
    }

    pub(crate) fn raw(&self) -> Raw {
        self.raw
    }

    pub(crate) fn held(&self) -> Held {
        Arc::clone(&self.module) as Held
    }

    /// Asks for more shared memory than any launch so far had.
    pub(crate) fn prepare(&self, geometry: &Geometry) -> Result<(), Fault> {
        if geometry.shared > self.shared.load(Ordering::Relaxed) {
            self.module.allow_shared(self.raw, geometry.shared)?;
            self.shared.fetch_max(geometry.shared, Ordering::Relaxed);
        }
        Ok(())
    }
}
