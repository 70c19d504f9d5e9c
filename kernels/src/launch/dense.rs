//! Launches of `dense.cu`: f32, f16 and bf16 matrices by contract rule 4.

use fpx_quant::Format;

use super::{Arg, Call, bytes, grid_x, int, require};
use crate::KernelError;

const SOURCE: &str = "dense.cu";

/// Kernel for a format and a number of columns, and the columns of one row of the grid.
fn kernel(format: Format, cols: usize) -> Result<(&'static str, usize), KernelError> {
    let names = match format {
        Format::F32 => ["dense_f32_1", "dense_f32_2", "dense_f32_4", "dense_f32_8"],
        Format::F16 => ["dense_f16_1", "dense_f16_2", "dense_f16_4", "dense_f16_8"],
        Format::BF16 => [
            "dense_bf16_1",
            "dense_bf16_2",
            "dense_bf16_4",
            "dense_bf16_8",
        ],
        _ => {
            let what = "a product in f32";
            return Err(fpx_quant::FormatError::Unsupported { format, what }.into());
        }
    };
    Ok(match cols {
        0..=1 => (names[0], 1),
        2 => (names[1], 2),
        3..=4 => (names[2], 4),
        _ => (names[3], 8),
    })
}

/// y `[cols][rows]` = W `[rows][k]` times x `[cols][k]`. Buffers: W in file order, x f32, y f32.
///
/// # Errors
/// `Format` for a format with scales; `Shape`.
pub fn product(format: Format, rows: usize, k: usize, cols: usize) -> Result<Call, KernelError> {
    let (name, wide) = kernel(format, cols)?;
    require(name, "k", "at least 1", k, k > 0)?;
    let down = cols.div_ceil(wide);
    require(
        name,
        "columns",
        "1 to 65535 groups",
        cols,
        down > 0 && down <= 65_535,
    )?;
    let per_warp = 8 / wide;
    let slots = 8 / k.div_ceil(512).next_power_of_two().min(8);
    let blocks = rows.div_ceil(per_warp).div_ceil(slots) as u64;
    Ok(
        Call::new(SOURCE, name, [grid_x(name, blocks)?, down as u32, 1], 256)
            .arg(Arg::Read(bytes(name, &[rows, k, format.block_bytes()])?))
            .arg(Arg::Read(bytes(name, &[cols, k, 4])?))
            .arg(Arg::Write(bytes(name, &[cols, rows, 4])?))
            .arg(Arg::I32(int(name, "rows", rows)?))
            .arg(Arg::I32(int(name, "k", k)?))
            .arg(Arg::I32(int(name, "columns", cols)?)),
    )
}
