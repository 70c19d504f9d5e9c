//! Launches of `index.cu`, `index_many.cu` and `select.cu`: indexer scores, and the key lists that follow from them.

use super::{Arg, Call, bytes, grid_x, grid_y, int, require};
use crate::KernelError;
use crate::cpu::index_row_bytes;

/// Elements of a packed indexer row.
pub const DIM: usize = 128;
/// Set in keys that name a compressed row of a store of its own.
pub const COMPRESSED: u32 = 1 << 31;

/// Positions of a block of `index_many.cu`, and positions from which it pays: it holds rows for eight of them.
const MANY_POSITIONS: usize = 8;
const MANY: usize = 32;

/// Sizes of a scoring step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scores {
    /// Query positions.
    pub n: usize,
    /// Query heads, up to 64.
    pub heads: usize,
    /// Elements of a head; packed rows have [`DIM`].
    pub dim: usize,
    /// Rows of the store.
    pub rows: usize,
    /// Entries of a position's scores: at least the most rows any sees.
    pub stride: usize,
    /// Positions that see at most so many rows are not scored.
    pub skip: usize,
    /// Factor of the head weights: f32(1 / sqrt(dim * heads)) of the model.
    pub factor: f32,
}

impl Scores {
    fn check(&self, name: &'static str, dims: &[usize]) -> Result<(), KernelError> {
        let fits = (1..=64).contains(&self.heads);
        require(name, "heads", "1 to 64", self.heads, fits)?;
        let fits = dims.contains(&self.dim);
        require(name, "dim", "a size of this kernel", self.dim, fits)
    }

    /// Queries, rows and scores.
    fn packed_arguments(&self, call: Call) -> Result<Call, KernelError> {
        let name = call.kernel;
        Ok(call
            .arg(Arg::Read(bytes(name, &[self.n, self.heads, DIM])?))
            .arg(Arg::Read(bytes(name, &[self.n, self.heads, DIM / 32, 4])?))
            .arg(Arg::Read(bytes(name, &[self.n, self.heads, 4])?))
            .arg(Arg::Read(bytes(name, &[self.rows, index_row_bytes(DIM)])?))
            .arg(Arg::Read(bytes(name, &[self.n, 4])?))
            .arg(Arg::Read(bytes(name, &[self.n, 4])?))
            .arg(Arg::Write(bytes(name, &[self.n, self.stride, 4])?)))
    }

    fn end(&self, call: Call) -> Result<Call, KernelError> {
        let name = call.kernel;
        Ok(call
            .arg(Arg::I32(int(name, "entries", self.stride)?))
            .arg(Arg::I32(int(name, "rows to skip", self.skip)?))
            .arg(Arg::F32(self.factor)))
    }
}

/// Scores of packed rows. Buffers: twice `[n][heads][128]` i8, scales `[n][heads][4]` f32, w
/// `[n][heads]` f32, rows `[rows][68]`, visible `[n]` u32, firsts `[n]` u32 (the row of the store at which the
/// position's begin), scores `[n][stride]` f32.
///
/// # Errors
/// `Shape`.
pub fn packed(s: &Scores) -> Result<Call, KernelError> {
    if s.n >= MANY {
        return packed_many(s);
    }
    const NAME: &str = "index_scores";
    s.check(NAME, &[DIM])?;
    let grid = [
        grid_x(NAME, s.stride.div_ceil(128) as u64)?,
        grid_y(NAME, "positions", s.n)?,
        1,
    ];
    let call = s.packed_arguments(Call::new("index.cu", NAME, grid, 128))?;
    s.end(call.arg(Arg::I32(int(NAME, "heads", s.heads)?)))
}

/// [`packed`] by the kernel for many positions, whatever their number. Buffers: as there.
///
/// # Errors
/// `Shape`.
pub fn packed_many(s: &Scores) -> Result<Call, KernelError> {
    const NAME: &str = "index_scores_many";
    s.check(NAME, &[DIM])?;
    let grid = [
        grid_x(NAME, s.stride.div_ceil(128) as u64)?,
        grid_y(NAME, "positions", s.n.div_ceil(MANY_POSITIONS))?,
        1,
    ];
    let mut call = s.packed_arguments(Call::new("index_many.cu", NAME, grid, 128))?;
    call.matrix = true;
    let call = call
        .arg(Arg::I32(int(NAME, "positions", s.n)?))
        .arg(Arg::I32(int(NAME, "heads", s.heads)?));
    s.end(call)
}

/// Scores of f32 rows. Buffers: q `[n][heads][dim]` f32, w `[n][heads]` f32, rows `[rows][dim]` f32,
/// visible, firsts `[n]` u32, scores `[n][stride]` f32.
///
/// # Errors
/// `Shape`.
pub fn floats(s: &Scores) -> Result<Call, KernelError> {
    const NAME: &str = "index_scores_f32";
    s.check(NAME, &[32, 64, 96, 128])?;
    let grid = [
        grid_x(NAME, s.stride.div_ceil(8) as u64)?,
        grid_y(NAME, "positions", s.n)?,
        1,
    ];
    let call = Call::new("index.cu", NAME, grid, 256)
        .arg(Arg::Read(bytes(NAME, &[s.n, s.heads, s.dim, 4])?))
        .arg(Arg::Read(bytes(NAME, &[s.n, s.heads, 4])?))
        .arg(Arg::Read(bytes(NAME, &[s.rows, s.dim, 4])?))
        .arg(Arg::Read(bytes(NAME, &[s.n, 4])?))
        .arg(Arg::Read(bytes(NAME, &[s.n, 4])?))
        .arg(Arg::Write(bytes(NAME, &[s.n, s.stride, 4])?))
        .arg(Arg::I32(int(NAME, "heads", s.heads)?))
        .arg(Arg::I32(int(NAME, "dim", s.dim)?));
    s.end(call)
}

