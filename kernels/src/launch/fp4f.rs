//! The packed order of ROCmFP4_FAST matrices and the launches of `fp4f.cu` and `fp4f_mma.cu`.

use super::a8::{self, META_BYTES};
use super::{Arg, Call, bytes, grid_x, int, require};
use crate::KernelError;

mod choice;

pub use choice::{fastest, stacks};

/// Bytes of a file block of 32 weights.
pub const BLOCK_BYTES: usize = 17;
/// Rows of a tile.
pub const TILE_ROWS: usize = 32;

/// Geometry of a matrix in tile32 order (`gpu/fs_fp4.h`): codes, then scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile32 {
    rows: usize,
    blocks: usize,
}

impl Tile32 {
    /// A matrix of `rows` rows of `k` weights.
    ///
    /// # Errors
    /// `Shape`: k is not a positive multiple of 32, or a size does not fit the kernels' integers.
    pub fn new(rows: usize, k: usize) -> Result<Self, KernelError> {
        const NAME: &str = "fp4f";
        require(
            NAME,
            "k",
            "a positive multiple of 32",
            k,
            k > 0 && k.is_multiple_of(32),
        )?;
        require(NAME, "rows", "at least 1", rows, rows > 0)?;
        int(NAME, "rows", rows.saturating_add(TILE_ROWS))?;
        int(NAME, "k", k)?;
        bytes(NAME, &[rows.saturating_add(TILE_ROWS), k])?;
        Ok(Self {
            rows,
            blocks: k / 32,
        })
    }

    /// Rows of the matrix.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Blocks of 32 in a row.
    #[must_use]
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Blocks of [`Gemv::Wide`].
    fn wide_blocks(&self) -> usize {
        self.tiles()
            .div_ceil(8 / self.segments().next_power_of_two().min(8))
    }

    /// Weights of a row.
    #[must_use]
    pub fn k(&self) -> usize {
        self.blocks * 32
    }

    /// Tiles of 32 rows.
    #[must_use]
    pub fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE_ROWS)
    }

    /// Groups of 4 blocks in a row.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.blocks.div_ceil(4)
    }

    /// Segments of 16 blocks in a row.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.blocks.div_ceil(16)
    }

    /// Bytes of the file's blocks.
    #[must_use]
    pub fn raw_bytes(&self) -> u64 {
        self.rows as u64 * self.blocks as u64 * BLOCK_BYTES as u64
    }

    /// Bytes of the codes plane; the scales start there.
    #[must_use]
    pub fn code_bytes(&self) -> u64 {
        self.tiles() as u64 * self.groups() as u64 * 2048
    }

    /// Bytes of both planes.
    #[must_use]
    pub fn packed_bytes(&self) -> u64 {
        self.code_bytes() + self.tiles() as u64 * self.segments() as u64 * 512
    }
}

/// The tiled product's variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gemm {
    /// 128 x 128.
    A,
    /// 128 x 64, two blocks a processor.
    D,
    /// As A in one running sum: other bits, measurements only.
    FreeA,
    /// As D in one running sum.
    FreeD,
}

impl Gemm {
    /// The variants that follow the contract: the same bits.
    pub const EQUAL: &[Self] = &[Self::A, Self::D];
    /// Those that do not.
    pub const FREE: &[Self] = &[Self::FreeA, Self::FreeD];

    /// Kernel, rows and columns of a block.
    fn parts(self) -> (&'static str, usize, usize) {
        match self {
            Self::A => ("fp4f_gemm_a", 128, 128),
            Self::D => ("fp4f_gemm_d", 128, 64),
            Self::FreeA => ("fp4f_gemm_free_a", 128, 128),
            Self::FreeD => ("fp4f_gemm_free_d", 128, 64),
        }
    }
}

/// File order to tile32. Buffers: raw, packed. The scale bytes must have been validated.
///
/// # Errors
/// `Shape`.
pub fn repack(w: &Tile32) -> Result<Call, KernelError> {
    const NAME: &str = "fp4f_repack";
    let units = w.packed_bytes() / 16;
    let grid = [grid_x(NAME, units.div_ceil(256))?, 1, 1];
    Ok(Call::new("fp4f.cu", NAME, grid, 256)
        .arg(Arg::Read(w.raw_bytes()))
        .arg(Arg::Write(w.packed_bytes()))
        .arg(Arg::I32(int(NAME, "rows", w.rows)?))
        .arg(Arg::I32(int(NAME, "blocks", w.blocks)?)))
}

