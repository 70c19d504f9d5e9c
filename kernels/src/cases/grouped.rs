//! Cases of `grouped.cu`, `grouped_more.cu` and `grouped_k.cu`: every format against many rows on matrix units, alone and as experts.

use super::tiled::{Experts, FORMATS, Way, mixture, shared, single, whole};
use super::{Depth, Outcome, Runner};
use crate::KernelError;
use crate::launch::grouped::WIDE;

/// Experts: how many, tokens, experts a token, ff, d.
fn sizes(depth: Depth) -> Vec<[usize; 5]> {
    // Experts without slots, units of one slot, and one expert of 72: a whole unit and a short one.
    let mut sizes = vec![[5, 2, 2, 32, 96], [2, 24, 3, 96, 160], [3, 5, 3, 96, 544]];
    if depth == Depth::Full {
        sizes.extend([[8, 50, 6, 128, 1024], [64, 40, 6, 256, 512]]);
    }
    sizes
}

/// Every format: ragged rows, short segments, 1 to 256 activation rows; experts with none, one, few and many slots.
///
/// # Errors
/// A failed launch.
pub fn run<R: Runner>(runner: &mut R, depth: Depth) -> Result<Vec<Outcome>, KernelError> {
    let mut alone: Vec<(usize, usize, &[usize])> =
        vec![(33, 544, &[1, 8]), (5, 32, &[9, 65]), (130, 96, &[2])];
    if depth == Depth::Full {
        alone.extend([
            (517, 1024, &[8usize, 33, 256] as &[usize]),
            (95, 16_384, &[9]),
            (4096, 2048, &[64]),
        ]);
    }
    let mut outcomes = Vec::new();
    for format in FORMATS.iter().copied() {
        for (rows, k, cols) in &alone {
            let k = whole(format, *k);
            outcomes.extend(single(runner, Way::Many, format, *rows, k, cols)?);
            runner.reset();
        }
        outcomes.extend(shared(runner, Way::Many, format, 9)?);
        outcomes.extend(shared(runner, Way::Many, format, 1)?);
        for [count, n, used, ff, d] in sizes(depth) {
            let shape = Experts {
                count,
                n,
                used,
                ff: whole(format, ff),
                d: whole(format, d),
            };
            outcomes.extend(mixture(runner, Way::Many, format, &shape, WIDE)?);
            runner.reset();
        }
    }
    Ok(outcomes)
}
