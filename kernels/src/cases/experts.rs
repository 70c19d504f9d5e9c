//! Cases of `experts.cu` and `experts_staged.cu`, the experts of a few tokens: routed ones and the shared one in a launch.

use fpx_quant::{Format, Fp2Dialect};

use super::reference::{self, Activations};
use super::tiled::{load, random_blocks};
use super::{Noise, Outcome, Runner, compare_f32, f32_bytes, to_f32, u32_bytes};
use crate::KernelError;
use crate::cpu::swiglu;
use crate::launch::experts::{self, Experts, WIDE};
use crate::launch::tiled::Stack;

const LIMITS: [f32; 2] = [10.0, 4.0];
/// Experts of the stack, and those of each token: one stands twice.
const EXPERTS: usize = 5;
const CHOSEN: [u32; 4] = [3, 0, 4, 3];
const FORMATS: &[Format] = &[
    Format::Fp4Fast,
    Format::Fp2(Fp2Dialect::Signed),
    Format::Fp3,
];

/// Through registers and through shared memory: short and long rows, odd tiles; one token, and as many as make a second unit of the shared expert.
pub(super) fn run<R: Runner>(runner: &mut R) -> Result<Vec<Outcome>, KernelError> {
    let mut outcomes = Vec::new();
    for (format, staged) in FORMATS.iter().flat_map(|f| [(*f, false), (*f, true)]) {
        for shape in [[1, 96, 1056], [1, 64, 4608], [2, 96, 1056], [5, 64, 4608]] {
            outcomes.extend(gate_up(runner, format, staged, shape)?);
            runner.reset();
        }
        for shape in [[1, 33, 544], [1, 70, 4608], [2, 70, 4608], [5, 33, 544]] {
            outcomes.extend(down(runner, format, staged, shape)?);
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

    fn work(&self, tokens: usize, staged: bool) -> Experts {
        Experts {
            routed: self.stacks[0],
            shared: self.stacks[1],
            tokens,
            used: CHOSEN.len(),
            staged,
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

/// Which expert a slot has: each token takes the same ones from another on.
fn chosen(tokens: usize) -> Vec<u32> {
    let of = |t: usize| CHOSEN.map(|e| (e + t as u32) % EXPERTS as u32);
    (0..tokens).flat_map(of).collect()
}

/// Units and order: of one token a unit each slot; of more the slots by expert, at most [`WIDE`] a unit, then empty ones.
fn lists(chosen: &[u32]) -> [Vec<u8>; 2] {
    let slots = chosen.len();
    if slots == CHOSEN.len() {
        let unit = |(slot, expert): (usize, &u32)| [*expert, slot as u32, 1, 0];
        let words: Vec<u32> = chosen.iter().enumerate().flat_map(unit).collect();
        return [u32_bytes(&words), Vec::new()];
    }
    let (mut units, mut order) = (Vec::new(), Vec::new());
    for expert in 0..EXPERTS as u32 {
        let own: Vec<u32> = (0..slots as u32)
            .filter(|s| chosen[*s as usize] == expert)
            .collect();
        for part in own.chunks(WIDE) {
            units.extend([expert, order.len() as u32, part.len() as u32, 0]);
            order.extend(part);
        }
    }
    units.resize(4 * slots, 0);
    [u32_bytes(&units), u32_bytes(&order)]
}

/// Loads units and, if there is one, their order.
fn load_lists<R: Runner>(runner: &mut R, chosen: &[u32]) -> Result<Vec<R::Buffer>, KernelError> {
    let [units, order] = lists(chosen);
    let mut buffers = vec![runner.load(&units, 0)?];
    if !order.is_empty() {
        buffers.push(runner.load(&order, 0)?);
    }
    Ok(buffers)
}

fn gate_up<R: Runner>(
    runner: &mut R,
    format: Format,
    staged: bool,
    [tokens, rows, k]: [usize; 3],
) -> Result<Vec<Outcome>, KernelError> {
    let mut noise = Noise::new((rows * 10_000 + k) as u64);
    let [gate, up] = [0; 2].map(|_| Both::new(format, rows, k, &mut noise));
    let x = Activations::new(&noise.activations(tokens, k), tokens, k);
    let chosen = chosen(tokens);
    let weights: Vec<f32> = chosen.iter().map(|_| noise.value()).collect();
    let mut routed = vec![0f32; chosen.len() * rows];
    for (slot, h) in routed.chunks_mut(rows).enumerate() {
        let (expert, x) = (chosen[slot] as usize, x.only(slot / CHOSEN.len()));
        let (g, u) = (gate.product(0, expert, &x)?, up.product(0, expert, &x)?);
        swiglu(&g, &u, LIMITS[0], Some(weights[slot]), h);
    }
    let mut shared = vec![0f32; tokens * rows];
    for (token, h) in shared.chunks_mut(rows).enumerate() {
        let x = x.only(token);
        let (g, u) = (gate.product(1, 0, &x)?, up.product(1, 0, &x)?);
        swiglu(&g, &u, LIMITS[1], None, h);
    }
    let wants = [
        Activations::new(&routed, chosen.len(), rows),
        Activations::new(&shared, tokens, rows),
    ];
    let mut buffers = vec![
        load(runner, &gate.stacks[0], &gate.files[0], 0)?,
        load(runner, &up.stacks[0], &up.files[0], 0)?,
        runner.load(&x.q, 0)?,
        runner.load(&x.meta, 0)?,
    ];
    buffers.extend(load_lists(runner, &chosen)?);
    buffers.push(runner.load(&f32_bytes(&weights), 0)?);
    let first = outputs(runner, &wants[0], &mut buffers)?;
    buffers.push(load(runner, &gate.stacks[1], &gate.files[1], 0)?);
    buffers.push(load(runner, &up.stacks[1], &up.files[1], 0)?);
    let second = outputs(runner, &wants[1], &mut buffers)?;
    let call = experts::gate_up(&gate.work(tokens, staged), LIMITS)?;
    runner.launch(&call, &buffers)?;
    let name = format!("{} {format} {rows}x{k} by {tokens}", call.kernel);
    let mut outcomes = Vec::new();
    for (want, (at, what)) in wants.iter().zip([(first, "routed"), (second, "shared")]) {
        let name = format!("{name} {what}");
        outcomes.extend(want.compare(runner, &name, [buffers[at], buffers[at + 1]])?);
    }
    Ok(outcomes)
}

/// Room for activation blocks at the end of `buffers`: where it begins.
fn outputs<R: Runner>(
    runner: &mut R,
    want: &Activations,
    buffers: &mut Vec<R::Buffer>,
) -> Result<usize, KernelError> {
    let at = buffers.len();
    buffers.push(runner.poisoned(want.q.len())?);
    buffers.push(runner.poisoned(want.meta.len())?);
    Ok(at)
}

fn down<R: Runner>(
    runner: &mut R,
    format: Format,
    staged: bool,
    [tokens, rows, k]: [usize; 3],
) -> Result<Vec<Outcome>, KernelError> {
    let mut noise = Noise::new((rows * 10_000 + k) as u64);
    let both = Both::new(format, rows, k, &mut noise);
    let chosen = chosen(tokens);
    let slots = chosen.len();
    let routed = Activations::new(&noise.activations(slots, k), slots, k);
    let shared = Activations::new(&noise.activations(tokens, k), tokens, k);
    let mut want = Vec::new();
    for (slot, expert) in chosen.iter().enumerate() {
        want.extend(both.product(0, *expert as usize, &routed.only(slot))?);
    }
    let mut alone = Vec::new();
    for token in 0..tokens {
        alone.extend(both.product(1, 0, &shared.only(token))?);
    }
    let mut buffers = vec![
        load(runner, &both.stacks[0], &both.files[0], 0)?,
        runner.load(&routed.q, 0)?,
        runner.load(&routed.meta, 0)?,
    ];
    buffers.extend(load_lists(runner, &chosen)?);
    let y = runner.poisoned(want.len() * 4)?;
    let shared_y = runner.poisoned(alone.len() * 4)?;
    buffers.extend([
        y,
        load(runner, &both.stacks[1], &both.files[1], 0)?,
        runner.load(&shared.q, 0)?,
        runner.load(&shared.meta, 0)?,
        shared_y,
    ]);
    let call = experts::down(&both.work(tokens, staged))?;
    runner.launch(&call, &buffers)?;
    let name = format!("{} {format} {rows}x{k} by {tokens}", call.kernel);
    let mut outcomes = Vec::new();
    for (want, buffer, what) in [(&want, y, "routed"), (&alone, shared_y, "shared")] {
        let got = to_f32(&runner.read(buffer)?);
        outcomes.push(compare_f32(format!("{name} {what}"), want, &got));
    }
    Ok(outcomes)
}
