//! Launches of `embed.cu` and `head.cu`: tokens in, tokens out.

use fpx_quant::{Format, FormatError, Fp2Dialect, Fp6Endpoint};

use super::{Arg, Call, bytes, grid_x, grid_y, int, require};
use crate::KernelError;

/// What a draw finds where no value is a number above minus infinity.
pub const NOTHING: u32 = u32::MAX;
/// Bytes of a [`Plan`] on a device.
pub const PLAN_BYTES: usize = 32;
/// Blocks that share a row in [`part`].
pub const PARTS: usize = 64;

/// Kernel of a format and the levels of its dialect.
fn embedding(format: Format) -> Result<(&'static str, u32), FormatError> {
    Ok(match format {
        Format::F32 => ("embed_f32", 0),
        Format::F16 => ("embed_f16", 0),
        Format::BF16 => ("embed_bf16", 0),
        Format::Fp4Fast => ("embed_fp4f", 0),
        Format::Fp2(Fp2Dialect::Signed | Fp2Dialect::SignedNeg) => ("embed_fp2", 0x0201_00ff),
        Format::Fp2(Fp2Dialect::S40) => ("embed_fp2", 0x0401_fffc),
        Format::Fp2(Fp2Dialect::Affine) => ("embed_fp2a", 0),
        Format::Fp3 => ("embed_fp3", 0),
        Format::Q8_0 => ("embed_q8", 0),
        Format::Mxfp4 => ("embed_mxfp4", 0),
        Format::Fp4 => ("embed_fp4", 0),
        Format::Fp6(Fp6Endpoint::Zero) => ("embed_fp6", 0),
        Format::Fp6(Fp6Endpoint::Neg32) => ("embed_fp6", 0xe0),
        Format::Fp8 => ("embed_fp8", 0),
        Format::Q4K => ("embed_q4k", 0),
        Format::Q2K => ("embed_q2k", 0),
        Format::Iq2Xxs => ("embed_iq2xxs", 0),
        _ => {
            let what = "rows by token";
            return Err(FormatError::Unsupported { format, what });
        }
    })
}

/// Rows by token, `copies` times each. Buffers: table `[vocabulary][d]` in file order, tokens `[n]` u32, out
/// `[n][copies][d]` f32. A token past the vocabulary gives NaN.
///
/// # Errors
/// `Format`, `Shape`.
pub fn embed(
    format: Format,
    vocabulary: usize,
    d: usize,
    n: usize,
    copies: usize,
) -> Result<Call, KernelError> {
    let (name, levels) = embedding(format)?;
    let row = format.row_bytes(d)?;
    let grid = [
        grid_x(name, d.div_ceil(256) as u64)?,
        grid_y(name, "tokens", n)?,
        1,
    ];
    Ok(Call::new("embed.cu", name, grid, 256)
        .arg(Arg::Read(bytes(name, &[vocabulary, row])?))
        .arg(Arg::Read(bytes(name, &[n, 4])?))
        .arg(Arg::Write(bytes(name, &[n, copies, d, 4])?))
        .arg(Arg::I32(int(name, "width", d)?))
        .arg(Arg::I32(int(name, "copies", copies)?))
        .arg(Arg::U32(
            int(name, "vocabulary", vocabulary)?.cast_unsigned(),
        ))
        .arg(Arg::U32(levels)))
}

/// How one row is drawn; bias and penalties are in the logits already.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Plan {
    /// The row of noise: of seed, choice and position (`docs/adr/0007-keyed-noise.md`).
    pub noise: u64,
    /// 0: the largest value.
    pub temperature: f32,
    /// 0: off.
    pub top_k: u32,
    /// 0: off.
    pub min_p: f32,
    /// 1: off.
    pub top_p: f32,
}

impl Plan {
    /// Whether only [`filtered`] can draw it.
    #[must_use]
    pub fn has_filter(&self) -> bool {
        self.temperature > 0.0 && (self.top_k > 0 || self.min_p > 0.0 || self.top_p < 1.0)
    }

    /// As the kernels read it.
    #[must_use]
    pub fn bytes(&self) -> [u8; PLAN_BYTES] {
        // Units of 2^-32, rounded down, at least one.
        let share = match self.top_p {
            p if p >= 1.0 => 0,
            p => ((f64::from(p) * 4_294_967_296.0) as u32).max(1),
        };
        let words = [
            self.noise as u32,
            (self.noise >> 32) as u32,
            self.temperature.to_bits(),
            self.top_k,
            self.min_p.to_bits(),
            share,
        ];
        let mut out = [0; PLAN_BYTES];
        for (to, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *to = word.to_le_bytes();
        }
        out
    }
}

/// logits, base, plans.
fn inputs(call: Call, n: usize, vocabulary: usize, base: bool) -> Result<Call, KernelError> {
    let name = call.kernel;
    require(
        name,
        "vocabulary",
        "1 to 2^24",
        vocabulary,
        (1..=1 << 24).contains(&vocabulary),
    )?;
    let row = bytes(name, &[n, vocabulary, 4])?;
    Ok(call
        .arg(Arg::Read(row))
        .arg(if base { Arg::Read(row) } else { Arg::Null })
        .arg(Arg::Read(bytes(name, &[n, PLAN_BYTES])?)))
}