/// The arguments every product takes. Buffers: packed, q `[cols][k]` i8, meta `[cols][k / 32]`
/// of 8 bytes, y `[cols][rows]` f32.
fn product(call: Call, w: &Tile32, cols: usize) -> Result<Call, KernelError> {
    let name = call.kernel;
    Ok(call
        .arg(Arg::Read(w.packed_bytes()))
        .arg(Arg::Read(bytes(name, &[cols, w.k()])?))
        .arg(Arg::Read(bytes(name, &[cols, w.blocks, META_BYTES])?))
        .arg(Arg::Write(bytes(name, &[cols, w.rows, 4])?))
        .arg(Arg::I32(int(name, "rows", w.rows)?))
        .arg(Arg::I32(int(name, "blocks", w.blocks)?))
        .arg(Arg::I32(int(name, "columns", cols)?)))
}

/// How the 4-way-dot product spreads over a device. The same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gemv {
    /// Half a segment of 16 rows a warp: for few rows.
    Fine,
    /// A segment of 32 rows a warp: for many rows.
    Wide,
}

impl Gemv {
    /// Both.
    pub const ALL: &[Self] = &[Self::Fine, Self::Wide];

    /// The faster one on a device of so many processors: wide from one and a half blocks each
    /// (measured on 132: benches/records/2026-11-29-m0-h200.md).
    #[must_use]
    pub fn choose(w: &Tile32, processors: usize) -> Self {
        Self::choose_for(w.wide_blocks(), processors)
    }

    fn choose_for(blocks: usize, processors: usize) -> Self {
        if blocks * 2 >= processors * 3 {
            Self::Wide
        } else {
            Self::Fine
        }
    }
}

/// The product with any number of activation rows on 4-way dots; meant for one or two. Buffers: see
/// [`gemm`].
///
/// # Errors
/// `Shape`: no columns, or more than the grid's 65535 pairs.
pub fn gemv(w: &Tile32, cols: usize, spread: Gemv) -> Result<Call, KernelError> {
    let (name, threads, rows) = match (spread, cols) {
        (Gemv::Fine, 0..=1) => ("fp4f_gemv_1", 512, 16),
        (Gemv::Fine, _) => ("fp4f_gemv_2", 512, 16),
        (Gemv::Wide, 0..=1) => ("fp4f_gemv_wide_1", 256, 32),
        (Gemv::Wide, _) => ("fp4f_gemv_wide_2", 256, 32),
    };
    let pairs = cols.div_ceil(2);
    require(
        name,
        "columns",
        "1 to 131070",
        cols,
        pairs > 0 && pairs <= 65_535,
    )?;
    let mut grid = rows_grid(name, w, rows)?;
    grid[1] = pairs as u32;
    product(Call::new("fp4f.cu", name, grid, threads), w, cols)
}

/// The products of two matrices of the same k with up to `width` activation rows: the bits of [`gemv`] for each. Buffers: q
/// `[cols][k]` i8, meta `[cols][k / 32]` of 8 bytes, then packed and y `[cols][rows]` f32 of the one and of the other.
///
/// # Errors
/// `Shape`: rows of different lengths or of more than 32 segments, no or too many columns.
pub fn pair(
    w: [&Tile32; 2],
    cols: usize,
    width: usize,
    processors: usize,
) -> Result<Call, KernelError> {
    let mut call = match cols {
        0..=1 => pair_of_one(w, processors)?,
        _ => Call::new(
            "fp4f_mma.cu",
            "fp4f_mma_pair",
            [halves_grid(w[0])?, halves_grid(w[1])?, 1],
            256,
        ),
    };
    call.matrix = cols > 1;
    let name = call.kernel;
    let fits = (1..=width).contains(&cols);
    require(name, "columns", "1 to the unit's width", cols, fits)?;
    let same = w[0].k() == w[1].k();
    require(name, "k", "the same of both matrices", w[1].k(), same)?;
    let long = w[0].segments();
    require(name, "segments", "1 to 32", long, meets(w[0]))?;
    let [first, second, _] = call.grid;
    call.grid = [grid_x(name, u64::from(first) + u64::from(second))?, 1, 1];
    let mut call = call
        .arg(Arg::Read(bytes(name, &[cols, w[0].k()])?))
        .arg(Arg::Read(bytes(name, &[cols, w[0].blocks, META_BYTES])?));
    for w in w {
        call = call
            .arg(Arg::Read(w.packed_bytes()))
            .arg(Arg::Write(bytes(name, &[cols, w.rows, 4])?));
    }
    let sizes = [w[0].rows, w[1].rows, w[0].blocks, first as usize, cols];
    sizes.iter().try_fold(call, |call, size| {
        Ok(call.arg(Arg::I32(int(name, "size", *size)?)))
    })
}

