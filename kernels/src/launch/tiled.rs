//! Matrices in tile order (`gpu/fs_formats.h`) and the launches of `tiled.cu`, `tiled_more.cu` and `tiled_k.cu`: a few activation rows
//! on 4-way dots, alone or grouped by expert.

use fpx_quant::{Format, FormatError, Fp2Dialect, Fp6Endpoint};

use super::a8::{self, META_BYTES};
use super::route::UNIT_BYTES;
use super::{Arg, Call, bytes, grid_x, grid_y, int, require};
use crate::KernelError;

const SOURCE: &str = "tiled.cu";
/// Most slots of a unit of work.
pub const WIDE: usize = 4;
/// What a format's kernels are called and how they store a block.
pub(super) struct Kind {
    /// repack, gemv 1 and 4, gate and up 1 and 4.
    names: [&'static str; 5],
    /// The product, and gate and up, of `grouped.cu`.
    pub(super) grouped: [&'static str; 2],
    /// Words of codes of a block, and units of scales of a segment.
    pub(super) words: usize,
    scales: usize,
    /// Weights of a file block.
    block: usize,
    /// Where the kernels of few rows and of many are.
    source: &'static str,
    pub(super) grouped_source: &'static str,
    /// Whether there are offsets beside the scales.
    pub(super) offset: bool,
    /// Levels of the codes as bytes, where the dialect decides.
    pub(super) table: u32,
}

macro_rules! names {
    ($name:literal) => {
        (
            [
                concat!("tiled_repack_", $name),
                concat!("tiled_gemv_", $name, "_1"),
                concat!("tiled_gemv_", $name, "_4"),
                concat!("tiled_gate_up_", $name, "_1"),
                concat!("tiled_gate_up_", $name, "_4"),
            ],
            [
                concat!("grouped_product_", $name),
                concat!("grouped_gate_up_", $name),
            ],
        )
    };
}

impl Kind {
    fn of(format: Format) -> Result<Self, FormatError> {
        let kind = |(names, grouped), words, scales, table| Self {
            names,
            grouped,
            words,
            scales,
            block: 32,
            source: "tiled_more.cu",
            grouped_source: "grouped_more.cu",
            offset: false,
            table,
        };
        let first = |kind: Self| Self {
            source: SOURCE,
            grouped_source: "grouped.cu",
            ..kind
        };
        let [s40, fp2] = [names!("fp2s40"), names!("fp2")];
        // With an offset, or with blocks of 256.
        let more = |kind: Self, block, offset| Self {
            block,
            offset,
            source: "tiled_k.cu",
            grouped_source: "grouped_k.cu",
            ..kind
        };
        Ok(match format {
            Format::Fp4Fast => first(kind(names!("fp4f"), 4, 1, 0)),
            // -1, 0, 1, 2; bit 7 of a scale byte negates, and other dialects never set it.
            Format::Fp2(Fp2Dialect::Signed | Fp2Dialect::SignedNeg) => {
                first(kind(names!("fp2"), 2, 2, 0x0201_00ff))
            }
            // -4, -1, 1, 4: for few rows the kernels with any table.
            Format::Fp2(Fp2Dialect::S40) => Self {
                grouped_source: "grouped.cu",
                ..kind((s40.0, fp2.1), 2, 2, 0x0401_fffc)
            },
            Format::Fp2(Fp2Dialect::Affine) => more(kind(names!("fp2a"), 2, 2, 0), 32, true),
            Format::Fp3 => first(kind(names!("fp3"), 3, 2, 0)),
            Format::Q8_0 => kind(names!("q8"), 8, 2, 0),
            Format::Mxfp4 => kind(names!("mxfp4"), 4, 1, 0),
            Format::Fp4 => kind(names!("fp4"), 4, 2, 0),
            Format::Fp6(Fp6Endpoint::Zero) => kind(names!("fp6"), 6, 2, 0),
            // The byte of code 32: -32.
            Format::Fp6(Fp6Endpoint::Neg32) => kind(names!("fp6"), 6, 2, 0xe0),
            Format::Fp8 => kind(names!("fp8"), 8, 1, 0),
            Format::Q4K => more(kind(names!("q4k"), 4, 2, 0), 256, true),
            Format::Q2K => more(kind(names!("q2k"), 2, 3, 0), 256, true),
            Format::Iq2Xxs => more(kind(names!("iq2xxs"), 2, 1, 0), 256, false),
            _ => {
                let what = "a product in tile order";
                return Err(FormatError::Unsupported { format, what });
            }
        })
    }
}

/// A stack of equal matrices in tile order: one, or an expert each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stack {
    /// Their format.
    pub format: Format,
    /// How many.
    pub matrices: usize,
    /// Rows of each.
    pub rows: usize,
    /// Weights of a row: a multiple of the file block's, 32 or 256.
    pub k: usize,
}

impl Stack {
    pub(super) fn kind(&self, name: &'static str) -> Result<Kind, KernelError> {
        let kind = Kind::of(self.format)?;
        let fits = self.k > 0 && self.k.is_multiple_of(kind.block);
        let wanted = match kind.block {
            32 => "a positive multiple of 32",
            _ => "a positive multiple of 256",
        };
        require(name, "k", wanted, self.k, fits)?;
        let fits = self.rows > 0 && self.matrices > 0;
        require(name, "rows", "at least 1", self.rows, fits)?;
        int(name, "rows", self.rows.saturating_add(32))?;
        int(name, "k", self.k)?;
        bytes(name, &[self.matrices, self.rows + 32, self.k + 512, 2])?;
        Ok(kind)
    }

