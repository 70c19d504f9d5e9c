//! Launches of `rows.cu`: queries and keys after their projections.

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

/// Finished key rows into a store of `rows` rows. Buffers: x `[n][dim]` f32, w `[dim]`, angles
/// `[n][n_rot / 2][2]`, slots `[n]` u32 (below `rows`, or [`NOWHERE`]), store `[rows][row bytes]`.
///
/// # Errors
/// `Shape`.
pub fn keys(row: &Row, n: usize, rows: usize, packed: bool, eps: f32) -> Result<Call, KernelError> {
    let name = if packed {
        "kv_rows_packed"
    } else {
        "kv_rows_f32"
    };
    row.check(name)?;
    Ok(
        Call::new(SOURCE, name, [grid_x(name, n as u64)?, 1, 1], 256)
            .arg(Arg::Read(bytes(name, &[n, row.dim, 4])?))
            .arg(Arg::Read(bytes(name, &[row.dim, 4])?))
            .arg(Arg::Read(row.angles(name, n)?))
            .arg(Arg::Read(bytes(name, &[n, 4])?))
            .arg(Arg::Write(bytes(name, &[rows, row.stored(packed)])?))
            .arg(Arg::I32(int(name, "dim", row.dim)?))
            .arg(Arg::I32(int(name, "rotated elements", row.n_rot)?))
            .arg(Arg::F32(eps)),
    )
}

fn heads_grid(name: &'static str, n: usize, heads: usize) -> Result<[u32; 3], KernelError> {
    Ok([
        grid_x(name, heads.div_ceil(8) as u64)?,
        grid_y(name, "tokens", n)?,
        1,
    ])
}

/// Query heads in place: normed by `eps` if there is one, then turned. Buffers:
/// q `[n][heads][dim]` f32, angles `[n][n_rot / 2][2]`.
///
/// # Errors
/// `Shape`.
pub fn queries(row: &Row, n: usize, heads: usize, eps: Option<f32>) -> Result<Call, KernelError> {
    let name = if eps.is_some() {
        "query_heads"
    } else {
        "query_heads_plain"
    };
    row.check(name)?;
    let call = Call::new(SOURCE, name, heads_grid(name, n, heads)?, 256)
        .arg(Arg::Write(bytes(name, &[n, heads, row.dim, 4])?))
        .arg(Arg::Read(row.angles(name, n)?))
        .arg(Arg::I32(int(name, "heads", heads)?))
        .arg(Arg::I32(int(name, "dim", row.dim)?))
        .arg(Arg::I32(int(name, "rotated elements", row.n_rot)?));
    Ok(match eps {
        Some(eps) => call.arg(Arg::F32(eps)),
        None => call,
    })
}

/// Indexer query heads, turned, transformed and rounded to fp4. Buffers: q `[n][heads][dim]` f32,
/// angles, twice `[n][heads][dim]` i8, scales `[n][heads][dim / 32]` f32.
///
/// # Errors
/// `Shape`: dim is not a power of two.
pub fn index_queries(row: &Row, n: usize, heads: usize) -> Result<Call, KernelError> {
    const NAME: &str = "index_queries";
    row.check(NAME)?;
    let power = row.dim.is_power_of_two();
    require(NAME, "dim", "a power of two", row.dim, power)?;
    Ok(Call::new(SOURCE, NAME, heads_grid(NAME, n, heads)?, 256)
        .arg(Arg::Read(bytes(NAME, &[n, heads, row.dim, 4])?))
        .arg(Arg::Read(row.angles(NAME, n)?))
        .arg(Arg::Write(bytes(NAME, &[n, heads, row.dim])?))
        .arg(Arg::Write(bytes(NAME, &[n, heads, row.dim / 32, 4])?))
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
        assert_eq!(row(512, 64).stored(true), 584);
        assert!(keys(&row(512, 64), 70_000, 100, true, 1e-6).is_ok());
        for bad in [
            row(544, 64),
            row(40, 8),
            row(64, 64),
            row(64, 3),
            row(64, 0),
        ] {
            assert!(keys(&bad, 1, 1, true, 1e-6).is_err(), "{bad:?}");
            assert!(queries(&bad, 1, 1, None).is_err(), "{bad:?}");
        }
        assert!(keys(&row(64, 32), 0, 1, false, 1e-6).is_err());
        assert!(queries(&row(64, 32), 65_536, 8, Some(1e-6)).is_err());
        assert!(
            index_queries(&row(96, 32), 1, 8).is_err(),
            "no power of two"
        );
        assert_eq!(index_queries(&row(128, 64), 3, 9).unwrap().grid, [2, 3, 1]);
    }
}
