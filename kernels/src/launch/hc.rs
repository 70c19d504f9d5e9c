//! Launches of `hc.cu` and `hc_dots.cu`: hyper-connections around a sublayer.

use super::{Arg, Call, a8, bytes, grid_x, grid_y, int, require};
use crate::KernelError;
use fpx_quant::{Format, FormatError};

const SOURCE: &str = "hc.cu";
/// Residual streams.
pub const STREAMS: usize = 4;
/// Mixing weights of a site: pre 4, post 4, carry-over 16 (source-major).
pub const SITE: usize = 24;

/// Most tokens for which [`dots`] is the shorter way: each token reads the site's matrix again, from a cache.
pub const FEW: usize = 8;

/// Where [`pre`] finds the dots of its streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dots {
    /// `[n][24]`.
    Whole,
    /// `[n][segments][25]` of [`dots`], with the streams' squares.
    Segments,
}

/// Segments of 512 of the four streams of width `d`.
#[must_use]
pub fn segments(d: usize) -> usize {
    (STREAMS * d).div_ceil(512)
}

/// Constants of a mixing site.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Site {
    /// Tokens.
    pub n: usize,
    /// Width of a stream, up to 8192.
    pub d: usize,
    /// Sinkhorn rounds; unused by the head.
    pub iterations: usize,
    /// Added to mean squares.
    pub rms_eps: f32,
    /// Added where the contract's rule 8 says.
    pub eps: f32,
}

/// What finishes a site that [`pre_open`] left open, a block a token beside the launch that takes it. Its last buffer is mix
/// `[n][24]` then.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Open {
    /// Sinkhorn rounds.
    pub iterations: usize,
    /// Added where the contract's rule 8 says.
    pub eps: f32,
}

impl Open {
    /// The last arguments of a launch that can finish the sites of `n` tokens, and does if there is one.
    pub(super) fn end(call: Call, open: Option<&Self>, n: usize) -> Result<Call, KernelError> {
        let name = call.kernel;
        let Some(open) = open else {
            return Ok(call.arg(Arg::Null).arg(Arg::I32(0)).arg(Arg::F32(0.0)));
        };
        let some = open.iterations > 0;
        require(name, "iterations", "at least 1", open.iterations, some)?;
        Ok(call
            .arg(Arg::Write(bytes(name, &[n, SITE, 4])?))
            .arg(Arg::I32(int(name, "iterations", open.iterations)?))
            .arg(Arg::F32(open.eps)))
    }
}

/// What a site's kernel writes beside mixing weights and h.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Beside {
    /// The collapsed rows before their norm.
    pub u: bool,
    /// Activation blocks of h (`a8.cu`): d is a multiple of 32.
    pub a8: bool,
}

impl Site {
    fn check(&self, name: &'static str) -> Result<(), KernelError> {
        let fits = (1..=8192).contains(&self.d);
        require(name, "width of a stream", "1 to 8192", self.d, fits)
    }

    /// The arguments up to the blocks of h: `rows` dots a token, of which `mixed` make weights, `scales` scales.
    fn head(
        &self,
        name: &'static str,
        parts: u32,
        [rows, mixed]: [usize; 2],
        scales: usize,
        beside: Beside,
    ) -> Result<Call, KernelError> {
        self.check(name)?;
        let (row, mix) = (
            bytes(name, &[self.n, self.d, 4])?,
            bytes(name, &[self.n, mixed, 4])?,
        );
        let grid = [grid_x(name, self.n as u64)?, parts, 1];
        let [q, meta] = a8::outputs(name, beside.a8, self.n, self.d)?;
        Ok(Call::new(SOURCE, name, grid, 512)
            .arg(Arg::Read(bytes(name, &[self.n, STREAMS, self.d, 4])?))
            .arg(Arg::Read(bytes(name, &[self.n, rows, 4])?))
            .arg(Arg::Read(bytes(name, &[mixed, 4])?))
            .arg(Arg::Read(bytes(name, &[scales, 4])?))
            .arg(Arg::Read(bytes(name, &[self.d, 4])?))
            .arg(Arg::Write(mix))
            .arg(if beside.u { Arg::Write(row) } else { Arg::Null })
            .arg(Arg::Write(row))
            .arg(q)
            .arg(meta))
    }
}

/// Before a sublayer. Buffers: x `[n][4][d]` f32, m as `dots` says, base `[24]`, scale `[3]`,
/// norm `[d]`, mix `[n][24]`, u `[n][d]` if it is asked for, h `[n][d]`, q `[n][d]` i8 and meta `[n][d / 32]` of 8 bytes
/// if blocks are.
///
/// # Errors
/// `Shape`.
pub fn pre(s: &Site, dots: Dots, beside: Beside) -> Result<Call, KernelError> {
    pre_part(s, dots, beside, false)
}

/// [`pre`] without the functions of post and C: a launch of the sublayer that takes an [`Open`] makes them, before the
/// streams are merged. Buffers: as [`pre`].
///
/// # Errors
/// `Shape`.
pub fn pre_open(s: &Site, dots: Dots, beside: Beside) -> Result<Call, KernelError> {
    pre_part(s, dots, beside, true)
}

