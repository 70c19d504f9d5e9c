//! Cases of the contract's functions: checksums over bit patterns, and the widening of f16.

use engine_core::math;

use super::{Depth, Outcome, Runner, compare_bytes, compare_f32, to_f32};
use crate::KernelError;
use crate::launch::math::{Function, checksum, widen};

/// Patterns of a run on hardware: 2^20 runs cover all 2^32.
const RUN: u32 = 4096;
const QUIET: u32 = 0x7fc0_0000;

/// The checksum of `run` patterns from `first` (`gpu/math.cu` states it). Generic, so that the
/// function is inlined and the loop vectorised.
fn sum_of(f: impl Fn(f32) -> f32, first: u32, run: u32) -> u64 {
    (0..run).fold(0u64, |sum, i| {
        let y = f(f32::from_bits(first.wrapping_add(i)));
        let h = if y.is_nan() { QUIET } else { y.to_bits() };
        sum.wrapping_add(u64::from(h ^ (h >> 15)).wrapping_mul(2 * u64::from(i) + 1))
    })
}

/// The checksum of a function's run.
#[must_use]
pub fn reference(f: Function, first: u32, run: u32) -> u64 {
    match f {
        Function::Exp => sum_of(math::exp, first, run),
        Function::Log1p => sum_of(math::log1p, first, run),
        Function::Sigmoid => sum_of(math::sigmoid, first, run),
        Function::Silu => sum_of(math::silu, first, run),
        Function::Softplus => sum_of(math::softplus, first, run),
        Function::SqrtSoftplus => sum_of(math::sqrt_softplus, first, run),
        Function::Rsqrt => sum_of(math::rsqrt, first, run),
        Function::Ln => sum_of(math::ln, first, run),
    }
}

/// The checksums of all runs, computed on every core.
fn references(f: Function, runs: usize, first: u32, run: u32) -> Vec<u8> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut sums = vec![0u64; runs];
    std::thread::scope(|scope| {
        for (index, part) in sums.chunks_mut(runs.div_ceil(threads)).enumerate() {
            let skip = index * runs.div_ceil(threads);
            scope.spawn(move || {
                for (i, sum) in part.iter_mut().enumerate() {
                    let offset = ((skip + i) as u32).wrapping_mul(run);
                    *sum = reference(f, first.wrapping_add(offset), run);
                }
            });
        }
    });
    sums.iter().flat_map(|s| s.to_le_bytes()).collect()
}

/// All functions: every pattern on hardware; a sample around the interesting ranges otherwise.
///
/// # Errors
/// A failed launch.
pub fn run<R: Runner>(runner: &mut R, depth: Depth) -> Result<Vec<Outcome>, KernelError> {
    let mut outcomes = Vec::new();
    for f in Function::ALL {
        let ranges: Vec<(usize, u32, u32)> = match depth {
            Depth::Full => vec![(1 << 20, 0, RUN)],
            // A stride through all patterns, and runs where exp and log1p change branches.
            Depth::Quick => [
                0u32,
                0x3380_0000,
                0x4170_0000,
                0x42b0_f000,
                0xc2d0_0000,
                0xffff_f000,
            ]
            .iter()
            .map(|first| (64, *first, 32))
            .chain([(256, 0, 1), (256, 0x3f80_0000, 1)])
            .chain((0..32).map(|i| (1, 0x0800_0000 * i + 0x1234 * i, 64)))
            .collect(),
        };
        let (mut want, mut got) = (Vec::new(), Vec::new());
        for (runs, first, run) in ranges {
            let out = runner.poisoned(runs * 8)?;
            runner.launch(&checksum(*f, runs, first, run)?, &[out])?;
            got.extend(runner.read(out)?);
            want.extend(references(*f, runs, first, run));
            runner.reset();
        }
        outcomes.push(compare_bytes(format!("{f:?} checksums"), &want, &got));
    }
    outcomes.push(widening(runner)?);
    Ok(outcomes)
}

fn widening<R: Runner>(runner: &mut R) -> Result<Outcome, KernelError> {
    let out = runner.poisoned(65_536 * 4)?;
    runner.launch(&widen(), &[out])?;
    let want: Vec<f32> = (0..=u16::MAX).map(widened).collect();
    let outcome = compare_f32("f16 widening", &want, &to_f32(&runner.read(out)?));
    runner.reset();
    Ok(outcome)
}

/// An f16 pattern's value by its definition: sign, 5 exponent bits, 10 fraction bits.
fn widened(h: u16) -> f32 {
    let (e, m) = (i32::from(h >> 10 & 31), f32::from(h & 1023));
    let magnitude = match e {
        0 => m * 2f32.powi(-24),
        31 if m == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1024.0 + m) * 2f32.powi(e - 25),
    };
    if h >> 15 == 1 { -magnitude } else { magnitude }
}
