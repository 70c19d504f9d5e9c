//! Launches of `attend.cu`, `attend_packed.cu` and `attend_many.cu`: attention of query positions over key lists,
//! contract rule 7.

use super::a8::META_BYTES;
use super::{Arg, Call, bytes, grid_x, grid_y, int, require};
use crate::KernelError;
use crate::cpu::kv_row_bytes;

const SOURCE: &str = "attend.cu";
const PACKED: &str = "attend_packed.cu";
const MANY: &str = "attend_many.cu";
/// Heads of a block.
const HEADS: usize = 8;
/// Heads of a block over packed rows: a decode step has few positions, and more blocks fill the device.
const PACKED_HEADS: usize = 4;
/// Heads of a block of `attend_many.cu`.
const MANY_HEADS: usize = 64;
/// Elements of its heads, and how many of them are rotated.
const MANY_DIM: [usize; 2] = [512, 64];
/// Its dynamic shared memory: 16 rows of 512 f32, and scores of 64 heads and 128 keys (`ManyWeights`).
const MANY_SHARED: u32 = 64 << 10;
/// Positions from which it pays: a block takes all heads of one, and with fewer most of a large device is idle.
const MANY_POSITIONS: usize = 64;
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

    fn begin(
        &self,
        (source, name): (&'static str, &'static str),
        heads: usize,
    ) -> Result<Call, KernelError> {
        self.check(name)?;
        let grid = [
            grid_x(name, self.chunks() as u64)?,
            Self::grid(self.heads / heads),
            Self::grid(self.positions),
        ];
        let q = bytes(name, &[self.positions, self.heads, self.dim, 4])?;
        Ok(Call::new(source, name, grid, 256).arg(Arg::Read(q)))
    }

    /// Key lists, and the chunks' results.
    fn lists(&self, call: Call) -> Result<Call, KernelError> {
        let (ml, acc) = self.partials(call.kernel)?;
        let keys = bytes(call.kernel, &[self.positions, self.stride, 4])?;
        Ok(call
            .arg(Arg::Read(keys))
            .arg(Arg::Read(self.positions as u64 * 4))
            .arg(Arg::Write(ml))
            .arg(Arg::Write(ml))
            .arg(Arg::Write(acc)))
    }

    fn end(&self, call: Call) -> Result<Call, KernelError> {
        let name = call.kernel;
        Ok(call
            .arg(Arg::I32(int(name, "heads", self.heads)?))
            .arg(Arg::I32(int(name, "dim", self.dim)?))
            .arg(Arg::I32(int(name, "keys", self.stride)?)))
    }

    fn sinks(&self, call: Call) -> Result<Call, KernelError> {
        let bytes = bytes(call.kernel, &[self.heads, 4])?;
        Ok(call.arg(Arg::Read(bytes)))
    }

    /// Angles, and where results go.
    fn outputs(&self, call: Call, out: &Output) -> Result<Call, KernelError> {
        let name = call.kernel;
        let all = bytes(name, &[self.positions, self.heads, self.dim])?;
        let write = |there, size| if there { Arg::Write(size) } else { Arg::Null };
        let angles = match out.n_rot {
            0 => Arg::Null,
            n => Arg::Read(bytes(name, &[self.positions, n / 2, 8])?),
        };
        Ok(call
            .arg(angles)
            .arg(write(out.floats, all * 4))
            .arg(write(out.a8, all))
            .arg(write(out.a8, all / 32 * META_BYTES as u64)))
    }

    /// The shape as grid rows.
    fn grid(value: usize) -> u32 {
        value as u32 // `check` bounded it
    }
}

/// All chunks of all positions, rows in f32. Buffers: q `[positions][heads][dim]` f32, rows
/// `[rows][dim]` f32, keys `[positions][stride]` u32 (below `rows`), counts `[positions]` u32 (1 to
/// stride), m, l `[positions][chunks][heads]` f32, acc `[positions][chunks][heads][dim]` f32.
///
/// # Errors
/// `Shape`.
pub fn chunks(s: &Shape, scale: f32) -> Result<Call, KernelError> {
    const NAME: &str = "attend_chunk";
    let call = s
        .begin((SOURCE, NAME), HEADS)?
        .arg(Arg::Read(bytes(NAME, &[s.rows, s.dim, 4])?));
    let call = s.lists(call)?;
    Ok(s.end(call)?.arg(Arg::F32(scale)))
}

