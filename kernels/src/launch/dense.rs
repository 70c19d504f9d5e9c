//! Launches of `dense.cu`: f32, f16 and bf16 matrices by contract rule 4.

use fpx_quant::Format;

use super::{Arg, Call, bytes, grid_x, int, require};
use crate::KernelError;

const SOURCE: &str = "dense.cu";

/// Matrices of up to so many rows take kernels that spread few rows over a device.
const FEW: usize = 512;

/// A kernel: rows and columns of a warp, warps of a block.
struct Kind {
    name: &'static str,
    rows: usize,
    cols: usize,
    warps: usize,
}

macro_rules! names {
    ($name:literal) => {
        [
            concat!("dense_", $name, "_1"),
            concat!("dense_", $name, "_2"),
            concat!("dense_", $name, "_4"),
            concat!("dense_", $name, "_8"),
            concat!("dense_", $name, "_many"),
            concat!("dense_", $name, "_few_1"),
            concat!("dense_", $name, "_few_2"),
            concat!("dense_", $name, "_few_4"),
            concat!("dense_", $name, "_few_8"),
        ]
    };
}

impl Kind {
    /// The same bits whichever is taken.
    fn of(format: Format, rows: usize, cols: usize) -> Result<Self, KernelError> {
        let names = match format {
            Format::F32 => names!("f32"),
            Format::F16 => names!("f16"),
            Format::BF16 => names!("bf16"),
            _ => {
                let what = "a product in f32";
                return Err(fpx_quant::FormatError::Unsupported { format, what }.into());
            }
        };
        let kind = |name: usize, rows, cols, warps| Self {
            name: names[name],
            rows,
            cols,
            warps,
        };
        let few = rows <= FEW;
        Ok(match cols {
            0..=1 if few => kind(5, 1, 1, 32),
            2 if few => kind(6, 1, 2, 32),
            3..=4 if few => kind(7, 1, 4, 32),
            5..=8 if few => kind(8, 1, 8, 32),
            0..=1 => kind(0, 8, 1, 8),
            2 => kind(1, 4, 2, 8),
            3..=4 => kind(2, 4, 4, 8),
            5..=8 => kind(3, 4, 8, 8),
            _ => kind(4, 8, 8, 8),
        })
    }
}

/// y `[cols][rows]` = W `[rows][k]` times x `[cols][k]`. Buffers: W in file order, x f32, y f32.
///
/// # Errors
/// `Format` for a format with scales; `Shape`.
pub fn product(format: Format, rows: usize, k: usize, cols: usize) -> Result<Call, KernelError> {
    let kind = Kind::of(format, rows, cols)?;
    let name = kind.name;
    require(name, "k", "at least 1", k, k > 0)?;
    let down = cols.div_ceil(kind.cols);
    require(
        name,
        "columns",
        "1 to 65535 groups",
        cols,
        down > 0 && down <= 65_535,
    )?;
    let slots = kind.warps / k.div_ceil(512).next_power_of_two().min(kind.warps);
    let blocks = rows.div_ceil(kind.rows).div_ceil(slots) as u64;
    let (grid, threads) = (
        [grid_x(name, blocks)?, down as u32, 1],
        kind.warps as u32 * 32,
    );
    Ok(Call::new(SOURCE, name, grid, threads)
        .arg(Arg::Read(bytes(name, &[rows, k, format.block_bytes()])?))
        .arg(Arg::Read(bytes(name, &[cols, k, 4])?))
        .arg(Arg::Write(bytes(name, &[cols, rows, 4])?))
        .arg(Arg::I32(int(name, "rows", rows)?))
        .arg(Arg::I32(int(name, "k", k)?))
        .arg(Arg::I32(int(name, "columns", cols)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rows_and_many_columns_have_kernels_of_their_own() {
        let call = |rows, k, cols| {
            let call = product(Format::F16, rows, k, cols).unwrap();
            (call.kernel, call.grid, call.threads)
        };
        assert_eq!(call(24, 16_384, 1), ("dense_f16_few_1", [24, 1, 1], 1024));
        // Eight segments: four rows a block.
        assert_eq!(call(256, 4096, 6), ("dense_f16_few_8", [64, 1, 1], 1024));
        assert_eq!(call(1024, 4096, 1), ("dense_f16_1", [128, 1, 1], 256));
        assert_eq!(call(8192, 1024, 8), ("dense_f16_8", [512, 1, 1], 256));
        assert_eq!(call(24, 16_384, 9), ("dense_f16_many", [3, 2, 1], 256));
        assert!(product(Format::Q8_0, 24, 512, 1).is_err());
        assert!(
            product(Format::F16, 24, 0, 1).is_err() && product(Format::F16, 24, 32, 0).is_err()
        );
    }
}
