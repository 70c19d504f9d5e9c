//! The launches of `grouped.cu`, `grouped_more.cu` and `grouped_k.cu`: matrices in tile order against many activation
//! rows on matrix units, alone or grouped by expert.

use fpx_quant::Format;

use super::tiled::{self, Kind, Stack, Work};
use super::{Arg, Call, grid_x, grid_y, require};
use crate::KernelError;

/// Dynamic shared memory of a block: two stages of activations, and totals (`GroupedShared`).
const SHARED: u32 = 51_456;
/// The same with the sums of activation blocks, for formats with offsets.
const SHARED_SUMS: u32 = 53_504;
/// Activations as bytes and as f16, and totals (`GroupedHalfShared`), for formats on f16 matrix units.
const SHARED_HALVES: u32 = 59_648;
/// Most slots of a unit.
pub const WIDE: usize = 64;

/// The widest units that pay for so many slots over so many matrices: [`WIDE`] from four slots a matrix (there a unit
/// of matrix units costs what two of 4-way dots cost) and more than 64 in all (fewer leave a device idle), else
/// what `tiled.cu` takes.
#[must_use]
pub fn wide(slots: usize, matrices: usize) -> usize {
    if slots > 64 && slots / 4 >= matrices {
        WIDE
    } else {
        tiled::WIDE
    }
}

/// Blocks along y: no plan has more units. A part of each matrix's last unit may be empty.
fn units(name: &'static str, w: &Stack, work: &Work) -> Result<u32, KernelError> {
    let fits = work.wide <= WIDE;
    require(name, "slots of a unit", "at most 64", work.wide, fits)?;
    work.check_shape(name)?;
    let units = match work.wide {
        0 => work.slots.div_ceil(WIDE),
        wide => (work.slots / wide + w.matrices).min(work.slots),
    };
    grid_y(name, "units", units)
}

/// Formats that NVIDIA's f16 matrix units multiply exactly (`fs_halves.h`); others' take less.
fn shared(format: Format, kind: &Kind) -> u32 {
    match format {
        _ if kind.offset => SHARED_SUMS,
        Format::Fp2(_) | Format::Fp3 => SHARED_HALVES,
        _ => SHARED,
    }
}

fn begin(w: &Stack, work: &Work, kind: &Kind, gate_up: bool) -> Result<Call, KernelError> {
    let (name, rows) = match gate_up {
        true => (kind.grouped[1], 64),
        false => (kind.grouped[0], 128),
    };
    let grid = [
        grid_x(name, w.rows.div_ceil(rows) as u64)?,
        units(name, w, work)?,
        1,
    ];
    let mut call = Call::new(kind.grouped_source, name, grid, 256);
    call.matrix = true;
    call.shared = shared(w.format, kind);
    Ok(call)
}

/// The product. Buffers: those of [`tiled::gemv`], units of up to [`WIDE`] slots.
///
/// # Errors
/// `Shape`, `Format`.
pub fn product(w: &Stack, work: &Work) -> Result<Call, KernelError> {
    let kind = w.kind("grouped_product")?;
    let call = begin(w, work, &kind, false)?;
    tiled::product_args(call, w, work, &kind)
}

/// Gate, up and activation. Buffers: those of [`tiled::gate_up`], units of up to [`WIDE`] slots.
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
    let kind: Kind = w.kind("grouped_gate_up")?;
    let call = begin(w, work, &kind, true)?;
    let call = tiled::gate_up_args(call, w, work, &kind, [weighted, floats])?;
    Ok(call.arg(Arg::F32(limit)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STACK: Stack = Stack {
        format: Format::Fp3,
        matrices: 256,
        rows: 4096,
        k: 2048,
    };

    fn work(slots: usize, wide: usize) -> Work {
        Work {
            slots,
            per: 1,
            wide,
            ordered: true,
        }
    }

    #[test]
    fn units_are_wide_where_slots_are_many() {
        assert_eq!(wide(12_288, 256), 64, "a chunk of 2,048 tokens");
        assert_eq!((wide(1024, 256), wide(1023, 256)), (64, 4));
        assert_eq!((wide(72, 8), wide(64, 8)), (64, 4));
    }

    #[test]
    fn the_grid_holds_every_plan() {
        let call = product(&STACK, &work(12_288, 64)).unwrap();
        assert_eq!(call.kernel, "grouped_product_fp3");
        assert_eq!((call.source, call.grid), ("grouped.cu", [32, 448, 1]));
        assert_eq!(call.shared, 59_648);
        assert_eq!(product(&STACK, &work(96, 64)).unwrap().grid, [32, 96, 1]);
        let plain = product(&STACK, &Work::plain(65)).unwrap();
        assert_eq!(plain.grid, [32, 2, 1]);
        let q8 = Stack {
            format: Format::Q8_0,
            ..STACK
        };
        let call = gate_up(&q8, &work(1024, 64), false, false, 10.0).unwrap();
        assert_eq!((call.source, call.grid), ("grouped_more.cu", [64, 272, 1]));
        assert_eq!(call.shared, 51_456);
    }

    #[test]
    fn shapes_and_work_the_kernels_do_not_take_are_refused() {
        assert!(product(&STACK, &work(65, 65)).is_err(), "a unit of 65");
        assert!(product(&STACK, &Work::plain(0)).is_err());
        let odd = Stack { rows: 33, ..STACK };
        assert!(gate_up(&odd, &work(65, 64), false, false, 10.0).is_err());
        let floats = Stack {
            format: Format::F16,
            ..STACK
        };
        assert!(product(&floats, &work(65, 64)).is_err());
    }
}
