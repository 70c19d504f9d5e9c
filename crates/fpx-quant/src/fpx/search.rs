//! The scale byte of a group: the least weighted squared error over the 126 candidates, the lowest
//! byte on a tie.
//!
//! One walk over the candidates, outwards from a first guess, with two ways to get a candidate's
//! error: one at a time (the definition), or eight neighbours side by side, each in its own SIMD
//! lane (the element order of every sum is kept, so the sums are the same bits), dropped as soon
//! as all eight are worse than the best. Must not know: bit layouts, rows.
//! Source: spec/fpx-formats.md 5.

use super::coder::Coder;
use crate::scale::{self, MAX_SCALE_BYTE, UE4M3};

/// Candidates evaluated together: neighbouring scale bytes.
const LANES: usize = 8;

/// A scale group: up to 32 weights (finite) and the weight of each one's error.
pub(crate) struct Group<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) w: &'a [f32],
}

impl Group<'_> {
    /// Largest magnitude; 0 for a group of zeros.
    #[inline(always)]
    pub(crate) fn max_abs(&self) -> f32 {
        self.x
            .iter()
            .fold(0.0, |m, x| if x.abs() > m { x.abs() } else { m })
    }

    /// Largest error weight among the elements of magnitude `max_abs`.
    #[inline(always)]
    fn peak_weight(&self, max_abs: f32) -> f32 {
        let at_peak = |x: &f32| x.abs() == max_abs;
        let weights = self.x.iter().zip(self.w).filter(|(x, _)| at_peak(x));
        weights.fold(0.0, |m, (_, &w)| if w > m { w } else { m })
    }
}

/// The definition: every candidate's error by itself.
pub(crate) fn reference<C: Coder>(group: &Group<'_>) -> u8 {
    walk::<C>(group, false, |byte, _| error::<C>(group, byte))
}

/// As [`reference`], with errors of eight candidates at a time.
#[inline(always)]
pub(crate) fn fast<C: Coder>(group: &Group<'_>) -> u8 {
    // 1 / (the smallest scale) = 1024.
    if group.max_abs() * 1024.0 >= C::SEARCH_LIMIT {
        return reference::<C>(group);
    }
    let mut folded = [0.0; 32];
    for (f, &x) in folded.iter_mut().zip(group.x) {
        *f = C::fold(x);
    }
    let folded = Group {
        x: &folded[..group.x.len()],
        w: group.w,
    };
    let mut cache = Cache {
        known: 0,
        errors: [[0.0; LANES]; CHUNKS],
    };
    walk::<C>(group, true, |byte, best| {
        cache.error::<C>(&folded, byte, best)
    })
}

/// Visits candidates outwards from the scale that puts the largest weight on the largest level.
///
/// `error(byte, best)`: the candidate's error, or anything larger than `best` if it exceeds
/// `best`. `stop`: end the upper side where no error can be smaller any more. The lower side ends
/// where the clipping error of the largest weight alone exceeds the best error; f32 addition of
/// terms that are not negative never lowers a sum, so this loses nothing for a format whose
/// levels stay within `REACH` (ROCmFP6 with -32 reaches beyond it; there the stop is part of the
/// definition). NaN errors (weights overflowed) lose every comparison.
#[inline(always)]
fn walk<C: Coder>(group: &Group<'_>, stop: bool, mut error: impl FnMut(u8, f32) -> f32) -> u8 {
    let max_abs = group.max_abs();
    let peak_weight = group.peak_weight(max_abs);
    let start = scale::nearest(max_abs / C::REACH);
    let (first, worst) = C::UNSET;
    let mut best = (first.unwrap_or(start), worst);
    let (mut low, mut high) = (Some(start), Some(start));
    while low.is_some() || high.is_some() {
        if let Some(byte) = low {
            let clip = max_abs - C::REACH * scale::decode(byte);
            if clip > 0.0 && (peak_weight * clip) * clip > best.1 {
                low = None;
            } else {
                let e = error(byte, best.1);
                offer(&mut best, byte, e);
                low = Some(byte - 1).filter(|&b| b > 0);
            }
        }
        if let Some(byte) = high {
            if byte != start {
                let e = error(byte, best.1);
                offer(&mut best, byte, e);
            }
            let settled = stop && C::settled(max_abs * INVERSE[usize::from(byte)]);
            high = Some(byte + 1).filter(|&b| b <= MAX_SCALE_BYTE && !settled);
        }
    }
    best.0
}

#[inline(always)]
fn offer(best: &mut (u8, f32), byte: u8, error: f32) {
    if error < best.1 || (error == best.1 && byte < best.0) {
        *best = (byte, error);
    }
}

/// 1 / scale of each byte (rounded f32 division); infinite where the scale is 0.
const INVERSE: [f32; 256] = inverses();

const fn inverses() -> [f32; 256] {
    let mut out = [0.0; 256];
    let mut byte = 0;
    while byte < 256 {
        out[byte] = 1.0 / UE4M3[byte];
        byte += 1;
    }
    out
}

fn error<C: Coder>(group: &Group<'_>, byte: u8) -> f32 {
    let step = scale::decode(byte);
    let inverse = 1.0 / step;
    let mut sum = 0.0f32;
    for (&x, &w) in group.x.iter().zip(group.w) {
        let d = x - C::level(x * inverse) * step;
        sum += (w * d) * d;
    }
    sum
}

const CHUNKS: usize = 128 / LANES;

/// Errors by chunks of [`LANES`] scale bytes, each computed when one of its bytes is first asked for.
struct Cache {
    known: u32,
    errors: [[f32; LANES]; CHUNKS],
}

impl Cache {
    #[inline(always)]
    fn error<C: Coder>(&mut self, group: &Group<'_>, byte: u8, best: f32) -> f32 {
        let (chunk, lane) = (usize::from(byte) / LANES, usize::from(byte) % LANES);
        if self.known & (1 << chunk) == 0 {
            self.known |= 1 << chunk;
            self.errors[chunk] = errors::<C>(group, chunk, best);
        }
        self.errors[chunk][lane]
    }
}

/// Errors of a chunk's bytes; all infinite once all exceed `best`. (The bytes 0 and 127, which are
/// no candidates, give NaN or anything: nobody asks for them.)
#[inline(always)]
fn errors<C: Coder>(group: &Group<'_>, chunk: usize, best: f32) -> [f32; LANES] {
    let span = chunk * LANES..(chunk + 1) * LANES;
    let (mut steps, mut inverses) = ([0.0; LANES], [0.0; LANES]);
    steps.copy_from_slice(&UE4M3[span.clone()]);
    inverses.copy_from_slice(&INVERSE[span]);
    let mut sums = [0.0f32; LANES];
    for (xs, ws) in group.x.chunks_exact(4).zip(group.w.chunks_exact(4)) {
        for (&x, &w) in xs.iter().zip(ws) {
            for lane in 0..LANES {
                let d = x - C::search_level(x * inverses[lane]) * steps[lane];
                sums[lane] += (w * d) * d;
            }
        }
        if sums.iter().all(|&s| s > best) {
            return [f32::INFINITY; LANES];
        }
    }
    sums
}