/// Where a position's rows stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Its position in the sequence.
    pub pos: u32,
    /// Row of the raw store at which the sequence's part starts.
    pub raw_base: u32,
    /// Position that stands there: 0 for a ring.
    pub raw_from: u32,
    /// Row of the compressed store at which the sequence's part starts.
    pub comp_base: u32,
}

impl Place {
    /// As the kernel reads it.
    #[must_use]
    pub fn bytes(&self) -> [u8; 16] {
        let mut out = [0; 16];
        let words = [self.pos, self.raw_base, self.raw_from, self.comp_base];
        for (to, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        out
    }
}

/// Sizes of the key lists of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lists {
    /// Query positions.
    pub n: usize,
    /// The largest position of the pass: bounds the lists.
    pub last: usize,
    /// Raw rows a query sees, itself included.
    pub window: usize,
    /// Slot of a raw row = (position - from) & mask: a ring's rows - 1, or all ones.
    pub mask: u32,
    /// Tokens of a compressed row; 0: none.
    pub ratio: usize,
    /// Most compressed rows listed, if scores are given.
    pub top_k: Option<usize>,
    /// Entries of a position's scores.
    pub score_stride: usize,
    /// Entries of a list.
    pub stride: usize,
    /// [`COMPRESSED`], or 0 where compressed rows stand in the raw rows' store.
    pub flag: u32,
}

impl Lists {
    /// The longest list.
    #[must_use]
    pub fn longest(&self) -> usize {
        let seen = self.last + 1;
        let rows = seen.checked_div(self.ratio).unwrap_or(0);
        seen.min(self.window) + self.top_k.map_or(rows, |k| rows.min(k))
    }
}

/// Key lists. Buffers: places `[n]` of 16 bytes, scores `[n][score_stride]` f32 if there is a `top_k`,
/// keys `[n][stride]` u32, counts `[n]` u32.
///
/// # Errors
/// `Shape`: lists or scores that do not fit, a mask that is no ring.
pub fn lists(s: &Lists) -> Result<Call, KernelError> {
    const NAME: &str = "key_lists";
    let fits = s.stride >= s.longest();
    require(
        NAME,
        "entries of a list",
        "at least the longest list",
        s.stride,
        fits,
    )?;
    require(NAME, "window", "at least 1", s.window, s.window > 0)?;
    let ring = s.mask.wrapping_add(1);
    let fits = (ring == 0 || ring.is_power_of_two()) && s.mask as usize >= s.window - 1;
    require(
        NAME,
        "mask",
        "a power of two - 1 that holds the window",
        s.mask as usize,
        fits,
    )?;
    let k = s.top_k.unwrap_or(1);
    require(NAME, "rows to choose", "at least 1", k, k > 0)?;
    let rows = (s.last + 1).checked_div(s.ratio).unwrap_or(0);
    let fits = s.top_k.is_none_or(|k| rows <= k || s.score_stride >= rows);
    require(
        NAME,
        "scores",
        "at least the visible rows",
        s.score_stride,
        fits,
    )?;
    let scores = match s.top_k {
        Some(_) => Arg::Read(bytes(NAME, &[s.n, s.score_stride, 4])?),
        None => Arg::Null,
    };
    let grid = [grid_x(NAME, s.n as u64)?, 1, 1];
    Ok(Call::new("select.cu", NAME, grid, 512)
        .arg(Arg::Read(bytes(NAME, &[s.n, 16])?))
        .arg(scores)
        .arg(Arg::Write(bytes(NAME, &[s.n, s.stride, 4])?))
        .arg(Arg::Write(bytes(NAME, &[s.n, 4])?))
        .arg(Arg::I32(int(NAME, "window", s.window)?))
        .arg(Arg::U32(s.mask))
        .arg(Arg::I32(int(NAME, "ratio", s.ratio)?))
        .arg(Arg::I32(int(NAME, "rows to choose", k)?))
        .arg(Arg::I32(int(NAME, "scores", s.score_stride)?))
        .arg(Arg::I32(int(NAME, "entries of a list", s.stride)?))
        .arg(Arg::U32(s.flag)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes() -> Lists {
        Lists {
            n: 2,
            last: 4095,
            window: 128,
            mask: 255,
            ratio: 4,
            top_k: Some(512),
            score_stride: 1024,
            stride: 640,
            flag: COMPRESSED,
        }
    }

    #[test]
    fn lists_must_hold_the_longest_one() {
        assert_eq!(sizes().longest(), 640);
        assert!(lists(&sizes()).is_ok());
        let all = Lists {
            top_k: None,
            ..sizes()
        };
        assert_eq!(all.longest(), 128 + 1024);
        assert!(lists(&all).is_err(), "640 entries for 1152 keys");
        let change: [fn(&mut Lists); 5] = [
            |s| s.stride = 639,
            |s| s.mask = 126,
            |s| s.mask = 200,
            |s| s.score_stride = 1023,
            |s| s.top_k = Some(0),
        ];
        for (i, change) in change.iter().enumerate() {
            let mut s = sizes();
            change(&mut s);
            assert!(lists(&s).is_err(), "change {i}");
        }
    }

    #[test]
    fn scores_of_other_widths_are_refused() {
        let s = Scores {
            n: 1,
            heads: 64,
            dim: DIM,
            rows: 70_000,
            stride: 70_000,
            skip: 512,
            factor: 1.0,
        };
        assert_eq!(packed(&s).unwrap().grid, [547, 1, 1]);
        assert!(packed(&Scores { dim: 64, ..s }).is_err());
        assert!(floats(&Scores { dim: 64, ..s }).is_ok());
        assert!(floats(&Scores { heads: 65, ..s }).is_err());
    }
}
