//! Launches of `compress.cu`: rows out of the keys and gates of windows.

use super::rows::Row;
use super::{Arg, Call, bytes, grid_x, grid_y, int, require};
use crate::KernelError;
use crate::cpu::index_row_bytes;

const SOURCE: &str = "compress.cu";

/// What a compressor's rows are stored as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Attention keys: fp8 head, bf16 tail.
    Kv,
    /// Indexer keys: transformed, fp4.
    Index,
    /// f32 of either, without roundings.
    F32,
}

/// One compressor in a pass of spans of several sequences.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pass {
    /// Width and rotated part of a row.
    pub row: Row,
    /// Tokens a row.
    pub ratio: usize,
    /// 2 where a row also uses the first halves of the window before, else 1.
    pub overlap: usize,
    /// Open rows of a ring: a power of two.
    pub ring: usize,
    /// Tokens of the pass.
    pub tokens: usize,
    /// Sequences that rings and stores have room for.
    pub sequences: usize,
    /// Added to mean squares.
    pub eps: f32,
}

/// Where a token of a pass stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spot {
    /// Its position.
    pub pos: u32,
    /// First position of its span.
    pub first: u32,
    /// Position after the span.
    pub end: u32,
    /// Index of its sequence among rings and stores.
    pub sequence: u32,
}

/// Bytes of a [`Spot`] on a device.
pub const SPOT_BYTES: usize = 16;

impl Spot {
    /// As the kernels read it.
    #[must_use]
    pub fn bytes(&self) -> [u8; SPOT_BYTES] {
        let mut out = [0; SPOT_BYTES];
        let words = [self.pos, self.first, self.end, self.sequence];
        for (to, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        out
    }
}

impl Pass {
    /// Width of an open row.
    #[must_use]
    pub fn wide(&self) -> usize {
        self.overlap * self.row.dim
    }

    fn check(&self, name: &'static str) -> Result<(), KernelError> {
        self.row.check(name)?;
        let fits = self.ratio > 0 && (1..=2).contains(&self.overlap);
        require(name, "overlap", "1 or 2", self.overlap, fits)?;
        let fits = self.ring.is_power_of_two() && self.ring >= self.ratio * self.overlap;
        require(
            name,
            "open rows",
            "a power of two that holds a row's windows",
            self.ring,
            fits,
        )
    }

    /// Whether [`rows`] also puts the open rows into the rings: no row of such a short pass needs a place that the pass
    /// takes. The oldest entry of a row stands `ratio * overlap - 1` positions before the token that ends it.
    #[must_use]
    pub fn keeps(&self) -> bool {
        self.tokens + self.ratio * self.overlap < self.ring + 2
    }

    /// Bytes of the pass's keys or gates, and of the rings'.
    fn sizes(&self, name: &'static str) -> Result<(u64, u64), KernelError> {
        Ok((
            bytes(name, &[self.tokens, self.wide(), 4])?,
            bytes(name, &[self.sequences, self.ring, self.wide(), 4])?,
        ))
    }