    /// Bytes of the file's blocks.
    ///
    /// # Errors
    /// `Shape`, `Format`.
    pub fn raw_bytes(&self) -> Result<u64, KernelError> {
        let blocks = self.k / self.kind("tiled")?.block;
        let block = self.format.block_bytes();
        bytes("tiled", &[self.matrices, self.rows, blocks, block])
    }

    /// 16-byte units of one matrix.
    fn units(&self, kind: &Kind) -> u64 {
        let blocks = self.k / 32;
        let codes = blocks.div_ceil(4) * kind.words;
        let scales = blocks.div_ceil(16) * kind.scales;
        self.rows.div_ceil(32) as u64 * 32 * (codes + scales) as u64
    }

    /// Bytes in tile order.
    ///
    /// # Errors
    /// `Shape`, `Format`.
    pub fn packed_bytes(&self) -> Result<u64, KernelError> {
        let kind = self.kind("tiled")?;
        Ok(self.units(&kind) * 16 * self.matrices as u64)
    }

    /// Blocks along x that hold all rows.
    pub(super) fn grid(&self, name: &'static str) -> Result<u32, KernelError> {
        let segments = self.k.div_ceil(512).next_power_of_two().min(8);
        grid_x(name, self.rows.div_ceil(32).div_ceil(8 / segments) as u64)
    }
}

/// File order to tile order. Buffers: raw, packed. The scale bytes must have been validated.
///
/// # Errors
/// `Shape`, `Format`.
pub fn repack(w: &Stack) -> Result<Call, KernelError> {
    let kind = w.kind("tiled")?;
    let name = kind.names[0];
    let grid = [
        grid_x(name, w.units(&kind).div_ceil(256))?,
        grid_y(name, "matrices", w.matrices)?,
        1,
    ];
    Ok(Call::new(kind.source, name, grid, 256)
        .arg(Arg::Read(w.raw_bytes()?))
        .arg(Arg::Write(w.packed_bytes()?))
        .arg(Arg::I32(int(name, "rows", w.rows)?))
        .arg(Arg::I32(int(name, "blocks", w.k / 32)?)))
}

/// Which activation rows meet which matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Output rows. The activation row of slot s is s / `per`.
    pub slots: usize,
    /// Slots that share an activation row.
    pub per: usize,
    /// Most slots of a unit, up to [`WIDE`] or [`super::grouped::WIDE`]; 0: no units, every slot meets matrix 0.
    pub wide: usize,
    /// Whether units count places in an order, or slots.
    pub ordered: bool,
}

impl Work {
    /// All of `cols` rows against the first matrix.
    #[must_use]
    pub fn plain(cols: usize) -> Self {
        Self {
            slots: cols,
            per: 1,
            wide: 0,
            ordered: false,
        }
    }

    fn check(&self, name: &'static str) -> Result<(), KernelError> {
        require(
            name,
            "slots of a unit",
            "at most 4",
            self.wide,
            self.wide <= WIDE,
        )?;
        self.check_shape(name)
    }

    /// What holds for units of any width.
    pub(super) fn check_shape(&self, name: &'static str) -> Result<(), KernelError> {
        let fits = self.per > 0 && self.slots.is_multiple_of(self.per);
        require(
            name,
            "slots a row",
            "a divisor of the slots",
            self.per,
            fits,
        )?;
        let fits = self.wide > 0 || !self.ordered;
        require(name, "units", "present where there is an order", 0, fits)
    }

