//! Cases of `rows.cu`.

use super::{
    Depth, Noise, Outcome, Runner, compare_bytes, compare_f32, f32_bytes, to_f32, u32_bytes,
};
use crate::KernelError;
use crate::cpu::{
    INDEX_BLOCK, Turn, fp8_sim, hadamard, pack_kv_row, quantise_index_heads, rms_norm, rms_unit,
    rotate, round_bf16,
};
use crate::launch::rows::{self, NOWHERE, Row};

const EPS: f32 = 1e-6;

/// Turning angles of `n` positions: (cos, sin) pairs, and the two lists the CPU takes.
pub(super) struct Angles {
    pub pairs: Vec<f32>,
    cos: Vec<f32>,
    sin: Vec<f32>,
    half: usize,
}

impl Angles {
    pub(super) fn new(noise: &mut Noise, n: usize, n_rot: usize) -> Self {
        let pairs: Vec<f32> = (0..n * n_rot).map(|_| noise.value() * 0.5).collect();
        Self {
            cos: pairs.iter().step_by(2).copied().collect(),
            sin: pairs.iter().skip(1).step_by(2).copied().collect(),
            half: n_rot / 2,
            pairs,
        }
    }

    pub(super) fn turn(&self, at: usize, row: &mut [f32], turn: Turn) {
        let range = at * self.half..(at + 1) * self.half;
        rotate(row, &self.cos[range.clone()], &self.sin[range], turn);
    }
}

/// Rounds a finished row as attention keys are and packs it.
pub(super) fn pack(row: &mut [f32], n_rot: usize, out: &mut [u8]) {
    let (head, tail) = row.split_at_mut(row.len() - n_rot);
    fp8_sim(head);
    tail.iter_mut().for_each(|v| *v = round_bf16(*v));
    pack_kv_row(row, n_rot, out);
}

/// Widths of the model and of small ones, with rows that are not stored.
///
/// # Errors
/// A failed launch.
pub fn run<R: Runner>(runner: &mut R, depth: Depth) -> Result<Vec<Outcome>, KernelError> {
    let row = |dim, n_rot| Row { dim, n_rot };
    let mut shapes = vec![
        (row(512, 64), 3),
        (row(128, 64), 5),
        (row(96, 32), 2),
        (row(160, 62), 1),
    ];
    if depth == Depth::Full {
        shapes.extend([(row(512, 64), 300), (row(128, 64), 1000)]);
    }
    let mut outcomes = Vec::new();
    for (row, n) in shapes {
        for packed in [true, false] {
            outcomes.push(keys(runner, row, n, packed)?);
            runner.reset();
        }
        for normed in [true, false] {
            outcomes.push(queries(runner, row, n, 11, normed)?);
            runner.reset();
        }
    }
    let heads = if depth == Depth::Full { 64 } else { 9 };
    for (dim, n) in [(128, 3), (32, 2), (512, 1)] {
        outcomes.extend(index_queries(runner, row(dim, dim / 2), n, heads)?);
        runner.reset();
    }
    Ok(outcomes)
}

