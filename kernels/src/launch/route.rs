//! Launches of `route.cu`: routing, its units of work, and what joins expert outputs.

use super::hc::Open;
use super::{Arg, Call, bytes, grid_x, grid_y, int, require};
use crate::KernelError;

const SOURCE: &str = "route.cu";
/// Bytes of a unit of work: expert, first place, slots, 0 as u32.
pub const UNIT_BYTES: usize = 16;

/// Tokens of a block, and of a pass that routing plans itself.
pub const PLANNED: usize = 8;

/// The units of work that a routing step writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Units {
    /// None: [`plan`] makes them.
    Later,
    /// One of each slot, in slot order.
    Slots,
    /// Those of [`plan`], of up to so many slots; for up to [`PLANNED`] tokens.
    Planned(usize),
}

/// Sizes of a routing step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Tokens.
    pub n: usize,
    /// Experts, up to 512.
    pub experts: usize,
    /// Experts a token visits, up to 16.
    pub used: usize,
    /// Factor of the weights.
    pub scale: f32,
    /// Whether routes are counted, and the experts visited where the pass is one block's.
    pub counted: bool,
    /// The units that are written.
    pub units: Units,
}

impl Shape {
    fn begin(&self, name: &'static str) -> Result<Call, KernelError> {
        let fits = (1..=512).contains(&self.experts);
        require(name, "experts", "1 to 512", self.experts, fits)?;
        let fits = self.used > 0 && self.used <= 16 && self.used <= self.experts;
        require(
            name,
            "experts a token",
            "1 to 16, at most all",
            self.used,
            fits,
        )?;
        let planned = matches!(self.units, Units::Planned(_));
        let fits = !planned || self.n <= PLANNED;
        require(
            name,
            "tokens of a pass with a plan",
            "up to 8",
            self.n,
            fits,
        )?;
        require(
            name,
            "slots of a unit",
            "at least 1",
            self.wide(),
            self.wide() > 0,
        )?;
        let grid = [grid_x(name, self.n.div_ceil(PLANNED) as u64)?, 1, 1];
        Ok(Call::new(SOURCE, name, grid, 512)
            .arg(Arg::Read(bytes(name, &[self.n, self.experts, 4])?)))
    }

    /// Whether this launch counts the experts visited: it sees the whole pass. [`plan`] does otherwise.
    #[must_use]
    pub fn visited(&self) -> bool {
        self.counted && self.units != Units::Later && self.n <= PLANNED
    }

    fn wide(&self) -> usize {
        match self.units {
            Units::Planned(wide) => wide,
            Units::Later | Units::Slots => 1,
        }
    }

    fn end(&self, call: Call, open: Option<&Open>) -> Result<Call, KernelError> {
        let name = call.kernel;
        let (slots, counts) = (
            bytes(name, &[self.n, self.used, 4])?,
            self.experts as u64 * 8,
        );
        let units = bytes(name, &[self.n, self.used, UNIT_BYTES])?;
        let write = |there, size| if there { Arg::Write(size) } else { Arg::Null };
        let mut call = call
            .arg(Arg::Write(slots))
            .arg(Arg::Write(slots))
            .arg(write(self.counted, counts))
            .arg(write(self.visited(), 8))
            .arg(write(self.units != Units::Later, units))
            .arg(write(matches!(self.units, Units::Planned(_)), slots))
            .arg(Arg::I32(int(name, "tokens", self.n)?))
            .arg(Arg::I32(int(name, "experts", self.experts)?))
            .arg(Arg::I32(int(name, "experts a token", self.used)?))
            .arg(Arg::I32(int(name, "slots of a unit", self.wide())?))
            .arg(Arg::F32(self.scale));
        if open.is_some() {
            call.grid[0] = grid_x(name, u64::from(call.grid[0]) + self.n as u64)?;
        }
        Open::end(call, open, self.n)
    }
}

/// The best experts by score + bias. Buffers: logits `[n][experts]` f32, bias `[experts]`, chosen
/// `[n][used]` u32, weights `[n][used]` f32, counts `[experts]` u64 if `counted` (added to), visits
/// one u64 if [`Shape::visited`] (added to), units `[n * used]` of 16 bytes if asked for, order `[n * used]` u32 if planned.
///
/// # Errors
/// `Shape`.
pub fn top_k(s: &Shape) -> Result<Call, KernelError> {
    top_k_beside(s, None)
}

/// [`top_k`], and beside it what an open site needs. Buffers: as there, then the site's mix if there is one.
///
/// # Errors
/// `Shape`.
pub fn top_k_beside(s: &Shape, open: Option<&Open>) -> Result<Call, KernelError> {
    let call = s.begin("route_top_k")?;
    s.end(call.arg(Arg::Read(s.experts as u64 * 4)), open)
}

/// The experts of each token's row of a table. Buffers: logits `[n][experts]` f32, tokens `[n]` u32
/// (below `vocabulary`), table `[vocabulary][used]` u32 (below `experts`), then as [`top_k`].
///
/// # Errors
/// `Shape`.
pub fn hash(s: &Shape, vocabulary: usize) -> Result<Call, KernelError> {
    hash_beside(s, vocabulary, None)
}

