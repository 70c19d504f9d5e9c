//! Launches of `experts.cu` and `experts_staged.cu` for the experts of a few tokens: the routed ones and the shared one together.

use fpx_quant::{Format, Fp2Dialect};

use super::a8::META_BYTES;
use super::route::UNIT_BYTES;
use super::tiled::Stack;
use super::{Arg, Call, bytes, grid_y, int, require};
use crate::KernelError;

/// Most slots of a unit. Few tokens seldom meet in an expert, and more columns cost registers of all units.
pub const WIDE: usize = 2;

/// Kernels of routed experts of a format: gate and up, and down; of one token, of more, and of more through shared memory.
type Names = [[&'static str; 3]; 2];

macro_rules! names {
    ($name:literal) => {
        [
            [
                concat!("tiled_gate_up_with_", $name, "_1"),
                concat!("tiled_gate_up_with_", $name, "_2"),
                concat!("staged_gate_up_", $name),
            ],
            [
                concat!("tiled_gemv_with_", $name, "_1"),
                concat!("tiled_gemv_with_", $name, "_2"),
                concat!("staged_gemv_", $name),
            ],
        ]
    };
}

fn names(format: Format) -> Option<Names> {
    match format {
        Format::Fp4Fast => Some(names!("fp4f")),
        Format::Fp2(Fp2Dialect::Signed | Fp2Dialect::SignedNeg) => Some(names!("fp2")),
        Format::Fp3 => Some(names!("fp3")),
        _ => None,
    }
}

/// Whether there are kernels for a stack of routed experts with a shared one.
#[must_use]
pub fn together(routed: &Stack, shared: &Stack) -> bool {
    let same = (routed.rows, routed.k) == (shared.rows, shared.k);
    same && shared.format == Format::Fp4Fast && names(routed.format).is_some()
}

/// Dynamic shared memory of a block: `FsStagedShared` of `fs_staged.h`.
fn block_bytes(words: usize, matrices: usize) -> u32 {
    let warp = (2 * words + 1) * 512;
    let input = WIDE * 128 * (32 + META_BYTES);
    let part = matrices * 8 * WIDE * 128;
    (8 * warp + input + part) as u32
}

/// A token's routed experts and the shared one, for some tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// The routed ones.
    pub routed: Stack,
    /// The shared one.
    pub shared: Stack,
    /// Tokens. One: units of one slot each, without an order; more: units of up to [`WIDE`], in an order.
    pub tokens: usize,
    /// Routed experts of a token.
    pub used: usize,
    /// Whether the weights of more tokens than one take the way through shared memory: for devices that copy there by
    /// themselves. The same bits.
    pub staged: bool,
}

impl Experts {
    fn slots(&self) -> usize {
        self.tokens.saturating_mul(self.used)
    }

    /// A launch without arguments; `which`: gate and up, or down.
    fn begin(&self, which: usize) -> Result<Call, KernelError> {
        let (routed, shared) = (&self.routed, &self.shared);
        let (many, staged) = (self.tokens > 1, self.tokens > 1 && self.staged);
        let way = usize::from(many) + usize::from(staged);
        let name = names(routed.format).map_or("tiled_with", |n| n[which][way]);
        let fits = together(routed, shared);
        require(
            name,
            "rows of the shared expert",
            "a stack that goes with the routed ones",
            shared.rows,
            fits,
        )?;
        require(name, "slots", "at least 1", self.slots(), self.slots() > 0)?;
        let wide = if many { WIDE } else { 1 };
        let units = self.slots().saturating_add(self.tokens.div_ceil(wide));
        let down = grid_y(name, "units", units)?;
        let grid = [routed.grid(name)?, down, 1];
        let source = ["experts.cu", "experts_staged.cu"][usize::from(staged)];
        let mut call = Call::new(source, name, grid, 256);
        if staged {
            let kinds = [routed.kind(name)?, shared.kind(name)?];
            let most = kinds.map(|k| block_bytes(k.words, 2 - which));
            call.shared = most[0].max(most[1]);
        }
        Ok(call)
    }

    /// Units and their order.
    fn lists(&self, call: Call) -> Result<Call, KernelError> {
        let name = call.kernel;
        let order = match self.tokens {
            1 => Arg::Null,
            _ => Arg::Read(bytes(name, &[self.slots(), 4])?),
        };
        let units = bytes(name, &[self.slots(), UNIT_BYTES])?;
        Ok(call.arg(Arg::Read(units)).arg(order))
    }

    /// rows, blocks, tokens, then `used` if it is asked for, and the table.
    fn sizes(&self, call: Call, used: bool) -> Result<Call, KernelError> {
        let (name, w) = (call.kernel, &self.routed);
        let mut call = call
            .arg(Arg::I32(int(name, "rows", w.rows)?))
            .arg(Arg::I32(int(name, "blocks", w.k / 32)?))
            .arg(Arg::I32(int(name, "tokens", self.tokens)?));
        if used {
            let used = int(name, "experts of a token", self.used)?;
            call = call.arg(Arg::U32(used.cast_unsigned()));
        }
        Ok(call.arg(Arg::U32(w.kind(name)?.table)))
    }
}

/// Activation blocks of `n` rows of `k`.
fn blocks(name: &'static str, n: usize, k: usize) -> Result<[u64; 2], KernelError> {
    Ok([
        bytes(name, &[n, k])?,
        bytes(name, &[n, k / 32, META_BYTES])?,
    ])
}

/// Gate, up and activation of the tokens' experts. Buffers: gate, up packed; q `[tokens][k]` i8, meta `[tokens][k / 32]` of
/// 8 bytes; units `[slots]` of 16 bytes; for more than one token order `[slots]` u32; weights `[slots]` f32; h q
/// `[slots][rows]` i8, h meta `[slots][rows / 32]` of 8 bytes; shared gate, up packed; shared h q `[tokens][rows]` i8,
/// shared h meta `[tokens][rows / 32]` of 8 bytes. `limits`: clamps of the routed and of the shared expert.
///
/// # Errors
/// `Shape`: stacks that do not go [together], or rows that are no multiple of 32; `Format`.
pub fn gate_up(work: &Experts, limits: [f32; 2]) -> Result<Call, KernelError> {
    let call = work.begin(0)?;
    let (name, slots, tokens) = (call.kernel, work.slots(), work.tokens);
    let (rows, k) = (work.routed.rows, work.routed.k);
    let whole = rows.is_multiple_of(32);
    require(name, "rows", "a multiple of 32", rows, whole)?;
    let (packed, alone) = (work.routed.packed_bytes()?, work.shared.packed_bytes()?);
    let [q, meta] = blocks(name, tokens, k)?;
    let [h_q, h_meta] = blocks(name, slots, rows)?;
    let [shared_q, shared_meta] = blocks(name, tokens, rows)?;
    let call = call.arg(Arg::Read(packed)).arg(Arg::Read(packed));
    let call = work
        .lists(call.arg(Arg::Read(q)).arg(Arg::Read(meta)))?
        .arg(Arg::Read(bytes(name, &[slots, 4])?))
        .arg(Arg::Write(h_q))
        .arg(Arg::Write(h_meta))
        .arg(Arg::Read(alone))
        .arg(Arg::Read(alone))
        .arg(Arg::Write(shared_q))
        .arg(Arg::Write(shared_meta));
    let call = work.sizes(call, true)?;
    Ok(call.arg(Arg::F32(limits[0])).arg(Arg::F32(limits[1])))
}

/// Down of the tokens' experts. Buffers: packed; q `[slots][k]` i8, meta `[slots][k / 32]` of 8 bytes; units `[slots]` of 16
/// bytes; for more than one token order `[slots]` u32; y `[slots][rows]` f32; shared packed, q `[tokens][k]`, meta
/// `[tokens][k / 32]`, y `[tokens][rows]` f32.
///
/// # Errors
/// `Shape`: stacks that do not go [together]; `Format`.
pub fn down(work: &Experts) -> Result<Call, KernelError> {
    let call = work.begin(1)?;
    let (name, slots, tokens) = (call.kernel, work.slots(), work.tokens);
    let (rows, k) = (work.routed.rows, work.routed.k);
    let [q, meta] = blocks(name, slots, k)?;
    let [shared_q, shared_meta] = blocks(name, tokens, k)?;
    let call = call.arg(Arg::Read(work.routed.packed_bytes()?));
    let call = work
        .lists(call.arg(Arg::Read(q)).arg(Arg::Read(meta)))?
        .arg(Arg::Write(bytes(name, &[slots, rows, 4])?))
        .arg(Arg::Read(work.shared.packed_bytes()?))
        .arg(Arg::Read(shared_q))
        .arg(Arg::Read(shared_meta))
        .arg(Arg::Write(bytes(name, &[tokens, rows, 4])?));
    work.sizes(call, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experts(format: Format, rows: usize, tokens: usize) -> Experts {
        let stack = |format, matrices| Stack {
            format,
            matrices,
            rows,
            k: 4096,
        };
        Experts {
            routed: stack(format, 4),
            shared: stack(Format::Fp4Fast, 1),
            tokens,
            used: 6,
            staged: false,
        }
    }

    #[test]
    fn the_shared_expert_has_units_of_its_own() {
        let call = gate_up(&experts(Format::Fp3, 64, 1), [10.0; 2]).unwrap();
        let got = (call.kernel, call.grid);
        assert_eq!(got, ("tiled_gate_up_with_fp3_1", [2, 7, 1]));
        let call = down(&experts(Format::Fp3, 64, 5)).unwrap();
        let got = (call.kernel, call.grid);
        assert_eq!(
            got,
            ("tiled_gemv_with_fp3_2", [2, 33, 1]),
            "30 and 3 of the shared one"
        );
    }

    #[test]
    fn staged_weights_take_the_larger_format_of_shared_memory() {
        let staged = |format, tokens| Experts {
            staged: true,
            ..experts(format, 64, tokens)
        };
        let call = gate_up(&staged(Format::Fp2(Fp2Dialect::Signed), 2), [10.0; 2]).unwrap();
        let got = (call.kernel, call.source, call.shared);
        // Nine units of 512 bytes a warp, 5 KiB of activations a slot, sums of two matrices.
        let bytes = 8 * 9 * 512 + 2 * 5 * 1024 + 2 * 2 * 8 * 128;
        assert_eq!(got, ("staged_gate_up_fp2", "experts_staged.cu", bytes));
        let call = down(&staged(Format::Fp3, 5)).unwrap();
        let got = (call.kernel, call.grid, call.shared);
        let bytes = 8 * 9 * 512 + 2 * 5 * 1024 + 2 * 8 * 128;
        assert_eq!(got, ("staged_gemv_fp3", [2, 33, 1], bytes));
        let call = down(&staged(Format::Fp3, 1)).unwrap();
        assert_eq!((call.kernel, call.shared), ("tiled_gemv_with_fp3_1", 0));
        assert_eq!(down(&experts(Format::Fp3, 64, 5)).unwrap().shared, 0);
    }

    #[test]
    fn stacks_that_do_not_go_together_are_refused() {
        let good = experts(Format::Fp3, 64, 1);
        assert!(down(&Experts { used: 0, ..good }).is_err());
        assert!(down(&Experts { tokens: 0, ..good }).is_err());
        let other = experts(Format::Fp3, 96, 1).shared;
        let not_shared = Stack {
            format: Format::Fp3,
            ..good.shared
        };
        for work in [
            experts(Format::Fp8, 64, 1),
            Experts {
                shared: other,
                ..good
            },
            Experts {
                shared: not_shared,
                ..good
            },
        ] {
            assert!(!together(&work.routed, &work.shared));
            assert!(down(&work).is_err());
            assert!(gate_up(&work, [10.0; 2]).is_err());
        }
        assert!(gate_up(&experts(Format::Fp3, 33, 1), [1.0; 2]).is_err());
    }
}
