//! Launches of `attend.cu`: attention of query positions over key lists, contract rule 7.

use super::{Arg, Call, bytes, grid_x, int, require};
use crate::KernelError;

const SOURCE: &str = "attend.cu";
/// Keys of a chunk.
pub const CHUNK: usize = 128;

/// Shape of one attention step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Query positions.
    pub positions: usize,
    /// Heads, a multiple of 8.
    pub heads: usize,
    /// Elements of a head, a multiple of 32 up to 512.
    pub dim: usize,
    /// Rows that keys may name.
    pub rows: usize,
    /// Entries of a key list; each position uses as many as its count says.
    pub stride: usize,
}

impl Shape {
    /// Chunks of a key list.
    #[must_use]
    pub fn chunks(&self) -> usize {
        self.stride.div_ceil(CHUNK)
    }

    fn check(&self, name: &'static str) -> Result<(), KernelError> {
        let dim = self.dim > 0 && self.dim <= 512 && self.dim.is_multiple_of(32);
        require(name, "dim", "a multiple of 32 up to 512", self.dim, dim)?;
        let heads = self.heads > 0 && self.heads.is_multiple_of(8) && self.heads / 8 <= 65_535;
        require(name, "heads", "a positive multiple of 8", self.heads, heads)?;
        let stride = self.stride > 0 && self.chunks() <= 256;
        require(name, "keys", "1 to 32768", self.stride, stride)?;
        let positions = self.positions > 0 && self.positions <= 65_535;
        require(name, "positions", "1 to 65535", self.positions, positions)
    }

    /// Bytes of m or l, and of acc.
    fn partials(&self, name: &'static str) -> Result<(u64, u64), KernelError> {
        let outer = [self.positions, self.chunks(), self.heads];
        let one = bytes(name, &[outer[0], outer[1], outer[2], 4])?;
        Ok((
            one,
            bytes(name, &[outer[0], outer[1], outer[2], self.dim, 4])?,
        ))
    }

    /// The shape as grid rows.
    fn grid(value: usize) -> u32 {
        value as u32 // `check` bounded it
    }
}

/// All chunks of all positions. Buffers: q `[positions][heads][dim]` f32, rows `[rows][dim]` f32,
/// keys `[positions][stride]` u32 (below `rows`), counts `[positions]` u32 (1 to stride),
/// m, l `[positions][chunks][heads]` f32, acc `[positions][chunks][heads][dim]` f32.
///
/// # Errors
/// `Shape`.
pub fn chunks(s: &Shape, scale: f32) -> Result<Call, KernelError> {
    const NAME: &str = "attend_chunk";
    s.check(NAME)?;
    let (ml, acc) = s.partials(NAME)?;
    let grid = [
        grid_x(NAME, s.chunks() as u64)?,
        Shape::grid(s.heads / 8),
        Shape::grid(s.positions),
    ];
    Ok(Call::new(SOURCE, NAME, grid, 256)
        .arg(Arg::Read(bytes(NAME, &[s.positions, s.heads, s.dim, 4])?))
        .arg(Arg::Read(bytes(NAME, &[s.rows, s.dim, 4])?))
        .arg(Arg::Read(bytes(NAME, &[s.positions, s.stride, 4])?))
        .arg(Arg::Read(bytes(NAME, &[s.positions, 4])?))
        .arg(Arg::Write(ml))
        .arg(Arg::Write(ml))
        .arg(Arg::Write(acc))
        .arg(Arg::I32(int(NAME, "heads", s.heads)?))
        .arg(Arg::I32(int(NAME, "dim", s.dim)?))
        .arg(Arg::I32(int(NAME, "keys", s.stride)?))
        .arg(Arg::F32(scale)))
}

/// The chunks' sums put together. Buffers: m, l, acc, sinks `[heads]` f32, counts, out
/// `[positions][heads][dim]` f32.
///
/// # Errors
/// `Shape`.
pub fn merge(s: &Shape) -> Result<Call, KernelError> {
    const NAME: &str = "attend_merge";
    s.check(NAME)?;
    let (ml, acc) = s.partials(NAME)?;
    let grid = [grid_x(NAME, s.heads as u64)?, Shape::grid(s.positions), 1];
    Ok(Call::new(SOURCE, NAME, grid, 128)
        .arg(Arg::Read(ml))
        .arg(Arg::Read(ml))
        .arg(Arg::Read(acc))
        .arg(Arg::Read(bytes(NAME, &[s.heads, 4])?))
        .arg(Arg::Read(bytes(NAME, &[s.positions, 4])?))
        .arg(Arg::Write(bytes(NAME, &[s.positions, s.heads, s.dim, 4])?))
        .arg(Arg::I32(int(NAME, "heads", s.heads)?))
        .arg(Arg::I32(int(NAME, "dim", s.dim)?))
        .arg(Arg::I32(int(NAME, "keys", s.stride)?)))
}
