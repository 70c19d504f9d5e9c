//! Launches of `math.cu`.

use super::{Arg, Call, bytes, grid_x, int, require};
use crate::KernelError;

const SOURCE: &str = "math.cu";

/// A function of the contract, by the number `math.cu` gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Function {
    Exp,
    Log1p,
    Sigmoid,
    Silu,
    Softplus,
    SqrtSoftplus,
    Rsqrt,
    Ln,
}

impl Function {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::Exp,
        Self::Log1p,
        Self::Sigmoid,
        Self::Silu,
        Self::Softplus,
        Self::SqrtSoftplus,
        Self::Rsqrt,
        Self::Ln,
    ];
}

/// Checksums of `runs` runs of `run` consecutive bit patterns from `first`. Buffer: out `[runs]`
/// u64. Patterns wrap at 2^32.
///
/// # Errors
/// `Shape`.
pub fn checksum(f: Function, runs: usize, first: u32, run: u32) -> Result<Call, KernelError> {
    const NAME: &str = "math_checksum";
    require(NAME, "runs", "at least 1", runs, runs > 0)?;
    let grid = [grid_x(NAME, runs.div_ceil(256) as u64)?, 1, 1];
    Ok(Call::new(SOURCE, NAME, grid, 256)
        .arg(Arg::Write(bytes(NAME, &[runs, 8])?))
        .arg(Arg::I32(int(NAME, "runs", runs)?))
        .arg(Arg::U32(first))
        .arg(Arg::U32(run))
        .arg(Arg::I32(f as i32)))
}

/// All f16 patterns widened. Buffer: out `[65536]` f32.
#[must_use]
pub fn widen() -> Call {
    Call::new(SOURCE, "math_widen", [256, 1, 1], 256).arg(Arg::Write(65_536 * 4))
}