fn pre_part(s: &Site, dots: Dots, beside: Beside, open: bool) -> Result<Call, KernelError> {
    const NAME: &str = "hc_pre";
    require(
        NAME,
        "iterations",
        "at least 1",
        s.iterations,
        s.iterations > 0,
    )?;
    let segments = match dots {
        Dots::Whole => 0,
        Dots::Segments => segments(s.d),
    };
    let rows = match segments {
        0 => SITE,
        _ => segments * (SITE + 1),
    };
    let parts = if open { 1 } else { 2 };
    Ok(s.head(NAME, parts, [rows, SITE], 3, beside)?
        .arg(Arg::I32(int(NAME, "segments", segments)?))
        .arg(Arg::I32(int(NAME, "width of a stream", s.d)?))
        .arg(Arg::I32(int(NAME, "iterations", s.iterations)?))
        .arg(Arg::I32(i32::from(open)))
        .arg(Arg::F32(s.rms_eps))
        .arg(Arg::F32(s.eps)))
}

/// The final merge. Buffers: x `[n][4][d]` f32, m `[n][4]`, base `[4]`, scale `[1]`, norm `[d]`,
/// mix `[n][4]`, u, h, q and meta as [`pre`].
///
/// # Errors
/// `Shape`.
pub fn head(s: &Site, beside: Beside) -> Result<Call, KernelError> {
    const NAME: &str = "hc_head";
    Ok(s.head(NAME, 1, [STREAMS; 2], 1, beside)?
        .arg(Arg::I32(int(NAME, "width of a stream", s.d)?))
        .arg(Arg::F32(s.rms_eps))
        .arg(Arg::F32(s.eps)))
}

/// After a sublayer, in place. Buffers: x `[n][4][d]` f32, block `[n][d]`, slots `[n][used][d]` if
/// `used` is not 0, mix `[n][24]`.
///
/// # Errors
/// `Shape`.
pub fn post(n: usize, d: usize, used: usize) -> Result<Call, KernelError> {
    const NAME: &str = "hc_post";
    let grid = [
        grid_x(NAME, d.div_ceil(256) as u64)?,
        grid_y(NAME, "tokens", n)?,
        1,
    ];
    let slots = if used > 0 {
        Arg::Read(bytes(NAME, &[n, used, d, 4])?)
    } else {
        Arg::Null
    };
    Ok(Call::new(SOURCE, NAME, grid, 256)
        .arg(Arg::Write(bytes(NAME, &[n, STREAMS, d, 4])?))
        .arg(Arg::Read(bytes(NAME, &[n, d, 4])?))
        .arg(slots)
        .arg(Arg::Read(bytes(NAME, &[n, SITE, 4])?))
        .arg(Arg::I32(int(NAME, "width of a stream", d)?))
        .arg(Arg::I32(int(NAME, "slots", used)?)))
}

/// Blocks that a device has work for at once. Below it [`dots`] gives a segment's rows to several blocks, which all merge the
/// streams: one token's segments are 32 blocks.
const BUSY: usize = 256;
/// Blocks that then share a segment.
const SHARES: usize = 3;

/// The segment sums of a site's dots with the streams, after a sublayer if `after` says how many slots it has (0: only
/// a block). Buffers: x `[n][4][d]` f32, w `[24][4 d]` of `format` in file order; if `after`: block `[n][d]`, slots
/// `[n][used][d]` if there are any, mix `[n][24]`, out `[n][4][d]` f32, not x; part `[n][segments][25]` f32.
///
/// # Errors
/// `Format` for a format with scales; `Shape`.
pub fn dots(format: Format, n: usize, d: usize, after: Option<usize>) -> Result<Call, KernelError> {
    let (name, _) = dots_names(format)?;
    let mut call = dots_begin(name, [n, d], 1)?;
    let shares = match segments(d).saturating_mul(n).saturating_mul(SHARES) {
        0..=BUSY => SHARES,
        _ => 1,
    };
    call.grid[2] = u32::try_from(shares).unwrap_or(1);
    let used = after.unwrap_or(0);
    let x = bytes(name, &[n, STREAMS, d, 4])?;
    let given = |there, arg| if there { arg } else { Arg::Null };
    let some = after.is_some();
    Ok(call
        .arg(Arg::Read(x))
        .arg(Arg::Read(dots_matrix(name, format, d)?))
        .arg(given(some, Arg::Read(bytes(name, &[n, d, 4])?)))
        .arg(given(used > 0, Arg::Read(bytes(name, &[n, used, d, 4])?)))
        .arg(given(some, Arg::Read(bytes(name, &[n, SITE, 4])?)))
        .arg(given(some, Arg::Write(x)))
        .arg(Arg::Write(bytes(name, &[n, segments(d), SITE + 1, 4])?))
        .arg(Arg::I32(int(name, "width of a stream", d)?))
        .arg(Arg::I32(int(name, "slots", used)?))
        .arg(Arg::I32(int(name, "blocks of a segment", shares)?)))
}

