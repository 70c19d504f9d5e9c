//! Cases of `route.cu`.

use super::{
    Depth, Noise, Outcome, Runner, compare_bytes, compare_f32, f32_bytes, to_f32, u32_bytes,
};
use crate::KernelError;
use crate::cpu::{Route, add_rows, route_hash, route_top_k, swiglu};
use crate::launch::route::{self, PLANNED, Shape, UNIT_BYTES, Units};

/// Few and many experts and tokens; equal scores, NaN and infinite logits.
///
/// # Errors
/// A failed launch.
pub fn run<R: Runner>(runner: &mut R, depth: Depth) -> Result<Vec<Outcome>, KernelError> {
    let mut shapes = vec![
        (1, 256, 6),
        (5, 8, 2),
        (9, 384, 6),
        (3, 33, 16),
        (2, 1, 1),
        (8, 40, 6),
        (8, 512, 16),
    ];
    if depth == Depth::Full {
        shapes.extend([(8, 256, 6), (2048, 256, 6), (300, 512, 8)]);
    }
    let mut outcomes = Vec::new();
    for (n, experts, used) in shapes {
        for table in [false, true] {
            let mut units = vec![Units::Slots, Units::Later];
            if n <= PLANNED {
                units.extend([Units::Planned(1), Units::Planned(4)]);
            }
            for units in units {
                outcomes.extend(routes(runner, (n, experts, used), table, units)?);
                runner.reset();
            }
        }
    }
    let mut plans = vec![(1, 8, 1), (48, 256, 2), (100, 4, 8), (7, 1, 4)];
    if depth == Depth::Full {
        plans.extend([(12_288, 256, 8), (48, 512, 4)]);
    }
    for (slots, experts, wide) in plans {
        outcomes.extend(plan(runner, slots, experts, wide)?);
        runner.reset();
    }
    for (n, d) in [(1, 32), (3, 300), (9, 1024)] {
        outcomes.extend(joined(runner, n, d)?);
        runner.reset();
    }
    Ok(outcomes)
}

const VOCABULARY: usize = 50;
const SCALE: f32 = 1.5;

/// Inputs of a routing step, and what it must give.
struct Case {
    logits: Vec<f32>,
    bias: Vec<f32>,
    tokens: Vec<u32>,
    table: Vec<u32>,
    /// Counters before and after.
    before: Vec<u64>,
    after: Vec<u64>,
    chosen: Vec<u32>,
    weights: Vec<f32>,
}

impl Case {
    fn new(n: usize, experts: usize, used: usize, by_table: bool) -> Self {
        let mut noise = Noise::new((n * 10_000 + experts) as u64);
        // A coarse grid: equal scores are common.
        let mut logits: Vec<f32> = (0..n * experts)
            .map(|_| (noise.value() * 4.0).round() * 2.0)
            .collect();
        logits[0] = 30.0;
        if n > 2 {
            logits[experts] = f32::NAN;
            logits[experts + experts / 2] = f32::INFINITY;
            logits[2 * experts] = -200.0;
        }
        let bias = (0..experts).map(|_| (noise.value() * 2.0).round() * 0.25);
        let bias = bias.collect();
        let tokens = (0..n).map(|_| noise.below(VOCABULARY as u32)).collect();
        let table = (0..VOCABULARY * used).map(|_| noise.below(experts as u32));
        let table = table.collect();
        // Counters go on from where they were.
        let before: Vec<u64> = (0..experts as u64).map(|e| (e % 3) << 33 | e).collect();
        let mut case = Self {
            logits,
            bias,
            tokens,
            table,
            after: before.clone(),
            before,
            chosen: Vec::new(),
            weights: Vec::new(),
        };
        case.route(experts, used, by_table);
        case
    }

