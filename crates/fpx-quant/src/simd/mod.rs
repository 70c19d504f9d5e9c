//! The one place that enters code compiled for more than the build target guarantees.
//!
//! Apart because entering it is the crate's only `unsafe`: kernels themselves are safe Rust that
//! the compiler vectorises for the wider instruction set, with the same bits (Rust neither
//! contracts nor reorders floating point). Must not know: formats.

use engine_core::math::{Level, simd_level};

/// Work to be compiled once for the build target and once for each [`Level`].
pub(crate) trait Kernel {
    /// What the work returns.
    type Out;

    /// The work. Implementations and all they call must be `#[inline(always)]`: what is not
    /// inlined is compiled for the build target only (slower, same bits).
    fn run(self) -> Self::Out;
}

/// Runs the kernel with the best instruction set of this processor.
#[inline]
pub(crate) fn dispatch<K: Kernel>(kernel: K) -> K::Out {
    dispatch_at(simd_level(), kernel)
}

/// Runs the kernel with `level` or, where the processor has less, with what it has.
#[inline]
pub(crate) fn dispatch_at<K: Kernel>(level: Level, kernel: K) -> K::Out {
    match level.min(simd_level()) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `avx2` needs AVX2, FMA and F16C; the level is at most `simd_level()`, and that is
        // `Avx2` only where the processor reported the three.
        Level::Avx2 => unsafe { avx2(kernel) },
        _ => kernel.run(),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
fn avx2<K: Kernel>(kernel: K) -> K::Out {
    kernel.run()
}