/// The best of each part of rows without filters. Buffers: logits `[n][vocabulary]` f32, base of the same
/// shape if there is one, plans `[n]` of 32 bytes, best `[n][PARTS]` u64.
///
/// # Errors
/// `Shape`.
pub fn part(n: usize, vocabulary: usize, base: bool) -> Result<Call, KernelError> {
    const NAME: &str = "draw_part";
    let grid = [PARTS as u32, grid_y(NAME, "rows", n)?, 1];
    let call = inputs(Call::new("head.cu", NAME, grid, 256), n, vocabulary, base)?;
    Ok(call
        .arg(Arg::Write(bytes(NAME, &[n, PARTS, 8])?))
        .arg(Arg::I32(int(NAME, "vocabulary", vocabulary)?))
        .arg(Arg::I32(int(NAME, "parts", PARTS)?)))
}

/// The tokens of [`part`]'s rows. Buffers: best, tokens `[n]` u32.
///
/// # Errors
/// `Shape`.
pub fn merge(n: usize) -> Result<Call, KernelError> {
    const NAME: &str = "draw_merge";
    Ok(
        Call::new("head.cu", NAME, [grid_x(NAME, n as u64)?, 1, 1], 32)
            .arg(Arg::Read(bytes(NAME, &[n, PARTS, 8])?))
            .arg(Arg::Write(bytes(NAME, &[n, 4])?))
            .arg(Arg::I32(int(NAME, "parts", PARTS)?)),
    )
}

/// Rows with filters (or without). Buffers: logits, base, plans as [`part`], y `[n][vocabulary]` f32 for
/// its own use, tokens `[n]` u32.
///
/// # Errors
/// `Shape`.
pub fn filtered(n: usize, vocabulary: usize, base: bool) -> Result<Call, KernelError> {
    const NAME: &str = "draw_filtered";
    let grid = [grid_x(NAME, n as u64)?, 1, 1];
    let call = inputs(Call::new("head.cu", NAME, grid, 1024), n, vocabulary, base)?;
    Ok(call
        .arg(Arg::Write(bytes(NAME, &[n, vocabulary, 4])?))
        .arg(Arg::Write(bytes(NAME, &[n, 4])?))
        .arg(Arg::I32(int(NAME, "vocabulary", vocabulary)?)))
}

/// After a draw: [`NOTHING`] for rows that hold NaN. Buffers: logits `[n][vocabulary]` f32, tokens `[n]` u32.
///
/// # Errors
/// `Shape`.
pub fn sound(n: usize, vocabulary: usize) -> Result<Call, KernelError> {
    const NAME: &str = "draw_sound";
    let grid = [PARTS as u32, grid_y(NAME, "rows", n)?, 1];
    Ok(Call::new("head.cu", NAME, grid, 256)
        .arg(Arg::Read(bytes(NAME, &[n, vocabulary, 4])?))
        .arg(Arg::Write(bytes(NAME, &[n, 4])?))
        .arg(Arg::I32(int(NAME, "vocabulary", vocabulary)?))
        .arg(Arg::I32(int(NAME, "parts", PARTS)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_written_as_the_kernels_read_them() {
        let plan = Plan {
            noise: 0x0123_4567_89ab_cdef,
            temperature: 1.0,
            top_k: 40,
            min_p: 0.5,
            top_p: 0.75,
        };
        let bytes = plan.bytes();
        let words: Vec<u32> = bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|w| u32::from_le_bytes(*w))
            .collect();
        let want = [
            0x89ab_cdef,
            0x0123_4567,
            0x3f80_0000,
            40,
            0x3f00_0000,
            3 << 30,
            0,
            0,
        ];
        assert_eq!(words, want);
        assert!(plan.has_filter());
        let off = Plan {
            top_p: 1.0,
            ..Plan::default()
        };
        assert_eq!(off.bytes(), [0; PLAN_BYTES]);
        assert!(!off.has_filter());
        // A share below a unit is one unit, not off.
        let tiny = Plan {
            top_p: 1e-20,
            ..off
        };
        assert_eq!(tiny.bytes()[20..24], [1, 0, 0, 0]);
    }

    #[test]
    fn vocabularies_and_formats_are_bounded() {
        assert!(part(1, 0, false).is_err() && part(1, (1 << 24) + 1, false).is_err());
        assert!(filtered(3, 129_280, true).is_ok() && merge(0).is_err());
        assert!(embed(Format::Mix3, 10, 256, 1, 1).is_err());
        assert!(
            embed(Format::Q4K, 10, 288, 1, 1).is_err(),
            "part of a block"
        );
        assert!(embed(Format::Q8_0, 10, 33, 1, 1).is_err());
        assert!(embed(Format::F16, 129_280, 4096, 65_536, 4).is_err());
    }
}