/// The kernel of [`pair`] for one row, with the blocks of the one and of the other as its grid.
fn pair_of_one(w: [&Tile32; 2], processors: usize) -> Result<Call, KernelError> {
    let blocks = w[0].wide_blocks() + w[1].wide_blocks();
    let (name, threads, rows) = match Gemv::choose_for(blocks, processors) {
        Gemv::Fine => ("fp4f_gemv_pair", 512, 16),
        Gemv::Wide => ("fp4f_gemv_wide_pair", 256, 32),
    };
    let of = |w| rows_grid(name, w, rows).map(|grid| grid[0]);
    Ok(Call::new(
        "fp4f.cu",
        name,
        [of(w[0])?, of(w[1])?, 1],
        threads,
    ))
}

/// Segments up to which a row of [`stack`] fits: its blocks have whole tiles.
const STACK_SEGMENTS: usize = 16;

/// The products of several matrices, each with a row of its own for every column. Buffers: packed, one matrix after the
/// other; q `[cols][matrices][k]` i8, meta `[cols][matrices][k / 32]` of 8 bytes, y `[cols][matrices][rows]` f32, or, of
/// `blocks`, y q `[cols][matrices][rows]` i8 and y meta `[cols][matrices][rows / 32]` of 8 bytes.
///
/// # Errors
/// `Shape`: no columns or matrices, more than the grid's 65535 groups or matrices, rows of more than 16 segments, blocks of
/// rows that are no multiple of 32.
pub fn stack(
    w: &Tile32,
    matrices: usize,
    cols: usize,
    width: usize,
    blocks: bool,
) -> Result<Call, KernelError> {
    const NAME: &str = "fp4f_mma_stack";
    let groups = cols.div_ceil(width);
    let few = |n: usize| (1..=65_535).contains(&n);
    require(NAME, "columns", "1 to 65535 groups", cols, few(groups))?;
    require(NAME, "matrices", "1 to 65535", matrices, few(matrices))?;
    let long = w.segments();
    require(NAME, "segments", "1 to 16", long, long <= STACK_SEGMENTS)?;
    let tiles_a_block = (8 / long).max(1);
    let down = grid_x(NAME, w.tiles().div_ceil(tiles_a_block) as u64)?;
    let mut call = Call::new(
        "fp4f_mma.cu",
        NAME,
        [down, groups as u32, matrices as u32],
        256,
    );
    call.matrix = true;
    let slots = cols.saturating_mul(matrices);
    let y = bytes(NAME, &[slots, w.rows, 4])?;
    let outputs = match blocks {
        true => a8::outputs(NAME, true, slots, w.rows)?,
        false => [Arg::Null, Arg::Null],
    };
    let call = call
        .arg(Arg::Read(bytes(
            NAME,
            &[matrices, w.packed_bytes() as usize],
        )?))
        .arg(Arg::Read(bytes(NAME, &[slots, w.k()])?))
        .arg(Arg::Read(bytes(NAME, &[slots, w.blocks, META_BYTES])?))
        .arg(if blocks { Arg::Null } else { Arg::Write(y) });
    let sizes = [w.rows, w.blocks, cols, matrices];
    sizes
        .iter()
        .try_fold(outputs.into_iter().fold(call, Call::arg), |call, size| {
            Ok(call.arg(Arg::I32(int(NAME, "size", *size)?)))
        })
}

/// Blocks of half tiles, as many a block as have 8 segments together.
fn halves_grid(w: &Tile32) -> Result<u32, KernelError> {
    let halves_a_block = (8 / w.segments()).max(1);
    grid_x(
        "fp4f_mma_n",
        (w.tiles() * 2).div_ceil(halves_a_block) as u64,
    )
}

/// Blocks that hold `rows` rows, or as many times that as have 8 segments together.
fn rows_grid(name: &'static str, w: &Tile32, rows: usize) -> Result<[u32; 3], KernelError> {
    let a_block = 8 / w.segments().next_power_of_two().min(8);
    let units = w.tiles() * (TILE_ROWS / rows);
    Ok([grid_x(name, units.div_ceil(a_block) as u64)?, 1, 1])
}

/// The product with activation rows in groups of `width` (8 on NVIDIA, 16 on AMD) on matrix units, each group
/// in blocks of its own. Buffers: see [`gemm`].
///
/// # Errors
/// `Shape`: no columns, more than the grid's 65535 groups, more than 32 segments.
pub fn mma(w: &Tile32, cols: usize, width: usize) -> Result<Call, KernelError> {
    const NAME: &str = "fp4f_mma_n";
    let groups = cols.div_ceil(width);
    require(
        NAME,
        "columns",
        "1 to 65535 groups",
        cols,
        (1..=65_535).contains(&groups),
    )?;
    // All partial sums of a row meet in shared memory, which bounds the segments.
    require(NAME, "segments", "1 to 32", w.segments(), meets(w))?;
    let grid = [halves_grid(w)?, groups as u32, 1];
    let mut call = Call::new("fp4f_mma.cu", NAME, grid, 256);
    call.matrix = true;
    product(call, w, cols)
}