    /// Whether the kernel for one column serves, and blocks along y.
    fn spread(&self, name: &'static str) -> Result<(bool, u32), KernelError> {
        self.check(name)?;
        let one = self.wide == 1 || (self.wide == 0 && self.slots == 1);
        let units = if self.wide == 0 && !one {
            self.slots.div_ceil(WIDE)
        } else {
            self.slots
        };
        Ok((one, grid_y(name, "units", units)?))
    }

    /// q, meta, units, order.
    fn inputs(&self, call: Call, k: usize) -> Result<Call, KernelError> {
        let name = call.kernel;
        let inputs = self.slots / self.per;
        let list = |there, size| {
            Ok::<_, KernelError>(if there {
                Arg::Read(bytes(name, &[self.slots, size])?)
            } else {
                Arg::Null
            })
        };
        Ok(call
            .arg(Arg::Read(bytes(name, &[inputs, k])?))
            .arg(Arg::Read(bytes(name, &[inputs, k / 32, META_BYTES])?))
            .arg(list(self.wide > 0, UNIT_BYTES)?)
            .arg(list(self.ordered, 4)?))
    }

    fn sizes(&self, call: Call, w: &Stack, table: u32) -> Result<Call, KernelError> {
        let name = call.kernel;
        Ok(call
            .arg(Arg::I32(int(name, "rows", w.rows)?))
            .arg(Arg::I32(int(name, "blocks", w.k / 32)?))
            .arg(Arg::I32(int(name, "slots", self.slots)?))
            .arg(Arg::U32(
                int(name, "slots a row", self.per)?.cast_unsigned(),
            ))
            .arg(Arg::U32(table)))
    }
}

/// The product. Buffers: packed, q `[slots / per][k]` i8, meta `[slots / per][k / 32]` of 8 bytes, units
/// `[slots]` of 16 bytes if there are any, order `[slots]` u32 if ordered, y `[slots][rows]` f32.
///
/// # Errors
/// `Shape`, `Format`.
pub fn gemv(w: &Stack, work: &Work) -> Result<Call, KernelError> {
    let call = begin(w, work)?;
    let out = Arg::Write(bytes(call.kernel, &[work.slots, w.rows, 4])?);
    gemv_to(call, w, work, [out, Arg::Null, Arg::Null])
}

/// The product as activation blocks, without f32. Buffers: as [`gemv`] with y q `[slots][rows]` i8 and y meta
/// `[slots][rows / 32]` of 8 bytes in place of y.
///
/// # Errors
/// `Shape`: also rows that are no multiple of 32; `Format`.
pub fn gemv_blocks(w: &Stack, work: &Work) -> Result<Call, KernelError> {
    let call = begin(w, work)?;
    let [q, meta] = a8::outputs(call.kernel, true, work.slots, w.rows)?;
    gemv_to(call, w, work, [Arg::Null, q, meta])
}

fn begin(w: &Stack, work: &Work) -> Result<Call, KernelError> {
    let kind = w.kind("tiled_gemv")?;
    let (one, down) = work.spread(kind.names[1])?;
    let name = kind.names[if one { 1 } else { 2 }];
    let grid = [w.grid(name)?, down, 1];
    Ok(Call::new(kind.source, name, grid, 256))
}

fn gemv_to(call: Call, w: &Stack, work: &Work, out: [Arg; 3]) -> Result<Call, KernelError> {
    let kind = w.kind(call.kernel)?;
    let call = call.arg(Arg::Read(w.packed_bytes()?));
    let call = out.into_iter().fold(work.inputs(call, w.k)?, Call::arg);
    work.sizes(call, w, kind.table)
}

/// The arguments of a product of many rows: packed, q, meta, units, order, y, sizes.
pub(super) fn product_args(
    call: Call,
    w: &Stack,
    work: &Work,
    kind: &Kind,
) -> Result<Call, KernelError> {
    let out = bytes(call.kernel, &[work.slots, w.rows, 4])?;
    let call = call.arg(Arg::Read(w.packed_bytes()?));
    let call = work.inputs(call, w.k)?.arg(Arg::Write(out));
    work.sizes(call, w, kind.table)
}

/// Gate, up and activation of experts of `w`'s shape. Buffers: gate, up packed; q, meta, units, order as
/// [`gemv`]; weights `[slots]` f32 if `weighted`; h q `[slots][rows]` i8, h meta `[slots][rows / 32]` of
/// 8 bytes, h `[slots][rows]` f32 if `floats`.
///
/// # Errors
/// `Shape`: also rows that are no multiple of 32; `Format`.
pub fn gate_up(
    w: &Stack,
    work: &Work,
    weighted: bool,
    floats: bool,
    limit: f32,
) -> Result<Call, KernelError> {
    let kind = w.kind("tiled_gate_up")?;
    let (one, down) = work.spread(kind.names[3])?;
    let name = kind.names[if one { 3 } else { 4 }];
    let call = Call::new(kind.source, name, [w.grid(name)?, down, 1], 256);
    let call = gate_up_args(call, w, work, &kind, [weighted, floats])?;
    Ok(call.arg(Arg::F32(limit)))
}

