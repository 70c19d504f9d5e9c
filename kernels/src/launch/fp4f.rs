//! The packed order of ROCmFP4_FAST matrices and the launches of `fp4f.cu` and `fp4f_mma.cu`.

use super::a8::META_BYTES;
use super::{Arg, Call, bytes, grid_x, int, require};
use crate::KernelError;

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
    /// 128 x 128, row totals in registers.
    A,
    /// 128 x 128, row totals in shared memory (more than AMD has).
    B,
    /// 128 x 64, row totals in registers, two blocks a processor.
    D,
    /// As A in one running sum: other bits, measurements only.
    FreeA,
    /// As `FreeA`, two blocks a processor.
    FreeB,
    /// As D in one running sum.
    FreeD,
}

impl Gemm {
    /// The variants that follow the contract: the same bits.
    pub const EQUAL: &[Self] = &[Self::A, Self::B, Self::D];
    /// Those that do not.
    pub const FREE: &[Self] = &[Self::FreeA, Self::FreeB, Self::FreeD];

    /// Kernel, rows and columns of a block, bytes of dynamic shared memory.
    fn parts(self) -> (&'static str, usize, usize, u32) {
        match self {
            Self::A => ("fp4f_gemm_a", 128, 128, 0),
            Self::B => ("fp4f_gemm_b", 128, 128, 102_656),
            Self::D => ("fp4f_gemm_d", 128, 64, 0),
            Self::FreeA => ("fp4f_gemm_free_a", 128, 128, 0),
            Self::FreeB => ("fp4f_gemm_free_b", 128, 128, 0),
            Self::FreeD => ("fp4f_gemm_free_d", 128, 64, 0),
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

/// The product with 1 to 8 activation rows on 4-way dots. Buffers: see [`gemm`].
///
/// # Errors
/// `Shape`: no or more than 8 columns.
pub fn gemv(w: &Tile32, cols: usize) -> Result<Call, KernelError> {
    // Threads and segments of a block as in `Fp4fGemvShape`.
    let (name, threads, segments) = match cols {
        1 => ("fp4f_gemv_1", 512, 8),
        2 => ("fp4f_gemv_2", 256, 4),
        3..=4 => ("fp4f_gemv_4", 256, 4),
        _ => ("fp4f_gemv_8", 256, 2),
    };
    require(name, "columns", "1 to 8", cols, (1..=8).contains(&cols))?;
    let tiles_a_block = (segments / w.segments()).max(1);
    let grid = [
        grid_x(name, w.tiles().div_ceil(tiles_a_block) as u64)?,
        1,
        1,
    ];
    product(Call::new("fp4f.cu", name, grid, threads), w, cols)
}

/// The product with up to `width` activation rows (8 on NVIDIA, 16 on AMD) on matrix units.
/// Buffers: see [`gemm`].
///
/// # Errors
/// `Shape`: no or too many columns, more than 32 segments.
pub fn mma(w: &Tile32, cols: usize, width: usize) -> Result<Call, KernelError> {
    const NAME: &str = "fp4f_mma_n";
    require(
        NAME,
        "columns",
        "1 to the unit's width",
        cols,
        (1..=width).contains(&cols),
    )?;
    // All partial sums of a row meet in shared memory, which bounds the segments.
    require(
        NAME,
        "segments",
        "1 to 32",
        w.segments(),
        w.segments() <= 32,
    )?;
    let halves_a_block = (8 / w.segments()).max(1);
    let grid = [
        grid_x(NAME, (w.tiles() * 2).div_ceil(halves_a_block) as u64)?,
        1,
        1,
    ];
    let mut call = Call::new("fp4f_mma.cu", NAME, grid, 256);
    call.matrix = true;
    product(call, w, cols)
}

/// The product with any number of activation rows. Buffers: packed, q `[cols][k]` i8,
/// d `[cols][k / 32]` f32, y `[cols][rows]` f32.
///
/// # Errors
/// `Shape`: no columns, or more than the grid's 65535 rows of tiles.
pub fn gemm(w: &Tile32, cols: usize, variant: Gemm) -> Result<Call, KernelError> {
    let (name, tile_rows, tile_cols, shared) = variant.parts();
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
    call.shared = shared;
    call.matrix = true;
    product(call, w, cols)
}
