//! Launches of `a8.cu`.

use super::{Arg, Call, bytes, grid_x, int, require};
use crate::KernelError;

const SOURCE: &str = "a8.cu";
/// Bytes of a block beside its int8 values: d f32, then two i16 sums of 16 q.
pub const META_BYTES: usize = 8;

/// The two addresses of blocks that a kernel writes beside its f32 rows `[rows][k]`: q and meta as [`quantise`]'s, or
/// null if `there` is false.
///
/// # Errors
/// `Shape`: k is not a multiple of 32 though blocks are asked for.
pub(super) fn outputs(
    name: &'static str,
    there: bool,
    rows: usize,
    k: usize,
) -> Result<[Arg; 2], KernelError> {
    if !there {
        return Ok([Arg::Null; 2]);
    }
    let whole = k.is_multiple_of(32);
    require(name, "k of blocks", "a multiple of 32", k, whole)?;
    Ok([
        Arg::Write(bytes(name, &[rows, k])?),
        Arg::Write(bytes(name, &[rows, k / 32, META_BYTES])?),
    ])
}

/// `rows` rows of `k` f32 to int8 blocks. Buffers: x `[rows][k]` f32, q `[rows][k]` i8,
/// meta `[rows][k / 32]` of 8 bytes.
///
/// # Errors
/// `Shape`: k is not a positive multiple of 32, no rows, or too many blocks.
pub fn quantise(rows: usize, k: usize) -> Result<Call, KernelError> {
    const NAME: &str = "a8_quantise";
    require(
        NAME,
        "k",
        "a positive multiple of 32",
        k,
        k > 0 && k.is_multiple_of(32),
    )?;
    let blocks = bytes(NAME, &[rows, k / 32])?;
    let count = int(
        NAME,
        "blocks",
        usize::try_from(blocks).unwrap_or(usize::MAX),
    )?;
    Ok(
        Call::new(SOURCE, NAME, [grid_x(NAME, blocks.div_ceil(8))?, 1, 1], 256)
            .arg(Arg::Read(bytes(NAME, &[rows, k, 4])?))
            .arg(Arg::Write(bytes(NAME, &[rows, k])?))
            .arg(Arg::Write(bytes(NAME, &[rows, k / 32, META_BYTES])?))
            .arg(Arg::I32(count)),
    )
}
