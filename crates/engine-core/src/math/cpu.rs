//! Which instruction set the host offers: decided once at run time, never at build time. A process may
//! lower it, so that every path can be compared with the plain one on one machine.

use std::sync::atomic::{AtomicU8, Ordering};

/// Instruction sets that reference code is compiled for a second time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Whatever the build target guarantees.
    Baseline,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
}

/// The widest vector instructions that may be used, whatever the processor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Ceiling {
    /// What the build target guarantees.
    Baseline,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// All there is.
    Widest,
}

static CEILING: AtomicU8 = AtomicU8::new(Ceiling::Widest as u8);

/// Sets the ceiling, for the whole process. It changes no bit of any result, only which code computes
/// it; work under way may finish with the old one.
pub fn set_ceiling(ceiling: Ceiling) {
    CEILING.store(ceiling as u8, Ordering::Relaxed);
}

/// Whether instructions of this width may be used.
#[must_use]
#[inline]
pub fn below_ceiling(of: Ceiling) -> bool {
    of as u8 <= CEILING.load(Ordering::Relaxed)
}

/// The best level of this processor below the ceiling. The standard library caches the probe.
#[must_use]
#[inline]
pub fn simd_level() -> Level {
    #[cfg(target_arch = "x86_64")]
    if below_ceiling(Ceiling::Avx2)
        && std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("fma")
        && std::arch::is_x86_feature_detected!("f16c")
    {
        return Level::Avx2;
    }
    Level::Baseline
}