/// [`dots`] of many tokens, without a sublayer: a matrix is read for 16 of them. Buffers: x `[n][4][d]` f32, w `[24][4 d]` of
/// `format` in file order, part `[n][segments][25]` f32.
///
/// # Errors
/// `Format` for a format with scales; `Shape`.
pub fn dots_many(format: Format, n: usize, d: usize) -> Result<Call, KernelError> {
    let (_, name) = dots_names(format)?;
    Ok(dots_begin(name, [n, d], DOTS_TOKENS)?
        .arg(Arg::Read(bytes(name, &[n, STREAMS, d, 4])?))
        .arg(Arg::Read(dots_matrix(name, format, d)?))
        .arg(Arg::Write(bytes(name, &[n, segments(d), SITE + 1, 4])?))
        .arg(Arg::I32(int(name, "width of a stream", d)?))
        .arg(Arg::I32(int(name, "tokens", n)?)))
}

/// Tokens of a block of [`dots_many`].
const DOTS_TOKENS: usize = 16;

/// The kernels of few tokens and of many.
fn dots_names(format: Format) -> Result<(&'static str, &'static str), KernelError> {
    Ok(match format {
        Format::F32 => ("hc_dots_f32", "hc_dots_many_f32"),
        Format::F16 => ("hc_dots_f16", "hc_dots_many_f16"),
        Format::BF16 => ("hc_dots_bf16", "hc_dots_many_bf16"),
        _ => {
            let what = "a product in f32";
            return Err(FormatError::Unsupported { format, what }.into());
        }
    })
}

fn dots_matrix(name: &'static str, format: Format, d: usize) -> Result<u64, KernelError> {
    bytes(name, &[SITE, STREAMS, d, format.block_bytes()])
}

fn dots_begin(name: &'static str, [n, d]: [usize; 2], each: usize) -> Result<Call, KernelError> {
    let fits = (1..=8192).contains(&d);
    require(name, "width of a stream", "1 to 8192", d, fits)?;
    let grid = [
        grid_x(name, segments(d) as u64)?,
        grid_y(name, "tokens", n.div_ceil(each))?,
        1,
    ];
    Ok(Call::new("hc_dots.cu", name, grid, 256))
}

/// The mean of the streams, place `place` of `layers` tapped ones. Buffers: x `[n][4][d]` f32, out
/// `[n][layers][d]` f32.
///
/// # Errors
/// `Shape`.
pub fn tap(n: usize, d: usize, layers: usize, place: usize) -> Result<Call, KernelError> {
    const NAME: &str = "hc_tap";
    require(NAME, "place", "below the layers", place, place < layers)?;
    let grid = [
        grid_x(NAME, d.div_ceil(256) as u64)?,
        grid_y(NAME, "tokens", n)?,
        1,
    ];
    Ok(Call::new(SOURCE, NAME, grid, 256)
        .arg(Arg::Read(bytes(NAME, &[n, STREAMS, d, 4])?))
        .arg(Arg::Write(bytes(NAME, &[n, layers, d, 4])?))
        .arg(Arg::I32(int(NAME, "width of a stream", d)?))
        .arg(Arg::I32(int(NAME, "layers", layers)?))
        .arg(Arg::I32(int(NAME, "place", place)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widths_rounds_and_tokens_are_bounded() {
        let site = |n, d, iterations| Site {
            n,
            d,
            iterations,
            rms_eps: 1e-6,
            eps: 1e-6,
        };
        let none = Beside::default();
        let call = pre(&site(70_000, 4096, 20), Dots::Whole, none).unwrap();
        assert_eq!(call.grid, [70_000, 2, 1]);
        for bad in [
            site(0, 32, 1),
            site(1, 0, 1),
            site(1, 8193, 1),
            site(1, 32, 0),
        ] {
            assert!(pre(&bad, Dots::Segments, none).is_err(), "{bad:?}");
        }
        assert!(
            head(&site(1, 32, 0), none).is_ok(),
            "the head has no rounds"
        );
        let blocks = Beside { u: false, a8: true };
        assert!(
            pre(&site(1, 48, 1), Dots::Whole, blocks).is_err(),
            "half a block"
        );
        assert!(pre(&site(1, 64, 1), Dots::Whole, blocks).is_ok());
        assert_eq!(post(65_535, 300, 6).unwrap().grid, [2, 65_535, 1]);
        assert!(tap(2, 300, 3, 2).is_ok() && tap(2, 300, 3, 3).is_err());
        let call = dots(Format::F16, 8, 4096, Some(6)).unwrap();
        assert_eq!((call.kernel, call.grid), ("hc_dots_f16", [32, 8, 1]));
        let grid = |n| dots(Format::F16, n, 4096, Some(6)).unwrap().grid;
        assert_eq!(
            [grid(1), grid(2), grid(3)],
            [[32, 1, 3], [32, 2, 3], [32, 3, 1]]
        );
        assert_eq!(segments(300), 3);
        assert!(dots(Format::Q8_0, 1, 64, None).is_err());
        assert!(
            dots(Format::F32, 1, 8193, None).is_err() && dots(Format::F32, 0, 64, None).is_err()
        );
        assert!(post(65_536, 300, 6).is_err() && post(0, 300, 0).is_err());
    }
}
