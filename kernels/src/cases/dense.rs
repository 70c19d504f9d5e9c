//! Cases of `dense.cu` and `dense_wide.cu`: f32, f16 and bf16 matrices.

use fpx_quant::{Format, Matrix, Out, matmul_f32};

use super::{Depth, Noise, Outcome, Runner, compare_f32, f32_bytes, to_f32};
use crate::KernelError;
use crate::launch::dense;

/// Random weights in file order.
pub(super) fn weights(format: Format, count: usize, noise: &mut Noise) -> Vec<u8> {
    // Halves with random fractions and exponents around one, some denormal.
    let f16 = |w: u32| (w & 0x83ff) as u16 | (9 + (w >> 16) as u16 % 8) << 10;
    let mut out = Vec::with_capacity(count * format.block_bytes());
    for index in 0..count {
        let word = noise.word();
        match format {
            Format::F16 if index % 97 == 0 => out.extend(((word & 0x83ff) as u16).to_le_bytes()),
            Format::F16 => out.extend(f16(word).to_le_bytes()),
            Format::BF16 => out.extend(((noise.value().to_bits() >> 16) as u16).to_le_bytes()),
            _ => out.extend(noise.value().to_le_bytes()),
        }
    }
    out
}

/// Every format; columns 1, 2, 8, 9 and 256; few and many rows; segments full, short and many.
///
/// # Errors
/// A failed launch.
pub fn run<R: Runner>(runner: &mut R, depth: Depth) -> Result<Vec<Outcome>, KernelError> {
    let mut shapes = vec![
        (1, 1, 1),
        (24, 512, 8),
        (33, 544, 9),
        (17, 1000, 3),
        (9, 4096, 2),
        (5, 8200, 1),
        (12, 96, 256),
        (6, 17_000, 4),
        (515, 544, 1),
        (517, 1056, 2),
        (513, 33, 3),
        (515, 1024, 8),
        (514, 96, 9),
        (3, 4608, 17),
        (70, 520, 67),
    ];
    if depth == Depth::Full {
        shapes.extend([
            (256, 4096, 256),
            (1003, 4096, 8),
            (24, 16_384, 1),
            (24, 16_384, 6),
            (24, 16_384, 9),
            (1024, 4096, 4),
            (1024, 4096, 256),
            (4096, 1024, 1),
        ]);
    }
    let sets = sets(depth);
    let mut outcomes = Vec::new();
    for format in [Format::F32, Format::F16, Format::BF16] {
        for (rows, k, cols) in &shapes {
            let (rows, k, cols) = (*rows, *k, *cols);
            let mut noise = Noise::new((rows * 1_000_000 + k * 100 + cols) as u64);
            let w = weights(format, rows * k, &mut noise);
            let x = noise.activations(cols, k);
            let mut want = vec![0f32; cols * rows];
            let matrix = Matrix::new(format, rows, k, &w)?;
            matmul_f32(
                &matrix,
                0..rows,
                &x,
                0..cols,
                &mut Out::new(&mut want, cols, rows),
            );
            let buffers = [runner.load(&w, 0)?, runner.load(&f32_bytes(&x), 0)?];
            for call in [dense::product, dense::wide].map(|of| of(format, rows, k, cols)) {
                let (call, y) = (call?, runner.poisoned(want.len() * 4)?);
                runner.launch(&call, &[buffers[0], buffers[1], y])?;
                outcomes.push(compare_f32(
                    format!("{} {rows}x{k} by {cols}", call.kernel),
                    &want,
                    &to_f32(&runner.read(y)?),
                ));
            }
            runner.reset();
        }
        for (rows, k, cols) in &sets {
            outcomes.extend(set(runner, format, rows, *k, *cols)?);
            runner.reset();
        }
    }
    Ok(outcomes)
}

/// Rows of matrices of one launch, their k, and columns.
type Set = (&'static [usize], usize, usize);

fn sets(depth: Depth) -> Vec<Set> {
    let mut sets: Vec<Set> = vec![
        (&[33, 1, 70], 544, 1),
        (&[5, 17, 8, 64, 3], 4608, 2),
        (&[24, 9], 33, 3),
        (&[40], 1000, 8),
    ];
    if depth == Depth::Full {
        sets.extend([
            (&[1024usize, 1024, 256, 256, 64] as &[usize], 4096, 1),
            (&[1024, 1024, 256, 256, 64], 4096, 6),
            (&[512, 512], 4096, 2),
        ]);
    }
    sets
}

/// Matrices in one launch, each as the CPU has it.
fn set<R: Runner>(
    runner: &mut R,
    format: Format,
    rows: &[usize],
    k: usize,
    cols: usize,
) -> Result<Vec<Outcome>, KernelError> {
    let mut noise = Noise::new((rows.len() * 1_000_000 + k * 100 + cols) as u64);
    let x = noise.activations(cols, k);
    let mut buffers = vec![runner.load(&f32_bytes(&x), 0)?];
    let mut wants = Vec::new();
    for rows in rows.iter().copied() {
        let w = weights(format, rows * k, &mut noise);
        let mut want = vec![0f32; cols * rows];
        let matrix = Matrix::new(format, rows, k, &w)?;
        let mut out = Out::new(&mut want, cols, rows);
        matmul_f32(&matrix, 0..rows, &x, 0..cols, &mut out);
        buffers.push(runner.load(&w, 0)?);
        buffers.push(runner.poisoned(want.len() * 4)?);
        wants.push(want);
    }
    let call = dense::set(format, rows, k, cols)?;
    runner.launch(&call, &buffers)?;
    let mut outcomes = Vec::new();
    for (at, want) in wants.iter().enumerate() {
        let got = to_f32(&runner.read(buffers[2 + 2 * at])?);
        let name = format!("{} {at} of {rows:?} x {k} by {cols}", call.kernel);
        outcomes.push(compare_f32(name, want, &got));
    }
    Ok(outcomes)
}