/// Whether the partial sums of a row fit where [`mma`] and [`pair`] let them meet.
fn meets(w: &Tile32) -> bool {
    w.segments() <= 32
}

/// The product with any number of activation rows. Buffers: packed, q `[cols][k]` i8,
/// d `[cols][k / 32]` f32, y `[cols][rows]` f32.
///
/// # Errors
/// `Shape`: no columns, or more than the grid's 65535 rows of tiles.
pub fn gemm(w: &Tile32, cols: usize, variant: Gemm) -> Result<Call, KernelError> {
    let (name, tile_rows, tile_cols) = variant.parts();
    let down = cols.div_ceil(tile_cols);
    require(
        name,
        "columns",
        "1 to 65535 tiles",
        cols,
        down > 0 && down <= 65_535,
    )?;
    let grid = [
        grid_x(name, w.rows.div_ceil(tile_rows) as u64)?,
        down as u32,
        1,
    ];
    let mut call = Call::new("fp4f_mma.cu", name, grid, 256);
    call.matrix = true;
    product(call, w, cols)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn geometry_of_the_packed_order() {
        let w = Tile32::new(33, 544).unwrap();
        assert_eq!(
            (w.tiles(), w.blocks(), w.groups(), w.segments()),
            (2, 17, 5, 2)
        );
        assert_eq!(w.raw_bytes(), 33 * 17 * 17);
        assert_eq!(w.code_bytes(), 2 * 5 * 2048);
        assert_eq!(w.packed_bytes(), 2 * 5 * 2048 + 2 * 2 * 512);
        let exact = Tile32::new(4096, 4096).unwrap();
        assert_eq!(
            exact.packed_bytes(),
            exact.raw_bytes(),
            "no padding where none is needed"
        );
    }

    #[test]
    fn shapes_the_kernels_do_not_take_are_refused() {
        for (rows, k) in [(1, 0), (1, 33), (0, 32), (1 << 31, 32), (usize::MAX, 32)] {
            assert!(Tile32::new(rows, k).is_err(), "{rows} x {k}");
        }
        let w = Tile32::new(64, 64).unwrap();
        assert!(
            gemv(&w, 0, Gemv::Fine).is_err()
                && mma(&w, 0, 8).is_err()
                && mma(&w, 8 * 65_535 + 1, 8).is_err()
        );
        assert!(gemm(&w, 0, Gemm::A).is_err() && gemm(&w, 1 << 24, Gemm::D).is_err());
        let long = Tile32::new(32, 33 * 512).unwrap();
        assert!(mma(&long, 1, 8).is_err() && gemv(&long, 1, Gemv::Wide).is_ok());
    }

    #[test]
    fn columns_lie_in_groups_along_the_grid() {
        let w = Tile32::new(64, 1024).unwrap();
        let grid = |cols, width| mma(&w, cols, width).unwrap().grid;
        assert_eq!(grid(8, 8), [1, 1, 1], "two segments: four halves a block");
        assert_eq!(grid(9, 8), [1, 2, 1]);
        assert_eq!(grid(9, 16), [1, 1, 1]);
        assert_eq!(grid(64, 8), [1, 8, 1]);
    }

    #[test]
    fn a_stack_has_a_grid_of_tiles_groups_and_matrices() {
        let w = Tile32::new(1024, 4096).unwrap();
        let call = stack(&w, 8, 6, 8, true).unwrap();
        assert_eq!((call.kernel, call.grid), ("fp4f_mma_stack", [32, 1, 8]));
        assert_eq!(stack(&w, 8, 17, 8, false).unwrap().grid, [32, 3, 8]);
        let short = Tile32::new(96, 512).unwrap();
        assert_eq!(stack(&short, 3, 2, 8, true).unwrap().grid, [1, 1, 3]);
        let odd = Tile32::new(33, 512).unwrap();
        assert!(stack(&odd, 3, 2, 8, true).is_err() && stack(&odd, 3, 2, 8, false).is_ok());
        let long = Tile32::new(64, 17 * 512).unwrap();
        assert!(stack(&long, 3, 2, 8, true).is_err() && stack(&w, 0, 2, 8, true).is_err());
    }

    #[test]
    fn two_matrices_share_a_launch() {
        let [a, b, c] =
            [(1024, 4096), (576, 4096), (64, 1024)].map(|(m, k)| Tile32::new(m, k).unwrap());
        let call = pair([&a, &b], 6, 8, 132).unwrap();
        assert_eq!((call.kernel, call.grid), ("fp4f_mma_pair", [64 + 36, 1, 1]));
        assert_eq!(pair([&a, &b], 1, 8, 132).unwrap().kernel, "fp4f_gemv_pair");
        assert!(pair([&a, &c], 6, 8, 132).is_err() && pair([&a, &b], 9, 8, 132).is_err());
        assert!(pair([&a, &b], 0, 8, 132).is_err());
    }
}