    /// Order and units that follow from the chosen experts; empty if not asked for.
    fn units(&self, units: Units) -> (Vec<u32>, Vec<u32>) {
        match units {
            Units::Later => (Vec::new(), Vec::new()),
            Units::Planned(wide) => planned(&self.chosen, wide),
            Units::Slots => {
                let each = (0u32..).zip(&self.chosen);
                let list = each.flat_map(|(slot, e)| [*e, slot, 1, 0]).collect();
                (Vec::new(), list)
            }
        }
    }

    fn route(&mut self, experts: usize, used: usize, by_table: bool) {
        for (logits, token) in self.logits.chunks(experts).zip(&self.tokens) {
            let (mut scores, mut routes) = (vec![0f32; experts], vec![Route::default(); used]);
            if by_table {
                let row = &self.table[*token as usize * used..][..used];
                route_hash(logits, row, SCALE, &mut scores, &mut routes);
            } else {
                route_top_k(logits, &self.bias, SCALE, &mut scores, &mut routes);
            }
            for r in routes {
                self.chosen.push(r.expert);
                self.weights.push(r.weight);
                self.after[r.expert as usize] += 1;
            }
        }
    }
}

fn routes<R: Runner>(
    runner: &mut R,
    (n, experts, used): (usize, usize, usize),
    by_table: bool,
    units: Units,
) -> Result<Vec<Outcome>, KernelError> {
    let case = Case::new(n, experts, used, by_table);
    let s = Shape {
        n,
        experts,
        used,
        scale: SCALE,
        counted: true,
        units,
    };
    let slots = n * used;
    let mut buffers = vec![runner.load(&f32_bytes(&case.logits), 0)?];
    let call = if by_table {
        buffers.push(runner.load(&u32_bytes(&case.tokens), 0)?);
        buffers.push(runner.load(&u32_bytes(&case.table), 0)?);
        route::hash(&s, VOCABULARY)?
    } else {
        buffers.push(runner.load(&f32_bytes(&case.bias), 0)?);
        route::top_k(&s)?
    };
    let counts = |c: &[u64]| c.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let mut outs = vec![
        runner.poisoned(slots * 4)?,
        runner.poisoned(slots * 4)?,
        runner.load(&counts(&case.before), 0)?,
    ];
    let mut wanted = vec![
        ("experts", u32_bytes(&case.chosen), outs[0]),
        ("counts", counts(&case.after), outs[2]),
    ];
    if s.visited() {
        outs.push(runner.load(&counts(&[VISITS]), 0)?);
        let after = counts(&[VISITS + distinct(&case.chosen)]);
        wanted.push(("visits", after, outs[3]));
    }
    let (order, list) = case.units(units);
    for (what, want) in [("units", list), ("order", order)] {
        if !want.is_empty() {
            outs.push(runner.poisoned(want.len() * 4)?);
            wanted.push((what, u32_bytes(&want), outs[outs.len() - 1]));
        }
    }
    buffers.extend(&outs);
    runner.launch(&call, &buffers)?;
    let name = format!("{} {n}x{experts} use {used}, {units:?}", call.kernel);
    let weights = to_f32(&runner.read(outs[1])?);
    let mut outcomes = vec![compare_f32(
        format!("{name} weights"),
        &case.weights,
        &weights,
    )];
    for (what, want, out) in wanted {
        let got = runner.read(out)?;
        outcomes.push(compare_bytes(format!("{name} {what}"), &want, &got));
    }
    Ok(outcomes)
}

/// A counter that goes on from where it was.
const VISITS: u64 = 5 << 32;

/// How many experts are among the chosen.
fn distinct(chosen: &[u32]) -> u64 {
    let all: std::collections::BTreeSet<&u32> = chosen.iter().collect();
    all.len() as u64
}

/// Slots by expert, and units of at most `wide` of one expert: `[slots]` of four words.
pub(super) fn planned(chosen: &[u32], wide: usize) -> (Vec<u32>, Vec<u32>) {
    let mut order: Vec<u32> = (0..chosen.len() as u32).collect();
    order.sort_by_key(|s| chosen[*s as usize]);
    let mut units = Vec::new();
    let mut at = 0;
    for run in order.chunk_by(|a, b| chosen[*a as usize] == chosen[*b as usize]) {
        for part in run.chunks(wide) {
            units.extend([chosen[run[0] as usize], at, part.len() as u32, 0]);
            at += part.len() as u32;
        }
    }
    units.resize(chosen.len() * 4, 0);
    (order, units)
}

