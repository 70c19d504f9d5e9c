//! Launches of `norm.cu`.

use super::{Arg, Call, a8, bytes, grid_x, int, require};
use crate::KernelError;

const SOURCE: &str = "norm.cu";
/// Longest row of [`softmax`].
pub const SOFTMAX_MAX: usize = 8192;

/// RMS norm of `rows` rows of `n`. Buffers: x `[rows][n]` f32, w `[n]` f32 if `weighted`,
/// y `[rows][n]` f32; q `[rows][n]` i8 and meta `[rows][n / 32]` of 8 bytes if `blocks`.
///
/// # Errors
/// `Shape`.
pub fn rms(
    rows: usize,
    n: usize,
    weighted: bool,
    blocks: bool,
    eps: f32,
) -> Result<Call, KernelError> {
    const NAME: &str = "rms_norm";
    require(NAME, "n", "at least 1", n, n > 0)?;
    let size = bytes(NAME, &[rows, n, 4])?;
    let [q, meta] = a8::outputs(NAME, blocks, rows, n)?;
    let weight = if weighted {
        Arg::Read(bytes(NAME, &[n, 4])?)
    } else {
        Arg::Null
    };
    Ok(
        Call::new(SOURCE, NAME, [grid_x(NAME, rows as u64)?, 1, 1], 256)
            .arg(Arg::Read(size))
            .arg(weight)
            .arg(Arg::Write(size))
            .arg(q)
            .arg(meta)
            .arg(Arg::I32(int(NAME, "n", n)?))
            .arg(Arg::F32(eps)),
    )
}

/// Probabilities of `rows` rows of `n` scores in chunks of 128. Buffers: s `[rows][n]` f32,
/// sink `[rows]` f32 if `sink`, p `[rows][n]` f32.
///
/// # Errors
/// `Shape`: n is 0 or above [`SOFTMAX_MAX`].
pub fn softmax(rows: usize, n: usize, sink: bool) -> Result<Call, KernelError> {
    const NAME: &str = "softmax_rows";
    require(NAME, "n", "1 to 8192", n, (1..=SOFTMAX_MAX).contains(&n))?;
    let size = bytes(NAME, &[rows, n, 4])?;
    let sinks = if sink {
        Arg::Read(bytes(NAME, &[rows, 4])?)
    } else {
        Arg::Null
    };
    Ok(
        Call::new(SOURCE, NAME, [grid_x(NAME, rows as u64)?, 1, 1], 128)
            .arg(Arg::Read(size))
            .arg(sinks)
            .arg(Arg::Write(size))
            .arg(Arg::I32(int(NAME, "n", n)?)),
    )
}