fn keys<R: Runner>(
    runner: &mut R,
    row: Row,
    n: usize,
    packed: bool,
) -> Result<Outcome, KernelError> {
    let mut noise = Noise::new((n * 1000 + row.dim) as u64);
    let mut x = noise.activations(n, row.dim);
    x[..row.dim / 2].iter_mut().for_each(|v| *v *= 1e-6);
    let w: Vec<f32> = (0..row.dim).map(|_| noise.value()).collect();
    let angles = Angles::new(&mut noise, n, row.n_rot);
    // A ring of odd order; every fourth row is not stored, and its place keeps what it had.
    let stored = 2 * n + 3;
    let slot = |i: usize| {
        if i % 4 == 3 {
            NOWHERE
        } else {
            ((i * 2 + 1) % stored) as u32
        }
    };
    let slots: Vec<u32> = (0..n).map(slot).collect();
    let size = row.stored(packed);
    let mut want = vec![0x5au8; stored * size];
    for (i, slot) in slots.iter().enumerate().filter(|(_, s)| **s != NOWHERE) {
        let mut finished = vec![0f32; row.dim];
        rms_norm(&x[i * row.dim..][..row.dim], &w, EPS, &mut finished);
        angles.turn(i, &mut finished, Turn::Forward);
        let out = &mut want[*slot as usize * size..][..size];
        if packed {
            pack(&mut finished, row.n_rot, out);
        } else {
            out.copy_from_slice(&f32_bytes(&finished));
        }
    }
    let buffers = [
        runner.load(&f32_bytes(&x), 0)?,
        runner.load(&f32_bytes(&w), 0)?,
        runner.load(&f32_bytes(&angles.pairs), 0)?,
        runner.load(&u32_bytes(&slots), 0)?,
        runner.load(&vec![0x5au8; stored * size], 0)?,
    ];
    let call = rows::keys(&row, n, stored, packed, EPS)?;
    runner.launch(&call, &buffers)?;
    let name = format!("{} {n}x{} turned {}", call.kernel, row.dim, row.n_rot);
    Ok(compare_bytes(name, &want, &runner.read(buffers[4])?))
}

fn queries<R: Runner>(
    runner: &mut R,
    row: Row,
    n: usize,
    heads: usize,
    normed: bool,
) -> Result<Outcome, KernelError> {
    let mut noise = Noise::new((n * 1000 + row.dim + 7) as u64);
    let q = noise.activations(n * heads, row.dim);
    let angles = Angles::new(&mut noise, n, row.n_rot);
    let mut want = q.clone();
    for (i, head) in want.chunks_mut(row.dim).enumerate() {
        if normed {
            rms_unit(head, EPS);
        }
        angles.turn(i / heads, head, Turn::Forward);
    }
    let buffers = [
        runner.load(&f32_bytes(&q), 0)?,
        runner.load(&f32_bytes(&angles.pairs), 0)?,
    ];
    let call = rows::queries(&row, n, heads, normed.then_some(EPS))?;
    runner.launch(&call, &buffers)?;
    let name = format!(
        "{} {n}x{heads}x{} turned {}",
        call.kernel, row.dim, row.n_rot
    );
    Ok(compare_f32(name, &want, &to_f32(&runner.read(buffers[0])?)))
}

/// Doubled codes and scales of indexer heads.
pub(super) fn index_heads(heads: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let (mut twice, mut scales) = (
        vec![0i8; heads.len()],
        vec![0f32; heads.len() / INDEX_BLOCK],
    );
    quantise_index_heads(heads, &mut twice, &mut scales);
    (twice.iter().map(|v| v.cast_unsigned()).collect(), scales)
}

fn index_queries<R: Runner>(
    runner: &mut R,
    row: Row,
    n: usize,
    heads: usize,
) -> Result<Vec<Outcome>, KernelError> {
    let mut noise = Noise::new((n * 1000 + row.dim + 13) as u64);
    let q = noise.activations(n * heads, row.dim);
    let angles = Angles::new(&mut noise, n, row.n_rot);
    let mut turned = q.clone();
    for (i, head) in turned.chunks_mut(row.dim).enumerate() {
        angles.turn(i / heads, head, Turn::Forward);
        hadamard(head);
    }
    let (codes, scales) = index_heads(&turned);
    let buffers = [
        runner.load(&f32_bytes(&q), 0)?,
        runner.load(&f32_bytes(&angles.pairs), 0)?,
        runner.poisoned(codes.len())?,
        runner.poisoned(scales.len() * 4)?,
    ];
    runner.launch(&rows::index_queries(&row, n, heads)?, &buffers)?;
    let name = format!("index_queries {n}x{heads}x{}", row.dim);
    let (got, got_scales) = (runner.read(buffers[2])?, runner.read(buffers[3])?);
    Ok(vec![
        compare_bytes(format!("{name} codes"), &codes, &got),
        compare_f32(format!("{name} scales"), &scales, &to_f32(&got_scales)),
    ])
}