fn plan<R: Runner>(
    runner: &mut R,
    slots: usize,
    experts: usize,
    wide: usize,
) -> Result<Vec<Outcome>, KernelError> {
    let mut noise = Noise::new((slots * 1000 + experts) as u64);
    let chosen: Vec<u32> = (0..slots).map(|_| noise.below(experts as u32)).collect();
    let (order, units) = planned(&chosen, wide);
    let buffers = [
        runner.load(&u32_bytes(&chosen), 0)?,
        runner.load(&VISITS.to_le_bytes(), 0)?,
        runner.poisoned(slots * 4)?,
        runner.poisoned(slots * UNIT_BYTES)?,
    ];
    runner.launch(&route::plan(slots, wide)?, &buffers)?;
    let name = format!("route_plan {slots} slots, {experts} experts, {wide} wide");
    let (got, got_units) = (runner.read(buffers[2])?, runner.read(buffers[3])?);
    let visits = (VISITS + distinct(&chosen)).to_le_bytes();
    Ok(vec![
        compare_bytes(format!("{name} visits"), &visits, &runner.read(buffers[1])?),
        compare_bytes(format!("{name} order"), &u32_bytes(&order), &got),
        compare_bytes(format!("{name} units"), &u32_bytes(&units), &got_units),
    ])
}

/// Activations, and the routed sum.
fn joined<R: Runner>(runner: &mut R, n: usize, d: usize) -> Result<Vec<Outcome>, KernelError> {
    const LIMIT: f32 = 3.0;
    let used = 6;
    let mut noise = Noise::new((n * 1000 + d + 3) as u64);
    let (mut gate, up) = (noise.activations(n, d), noise.activations(n, d));
    gate[n * d / 2] = f32::NAN;
    let weights: Vec<f32> = (0..n).map(|_| noise.value()).collect();
    let mut outcomes = Vec::new();
    for weighted in [true, false] {
        let mut want = vec![0f32; n * d];
        for (i, h) in want.chunks_mut(d).enumerate() {
            let at = i * d..(i + 1) * d;
            let weight = weighted.then(|| weights[i]);
            swiglu(&gate[at.clone()], &up[at], LIMIT, weight, h);
        }
        let mut buffers = vec![
            runner.load(&f32_bytes(&gate), 0)?,
            runner.load(&f32_bytes(&up), 0)?,
        ];
        if weighted {
            buffers.push(runner.load(&f32_bytes(&weights), 0)?);
        }
        let h = runner.poisoned(n * d * 4)?;
        buffers.push(h);
        runner.launch(&route::swiglu(n, d, weighted, LIMIT)?, &buffers)?;
        let name = format!("swiglu {n}x{d} weighted {weighted}");
        outcomes.push(compare_f32(name, &want, &to_f32(&runner.read(h)?)));
    }
    let (slots, shared) = (noise.activations(n * used, d), noise.activations(n, d));
    let mut want = vec![0f32; n * d];
    for (i, out) in want.chunks_mut(d).enumerate() {
        add_rows(
            &slots[i * used * d..][..used * d],
            &shared[i * d..][..d],
            out,
        );
    }
    let buffers = [
        runner.load(&f32_bytes(&slots), 0)?,
        runner.load(&f32_bytes(&shared), 0)?,
        runner.poisoned(n * d * 4)?,
    ];
    runner.launch(&route::combine(n, used, d)?, &buffers)?;
    outcomes.push(compare_f32(
        format!("moe_combine {n}x{used}x{d}"),
        &want,
        &to_f32(&runner.read(buffers[2])?),
    ));
    Ok(outcomes)
}
