//! Launches of `rows.cu`: queries and keys after their projections.

use super::hc::Open;
use super::{Arg, Call, bytes, grid_x, grid_y, int, require};
use crate::KernelError;
use crate::cpu::kv_row_bytes;

const SOURCE: &str = "rows.cu";
/// The slot of a row that is not stored.
pub const NOWHERE: u32 = u32::MAX;

/// Shape of a row: a head or a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Elements.
    pub dim: usize,
    /// Rotated ones, at the end.
    pub n_rot: usize,
}

impl Row {
    pub(super) fn check(&self, name: &'static str) -> Result<(), KernelError> {
        let (dim, n_rot) = (self.dim, self.n_rot);
        let fits = (32..=512).contains(&dim) && dim.is_multiple_of(32);
        require(name, "dim", "a multiple of 32 up to 512", dim, fits)?;
        let fits = n_rot > 0 && n_rot < dim && n_rot.is_multiple_of(2);
        require(
            name,
            "rotated elements",
            "even, positive, below dim",
            n_rot,
            fits,
        )
    }

    /// Bytes of a stored row.
    #[must_use]
    pub fn stored(&self, packed: bool) -> usize {
        if packed {
            kv_row_bytes(self.dim, self.n_rot)
        } else {
            4 * self.dim
        }
    }

    /// Bytes of the angles of `n` positions.
    pub(super) fn angles(&self, name: &'static str, n: usize) -> Result<u64, KernelError> {
        bytes(name, &[n, self.n_rot / 2, 8])
    }
}

/// What [`heads_and_keys`] works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// Tokens.
    pub n: usize,
    /// Query heads.
    pub heads: usize,
    /// Rows of the key store.
    pub rows: usize,
    /// Key rows in packed form; f32 else.
    pub packed: bool,
    /// Indexer heads and their elements, a power of two; only with packed rows.
    pub index: Option<(usize, usize)>,
}

impl Tokens {
    fn check(&self, name: &'static str, row: &Row) -> Result<(), KernelError> {
        row.check(name)?;
        let Some((heads, dim)) = self.index else {
            return Ok(());
        };
        require(name, "packed rows", "beside index heads", 0, self.packed)?;
        require(name, "index heads", "at least 1", heads, heads > 0)?;
        let n_rot = row.n_rot;
        Row { dim, n_rot }.check(name)?;
        let power = dim.is_power_of_two();
        require(name, "index dim", "a power of two", dim, power)
    }

    /// The indexer's buffers.
    fn index(&self, name: &'static str) -> Result<[Arg; 3], KernelError> {
        let Some((heads, dim)) = self.index else {
            return Ok([Arg::Null; 3]);
        };
        let all = [self.n, heads, dim];
        Ok([
            Arg::Read(bytes(name, &[all[0], all[1], all[2], 4])?),
            Arg::Write(bytes(name, &all)?),
            Arg::Write(bytes(name, &[all[0], all[1], all[2] / 32, 4])?),
        ])
    }
}

fn heads_grid(name: &'static str, n: usize, blocks: usize) -> Result<[u32; 3], KernelError> {
    Ok([grid_x(name, blocks as u64)?, grid_y(name, "tokens", n)?, 1])
}

/// Query heads in place, normed and turned; finished key rows into a store; indexer heads turned, transformed and
/// rounded to fp4. Buffers: q `[n][heads][dim]` f32, x `[n][dim]` f32, w `[dim]`, angles `[n][n_rot / 2][2]`, slots
/// `[n]` u32 (below `rows`, or [`NOWHERE`]), store `[rows][row bytes]`; with an index: iq `[n][iheads][idim]` f32,
/// twice `[n][iheads][idim]` i8, scales `[n][iheads][idim / 32]` f32.
///
/// # Errors
/// `Shape`.
pub fn heads_and_keys(row: &Row, t: &Tokens, eps: f32) -> Result<Call, KernelError> {
    heads_and_keys_beside(row, t, eps, None)
}

