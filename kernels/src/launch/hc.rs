//! Launches of `hc.cu`: hyper-connections around a sublayer.

use super::{Arg, Call, a8, bytes, grid_x, grid_y, int, require};
use crate::KernelError;

const SOURCE: &str = "hc.cu";
/// Residual streams.
pub const STREAMS: usize = 4;
/// Mixing weights of a site: pre 4, post 4, carry-over 16 (source-major).
pub const SITE: usize = 24;

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

    /// The arguments up to h: `rows` dots a token, `scales` scales.
    fn head(
        &self,
        name: &'static str,
        parts: u32,
        rows: usize,
        scales: usize,
        beside: Beside,
    ) -> Result<Call, KernelError> {
        self.check(name)?;
        let (row, mix) = (
            bytes(name, &[self.n, self.d, 4])?,
            bytes(name, &[self.n, rows, 4])?,
        );
        let grid = [grid_x(name, self.n as u64)?, parts, 1];
        let [q, meta] = a8::outputs(name, beside.a8, self.n, self.d)?;
        Ok(Call::new(SOURCE, name, grid, 512)
            .arg(Arg::Read(bytes(name, &[self.n, STREAMS, self.d, 4])?))
            .arg(Arg::Read(mix))
            .arg(Arg::Read(bytes(name, &[rows, 4])?))
            .arg(Arg::Read(bytes(name, &[scales, 4])?))
            .arg(Arg::Read(bytes(name, &[self.d, 4])?))
            .arg(Arg::Write(mix))
            .arg(if beside.u { Arg::Write(row) } else { Arg::Null })
            .arg(Arg::Write(row))
            .arg(q)
            .arg(meta)
            .arg(Arg::I32(int(name, "width of a stream", self.d)?)))
    }
}

/// Before a sublayer. Buffers: x `[n][4][d]` f32, m `[n][24]` raw dots, base `[24]`, scale `[3]`,
/// norm `[d]`, mix `[n][24]`, u `[n][d]` if it is asked for, h `[n][d]`, q `[n][d]` i8 and meta `[n][d / 32]` of 8 bytes
/// if blocks are.
///
/// # Errors
/// `Shape`.
pub fn pre(s: &Site, beside: Beside) -> Result<Call, KernelError> {
    const NAME: &str = "hc_pre";
    require(
        NAME,
        "iterations",
        "at least 1",
        s.iterations,
        s.iterations > 0,
    )?;
    Ok(s.head(NAME, 2, SITE, 3, beside)?
        .arg(Arg::I32(int(NAME, "iterations", s.iterations)?))
        .arg(Arg::F32(s.rms_eps))
        .arg(Arg::F32(s.eps)))
}

/// The final merge. Buffers: x `[n][4][d]` f32, m `[n][4]`, base `[4]`, scale `[1]`, norm `[d]`,
/// mix `[n][4]`, u, h, q and meta as [`pre`].
///
/// # Errors
/// `Shape`.
pub fn head(s: &Site, beside: Beside) -> Result<Call, KernelError> {
    Ok(s.head("hc_head", 1, STREAMS, 1, beside)?
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
        let call = pre(&site(70_000, 4096, 20), none).unwrap();
        assert_eq!(call.grid, [70_000, 2, 1]);
        for bad in [
            site(0, 32, 1),
            site(1, 0, 1),
            site(1, 8193, 1),
            site(1, 32, 0),
        ] {
            assert!(pre(&bad, none).is_err(), "{bad:?}");
        }
        assert!(
            head(&site(1, 32, 0), none).is_ok(),
            "the head has no rounds"
        );
        let blocks = Beside { u: false, a8: true };
        assert!(pre(&site(1, 48, 1), blocks).is_err(), "half a block");
        assert!(pre(&site(1, 64, 1), blocks).is_ok());
        assert_eq!(post(65_535, 300, 6).unwrap().grid, [2, 65_535, 1]);
        assert!(tap(2, 300, 3, 2).is_ok() && tap(2, 300, 3, 3).is_err());
        assert!(post(65_536, 300, 6).is_err() && post(0, 300, 0).is_err());
    }
}
