//! Launches of `bench.cu`: ceilings, fills, and products in an order of their own. Their results
//! are close to the contract's, not equal; nothing but measurements may use them.

use super::a8::META_BYTES;
use super::fp4f::Tile32;
use super::{Arg, Call, bytes, grid_x, int, require};
use crate::KernelError;

const SOURCE: &str = "bench.cu";
/// Bytes that [`fill`], [`read`] and [`copy`] work in.
pub const FILL_UNIT: usize = 4096;
const WIDE_UNIT: usize = 16_384;

fn units(name: &'static str, len: usize, unit: usize) -> Result<u32, KernelError> {
    require(
        name,
        "bytes",
        "a positive multiple of the unit",
        len,
        len > 0 && len.is_multiple_of(unit),
    )?;
    Ok(int(name, "units", len / unit)?.cast_unsigned())
}

/// Fills `len` bytes with (hash & and) | or, in words. Buffer: out.
///
/// # Errors
/// `Shape`: len is not a multiple of 4096.
pub fn fill(len: usize, seed: u32, and: u32, or: u32) -> Result<Call, KernelError> {
    const NAME: &str = "bench_fill";
    Ok(Call::new(SOURCE, NAME, [4096, 1, 1], 256)
        .arg(Arg::Write(len as u64))
        .arg(Arg::U32(units(NAME, len, FILL_UNIT)?))
        .arg(Arg::U32(seed))
        .arg(Arg::U32(and))
        .arg(Arg::U32(or)))
}

/// Reads `len` bytes with `blocks` blocks. Buffers: in, a 16-byte sink.
///
/// # Errors
/// `Shape`: len is not a multiple of 16384.
pub fn read(len: usize, blocks: u32) -> Result<Call, KernelError> {
    const NAME: &str = "bench_read";
    Ok(Call::new(SOURCE, NAME, [blocks, 1, 1], 512)
        .arg(Arg::Read(len as u64))
        .arg(Arg::Write(16))
        .arg(Arg::U32(units(NAME, len, WIDE_UNIT)?))
        .arg(Arg::U32(blocks)))
}

/// Copies `len` bytes with `blocks` blocks. Buffers: in, out.
///
/// # Errors
/// `Shape`: len is not a multiple of 16384.
pub fn copy(len: usize, blocks: u32) -> Result<Call, KernelError> {
    const NAME: &str = "bench_copy";
    Ok(Call::new(SOURCE, NAME, [blocks, 1, 1], 512)
        .arg(Arg::Read(len as u64))
        .arg(Arg::Write(len as u64))
        .arg(Arg::U32(units(NAME, len, WIDE_UNIT)?))
        .arg(Arg::U32(blocks)))
}

/// Ways to share the rows and K of a matrix between warps.
pub const SPLITS: [u32; 4] = [1, 2, 4, 8];

fn arguments(call: Call, w: &Tile32, cols: usize, size: u64) -> Result<Call, KernelError> {
    let name = call.kernel;
    Ok(call
        .arg(Arg::Read(size))
        .arg(Arg::Read(bytes(name, &[cols, w.k()])?))
        .arg(Arg::Read(bytes(name, &[cols, w.blocks(), META_BYTES])?))
        .arg(Arg::Write(bytes(name, &[cols, w.rows(), 4])?))
        .arg(Arg::I32(int(name, "rows", w.rows())?))
        .arg(Arg::I32(int(name, "blocks", w.blocks())?)))
}

/// Products on 4-way dots in every configuration, named; weights planar: `[rows][blocks]` 16 bytes
/// of codes in element order, then `[rows][blocks]` scale bytes. Buffers: planar, q, meta, y.
///
/// # Errors
/// `Shape`: columns other than 1, 2, 4, 8.
pub fn free_dots(w: &Tile32, cols: usize) -> Result<Vec<(String, Call)>, KernelError> {
    let kernels: &[(&'static str, u32)] = match cols {
        1 => &[("fp4f_free_dp_r2_1", 2), ("fp4f_free_dp_r4_1", 4)],
        2 => &[("fp4f_free_dp_r2_2", 2), ("fp4f_free_dp_r4_2", 4)],
        4 => &[("fp4f_free_dp_r2_4", 2)],
        _ => &[("fp4f_free_dp_r2_8", 2)],
    };
    let fits = matches!(cols, 1 | 2 | 4 | 8);
    require("fp4f_free_dp", "columns", "1, 2, 4 or 8", cols, fits)?;
    let mut calls = Vec::new();
    for (kernel, per_warp) in kernels {
        for split in SPLITS {
            let blocks = (w.rows() as u64).div_ceil(u64::from(8 / split * per_warp));
            let call = Call::new(SOURCE, kernel, [grid_x(kernel, blocks)?, 1, 1], 256);
            let call = arguments(call, w, cols, w.rows() as u64 * w.blocks() as u64 * 17)?;
            let call = call.arg(Arg::I32(split.cast_signed()));
            calls.push((format!("r{per_warp}s{split}"), call));
        }
    }
    Ok(calls)
}

/// Products on matrix units in every configuration, named; weights in tile32 order. Buffers:
/// packed, q, meta, y.
///
/// # Errors
/// `Shape`: no or more than 8 columns.
pub fn free_matrix(w: &Tile32, cols: usize) -> Result<Vec<(String, Call)>, KernelError> {
    const NAME: &str = "fp4f_free_mma";
    require(NAME, "columns", "1 to 8", cols, (1..=8).contains(&cols))?;
    let one = |split: u32| {
        let blocks = w.tiles().div_ceil((8 / split) as usize) as u64;
        let call = Call::new(SOURCE, NAME, [grid_x(NAME, blocks)?, 1, 1], 256);
        let call = arguments(call, w, cols, w.packed_bytes())?;
        let call = call.arg(Arg::I32(int(NAME, "columns", cols)?));
        Ok((format!("s{split}"), call.arg(Arg::I32(split.cast_signed()))))
    };
    SPLITS.into_iter().map(one).collect()
}