    fn spots(&self, name: &'static str) -> Result<Arg, KernelError> {
        Ok(Arg::Read(bytes(name, &[self.tokens, SPOT_BYTES])?))
    }
}

/// The rows of all windows that end in the pass, and the open rows too where the pass [keeps](Pass::keeps) them, into stores of `stored` rows a sequence. Buffers: keys, gates
/// `[tokens][wide]` f32 (gates without the position table), ring keys, ring gates `[sequences][ring][wide]`,
/// ape `[ratio][wide]`, norm `[dim]`, angles `[tokens][n_rot / 2][2]` of the first position of the window that a
/// token ends, spots `[tokens]` of 16 bytes, store `[sequences][stored][row bytes]`. A row past `stored` must
/// not end in the pass.
///
/// # Errors
/// `Shape`.
pub fn rows(s: &Pass, kind: Kind, stored: usize) -> Result<Call, KernelError> {
    let (name, row_bytes) = match kind {
        Kind::Kv => ("compress_kv", s.row.stored(true)),
        Kind::Index => ("compress_index", index_row_bytes(s.row.dim)),
        Kind::F32 => ("compress_f32", s.row.stored(false)),
    };
    s.check(name)?;
    let power = kind != Kind::Index || s.row.dim.is_power_of_two();
    require(name, "dim", "a power of two", s.row.dim, power)?;
    let (pass, ring) = s.sizes(name)?;
    let grid = [grid_x(name, s.tokens as u64)?, 1, 1];
    let call = Call::new(SOURCE, name, grid, 512)
        .arg(Arg::Read(pass))
        .arg(Arg::Read(pass))
        .arg(Arg::Write(ring))
        .arg(Arg::Write(ring))
        .arg(Arg::Read(bytes(name, &[s.ratio, s.wide(), 4])?))
        .arg(Arg::Read(bytes(name, &[s.row.dim, 4])?))
        .arg(Arg::Read(s.row.angles(name, s.tokens)?))
        .arg(s.spots(name)?)
        .arg(Arg::Write(bytes(name, &[s.sequences, stored, row_bytes])?));
    let sizes = [
        s.ratio,
        s.overlap,
        s.row.dim,
        s.ring - 1,
        s.row.n_rot,
        stored,
        usize::from(s.keeps()),
    ];
    let call = sizes.iter().try_fold(call, |call, size| {
        Ok::<_, KernelError>(call.arg(Arg::I32(int(name, "size", *size)?)))
    })?;
    Ok(call.arg(Arg::F32(s.eps)))
}

/// The last open rows of every span into its ring, after [`rows`] of a pass that does not [keep](Pass::keeps) them. Buffers: keys, gates `[tokens][wide]`, ape
/// `[ratio][wide]`, spots `[tokens]` of 16 bytes, ring keys, ring gates `[sequences][ring][wide]`.
///
/// # Errors
/// `Shape`.
pub fn keep(s: &Pass) -> Result<Call, KernelError> {
    const NAME: &str = "compress_keep";
    s.check(NAME)?;
    let (pass, ring) = s.sizes(NAME)?;
    let grid = [
        grid_x(NAME, s.wide().div_ceil(256) as u64)?,
        grid_y(NAME, "tokens", s.tokens)?,
        1,
    ];
    let call = Call::new(SOURCE, NAME, grid, 256)
        .arg(Arg::Read(pass))
        .arg(Arg::Read(pass))
        .arg(Arg::Read(bytes(NAME, &[s.ratio, s.wide(), 4])?))
        .arg(s.spots(NAME)?)
        .arg(Arg::Write(ring))
        .arg(Arg::Write(ring));
    let sizes = [s.ratio, s.wide(), s.ring - 1];
    sizes.iter().try_fold(call, |call, size| {
        Ok(call.arg(Arg::I32(int(NAME, "size", *size)?)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(tokens: usize) -> Pass {
        Pass {
            row: Row {
                dim: 512,
                n_rot: 64,
            },
            ratio: 4,
            overlap: 2,
            ring: 16,
            tokens,
            sequences: 3,
            eps: 1e-6,
        }
    }

    #[test]
    fn grids_follow_the_tokens_alone() {
        assert_eq!(rows(&pass(9), Kind::Kv, 3).unwrap().grid, [9, 1, 1]);
        assert_eq!(keep(&pass(80)).unwrap().grid, [4, 80, 1]);
        assert!(pass(9).keeps() && !pass(10).keeps());
        assert_eq!(rows(&pass(70_000), Kind::Kv, 0).unwrap().grid[0], 70_000);
        let spot = Spot {
            pos: 1,
            first: 2,
            end: 3,
            sequence: 258,
        };
        assert_eq!(
            spot.bytes(),
            [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 2, 1, 0, 0]
        );
    }

    #[test]
    fn passes_the_kernels_do_not_take_are_refused() {
        assert!(rows(&pass(0), Kind::Kv, 10).is_err(), "no tokens");
        assert!(keep(&pass(65_536)).is_err(), "more tokens than a grid has");
        let mut ring = pass(8);
        ring.ring = 4;
        assert!(keep(&ring).is_err(), "a ring smaller than two windows");
        let mut dim = pass(8);
        dim.row.dim = 96;
        assert!(rows(&dim, Kind::Index, 3).is_err(), "no power of two");
    }
}