/// All chunks of all positions, packed rows of two stores: `s.rows` raw and `compressed` ones. Buffers:
/// as [`chunks`] with raw and comp `[any][row bytes]` in place of the rows; keys with
/// [`super::index::COMPRESSED`] name rows of comp.
///
/// # Errors
/// `Shape`: also no rotated elements, or dim - n_rot is not a multiple of 64.
pub fn chunks_packed(
    s: &Shape,
    n_rot: usize,
    compressed: usize,
    scale: f32,
) -> Result<Call, KernelError> {
    const NAME: &str = "attend_chunk_packed";
    let fits = (1..s.dim).contains(&n_rot)
        && (s.dim - n_rot).is_multiple_of(64)
        && n_rot.is_multiple_of(32);
    require(
        NAME,
        "rotated elements",
        "a positive multiple of 32 that leaves one of 64",
        n_rot,
        fits,
    )?;
    let row = kv_row_bytes(s.dim, n_rot);
    let call = s
        .begin((PACKED, NAME), PACKED_HEADS)?
        .arg(Arg::Read(bytes(NAME, &[s.rows, row])?))
        .arg(Arg::Read(bytes(NAME, &[compressed, row])?));
    let call = s.lists(call)?;
    let call = call
        .arg(Arg::I32(int(NAME, "heads", s.heads)?))
        .arg(Arg::I32(int(NAME, "dim", s.dim)?))
        .arg(Arg::I32(int(NAME, "rotated elements", n_rot)?))
        .arg(Arg::I32(int(NAME, "keys", s.stride)?));
    Ok(call.arg(Arg::F32(scale)))
}

/// Whether [`many_weights`] and [`many_values`] take the place of [`chunks_packed`] and [`merge`]: they have kernels for
/// such heads, and so many positions. The same bits whichever is taken.
#[must_use]
pub fn many(positions: usize, dim: usize, n_rot: usize) -> bool {
    positions >= MANY_POSITIONS && [dim, n_rot] == MANY_DIM
}

/// Entries of the values of a position's chunk and head: [`many_weights`] keeps a weight a key, [`chunks_packed`] a sum an
/// element.
#[must_use]
pub fn entries(many: bool, dim: usize) -> usize {
    if many { CHUNK } else { dim }
}

impl Shape {
    /// What both launches of `attend_many.cu` take ahead of the chunks' results: stores, lists.
    fn begin_many(
        &self,
        name: &'static str,
        blocks: usize,
        (n_rot, compressed): (usize, usize),
        q: Option<u64>,
    ) -> Result<Call, KernelError> {
        self.check(name)?;
        let fits = [self.dim, n_rot] == MANY_DIM;
        require(name, "dim", "512, 64 of them rotated", self.dim, fits)?;
        let grid = [
            grid_x(name, (self.positions * blocks) as u64)?,
            grid_y(name, "heads", self.heads.div_ceil(MANY_HEADS))?,
            1,
        ];
        let row = kv_row_bytes(self.dim, n_rot);
        let mut call = Call::new(MANY, name, grid, 256);
        if let Some(bytes) = q {
            call = call.arg(Arg::Read(bytes));
        }
        Ok(call
            .arg(Arg::Read(bytes(name, &[self.rows, row])?))
            .arg(Arg::Read(bytes(name, &[compressed, row])?))
            .arg(Arg::Read(bytes(name, &[self.positions, self.stride, 4])?))
            .arg(Arg::Read(self.positions as u64 * 4)))
    }

    /// Bytes of m or l, and of weights.
    fn weights(&self, name: &'static str) -> Result<(u64, u64), KernelError> {
        let one = bytes(name, &[self.positions, self.chunks(), self.heads, 4])?;
        let all = [self.positions, self.chunks(), CHUNK, self.heads, 4];
        Ok((one, bytes(name, &all)?))
    }
}

/// The weights of all keys of all positions. Buffers: q `[positions][heads][512]` f32, raw `[rows][584]` and comp
/// `[compressed][584]` packed rows at addresses divisible by 8, keys, counts, m and l as [`chunks_packed`], weights
/// `[positions][chunks][128][heads]` f32.
///
/// # Errors
/// `Shape`: also heads that are not of 512 elements, 64 of them rotated.
pub fn many_weights(
    s: &Shape,
    n_rot: usize,
    compressed: usize,
    scale: f32,
) -> Result<Call, KernelError> {
    const NAME: &str = "attend_many_weights";
    let q = bytes(NAME, &[s.positions, s.heads, s.dim, 4])?;
    let call = s.begin_many(NAME, 1, (n_rot, compressed), Some(q))?;
    let (ml, weights) = s.weights(NAME)?;
    let mut call = call
        .arg(Arg::Write(ml))
        .arg(Arg::Write(ml))
        .arg(Arg::Write(weights))
        .arg(Arg::I32(int(NAME, "heads", s.heads)?))
        .arg(Arg::I32(int(NAME, "keys", s.stride)?))
        .arg(Arg::F32(scale));
    call.shared = MANY_SHARED;
    Ok(call)
}

