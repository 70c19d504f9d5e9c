//! What the checks work with: a device with the suite's kernels, data, and small helpers.

use super::kernels::{self, SIGNATURES};
use crate::buffer::{Buffer, View};
use crate::device::Device;
use crate::driver::{Code, Driver, Geometry, Kind, Place};
use crate::fault::Fault;
use crate::image::Kernel;
use crate::launch::Arg;
use crate::runtime::Runtime;
use crate::stream::Stream;
use crate::watch::Watched;

/// A runtime, a device number, and the image of the suite's kernels.
#[derive(Debug)]
pub struct Bench<D: Driver> {
    pub(super) runtime: Runtime<Watched<D>>,
    pub(super) ordinal: u32,
    pub(super) code: Code,
}

/// The runtime the checks see.
pub(super) type W<D> = Watched<D>;

/// The suite's kernels on a device.
pub(super) struct Kernels<D: Driver> {
    pub(super) put: Kernel<W<D>>,
    pub(super) add: Kernel<W<D>>,
    pub(super) churn: Kernel<W<D>>,
    pub(super) echo: Kernel<W<D>>,
}

impl<D: Driver> Bench<D> {
    pub(super) fn new(runtime: &Runtime<W<D>>, ordinal: u32) -> Result<Self, Fault> {
        let device = runtime.open(ordinal)?;
        let code = match runtime.kind() {
            Kind::Cpu | Kind::Fake => kernels::host(),
            Kind::Cuda | Kind::Hip => device.compile("conformance", kernels::SOURCE, &[])?,
        };
        Ok(Self {
            runtime: runtime.clone(),
            ordinal,
            code,
        })
    }

    pub(super) fn device(&self) -> Result<Device<W<D>>, Fault> {
        self.runtime.open(self.ordinal)
    }

    pub(super) fn kernels(&self, device: &Device<W<D>>) -> Result<Kernels<D>, Fault> {
        let image = device.load("conformance", &self.code)?;
        let get = |at: usize| {
            let (name, signature) = SIGNATURES[at];
            // SAFETY: `kernels` lists the parameters beside both forms of the kernels, which touch
            // words below `n` of their buffers (`echo`: four words) and end.
            unsafe { image.kernel(name, signature) }
        };
        Ok(Kernels {
            put: get(0)?,
            add: get(1)?,
            churn: get(2)?,
            echo: get(3)?,
        })
    }

    /// Whether the runtime gives pinned and unified memory.
    pub(super) fn places(&self, device: &Device<W<D>>) -> Vec<Place> {
        let unified = device.facts().unified.then_some(Place::Unified);
        [Place::Device, Place::Pinned]
            .into_iter()
            .chain(unified)
            .collect()
    }
}

impl<D: Driver> Kernels<D> {
    /// `y[i] = value + i`.
    pub(super) fn put(&self, s: &Stream<W<D>>, y: &View<W<D>>, value: u32) -> Result<(), Fault> {
        let n = (y.len() / 4) as u32;
        let args = [Arg::Write(y, y.len()), Arg::U32(value), Arg::U32(n)];
        s.launch(&self.put, &grid(n)?, &args)
    }

    /// `y = a + b`.
    pub(super) fn add(
        &self,
        s: &Stream<W<D>>,
        a: &View<W<D>>,
        b: &View<W<D>>,
        y: &View<W<D>>,
    ) -> Result<(), Fault> {
        let n = (y.len() / 4) as u32;
        let args = [
            Arg::Read(a, y.len()),
            Arg::Read(b, y.len()),
            Arg::Write(y, y.len()),
            Arg::U32(n),
        ];
        s.launch(&self.add, &grid(n)?, &args)
    }

    /// Takes its time over `y`.
    pub(super) fn churn(&self, s: &Stream<W<D>>, y: &View<W<D>>, rounds: u32) -> Result<(), Fault> {
        let n = (y.len() / 4) as u32;
        let args = [Arg::Write(y, y.len()), Arg::U32(rounds), Arg::U32(n)];
        s.launch(&self.churn, &grid(n)?, &args)
    }
}

fn grid(n: u32) -> Result<Geometry, Fault> {
    Geometry::cover("conformance", n.into(), 64)
}

/// Device memory for `n` words.
pub(super) fn words<D: Driver>(device: &Device<W<D>>, n: u64) -> Result<Buffer<W<D>>, Fault> {
    device.alloc(Place::Device, n * 4)
}

/// The words of a device buffer.
pub(super) fn read<D: Driver>(s: &Stream<W<D>>, from: &View<W<D>>) -> Result<Vec<u32>, Fault> {
    let mut bytes = vec![0x55; from.len() as usize];
    s.read_now(from, &mut bytes)?;
    Ok(to_words(&bytes))
}

/// Bytes as words.
pub(super) fn to_words(bytes: &[u8]) -> Vec<u32> {
    let word = |c: &[u8]| u32::from_le_bytes([c[0], c[1], c[2], c[3]]);
    bytes.chunks_exact(4).map(word).collect()
}

/// Bytes that differ from place to place and from seed to seed.
pub(super) fn pattern(seed: u32, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| {
            ((i as u32 ^ seed.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b) >> 24) as u8
        })
        .collect()
}
