//! Encoder of the affine dialect of ROCmFP2: a scale and an offset for 32 weights, found by three
//! alternating sweeps (scale, offset, scale) of all candidate bytes.
//!
//! Apart from `search` because it walks two bytes. Must not know: rows, importance matrices.
//! Source: spec/fpx-formats.md 5.

use crate::scale::{self, MAX_SCALE_BYTE, UE4M3};
use crate::simd::{self, Kernel};

/// Candidates evaluated together, one each SIMD lane.
const LANES: usize = 8;

/// Encodes one block: finite weights, error weights, whether to use the fast sweep, 10 bytes.
pub(crate) fn block(x: &[f32; 32], w: &[f32; 32], fast: bool, out: &mut [u8]) {
    out.fill(0);
    if x.iter().all(|&v| v == 0.0) {
        return;
    }
    let pair = if fast {
        simd::dispatch(Search {
            x,
            w,
            sweep: sweep_lanes,
        })
    } else {
        search(x, w, sweep)
    };
    let (scale, offset) = pair.values();
    for (i, &v) in x.iter().enumerate() {
        out[i / 4] |= (code(v, scale, offset) as u8) << (2 * (i % 4));
    }
    out[8..].copy_from_slice(&[pair.scale, pair.offset]);
}

/// A candidate: the two bytes of a block.
#[derive(Clone, Copy)]
struct Pair {
    scale: u8,
    offset: u8,
}

impl Pair {
    #[inline(always)]
    fn values(self) -> (f32, f32) {
        (scale::decode(self.scale), scale::decode(self.offset))
    }

    #[inline(always)]
    fn with(self, part: Part, byte: u8) -> Self {
        match part {
            Part::Scale => Self {
                scale: byte,
                ..self
            },
            Part::Offset => Self {
                offset: byte,
                ..self
            },
        }
    }
}

/// Which byte a sweep varies.
#[derive(Clone, Copy)]
enum Part {
    Scale,
    Offset,
}

impl Part {
    /// Scale 0 is not a candidate, offset 0 is.
    const fn first(self) -> u8 {
        match self {
            Self::Scale => 1,
            Self::Offset => 0,
        }
    }
}

/// Code of a weight, as an integral f32.
#[inline(always)]
fn code(x: f32, scale: f32, offset: f32) -> f32 {
    ((x + offset) / scale + 0.5).floor().clamp(0.0, 3.0)
}

#[inline(always)]
fn term(x: f32, w: f32, scale: f32, offset: f32) -> f32 {
    let d = x - (code(x, scale, offset) * scale - offset);
    (w * d) * d
}

#[inline(always)]
fn search(
    x: &[f32; 32],
    w: &[f32; 32],
    sweep: impl Fn(&[f32; 32], &[f32; 32], Pair, Part) -> Pair,
) -> Pair {
    let (mut low, mut high) = (x[0], x[0]);
    for &v in x {
        low = if v < low { v } else { low };
        high = if v > high { v } else { high };
    }
    let lift = (-low).max(0.0);
    let pair = Pair {
        scale: scale::nearest(((high + lift) / 3.0).max(1.0 / 1024.0)),
        offset: scale::nearest(lift),
    };
    [Part::Scale, Part::Offset, Part::Scale]
        .into_iter()
        .fold(pair, |pair, part| sweep(x, w, pair, part))
}

/// The definition of a sweep: the least error, the lowest byte on a tie.
fn sweep(x: &[f32; 32], w: &[f32; 32], pair: Pair, part: Part) -> Pair {
    let mut best = (part.first(), f32::INFINITY);
    for byte in part.first()..=MAX_SCALE_BYTE {
        let (scale, offset) = pair.with(part, byte).values();
        let mut error = 0.0f32;
        for (&x, &w) in x.iter().zip(w) {
            error += term(x, w, scale, offset);
        }
        if error < best.1 {
            best = (byte, error);
        }
    }
    pair.with(part, best.0)
}

/// As [`sweep`], eight candidates side by side (the same sums in the same order), dropping eight
/// as soon as the partial sums of all of them exceed the best error.
#[inline(always)]
fn sweep_lanes(x: &[f32; 32], w: &[f32; 32], pair: Pair, part: Part) -> Pair {
    let mut best = (part.first(), f32::INFINITY);
    let (scale, offset) = pair.values();
    let chunks = 0..=MAX_SCALE_BYTE / LANES as u8;
    // Outwards from the present byte, where the best candidate is likely to be.
    let present = match part {
        Part::Scale => pair.scale,
        Part::Offset => pair.offset,
    } / LANES as u8;
    for chunk in (0..=present).rev().chain(present + 1..=*chunks.end()) {
        let first = usize::from(chunk) * LANES;
        let mut values = [0.0; LANES];
        values.copy_from_slice(&UE4M3[first..first + LANES]);
        let (scales, offsets) = match part {
            Part::Scale => (values, [offset; LANES]),
            Part::Offset => ([scale; LANES], values),
        };
        if let Some(errors) = errors(x, w, &scales, &offsets, best.1) {
            for (lane, &error) in errors.iter().enumerate() {
                let byte = (first + lane) as u8;
                let valid = (part.first()..=MAX_SCALE_BYTE).contains(&byte);
                if valid && (error < best.1 || (error == best.1 && byte < best.0)) {
                    best = (byte, error);
                }
            }
        }
    }
    pair.with(part, best.0)
}

/// Errors of eight candidates; none where all exceed `limit`.
#[inline(always)]
fn errors(
    x: &[f32; 32],
    w: &[f32; 32],
    scales: &[f32; LANES],
    offsets: &[f32; LANES],
    limit: f32,
) -> Option<[f32; LANES]> {
    let mut errors = [0.0f32; LANES];
    for (xs, ws) in x.chunks_exact(4).zip(w.chunks_exact(4)) {
        for (&x, &w) in xs.iter().zip(ws) {
            for lane in 0..LANES {
                errors[lane] += term(x, w, scales[lane], offsets[lane]);
            }
        }
        if errors.iter().all(|&e| e > limit) {
            return None;
        }
    }
    Some(errors)
}

struct Search<'a, F> {
    x: &'a [f32; 32],
    w: &'a [f32; 32],
    sweep: F,
}

impl<F: Fn(&[f32; 32], &[f32; 32], Pair, Part) -> Pair> Kernel for Search<'_, F> {
    type Out = Pair;

    #[inline(always)]
    fn run(self) -> Pair {
        search(self.x, self.w, self.sweep)
    }
}
