//! The functions of the arithmetic contract: one fixed f32 operation sequence each, the same bits
//! on every device. The GPU sources mirror these line by line; `docs/adr/0001-arithmetic.md` holds
//! the reasons. Change nothing here without voiding every hash, snapshot and record.
//!
//! Everything is `#[inline(always)]` safe Rust over fixed-size arrays, so that a caller compiled
//! with `#[target_feature(enable = "avx2,fma")]` gets vector code with the same bits: Rust never
//! contracts or reorders floating point by itself. `mul_add` is one rounding, by definition of the
//! operation, whether an instruction or libm provides it.

mod cpu;
mod exp;
mod log;
mod rope;
mod sum;

pub use cpu::{Ceiling, Level, below_ceiling, set_ceiling, simd_level};
pub use exp::{exp, sigmoid, silu};
pub use log::{ln, log1p, softplus, sqrt_softplus};
pub use rope::{RopeTable, Yarn};
pub use sum::{LANES, SEGMENT, dot, fold_lanes, rms_scale, row_total, sum_squares};

/// One correctly rounded multiply-add: a * b + c.
#[inline(always)]
#[must_use]
pub fn fma(a: f32, b: f32, c: f32) -> f32 {
    a.mul_add(b, c)
}

/// 1 / sqrt(x), two IEEE operations (contract rule 6).
#[inline(always)]
#[must_use]
pub fn rsqrt(x: f32) -> f32 {
    1.0 / x.sqrt()
}
