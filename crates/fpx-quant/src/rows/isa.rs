//! Which instructions a row kernel uses. A value for callers and tests; the same bits on each.

use engine_core::math::{Ceiling, Level, below_ceiling, simd_level};

/// Instruction sets that row kernels exist for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Isa {
    /// Whatever the build target guarantees: portable code.
    Baseline,
    /// aarch64 with NEON (part of its base set).
    Neon,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 (F, BW, VL, DQ, VBMI, VNNI).
    Avx512,
}

impl Isa {
    /// All values, slowest first.
    pub const ALL: [Self; 4] = [Self::Baseline, Self::Neon, Self::Avx2, Self::Avx512];

    /// Whether this processor has it and the process may use it (`engine_core::math::set_ceiling`). The standard library caches the probes.
    #[must_use]
    #[inline]
    pub fn available(self) -> bool {
        match self {
            Self::Baseline => true,
            Self::Neon => cfg!(target_arch = "aarch64"),
            Self::Avx2 => simd_level() >= Level::Avx2,
            Self::Avx512 => {
                simd_level() >= Level::Avx2 && below_ceiling(Ceiling::Widest) && avx512()
            }
        }
    }

    /// # Panics
    /// If this processor has not these instructions.
    #[inline]
    pub(crate) fn require(self) {
        assert!(self.available(), "this processor has no {self:?}");
    }

    /// The fastest of this processor.
    #[must_use]
    #[inline]
    pub fn best() -> Self {
        if cfg!(target_arch = "aarch64") {
            return Self::Neon;
        }
        if Self::Avx512.available() {
            Self::Avx512
        } else if Self::Avx2.available() {
            Self::Avx2
        } else {
            Self::Baseline
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
fn avx512() -> bool {
    use std::arch::is_x86_feature_detected as has;
    has!("avx512f")
        && has!("avx512bw")
        && has!("avx512vl")
        && has!("avx512dq")
        && has!("avx512vbmi")
        && has!("avx512vnni")
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn avx512() -> bool {
    false
}
