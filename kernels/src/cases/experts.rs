//! Cases of `tiled.cu` for the experts of one token: routed ones and the shared one in a launch.

use fpx_quant::{Format, Fp2Dialect};

use super::reference::{self, Activations};
use super::tiled::{load, random_blocks};
use super::{Noise, Outcome, Runner, compare_f32, f32_bytes, to_f32, u32_bytes};
use crate::KernelError;
use crate::cpu::swiglu;
use crate::launch::experts;
use crate::launch::tiled::Stack;

const LIMITS: [f32; 2] = [10.0, 4.0];
/// Experts of the stack, and those of the token: one stands twice.
const EXPERTS: usize = 5;
const CHOSEN: &[u32] = &[3, 0, 4, 3];
const FORMATS: &[Format] = &[
    Format::Fp4Fast,
    Format::Fp2(Fp2Dialect::Signed),
    Format::Fp2(Fp2Dialect::S40),
    Format::Fp3,
];

/// Short and long rows, odd tiles.
pub(super) fn run<R: Runner>(runner: &mut R) -> Result<Vec<Outcome>, KernelError> {
    let mut outcomes = Vec::new();
    for format in FORMATS.iter().copied() {
        for (rows, k) in [(96, 1056), (64, 4608)] {
            outcomes.extend(gate_up(runner, format, rows, k)?);
            runner.reset();
        }
        for (rows, k) in [(33, 544), (70, 4608)] {
            outcomes.extend(down(runner, format, rows, k)?);
            runner.reset();
        }
    }
    Ok(outcomes)
}

/// A stack of routed experts and the shared one: shapes and file bytes.
struct Both {
    stacks: [Stack; 2],
    files: [Vec<u8>; 2],
}

impl Both {
    fn new(format: Format, rows: usize, k: usize, noise: &mut Noise) -> Self {
        let stacks = [(format, EXPERTS), (Format::Fp4Fast, 1)].map(|(format, matrices)| Stack {
            format,
            matrices,
            rows,
            k,
        });
        let weights = rows * k;
        let mut file = |s: &Stack| random_blocks(s.format, s.matrices * weights, noise, false);
        Self {
            files: [file(&stacks[0]), file(&stacks[1])],
            stacks,
        }
    }

    /// Products of one expert of a stack.
    fn product(&self, of: usize, expert: usize, x: &Activations) -> Result<Vec<f32>, KernelError> {
        let s = &self.stacks[of];
        let bytes = s.rows * s.k / 32 * s.format.block_bytes();
        let file = &self.files[of][expert * bytes..][..bytes];
        Ok(reference::product(s.format, s.rows, s.k, file, x)?)
    }
}

/// Units of one slot each.
fn units() -> Vec<u8> {
    let unit = |(slot, expert): (usize, &u32)| [*expert, slot as u32, 1, 0];
    let words: Vec<u32> = CHOSEN.iter().enumerate().flat_map(unit).collect();
    u32_bytes(&words)
}

fn gate_up<R: Runner>(
    runner: &mut R,
    format: Format,
    rows: usize,
    k: usize,
) -> Result<Vec<Outcome>, KernelError> {
    let mut noise = Noise::new((rows * 10_000 + k) as u64);
    let [gate, up] = [0; 2].map(|_| Both::new(format, rows, k, &mut noise));
    let x = Activations::new(&noise.activations(1, k), 1, k);
    let used = CHOSEN.len();
    let weights: Vec<f32> = CHOSEN.iter().map(|_| noise.value()).collect();
    let mut routed = vec![0f32; used * rows];
    for ((h, expert), w) in routed.chunks_mut(rows).zip(CHOSEN).zip(&weights) {
        let expert = *expert as usize;
        let (g, u) = (gate.product(0, expert, &x)?, up.product(0, expert, &x)?);
        swiglu(&g, &u, LIMITS[0], Some(*w), h);
    }
    let mut shared = vec![0f32; rows];
    let (g, u) = (gate.product(1, 0, &x)?, up.product(1, 0, &x)?);
    swiglu(&g, &u, LIMITS[1], None, &mut shared);
    let wants = [
        Activations::new(&routed, used, rows),
        Activations::new(&shared, 1, rows),
    ];
    let mut buffers = vec![
        load(runner, &gate.stacks[0], &gate.files[0], 0)?,
        load(runner, &up.stacks[0], &up.files[0], 0)?,
        runner.load(&x.q, 0)?,
        runner.load(&x.meta, 0)?,
        runner.load(&units(), 0)?,
        runner.load(&f32_bytes(&weights), 0)?,
        runner.poisoned(wants[0].q.len())?,
        runner.poisoned(wants[0].meta.len())?,
    ];
    buffers.push(load(runner, &gate.stacks[1], &gate.files[1], 0)?);
    buffers.push(load(runner, &up.stacks[1], &up.files[1], 0)?);
    buffers.push(runner.poisoned(wants[1].q.len())?);
    buffers.push(runner.poisoned(wants[1].meta.len())?);
    let call = experts::gate_up(&gate.stacks[0], &gate.stacks[1], used, LIMITS)?;
    runner.launch(&call, &buffers)?;
    let name = format!("{} {format} {rows}x{k}", call.kernel);
    let mut outcomes = Vec::new();
    for (want, (first, what)) in wants.iter().zip([(6, "routed"), (10, "shared")]) {
        let name = format!("{name} {what}");
        outcomes.extend(want.compare(runner, &name, [buffers[first], buffers[first + 1]])?);
    }
    Ok(outcomes)
}

fn down<R: Runner>(
    runner: &mut R,
    format: Format,
    rows: usize,
    k: usize,
) -> Result<Vec<Outcome>, KernelError> {
    let mut noise = Noise::new((rows * 10_000 + k) as u64);
    let both = Both::new(format, rows, k, &mut noise);
    let used = CHOSEN.len();
    let routed = Activations::new(&noise.activations(used, k), used, k);
    let shared = Activations::new(&noise.activations(1, k), 1, k);
    let mut want = Vec::new();
    for (slot, expert) in CHOSEN.iter().enumerate() {
        want.extend(both.product(0, *expert as usize, &routed.only(slot))?);
    }
    let alone = both.product(1, 0, &shared)?;
    let buffers = [
        load(runner, &both.stacks[0], &both.files[0], 0)?,
        runner.load(&routed.q, 0)?,
        runner.load(&routed.meta, 0)?,
        runner.load(&units(), 0)?,
        runner.poisoned(want.len() * 4)?,
        load(runner, &both.stacks[1], &both.files[1], 0)?,
        runner.load(&shared.q, 0)?,
        runner.load(&shared.meta, 0)?,
        runner.poisoned(alone.len() * 4)?,
    ];
    let call = experts::down(&both.stacks[0], &both.stacks[1], used)?;
    runner.launch(&call, &buffers)?;
    let name = format!("{} {format} {rows}x{k}", call.kernel);
    let mut outcomes = Vec::new();
    for (want, at, what) in [(&want, 4, "routed"), (&alone, 8, "shared")] {
        let got = to_f32(&runner.read(buffers[at])?);
        outcomes.push(compare_f32(format!("{name} {what}"), want, &got));
    }
    Ok(outcomes)
}
