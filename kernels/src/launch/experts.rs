//! Launches of `tiled.cu` for the experts of one token: the routed ones and the shared one together.

use fpx_quant::{Format, Fp2Dialect};

use super::a8::META_BYTES;
use super::route::UNIT_BYTES;
use super::tiled::{SOURCE, Stack};
use super::{Arg, Call, bytes, grid_y, int, require};
use crate::KernelError;

/// Gate and up, and down, of routed experts of a format.
fn names(format: Format) -> Option<[&'static str; 2]> {
    match format {
        Format::Fp4Fast => Some(["tiled_gate_up_with_fp4f", "tiled_gemv_with_fp4f"]),
        Format::Fp2(Fp2Dialect::Signed | Fp2Dialect::SignedNeg | Fp2Dialect::S40) => {
            Some(["tiled_gate_up_with_fp2", "tiled_gemv_with_fp2"])
        }
        Format::Fp3 => Some(["tiled_gate_up_with_fp3", "tiled_gemv_with_fp3"]),
        _ => None,
    }
}

/// Whether there are kernels for a stack of routed experts with a shared one.
#[must_use]
pub fn together(routed: &Stack, shared: &Stack) -> bool {
    let same = (routed.rows, routed.k) == (shared.rows, shared.k);
    same && shared.format == Format::Fp4Fast && names(routed.format).is_some()
}

/// A launch for `used` slots and the shared expert, without arguments; `which`: gate and up, or down.
fn begin(which: usize, routed: &Stack, shared: &Stack, used: usize) -> Result<Call, KernelError> {
    let name = names(routed.format).map_or("tiled_with", |n| n[which]);
    let fits = together(routed, shared);
    require(
        name,
        "rows of the shared expert",
        "a stack that goes with the routed ones",
        shared.rows,
        fits,
    )?;
    require(name, "slots", "at least 1", used, used > 0)?;
    let down = grid_y(name, "slots", used.saturating_add(1))?;
    let threads = [512, 256][which];
    Ok(Call::new(
        SOURCE,
        name,
        [routed.grid(name)?, down, 1],
        threads,
    ))
}

fn sizes(call: Call, w: &Stack, used: usize) -> Result<Call, KernelError> {
    let name = call.kernel;
    Ok(call
        .arg(Arg::I32(int(name, "rows", w.rows)?))
        .arg(Arg::I32(int(name, "blocks", w.k / 32)?))
        .arg(Arg::U32(int(name, "slots", used)?.cast_unsigned()))
        .arg(Arg::U32(w.kind(name)?.table)))
}

/// Gate, up and activation of a token's experts. Buffers: gate, up packed; q `[k]` i8, meta `[k / 32]` of 8 bytes; units
/// `[used]` of 16 bytes, of one slot each; weights `[used]` f32; h q `[used][rows]` i8, h meta `[used][rows / 32]` of 8
/// bytes; shared gate, up packed; shared h q `[rows]` i8, shared h meta `[rows / 32]` of 8 bytes. `limits`: clamps of the
/// routed and of the shared expert.
///
/// # Errors
/// `Shape`: stacks that do not go [together], or rows that are no multiple of 32; `Format`.
pub fn gate_up(
    routed: &Stack,
    shared: &Stack,
    used: usize,
    limits: [f32; 2],
) -> Result<Call, KernelError> {
    let call = begin(0, routed, shared, used)?;
    let name = call.kernel;
    let (rows, k) = (routed.rows, routed.k);
    require(
        name,
        "rows",
        "a multiple of 32",
        rows,
        rows.is_multiple_of(32),
    )?;
    let (packed, alone) = (routed.packed_bytes()?, shared.packed_bytes()?);
    let call = call
        .arg(Arg::Read(packed))
        .arg(Arg::Read(packed))
        .arg(Arg::Read(bytes(name, &[k])?))
        .arg(Arg::Read(bytes(name, &[k / 32, META_BYTES])?))
        .arg(Arg::Read(bytes(name, &[used, UNIT_BYTES])?))
        .arg(Arg::Read(bytes(name, &[used, 4])?))
        .arg(Arg::Write(bytes(name, &[used, rows])?))
        .arg(Arg::Write(bytes(name, &[used, rows / 32, META_BYTES])?))
        .arg(Arg::Read(alone))
        .arg(Arg::Read(alone))
        .arg(Arg::Write(bytes(name, &[rows])?))
        .arg(Arg::Write(bytes(name, &[rows / 32, META_BYTES])?));
    let call = sizes(call, routed, used)?;
    Ok(call.arg(Arg::F32(limits[0])).arg(Arg::F32(limits[1])))
}

/// Down of a token's experts. Buffers: packed; q `[used][k]` i8, meta `[used][k / 32]` of 8 bytes; units `[used]` of 16
/// bytes, of one slot each; y `[used][rows]` f32; shared packed, q `[k]`, meta `[k / 32]`, y `[rows]` f32.
///
/// # Errors
/// `Shape`: stacks that do not go [together]; `Format`.
pub fn down(routed: &Stack, shared: &Stack, used: usize) -> Result<Call, KernelError> {
    let call = begin(1, routed, shared, used)?;
    let name = call.kernel;
    let (rows, k) = (routed.rows, routed.k);
    let call = call
        .arg(Arg::Read(routed.packed_bytes()?))
        .arg(Arg::Read(bytes(name, &[used, k])?))
        .arg(Arg::Read(bytes(name, &[used, k / 32, META_BYTES])?))
        .arg(Arg::Read(bytes(name, &[used, UNIT_BYTES])?))
        .arg(Arg::Write(bytes(name, &[used, rows, 4])?))
        .arg(Arg::Read(shared.packed_bytes()?))
        .arg(Arg::Read(bytes(name, &[k])?))
        .arg(Arg::Read(bytes(name, &[k / 32, META_BYTES])?))
        .arg(Arg::Write(bytes(name, &[rows, 4])?));
    sizes(call, routed, used)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(format: Format, rows: usize) -> Stack {
        Stack {
            format,
            matrices: 4,
            rows,
            k: 4096,
        }
    }

    #[test]
    fn stacks_that_do_not_go_together_are_refused() {
        let (routed, shared) = (stack(Format::Fp3, 64), stack(Format::Fp4Fast, 64));
        let call = gate_up(&routed, &shared, 6, [10.0; 2]).unwrap();
        assert_eq!(
            (call.kernel, call.grid),
            ("tiled_gate_up_with_fp3", [2, 7, 1])
        );
        let call = down(&routed, &shared, 6).unwrap();
        assert_eq!((call.kernel, call.threads), ("tiled_gemv_with_fp3", 256));
        assert!(down(&routed, &shared, 0).is_err());
        for (routed, shared) in [
            (stack(Format::Fp8, 64), shared),
            (routed, stack(Format::Fp3, 64)),
            (routed, stack(Format::Fp4Fast, 96)),
        ] {
            assert!(!together(&routed, &shared));
            assert!(down(&routed, &shared, 6).is_err());
            assert!(gate_up(&routed, &shared, 6, [10.0; 2]).is_err());
        }
        let odd = |f| stack(f, 33);
        assert!(gate_up(&odd(Format::Fp3), &odd(Format::Fp4Fast), 6, [1.0; 2]).is_err());
    }
}
