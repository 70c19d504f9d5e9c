//! Cases of `attend.cu`.

use super::reference::Activations;
use super::{
    Depth, Noise, Outcome, Runner, compare_bytes, compare_f32, f32_bytes, to_f32, u32_bytes,
};
use crate::KernelError;
use crate::cpu::{AttendScratch, attend};
use crate::launch::attend::{Output, Shape, chunks, merge};

/// Key counts around the chunk size, several positions and heads.
///
/// # Errors
/// A failed launch.
pub fn run<R: Runner>(runner: &mut R, depth: Depth) -> Result<Vec<Outcome>, KernelError> {
    let shape = |positions, heads, dim, rows, stride| Shape {
        positions,
        heads,
        dim,
        rows,
        stride,
    };
    let mut shapes = vec![
        shape(5, 8, 64, 300, 300),
        shape(1, 16, 512, 200, 140),
        shape(2, 8, 96, 40, 1),
    ];
    if depth == Depth::Full {
        shapes.extend([
            shape(4, 64, 512, 5000, 640),
            shape(9, 64, 512, 9000, 1200),
            shape(1, 64, 512, 40_000, 20_000),
        ]);
    }
    let mut outcomes = Vec::new();
    for s in shapes {
        outcomes.extend(one(runner, &s)?);
        runner.reset();
    }
    Ok(outcomes)
}

/// Inputs and the result.
struct Case {
    q: Vec<f32>,
    rows: Vec<f32>,
    sinks: Vec<f32>,
    counts: Vec<u32>,
    keys: Vec<u32>,
    scale: f32,
    want: Vec<f32>,
}

impl Case {
    fn new(s: &Shape) -> Self {
        let mut noise = Noise::new((s.positions * 7919 + s.stride * 31 + s.dim) as u64);
        let mut floats = |n: usize| (0..n).map(|_| noise.value()).collect::<Vec<f32>>();
        let (q, rows) = (
            floats(s.positions * s.heads * s.dim),
            floats(s.rows * s.dim),
        );
        let sinks: Vec<f32> = floats(s.heads).iter().map(|v| v * 4.0).collect();
        // Positions see fewer and fewer keys: the last ones of each list are not used.
        let counts: Vec<u32> = (0..s.positions)
            .map(|p| (s.stride - p * s.stride / (s.positions + 1)) as u32)
            .collect();
        let keys: Vec<u32> = (0..s.positions * s.stride)
            .map(|_| noise.below(s.rows as u32))
            .collect();
        let scale = 1.0 / (s.dim as f32).sqrt();
        let mut want = vec![0f32; q.len()];
        let mut scratch = AttendScratch::default();
        for (p, count) in counts.iter().enumerate() {
            let at = p * s.heads * s.dim..(p + 1) * s.heads * s.dim;
            let list = &keys[p * s.stride..][..*count as usize];
            let out = &mut want[at.clone()];
            attend(&q[at], &rows, list, scale, &sinks, &mut scratch, out);
        }
        Self {
            q,
            rows,
            sinks,
            counts,
            keys,
            scale,
            want,
        }
    }
}

fn one<R: Runner>(runner: &mut R, s: &Shape) -> Result<Vec<Outcome>, KernelError> {
    let case = Case::new(s);
    let want = &case.want;
    let inputs = [
        runner.load(&f32_bytes(&case.q), 0)?,
        runner.load(&f32_bytes(&case.rows), 0)?,
        runner.load(&u32_bytes(&case.keys), 0)?,
        runner.load(&u32_bytes(&case.counts), 0)?,
    ];
    let partial = s.positions * s.chunks() * s.heads * 4;
    let (m, l) = (runner.poisoned(partial)?, runner.poisoned(partial)?);
    let acc = runner.poisoned(partial * s.dim)?;
    runner.launch(
        &chunks(s, case.scale)?,
        &[inputs[0], inputs[1], inputs[2], inputs[3], m, l, acc],
    )?;
    let sinks = runner.load(&f32_bytes(&case.sinks), 0)?;
    let blocks = Activations::new(want, s.positions * s.heads, s.dim);
    let outs = [
        runner.poisoned(want.len() * 4)?,
        runner.poisoned(blocks.q.len())?,
        runner.poisoned(blocks.meta.len())?,
    ];
    let output = Output {
        n_rot: 0,
        floats: true,
        a8: true,
    };
    runner.launch(
        &merge(s, &output)?,
        &[m, l, acc, sinks, inputs[3], outs[0], outs[1], outs[2]],
    )?;
    let name = format!(
        "attend {}x{}x{} over {}",
        s.positions, s.heads, s.dim, s.stride
    );
    Ok(vec![
        compare_f32(&name, want, &to_f32(&runner.read(outs[0])?)),
        compare_bytes(format!("{name} q"), &blocks.q, &runner.read(outs[1])?),
        compare_bytes(
            format!("{name} d and sums"),
            &blocks.meta,
            &runner.read(outs[2])?,
        ),
    ])
}