/// Values under the weights of [`many_weights`], put together. Buffers: raw, comp, keys, counts, m, l, weights as there;
/// sinks, angles if turned back, out, q and meta as [`merge`].
///
/// # Errors
/// `Shape`: also results turned back by other than 64 elements.
pub fn many_values(
    s: &Shape,
    n_rot: usize,
    compressed: usize,
    out: &Output,
) -> Result<Call, KernelError> {
    const NAME: &str = "attend_many_values";
    let turned = out.n_rot == 0 || out.n_rot == n_rot;
    require(NAME, "rotated elements", "0 or 64", out.n_rot, turned)?;
    let call = s.begin_many(NAME, 2, (n_rot, compressed), None)?;
    let (ml, weights) = s.weights(NAME)?;
    let call = call
        .arg(Arg::Read(ml))
        .arg(Arg::Read(ml))
        .arg(Arg::Read(weights));
    Ok(s.outputs(s.sinks(call)?, out)?
        .arg(Arg::I32(int(NAME, "heads", s.heads)?))
        .arg(Arg::I32(int(NAME, "keys", s.stride)?)))
}

/// What [`merge`] writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output {
    /// Rotated elements, turned back by the angles; 0: none are.
    pub n_rot: usize,
    /// f32 values.
    pub floats: bool,
    /// Activation blocks (`a8.cu`).
    pub a8: bool,
}

/// The chunks' sums put together. Buffers: m, l, acc, sinks `[heads]` f32, counts, angles
/// `[positions][n_rot / 2][2]` if turned back, out `[positions][heads][dim]` f32 if `floats`, q
/// `[positions][heads][dim]` i8 and meta `[positions][heads][dim / 32]` of 8 bytes if `a8`.
///
/// # Errors
/// `Shape`.
pub fn merge(s: &Shape, out: &Output) -> Result<Call, KernelError> {
    const NAME: &str = "attend_merge";
    s.check(NAME)?;
    let even = out.n_rot < s.dim && out.n_rot.is_multiple_of(2);
    require(NAME, "rotated elements", "even, below dim", out.n_rot, even)?;
    let (ml, acc) = s.partials(NAME)?;
    let grid = [
        grid_x(NAME, s.heads as u64)?,
        Shape::grid(s.positions),
        Shape::grid(s.dim.div_ceil(128)),
    ];
    let call = Call::new(SOURCE, NAME, grid, 128)
        .arg(Arg::Read(ml))
        .arg(Arg::Read(ml))
        .arg(Arg::Read(acc));
    let call = s
        .sinks(call)?
        .arg(Arg::Read(bytes(NAME, &[s.positions, 4])?));
    Ok(s.outputs(call, out)?
        .arg(Arg::I32(int(NAME, "heads", s.heads)?))
        .arg(Arg::I32(int(NAME, "dim", s.dim)?))
        .arg(Arg::I32(int(NAME, "rotated elements", out.n_rot)?))
        .arg(Arg::I32(int(NAME, "keys", s.stride)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        positions: 385,
        heads: 64,
        dim: 512,
        rows: 256,
        stride: 640,
    };

    #[test]
    fn many_positions_of_wide_heads_have_kernels_of_their_own() {
        assert!(many(64, 512, 64) && !many(63, 512, 64));
        assert!(!many(64, 256, 64) && !many(64, 512, 128));
        assert_eq!((entries(true, 512), entries(false, 512)), (128, 512));
        let call = many_weights(&SHAPE, 64, 100, 1.0).unwrap();
        assert_eq!((call.grid, call.shared), ([385, 1, 1], 65_536));
        let out = Output {
            n_rot: 64,
            floats: false,
            a8: true,
        };
        let heads = Shape { heads: 72, ..SHAPE };
        let call = many_values(&heads, 64, 100, &out).unwrap();
        assert_eq!(call.grid, [770, 2, 1], "two halves, 64 heads a block");
        let turned = Output { n_rot: 32, ..out };
        assert!(many_values(&SHAPE, 64, 100, &turned).is_err());
        for (s, n_rot) in [(Shape { dim: 256, ..SHAPE }, 64), (SHAPE, 128), (SHAPE, 0)] {
            assert!(many_weights(&s, n_rot, 100, 1.0).is_err(), "{s:?}");
            assert!(many_values(&s, n_rot, 100, &out).is_err(), "{s:?}");
        }
    }
}