/// [`heads_and_keys`], and beside it what an open site needs. Buffers: as there, then the site's mix if there is one.
///
/// # Errors
/// `Shape`.
pub fn heads_and_keys_beside(
    row: &Row,
    t: &Tokens,
    eps: f32,
    open: Option<&Open>,
) -> Result<Call, KernelError> {
    let name = if t.packed {
        "heads_and_keys_packed"
    } else {
        "heads_and_keys_f32"
    };
    t.check(name, row)?;
    let n = t.n;
    let blocks = t.heads.div_ceil(8) + 1 + t.index.map_or(0, |(heads, _)| heads.div_ceil(8));
    let blocks = blocks + usize::from(open.is_some());
    let call = Call::new(SOURCE, name, heads_grid(name, n, blocks)?, 256)
        .arg(Arg::Write(bytes(name, &[n, t.heads, row.dim, 4])?))
        .arg(Arg::Read(bytes(name, &[n, row.dim, 4])?))
        .arg(Arg::Read(bytes(name, &[row.dim, 4])?))
        .arg(Arg::Read(row.angles(name, n)?))
        .arg(Arg::Read(bytes(name, &[n, 4])?))
        .arg(Arg::Write(bytes(name, &[t.rows, row.stored(t.packed)])?));
    let sizes = |call: Call| {
        Ok::<_, KernelError>(
            call.arg(Arg::I32(int(name, "heads", t.heads)?))
                .arg(Arg::I32(int(name, "dim", row.dim)?))
                .arg(Arg::I32(int(name, "rotated elements", row.n_rot)?)),
        )
    };
    if !t.packed {
        return Open::end(sizes(call)?.arg(Arg::F32(eps)), open, n);
    }
    let (heads, dim) = t.index.unwrap_or((0, 32));
    let call = t.index(name)?.into_iter().fold(call, Call::arg);
    let call = sizes(call)?
        .arg(Arg::I32(int(name, "index heads", heads)?))
        .arg(Arg::I32(int(name, "index dim", dim)?))
        .arg(Arg::F32(eps));
    Open::end(call, open, n)
}

/// Heads in place, turned only. Buffers: q `[n][heads][dim]` f32, angles `[n][n_rot / 2][2]`.
///
/// # Errors
/// `Shape`.
pub fn turned(row: &Row, n: usize, heads: usize) -> Result<Call, KernelError> {
    const NAME: &str = "query_heads_plain";
    row.check(NAME)?;
    let grid = heads_grid(NAME, n, heads.div_ceil(8))?;
    Ok(Call::new(SOURCE, NAME, grid, 256)
        .arg(Arg::Write(bytes(NAME, &[n, heads, row.dim, 4])?))
        .arg(Arg::Read(row.angles(NAME, n)?))
        .arg(Arg::I32(int(NAME, "heads", heads)?))
        .arg(Arg::I32(int(NAME, "dim", row.dim)?))
        .arg(Arg::I32(int(NAME, "rotated elements", row.n_rot)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_the_kernels_do_not_take_are_refused() {
        let row = |dim, n_rot| Row { dim, n_rot };
        let tokens = |n, index| Tokens {
            n,
            heads: 9,
            rows: 100,
            packed: true,
            index,
        };
        assert_eq!(row(512, 64).stored(true), 584);
        let all = heads_and_keys(&row(512, 64), &tokens(3, Some((64, 128))), 1e-6);
        assert_eq!(all.unwrap().grid, [2 + 1 + 8, 3, 1]);
        for bad in [
            row(544, 64),
            row(40, 8),
            row(64, 64),
            row(64, 3),
            row(64, 0),
        ] {
            let call = heads_and_keys(&bad, &tokens(1, None), 1e-6);
            assert!(call.is_err(), "{bad:?}");
            assert!(turned(&bad, 1, 1).is_err(), "{bad:?}");
        }
        for bad in [
            tokens(0, None),
            tokens(65_536, None),
            tokens(1, Some((0, 128))),
            tokens(1, Some((8, 96))),
            tokens(1, Some((8, 64))),
            Tokens {
                packed: false,
                ..tokens(1, Some((8, 128)))
            },
        ] {
            let call = heads_and_keys(&row(512, 64), &bad, 1e-6);
            assert!(call.is_err(), "{bad:?}");
        }
    }
}
