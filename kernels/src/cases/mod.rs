//! Inputs, references and comparisons of every kernel: the same lists run on the host executor in
//! CI and on a device. A case compares all bits; the only freedom is which NaN a NaN is.
//!
//! Must not know: which runtime executes.

pub mod a8;
pub mod attend;
mod compare;
pub mod compress;
pub mod dense;
pub mod draws;
mod experts;
pub mod fp4f;
pub mod grouped;
pub mod hc;
mod hc_dots;
pub mod head;
pub mod index;
pub mod math;
mod noise;
pub mod norm;
pub mod reference;
pub mod route;
pub mod rows;
pub mod synth;
pub mod tiled;

pub use compare::{Outcome, compare_bytes, compare_f32};
pub use noise::Noise;

use crate::KernelError;
use crate::launch::Call;
use crate::launch::fp4f::Gemm;

/// What executes launches.
pub trait Runner {
    /// A buffer's handle.
    type Buffer: Copy;

    /// A buffer that holds `data`, starting `skew` bytes past an aligned address.
    ///
    /// # Errors
    /// `Runtime`.
    fn load(&mut self, data: &[u8], skew: usize) -> Result<Self::Buffer, KernelError>;

    /// A buffer of `len` bytes 0xff.
    ///
    /// # Errors
    /// `Runtime`.
    fn poisoned(&mut self, len: usize) -> Result<Self::Buffer, KernelError>;

    /// Runs a launch to its end.
    ///
    /// # Errors
    /// Those of [`Call::check`], `Runtime`, `OutOfBounds`.
    fn launch(&mut self, call: &Call, buffers: &[Self::Buffer]) -> Result<(), KernelError>;

    /// A buffer's bytes.
    ///
    /// # Errors
    /// `Runtime`.
    fn read(&mut self, buffer: Self::Buffer) -> Result<Vec<u8>, KernelError>;

    /// Frees all buffers.
    fn reset(&mut self);

    /// Columns of a matrix step: 8 on NVIDIA, 16 on AMD.
    fn width(&self) -> usize;

    /// The tiled products this device can run.
    fn gemms(&self) -> &'static [Gemm] {
        Gemm::EQUAL
    }
}

/// How much to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Seconds on an emulated device.
    Quick,
    /// For hardware.
    Full,
}

/// A case list.
pub type List<R> = fn(&mut R, Depth) -> Result<Vec<Outcome>, KernelError>;

/// The lists of all families, named.
#[must_use]
pub fn families<R: Runner>() -> Vec<(&'static str, List<R>)> {
    vec![
        ("a8", a8::run),
        ("fp4f", fp4f::run),
        ("norm", norm::run),
        ("dense", dense::run),
        ("attend", attend::run),
        ("hc", hc::run),
        ("rows", rows::run),
        ("route", route::run),
        ("compress", compress::run),
        ("index", index::run),
        ("tiled", tiled::run),
        ("grouped", grouped::run),
        ("head", head::run),
        ("synth", synth::run),
        ("math", math::run),
    ]
}

/// Runs every family.
///
/// # Errors
/// The first launch that fails; differences are not errors but [`Outcome`]s.
pub fn all<R: Runner>(runner: &mut R, depth: Depth) -> Result<Vec<Outcome>, KernelError> {
    let mut outcomes = Vec::new();
    for (_, run) in families() {
        outcomes.extend(run(runner, depth)?);
    }
    Ok(outcomes)
}

/// Little-endian bytes of f32 values.
#[must_use]
pub fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// f32 values of little-endian bytes; a rest of less than four is dropped.
#[must_use]
pub fn to_f32(bytes: &[u8]) -> Vec<f32> {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|w| f32::from_le_bytes(*w)).collect()
}

/// Little-endian bytes of words.
#[must_use]
pub fn u32_bytes(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}
