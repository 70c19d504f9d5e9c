//! Cases of `rows.cu`.

use super::{
    Depth, Noise, Outcome, Runner, compare_bytes, compare_f32, f32_bytes, to_f32, u32_bytes,
};
use crate::KernelError;
use crate::cpu::{
    INDEX_BLOCK, Turn, fp8_sim, hadamard, pack_kv_row, quantise_index_heads, rms_norm, rms_unit,
    rotate, round_bf16,
};
use crate::launch::rows::{self, NOWHERE, Row, Tokens};

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

/// Widths of the model and of small ones, with rows that are not stored, with and without index heads.
///
/// # Errors
/// A failed launch.
pub fn run<R: Runner>(runner: &mut R, depth: Depth) -> Result<Vec<Outcome>, KernelError> {
    let row = |dim, n_rot| Row { dim, n_rot };
    let mut shapes = vec![
        (row(512, 64), 3, Some((9, 128))),
        (row(128, 64), 5, Some((16, 512))),
        (row(96, 32), 2, None),
        (row(160, 62), 1, None),
        (row(96, 16), 9, Some((3, 32))),
    ];
    if depth == Depth::Full {
        shapes.extend([
            (row(512, 64), 300, Some((64, 128))),
            (row(128, 64), 1000, None),
            (row(512, 64), 1, Some((64, 128))),
        ]);
    }
    let mut outcomes = Vec::new();
    for (row, n, index) in shapes {
        for (packed, index) in [(true, index), (true, None), (false, None)] {
            let t = Tokens {
                n,
                heads: 11,
                rows: 2 * n + 3,
                packed,
                index,
            };
            outcomes.extend(tokens(runner, row, &t)?);
            runner.reset();
        }
        outcomes.push(turned(runner, row, n, 11)?);
        runner.reset();
    }
    Ok(outcomes)
}

/// What a launch must give for some tokens, and what it is given.
struct Case {
    q: Vec<f32>,
    x: Vec<f32>,
    w: Vec<f32>,
    iq: Vec<f32>,
    angles: Angles,
    slots: Vec<u32>,
}

impl Case {
    fn new(row: Row, t: &Tokens) -> Self {
        let mut noise = Noise::new((t.n * 1000 + row.dim) as u64);
        let mut x = noise.activations(t.n, row.dim);
        x[..row.dim / 2].iter_mut().for_each(|v| *v *= 1e-6);
        let (heads, dim) = t.index.unwrap_or((0, 32));
        // A ring of odd order; every fourth row is not stored, and its place keeps what it had.
        let slot = |i: usize| {
            if i % 4 == 3 {
                NOWHERE
            } else {
                ((i * 2 + 1) % t.rows) as u32
            }
        };
        Self {
            x,
            w: (0..row.dim).map(|_| noise.value()).collect(),
            angles: Angles::new(&mut noise, t.n, row.n_rot),
            q: noise.activations(t.n * t.heads, row.dim),
            iq: noise.activations(t.n * heads, dim),
            slots: (0..t.n).map(slot).collect(),
        }
    }

    fn queries(&self, row: Row, heads: usize) -> Vec<f32> {
        let mut want = self.q.clone();
        for (i, head) in want.chunks_mut(row.dim).enumerate() {
            rms_unit(head, EPS);
            self.angles.turn(i / heads, head, Turn::Forward);
        }
        want
    }

    fn keys(&self, row: Row, t: &Tokens) -> Vec<u8> {
        let size = row.stored(t.packed);
        let mut want = vec![0x5au8; t.rows * size];
        for (i, slot) in self
            .slots
            .iter()
            .enumerate()
            .filter(|(_, s)| **s != NOWHERE)
        {
            let mut finished = vec![0f32; row.dim];
            rms_norm(
                &self.x[i * row.dim..][..row.dim],
                &self.w,
                EPS,
                &mut finished,
            );
            self.angles.turn(i, &mut finished, Turn::Forward);
            let out = &mut want[*slot as usize * size..][..size];
            if t.packed {
                pack(&mut finished, row.n_rot, out);
            } else {
                out.copy_from_slice(&f32_bytes(&finished));
            }
        }
        want
    }

    fn index(&self, heads: usize, dim: usize) -> (Vec<u8>, Vec<f32>) {
        let mut turned = self.iq.clone();
        for (i, head) in turned.chunks_mut(dim).enumerate() {
            self.angles.turn(i / heads, head, Turn::Forward);
            hadamard(head);
        }
        index_heads(&turned)
    }
}

fn tokens<R: Runner>(runner: &mut R, row: Row, t: &Tokens) -> Result<Vec<Outcome>, KernelError> {
    let case = Case::new(row, t);
    let want = (case.queries(row, t.heads), case.keys(row, t));
    let mut buffers = Vec::new();
    for input in [&case.q, &case.x, &case.w, &case.angles.pairs] {
        buffers.push(runner.load(&f32_bytes(input), 0)?);
    }
    buffers.push(runner.load(&u32_bytes(&case.slots), 0)?);
    buffers.push(runner.load(&vec![0x5au8; want.1.len()], 0)?);
    let index = t.index.map(|(heads, dim)| case.index(heads, dim));
    if let Some((codes, scales)) = &index {
        buffers.push(runner.load(&f32_bytes(&case.iq), 0)?);
        buffers.push(runner.poisoned(codes.len())?);
        buffers.push(runner.poisoned(scales.len() * 4)?);
    }
    let call = rows::heads_and_keys(&row, t, EPS)?;
    runner.launch(&call, &buffers)?;
    let name = format!("{} {}x{} turned {}", call.kernel, t.n, row.dim, row.n_rot);
    let heads = to_f32(&runner.read(buffers[0])?);
    let keys = runner.read(buffers[5])?;
    let mut outcomes = vec![
        compare_f32(format!("{name} heads"), &want.0, &heads),
        compare_bytes(format!("{name} keys"), &want.1, &keys),
    ];
    if let Some((codes, scales)) = &index {
        let (got, got_scales) = (runner.read(buffers[7])?, to_f32(&runner.read(buffers[8])?));
        outcomes.push(compare_bytes(format!("{name} index codes"), codes, &got));
        outcomes.push(compare_f32(
            format!("{name} index scales"),
            scales,
            &got_scales,
        ));
    }
    Ok(outcomes)
}

fn turned<R: Runner>(
    runner: &mut R,
    row: Row,
    n: usize,
    heads: usize,
) -> Result<Outcome, KernelError> {
    let mut noise = Noise::new((n * 1000 + row.dim + 7) as u64);
    let q = noise.activations(n * heads, row.dim);
    let angles = Angles::new(&mut noise, n, row.n_rot);
    let mut want = q.clone();
    for (i, head) in want.chunks_mut(row.dim).enumerate() {
        angles.turn(i / heads, head, Turn::Forward);
    }
    let buffers = [
        runner.load(&f32_bytes(&q), 0)?,
        runner.load(&f32_bytes(&angles.pairs), 0)?,
    ];
    let call = rows::turned(&row, n, heads)?;
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
