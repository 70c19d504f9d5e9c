//! Cases of `a8_quantise`.

use super::{Depth, Noise, Outcome, Runner, f32_bytes, reference};
use crate::KernelError;
use crate::launch::a8;

/// Blocks that test the rule's corners, overwritten at the start of a row of at least 10 blocks.
pub fn plant_corners(row: &mut [f32]) {
    let mut block = |b: usize, f: &dyn Fn(usize) -> f32| {
        for (i, v) in row[b * 32..(b + 1) * 32].iter_mut().enumerate() {
            *v = f(i);
        }
    };
    block(0, &|_| 0.0);
    block(1, &|i| f32::from_bits(i as u32)); // denormals
    block(2, &|i| if i % 2 == 0 { 1.26e-29 } else { -1e-30 }); // just below 2^-96
    block(3, &|i| {
        if i == 7 {
            f32::from_bits(0x0f80_0000)
        } else {
            3e-30
        }
    }); // 2^-96
    block(4, &|i| {
        if i == 31 {
            f32::from_bits(0xffc1_2345)
        } else {
            1.0
        }
    }); // NaN
    block(5, &|i| if i == 0 { f32::NEG_INFINITY } else { 2.0 });
    block(6, &|i| i as f32 - 127.0); // ties
    block(7, &|i| (i as f32 - 16.0) * 0.5 * 127.0 / 8.0);
    block(8, &|i| if i == 3 { f32::MAX } else { -1.0 });
    block(9, &|i| if i % 2 == 0 { -0.0 } else { -0.75 });
}

/// Rows of 1, 8, 9 and 256, K 32 to 8192.
///
/// # Errors
/// A failed launch.
pub fn run<R: Runner>(runner: &mut R, depth: Depth) -> Result<Vec<Outcome>, KernelError> {
    let mut shapes = vec![(1, 32), (1, 8192), (8, 544), (9, 512), (256, 320)];
    if depth == Depth::Full {
        shapes.extend([(256, 8192), (2048, 4096), (1, 160), (3, 1056)]);
    }
    let mut outcomes = Vec::new();
    for (rows, k) in shapes {
        let mut x = Noise::new((rows * 10_000 + k) as u64).activations(rows, k);
        if k >= 320 {
            plant_corners(&mut x[(rows - 1) * k..]);
        }
        let want = reference::Activations::new(&x, rows, k);
        let buffers = [
            runner.load(&f32_bytes(&x), 0)?,
            runner.poisoned(want.q.len())?,
            runner.poisoned(want.meta.len())?,
        ];
        runner.launch(&a8::quantise(rows, k)?, &buffers)?;
        let name = format!("a8_quantise {rows}x{k}");
        outcomes.extend(want.compare(runner, &name, [buffers[1], buffers[2]])?);
        runner.reset();
    }
    Ok(outcomes)
}
