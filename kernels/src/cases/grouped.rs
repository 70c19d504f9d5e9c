//! Cases of `grouped.cu`, `grouped_more.cu` and `grouped_k.cu`: every format against many rows on matrix units, alone and as experts.

use fpx_quant::{Format, Fp2Dialect};

use super::reference::{self, Activations};
use super::tiled::{Experts, FORMATS, Way, load, mixture, shared, single, whole};
use super::{Depth, Noise, Outcome, Runner, compare_f32, to_f32};
use crate::KernelError;
use crate::launch::grouped::{self, WIDE};
use crate::launch::tiled::{Stack, Work};

/// Experts: how many, tokens, experts a token, ff, d.
fn sizes(depth: Depth) -> Vec<[usize; 5]> {
    // Experts without slots, units of one slot, and one expert of 72: a whole unit and a short one.
    let mut sizes = vec![[5, 2, 2, 32, 96], [2, 24, 3, 96, 160], [3, 5, 3, 96, 544]];
    if depth == Depth::Full {
        sizes.extend([[8, 50, 6, 128, 1024], [64, 40, 6, 256, 512]]);
    }
    sizes
}

/// Every format: ragged rows, short segments, 1 to 256 activation rows, units of all numbers of tiles; experts with none, one, few and many slots.
///
/// # Errors
/// A failed launch.
pub fn run<R: Runner>(runner: &mut R, depth: Depth) -> Result<Vec<Outcome>, KernelError> {
    let mut alone: Vec<(usize, usize, &[usize])> = vec![
        (33, 544, &[1, 8]),
        (5, 32, &[9, 65]),
        (130, 96, &[2, 40, 50]),
    ];
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
    for format in [
        Format::Fp2(Fp2Dialect::Signed),
        Format::Fp2(Fp2Dialect::SignedNeg),
        Format::Fp2(Fp2Dialect::S40),
        Format::Fp3,
    ] {
        outcomes.push(pairs(runner, format)?);
        runner.reset();
    }
    Ok(outcomes)
}

/// A block a row, with every pair of scales: first those of halves so close that one step of f16 matrix units takes
/// both (`fs_halves.h`), then the others, so that whole warps go one way.
fn pairs_of_scales(format: Format, noise: &mut Noise) -> Vec<u8> {
    let all = (0..0x7f_u8).flat_map(|a| (0..0x7f_u8).map(move |b| [a, b]));
    let close = |[a, b]: &[u8; 2]| (-32..32).contains(&(i32::from(*a) - i32::from(*b)));
    let (mut pairs, far): (Vec<_>, Vec<_>) = all.partition(close);
    pairs.resize(pairs.len().next_multiple_of(16), [0, 0]);
    pairs.extend(far);
    let (size, negated) = (
        format.block_bytes(),
        format == Format::Fp2(Fp2Dialect::SignedNeg),
    );
    let mut raw = vec![0; pairs.len() * size];
    for (row, (block, pair)) in raw.chunks_exact_mut(size).zip(&pairs).enumerate() {
        let (codes, scales) = block.split_at_mut(size - 2);
        match row % 3 {
            0 => codes.fill(0xff), // the last code everywhere: the largest level of ROCmFP2, the smallest of ROCmFP3
            1 => codes[..size / 2 - 1].fill(0xff),
            _ => codes.fill_with(|| noise.below(256) as u8),
        }
        for (half, scale) in scales.iter_mut().enumerate() {
            let sign = u8::from(negated && row >> half & 1 == 1);
            *scale = pair[half] | sign << 7;
        }
    }
    raw
}

/// Terms of single blocks, bare: an output is d times a term, so that every bit of a term shows.
fn pairs<R: Runner>(runner: &mut R, format: Format) -> Result<Outcome, KernelError> {
    const COLS: usize = 9;
    let mut noise = Noise::new(16_129);
    let raw = pairs_of_scales(format, &mut noise);
    let w = Stack {
        format,
        matrices: 1,
        rows: raw.len() / format.block_bytes(),
        k: 32,
    };
    // Edges: all 127, halves of either sign, one in the second half; then anything.
    let mut x = noise.activations(COLS, 32);
    x[..32].fill(1.0);
    x[32..48].fill(-1.0);
    x[48..64].fill(1.0);
    x[64..80].fill(1.0);
    x[80..96].fill(0.0);
    x[81] = 1.0 / 127.0;
    let x = Activations::new(&x, COLS, 32);
    let want = reference::product(format, w.rows, 32, &raw, &x)?;
    let buffers = [
        load(runner, &w, &raw, 0)?,
        runner.load(&x.q, 0)?,
        runner.load(&x.meta, 0)?,
        runner.poisoned(want.len() * 4)?,
    ];
    let call = grouped::product(&w, &Work::plain(COLS))?;
    runner.launch(&call, &buffers)?;
    let name = format!("{} {format} pairs of scales", call.kernel);
    let got = to_f32(&runner.read(buffers[3])?);
    Ok(compare_f32(name, &want, &got))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_all_there_and_apart_by_way() {
        let raw = pairs_of_scales(Format::Fp3, &mut Noise::new(1));
        let pairs: Vec<[i32; 2]> = raw
            .chunks_exact(14)
            .map(|b| [b[12].into(), b[13].into()])
            .collect();
        let mut seen = pairs.clone();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 127 * 127);
        let close = |[a, b]: &[i32; 2]| (-32..32).contains(&(a - b));
        let first_far = pairs.iter().position(|p| !close(p)).unwrap();
        assert_eq!(first_far % 16, 0);
        assert!(!pairs[first_far..].iter().any(close));
    }
}
