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

/// One compressor's part of a pass: a span of one sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    /// Width and rotated part of a row.
    pub row: Row,
    /// Tokens a row.
    pub ratio: usize,
    /// 2 where a row also uses the first halves of the window before, else 1.
    pub overlap: usize,
    /// Open rows of the ring: a power of two.
    pub ring: usize,
    /// First position of the pass.
    pub pos: usize,
    /// Its tokens.
    pub len: usize,
    /// Added to mean squares.
    pub eps: f32,
}

impl Span {
    /// Width of an open row.
    #[must_use]
    pub fn wide(&self) -> usize {
        self.overlap * self.row.dim
    }

    /// The rows whose windows end in the span.
    #[must_use]
    pub fn rows(&self) -> std::ops::Range<usize> {
        self.pos / self.ratio..(self.pos + self.len) / self.ratio
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
        )?;
        int(name, "positions", self.pos.saturating_add(self.len))?;
        Ok(())
    }

    /// Bytes of the pass's keys or gates, and of the ring's.
    fn sizes(&self, name: &'static str) -> Result<(u64, u64), KernelError> {
        Ok((
            bytes(name, &[self.len, self.wide(), 4])?,
            bytes(name, &[self.ring, self.wide(), 4])?,
        ))
    }
}

/// All rows of a span into a store of `stored` rows. Buffers: keys, gates `[len][wide]` f32 (gates
/// without the position table), ring keys, ring gates `[ring][wide]`, ape `[ratio][wide]`, norm
/// `[dim]`, angles `[rows][n_rot / 2][2]` of the windows' first positions, store.
///
/// # Errors
/// `Shape`: also a span in which no window ends.
pub fn rows(s: &Span, kind: Kind, stored: usize) -> Result<Call, KernelError> {
    let (name, row_bytes) = match kind {
        Kind::Kv => ("compress_kv", s.row.stored(true)),
        Kind::Index => ("compress_index", index_row_bytes(s.row.dim)),
        Kind::F32 => ("compress_f32", s.row.stored(false)),
    };
    s.check(name)?;
    let power = kind != Kind::Index || s.row.dim.is_power_of_two();
    require(name, "dim", "a power of two", s.row.dim, power)?;
    let (range, (pass, ring)) = (s.rows(), s.sizes(name)?);
    let fits = range.end <= stored;
    require(
        name,
        "rows of the store",
        "at least the last one made",
        stored,
        fits,
    )?;
    let grid = [grid_x(name, range.len() as u64)?, 1, 1];
    let call = Call::new(SOURCE, name, grid, 512)
        .arg(Arg::Read(pass))
        .arg(Arg::Read(pass))
        .arg(Arg::Read(ring))
        .arg(Arg::Read(ring))
        .arg(Arg::Read(bytes(name, &[s.ratio, s.wide(), 4])?))
        .arg(Arg::Read(bytes(name, &[s.row.dim, 4])?))
        .arg(Arg::Read(s.row.angles(name, range.len())?))
        .arg(Arg::Write(bytes(name, &[stored, row_bytes])?));
    let sizes = [
        range.start,
        s.pos,
        s.ratio,
        s.overlap,
        s.row.dim,
        s.ring - 1,
        s.row.n_rot,
    ];
    let call = sizes.iter().try_fold(call, |call, size| {
        Ok::<_, KernelError>(call.arg(Arg::I32(int(name, "size", *size)?)))
    })?;
    Ok(call.arg(Arg::F32(s.eps)))
}

/// The span's last open rows into the ring, after [`rows`]. Buffers: keys, gates `[len][wide]`, ape
/// `[ratio][wide]`, ring keys, ring gates `[ring][wide]`.
///
/// # Errors
/// `Shape`.
pub fn keep(s: &Span) -> Result<Call, KernelError> {
    const NAME: &str = "compress_keep";
    s.check(NAME)?;
    let (pass, ring) = s.sizes(NAME)?;
    let end = s.pos + s.len;
    let from = end.saturating_sub(s.ring).max(s.pos);
    let grid = [
        grid_x(NAME, s.wide().div_ceil(256) as u64)?,
        grid_y(NAME, "positions", end - from)?,
        1,
    ];
    let call = Call::new(SOURCE, NAME, grid, 256)
        .arg(Arg::Read(pass))
        .arg(Arg::Read(pass))
        .arg(Arg::Read(bytes(NAME, &[s.ratio, s.wide(), 4])?))
        .arg(Arg::Write(ring))
        .arg(Arg::Write(ring));
    let sizes = [from, s.pos, s.ratio, s.wide(), s.ring - 1];
    sizes.iter().try_fold(call, |call, size| {
        Ok(call.arg(Arg::I32(int(NAME, "size", *size)?)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(pos: usize, len: usize) -> Span {
        Span {
            row: Row {
                dim: 512,
                n_rot: 64,
            },
            ratio: 4,
            overlap: 2,
            ring: 16,
            pos,
            len,
            eps: 1e-6,
        }
    }

    #[test]
    fn a_span_makes_the_rows_whose_windows_end_in_it() {
        assert_eq!(span(0, 3).rows(), 0..0);
        assert_eq!(span(3, 1).rows(), 0..1);
        assert_eq!(span(5, 8).rows(), 1..3);
        assert_eq!(rows(&span(5, 8), Kind::Kv, 3).unwrap().grid, [2, 1, 1]);
        // Of a long span only what the ring holds is kept.
        assert_eq!(keep(&span(5, 8)).unwrap().grid, [4, 8, 1]);
        assert_eq!(keep(&span(5, 80)).unwrap().grid, [4, 16, 1]);
    }

    #[test]
    fn spans_the_kernels_do_not_take_are_refused() {
        assert!(rows(&span(0, 3), Kind::Kv, 10).is_err(), "no window ends");
        assert!(rows(&span(5, 8), Kind::Kv, 2).is_err(), "a store too small");
        let mut ring = span(5, 8);
        ring.ring = 4;
        assert!(keep(&ring).is_err(), "a ring smaller than two windows");
        let mut dim = span(5, 8);
        dim.row.dim = 96;
        assert!(rows(&dim, Kind::Index, 3).is_err(), "no power of two");
    }
}
