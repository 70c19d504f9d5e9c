//! Which instruction set the host offers: decided once at run time, never at build time.

/// Instruction sets that reference code is compiled for a second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Whatever the build target guarantees.
    Baseline,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
}

/// The best level of this processor. The standard library caches the probe.
#[must_use]
#[inline]
pub fn simd_level() -> Level {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("fma")
        && std::arch::is_x86_feature_detected!("f16c")
    {
        return Level::Avx2;
    }
    Level::Baseline
}