/// The arguments of gate and up, all but the clamp. `there`: weights, f32 output.
pub(super) fn gate_up_args(
    call: Call,
    w: &Stack,
    work: &Work,
    kind: &Kind,
    there: [bool; 2],
) -> Result<Call, KernelError> {
    let name = call.kernel;
    let whole = w.rows.is_multiple_of(32);
    require(name, "rows", "a multiple of 32", w.rows, whole)?;
    let packed = Arg::Read(w.packed_bytes()?);
    let out = bytes(name, &[work.slots, w.rows])?;
    let weights = bytes(name, &[work.slots, 4])?;
    let given = |there, arg| if there { arg } else { Arg::Null };
    let call = work
        .inputs(call.arg(packed).arg(packed), w.k)?
        .arg(given(there[0], Arg::Read(weights)))
        .arg(Arg::Write(out))
        .arg(Arg::Write(out / 32 * META_BYTES as u64))
        .arg(given(there[1], Arg::Write(out * 4)));
    work.sizes(call, w, kind.table)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(format: Format, rows: usize, k: usize) -> Stack {
        Stack {
            format,
            matrices: 2,
            rows,
            k,
        }
    }

    #[test]
    fn tile_order_keeps_the_size_of_whole_tiles() {
        let dialect = Format::Fp2(Fp2Dialect::Signed);
        for format in [
            dialect,
            Format::Fp3,
            Format::Fp4Fast,
            Format::Q8_0,
            Format::Mxfp4,
            Format::Fp4,
            Format::Fp6(Fp6Endpoint::Zero),
            Format::Fp8,
        ] {
            let w = stack(format, 64, 1024);
            assert_eq!(w.packed_bytes(), w.raw_bytes(), "{format}");
        }
        let affine = stack(Format::Fp2(Fp2Dialect::Affine), 64, 1024);
        assert_eq!(affine.packed_bytes(), affine.raw_bytes());
        let q4k = stack(Format::Q4K, 64, 1024);
        assert_eq!(q4k.packed_bytes(), q4k.raw_bytes());
        // Whole units of scales: 11 and 9 bytes of 32 weights for 10.5 and 8.25.
        let bytes = |format| stack(format, 64, 1024).packed_bytes().unwrap();
        assert_eq!(bytes(Format::Q2K), 2 * 64 * 32 * 11);
        assert_eq!(bytes(Format::Iq2Xxs), 2 * 64 * 32 * 9);
        let padded = stack(Format::Fp3, 33, 544);
        // 2 tiles, 5 groups of 3 words, 2 segments of 2 scale units.
        assert_eq!(padded.packed_bytes(), Ok(2 * 2 * 32 * 16 * (15 + 4)));
    }

    #[test]
    fn shapes_and_work_the_kernels_do_not_take_are_refused() {
        assert!(gemv(&stack(Format::Q8_0, 1, 33), &Work::plain(1)).is_err());
        assert!(gemv(&stack(Format::F16, 1, 32), &Work::plain(1)).is_err());
        assert!(repack(&stack(Format::Mix2, 1, 32)).is_err());
        assert!(repack(&stack(Format::Q4K, 1, 224)).is_err(), "half a block");
        assert!(repack(&stack(Format::Q4K, 1, 256)).is_ok());
        let w = stack(Format::Fp3, 33, 64);
        assert!(gate_up(&w, &Work::plain(1), false, false, 10.0).is_err());
        assert!(gemv(&w, &Work::plain(0)).is_err());
        assert!(gemv_blocks(&w, &Work::plain(1)).is_err(), "half a block");
        assert!(gemv_blocks(&stack(Format::Fp3, 64, 64), &Work::plain(1)).is_ok());
        let mut work = Work::plain(6);
        (work.wide, work.per) = (5, 6);
        assert!(gemv(&w, &work).is_err(), "a unit of five");
        (work.wide, work.per) = (4, 4);
        assert!(gemv(&w, &work).is_err(), "six slots of rows of four");
        work.per = 6;
        assert!(gemv(&w, &work).is_ok());
        assert_eq!(gemv(&w, &Work::plain(9)).unwrap().grid[1], 3);
        assert_eq!(
            gemv(&w, &Work::plain(1)).unwrap().kernel,
            "tiled_gemv_fp3_1"
        );
    }
}
