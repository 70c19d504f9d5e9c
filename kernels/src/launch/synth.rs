//! Launches of `synth.cu`.

use super::{Arg, Call, grid_x};
use crate::KernelError;
use crate::cpu::synth::Made;

/// Bytes `first..first + bytes` of a made-up tensor. Buffer: out `[bytes]`, at an address that is a multiple of 8.
///
/// # Errors
/// `Shape`: no bytes, or more than 2^31 - 1 blocks of threads write.
pub fn fill(made: &Made, first: u64, bytes: u64) -> Result<Call, KernelError> {
    const NAME: &str = "synth_fill";
    let shape = |expected, got| KernelError::Shape {
        kernel: NAME,
        what: "bytes",
        expected,
        got,
    };
    if bytes == 0 {
        return Err(shape("at least 1", bytes));
    }
    let words = u32::try_from(bytes / 8).map_err(|_| shape("below 2^35", bytes))?;
    let grid = [grid_x(NAME, bytes.div_ceil(8).div_ceil(256))?, 1, 1];
    let halves = |v: u64| [v as u32, (v >> 32) as u32].map(Arg::U32);
    let field = &made.field;
    let tail = (bytes % 8) as u32;
    let numbers = [field.block, field.at, field.len, field.keep, field.set];
    let args = halves(made.key)
        .into_iter()
        .chain(halves(first))
        .chain([Arg::U32(words), Arg::U32(tail)])
        .chain(numbers.map(Arg::U32));
    let call = Call::new("synth.cu", NAME, grid, 256).arg(Arg::Write(bytes));
    Ok(args.fold(call, Call::arg))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::synth::Field;

    #[test]
    fn sizes_that_no_launch_takes_are_refused() {
        let made = Made::new(0, Field::SMALL);
        for bytes in [0, 1 << 35, u64::MAX] {
            assert!(fill(&made, 0, bytes).is_err(), "{bytes}");
        }
        // The largest matrix of the Pro model, and a tail.
        let call = fill(&made, 1 << 40, 129_280 * 7168 * 2 + 3).unwrap();
        assert_eq!(call.grid, [904_961, 1, 1]);
    }
}