/// [`hash`], and beside it what an open site needs. Buffers: as there, then the site's mix if there is one.
///
/// # Errors
/// `Shape`.
pub fn hash_beside(s: &Shape, vocabulary: usize, open: Option<&Open>) -> Result<Call, KernelError> {
    const NAME: &str = "route_hash";
    let call = s.begin(NAME)?;
    let table = bytes(NAME, &[vocabulary, s.used, 4])?;
    s.end(
        call.arg(Arg::Read(bytes(NAME, &[s.n, 4])?))
            .arg(Arg::Read(table)),
        open,
    )
}

/// Slots sorted by expert, in units of up to `wide` slots. Buffers: chosen `[slots]` u32, visits one u64 (added
/// to), order `[slots]` u32, units `[slots]` of 16 bytes.
///
/// # Errors
/// `Shape`.
pub fn plan(slots: usize, wide: usize) -> Result<Call, KernelError> {
    const NAME: &str = "route_plan";
    require(NAME, "slots", "at least 1", slots, slots > 0)?;
    require(NAME, "slots of a unit", "at least 1", wide, wide > 0)?;
    Ok(Call::new(SOURCE, NAME, [1, 1, 1], 512)
        .arg(Arg::Read(bytes(NAME, &[slots, 4])?))
        .arg(Arg::Write(8))
        .arg(Arg::Write(bytes(NAME, &[slots, 4])?))
        .arg(Arg::Write(bytes(NAME, &[slots, UNIT_BYTES])?))
        .arg(Arg::I32(int(NAME, "slots", slots)?))
        .arg(Arg::I32(int(NAME, "slots of a unit", wide)?)))
}

/// The expert's activation. Buffers: gate, up `[rows][n]` f32, weights `[rows]` if `weighted`,
/// h `[rows][n]`.
///
/// # Errors
/// `Shape`.
pub fn swiglu(rows: usize, n: usize, weighted: bool, limit: f32) -> Result<Call, KernelError> {
    const NAME: &str = "swiglu";
    let size = bytes(NAME, &[rows, n, 4])?;
    let grid = [
        grid_x(NAME, n.div_ceil(256) as u64)?,
        grid_y(NAME, "rows", rows)?,
        1,
    ];
    let weights = if weighted {
        Arg::Read(bytes(NAME, &[rows, 4])?)
    } else {
        Arg::Null
    };
    Ok(Call::new(SOURCE, NAME, grid, 256)
        .arg(Arg::Read(size))
        .arg(Arg::Read(size))
        .arg(weights)
        .arg(Arg::Write(size))
        .arg(Arg::I32(int(NAME, "width", n)?))
        .arg(Arg::F32(limit)))
}

/// The routed sum. Buffers: slots `[n][used][d]` f32, shared `[n][d]`, out `[n][d]`.
///
/// # Errors
/// `Shape`.
pub fn combine(n: usize, used: usize, d: usize) -> Result<Call, KernelError> {
    const NAME: &str = "moe_combine";
    let grid = [
        grid_x(NAME, d.div_ceil(256) as u64)?,
        grid_y(NAME, "tokens", n)?,
        1,
    ];
    Ok(Call::new(SOURCE, NAME, grid, 256)
        .arg(Arg::Read(bytes(NAME, &[n, used, d, 4])?))
        .arg(Arg::Read(bytes(NAME, &[n, d, 4])?))
        .arg(Arg::Write(bytes(NAME, &[n, d, 4])?))
        .arg(Arg::I32(int(NAME, "width", d)?))
        .arg(Arg::I32(int(NAME, "slots", used)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_bounded() {
        let shape = |n, experts, used| Shape {
            n,
            experts,
            used,
            scale: 1.5,
            counted: false,
            units: Units::Later,
        };
        assert_eq!(top_k(&shape(70_000, 256, 6)).unwrap().grid[0], 8_750);
        for bad in [
            shape(0, 256, 6),
            shape(1, 513, 6),
            shape(1, 256, 0),
            shape(1, 256, 17),
            shape(1, 4, 5),
        ] {
            assert!(top_k(&bad).is_err(), "{bad:?}");
            assert!(hash(&bad, 10).is_err(), "{bad:?}");
        }
        let planned = |n, wide| Shape {
            units: Units::Planned(wide),
            ..shape(n, 256, 6)
        };
        assert!(top_k(&planned(8, 4)).is_ok() && hash(&planned(8, 4), 10).is_ok());
        assert!(top_k(&planned(9, 4)).is_err() && top_k(&planned(8, 0)).is_err());
        assert!(plan(0, 4).is_err() && plan(4, 0).is_err() && plan(70_000, 4).is_ok());
        assert!(swiglu(65_536, 32, true, 10.0).is_err() && combine(1, 6, 4096).is_ok());
    }
}
