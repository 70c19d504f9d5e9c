//! Launches of `dense.cu` and `dense_wide.cu`: f32, f16 and bf16 matrices by contract rule 4.

use fpx_quant::Format;

use super::{Arg, Call, bytes, grid_x, int, require};
use crate::KernelError;

const SOURCE: &str = "dense.cu";
const WIDE: &str = "dense_wide.cu";
/// Rows and columns of a block of `dense_wide.cu`, and blocks from which it pays: with fewer most of a large device is idle.
const WIDE_BLOCK: usize = 64;
const WIDE_BLOCKS: usize = 64;

/// Most matrices of a [`set`].
pub const SET: usize = 5;
/// Most columns of a [`set`].
pub const SET_COLS: usize = 8;

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
            concat!("dense_", $name, "_set_1"),
            concat!("dense_", $name, "_set_2"),
            concat!("dense_", $name, "_set_4"),
            concat!("dense_", $name, "_set_8"),
            concat!("dense_wide_", $name),
        ]
    };
}

fn names(format: Format) -> Result<[&'static str; 14], KernelError> {
    Ok(match format {
        Format::F32 => names!("f32"),
        Format::F16 => names!("f16"),
        Format::BF16 => names!("bf16"),
        _ => {
            let what = "a product in f32";
            return Err(fpx_quant::FormatError::Unsupported { format, what }.into());
        }
    })
}

impl Kind {
    /// Of a set for up to [`SET_COLS`] columns.
    fn of_set(format: Format, cols: usize) -> Result<Self, KernelError> {
        let names = names(format)?;
        let (name, rows, cols) = match cols {
            0..=1 => (9, 8, 1),
            2 => (10, 4, 2),
            3..=4 => (11, 4, 4),
            _ => (12, 4, 8),
        };
        let name = names[name];
        Ok(Self {
            name,
            rows,
            cols,
            warps: 8,
        })
    }

    /// Blocks that hold the rows of a matrix.
    fn blocks(&self, rows: usize, k: usize) -> u64 {
        let slots = self.warps / k.div_ceil(512).next_power_of_two().min(self.warps);
        rows.div_ceil(self.rows).div_ceil(slots) as u64
    }

    /// The same bits whichever is taken.
    fn of(format: Format, rows: usize, cols: usize) -> Result<Self, KernelError> {
        let names = names(format)?;
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
    let blocks = rows.div_ceil(WIDE_BLOCK) * cols.div_ceil(WIDE_BLOCK);
    if cols >= WIDE_BLOCK && blocks >= WIDE_BLOCKS {
        return wide(format, rows, k, cols);
    }
    let kind = Kind::of(format, rows, cols)?;
    let threads = kind.warps as u32 * 32;
    let grid = [kind.blocks(rows, k), cols.div_ceil(kind.cols) as u64];
    product_of(
        (SOURCE, kind.name),
        format,
        [rows, k, cols],
        (grid, threads),
    )
}

/// [`product`] by the kernels for many rows and columns, whatever their number. Buffers: as there.
///
/// # Errors
/// As [`product`].
pub fn wide(format: Format, rows: usize, k: usize, cols: usize) -> Result<Call, KernelError> {
    let grid = [rows, cols].map(|n| n.div_ceil(WIDE_BLOCK) as u64);
    let name = names(format)?[13];
    product_of((WIDE, name), format, [rows, k, cols], (grid, 256))
}

fn product_of(
    (source, name): (&'static str, &'static str),
    format: Format,
    [rows, k, cols]: [usize; 3],
    ([across, down], threads): ([u64; 2], u32),
) -> Result<Call, KernelError> {
    require(name, "k", "at least 1", k, k > 0)?;
    require(
        name,
        "columns",
        "1 to 65535 groups",
        cols,
        down > 0 && down <= 65_535,
    )?;
    let grid = [grid_x(name, across)?, down as u32, 1];
    Ok(Call::new(source, name, grid, threads)
        .arg(Arg::Read(bytes(name, &[rows, k, format.block_bytes()])?))
        .arg(Arg::Read(bytes(name, &[cols, k, 4])?))
        .arg(Arg::Write(bytes(name, &[cols, rows, 4])?))
        .arg(Arg::I32(int(name, "rows", rows)?))
        .arg(Arg::I32(int(name, "k", k)?))
        .arg(Arg::I32(int(name, "columns", cols)?)))
}

/// The products of `rows.len()` matrices of `k` with the same `cols` activation rows: the bits of [`product`] for each.
/// Buffers: x `[cols][k]` f32, then of every matrix W `[rows][k]` in file order and y `[cols][rows]` f32.
///
/// # Errors
/// `Format` for a format with scales; `Shape`: no matrices or more than [`SET`], more columns than [`SET_COLS`].
pub fn set(format: Format, rows: &[usize], k: usize, cols: usize) -> Result<Call, KernelError> {
    let kind = Kind::of_set(format, cols)?;
    let name = kind.name;
    require(name, "k", "at least 1", k, k > 0)?;
    let fits = (1..=SET_COLS).contains(&cols);
    require(name, "columns", "1 to 8", cols, fits)?;
    let fits = (1..=SET).contains(&rows.len()) && rows.iter().all(|r| *r > 0);
    require(name, "matrices", "1 to 5 with rows", rows.len(), fits)?;
    let blocks = rows.iter().map(|r| kind.blocks(*r, k)).sum();
    let grid = [grid_x(name, blocks)?, 1, 1];
    let mut call = Call::new(SOURCE, name, grid, 256).arg(Arg::Read(bytes(name, &[cols, k, 4])?));
    for at in 0..SET {
        call = match rows.get(at) {
            Some(rows) => call
                .arg(Arg::Read(bytes(name, &[*rows, k, format.block_bytes()])?))
                .arg(Arg::Write(bytes(name, &[cols, *rows, 4])?)),
            None => call.arg(Arg::Null).arg(Arg::Null),
        };
    }
    for at in 0..SET {
        let rows = rows.get(at).copied().unwrap_or(0);
        call = call.arg(Arg::I32(int(name, "rows", rows)?));
    }
    Ok(call
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
        assert_eq!(call(256, 4096, 1024), ("dense_wide_f16", [4, 16, 1], 256));
        assert_eq!(call(8192, 1024, 63), ("dense_f16_many", [256, 8, 1], 256));
        assert_eq!(call(256, 4096, 960), ("dense_f16_many", [32, 120, 1], 256));
        let call = set(Format::F16, &[1024, 1024, 256, 256, 64], 4096, 1).unwrap();
        assert_eq!((call.kernel, call.grid), ("dense_f16_set_1", [328, 1, 1]));
        assert!(
            set(Format::F16, &[64; 6], 512, 1).is_err() && set(Format::F16, &[], 512, 1).is_err()
        );
        assert!(
            set(Format::F16, &[64], 512, 9).is_err() && set(Format::F16, &[64, 0], 512, 1).is_err()
        );
        assert!(product(Format::Q8_0, 24, 512, 1).is_err());
        assert!(
            product(Format::F16, 24, 0, 1).is_err() && product(Format::F16, 24, 32, 0).is_err()
        );
    }
}
