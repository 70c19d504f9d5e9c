//! Cases of `rms_norm` and `softmax_rows`.

use engine_core::math::rms_scale;

use super::reference::Activations;
use super::{Depth, Noise, Outcome, Runner, compare_f32, f32_bytes, reference, to_f32};
use crate::KernelError;
use crate::launch::norm;

const EPS: f32 = 1e-6;

/// Rows of 1, 8, 9 and 256.
///
/// # Errors
/// A failed launch.
pub fn run<R: Runner>(runner: &mut R, depth: Depth) -> Result<Vec<Outcome>, KernelError> {
    let mut outcomes = Vec::new();
    let mut norms: Vec<(usize, usize)> =
        vec![(1, 4096), (8, 544), (9, 512), (256, 64), (3, 7), (2, 5000)];
    let mut rows = vec![(1, 1), (8, 128), (9, 129), (256, 100), (2, 640), (1, 8192)];
    if depth == Depth::Full {
        norms.extend([(256, 4096), (1024, 7168), (5, 16_385)]);
        rows.extend([(256, 640), (1024, 8192), (64, 1000)]);
    }
    for (rows, n) in norms {
        for weighted in [true, false] {
            for blocks in [false, true] {
                if !blocks || n.is_multiple_of(32) {
                    outcomes.extend(rms(runner, rows, n, weighted, blocks)?);
                }
            }
        }
    }
    for (rows, n) in rows {
        for sink in [true, false] {
            outcomes.push(softmax(runner, rows, n, sink)?);
        }
    }
    Ok(outcomes)
}

fn rms<R: Runner>(
    runner: &mut R,
    rows: usize,
    n: usize,
    weighted: bool,
    blocks: bool,
) -> Result<Vec<Outcome>, KernelError> {
    let mut noise = Noise::new((rows * 100_000 + n) as u64);
    let mut x = noise.activations(rows, n);
    x[..n.min(32)].fill(1e-30);
    if rows > 2 {
        x[n + 3] = f32::NAN;
    }
    let w: Vec<f32> = (0..n).map(|_| noise.value()).collect();
    let want: Vec<f32> = x
        .chunks(n)
        .flat_map(|row| {
            let r = rms_scale(row, EPS);
            row.iter()
                .zip(&w)
                .map(move |(x, w)| if weighted { (x * r) * w } else { x * r })
        })
        .collect();
    let mut buffers = vec![runner.load(&f32_bytes(&x), 0)?];
    if weighted {
        buffers.push(runner.load(&f32_bytes(&w), 0)?);
    }
    let y = runner.poisoned(want.len() * 4)?;
    buffers.push(y);
    let made = blocks.then(|| Activations::new(&want, rows, n));
    for out in made.iter().flat_map(|m| [&m.q, &m.meta]) {
        buffers.push(runner.poisoned(out.len())?);
    }
    runner.launch(&norm::rms(rows, n, weighted, blocks, EPS)?, &buffers)?;
    let weight = if weighted { "" } else { " unweighted" };
    let name = format!("rms_norm {rows}x{n}{weight}");
    let got = to_f32(&runner.read(y)?);
    let mut outcomes = vec![compare_f32(name.clone(), &want, &got)];
    if let (Some(made), [.., q, meta]) = (made, buffers.as_slice()) {
        outcomes.extend(made.compare(runner, &name, [*q, *meta])?);
    }
    runner.reset();
    Ok(outcomes)
}

fn softmax<R: Runner>(
    runner: &mut R,
    rows: usize,
    n: usize,
    sink: bool,
) -> Result<Outcome, KernelError> {
    let mut noise = Noise::new((rows * 100_000 + n) as u64 + 7);
    let mut s: Vec<f32> = (0..rows * n).map(|_| noise.value() * 12.0).collect();
    s[0] = f32::NEG_INFINITY;
    if n > 300 {
        s[n - 1] = -200.0;
        s[n / 2] = 90.0;
    }
    if rows > 2 {
        s[n] = f32::NAN;
    }
    let sinks: Vec<f32> = (0..rows).map(|_| noise.value() * 3.0).collect();
    let want: Vec<f32> = s
        .chunks(n)
        .zip(&sinks)
        .flat_map(|(row, z)| reference::softmax(row, sink.then_some(*z)))
        .collect();
    let mut buffers = vec![runner.load(&f32_bytes(&s), 0)?];
    if sink {
        buffers.push(runner.load(&f32_bytes(&sinks), 0)?);
    }
    let p = runner.poisoned(want.len() * 4)?;
    buffers.push(p);
    runner.launch(&norm::softmax(rows, n, sink)?, &buffers)?;
    let with = if sink { " sink" } else { "" };
    let outcome = compare_f32(
        format!("softmax_rows {rows}x{n}{with}"),
        &want,
        &to_f32(&runner.read(p)?),
    );
    runner.reset();
    Ok(outcome)
}
