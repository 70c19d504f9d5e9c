//! Cases of `tiled.cu`, `tiled_more.cu` and `tiled_k.cu`: every format in tile order, alone and as experts. Those of few tokens'
//! experts with the shared one stand beside.

use fpx_quant::{Format, Fp2Dialect, Fp6Endpoint};

use super::reference::{self, Activations};
use super::route::planned;
use super::{
    Depth, Noise, Outcome, Runner, compare_bytes, compare_f32, f32_bytes, to_f32, u32_bytes,
};
use crate::KernelError;
use crate::cpu::swiglu;
use crate::launch::tiled::{self, Stack, Work};
use crate::launch::{Call, grouped};

const LIMIT: f32 = 10.0;

/// The formats; dialects of ROCmFP2 share kernels.
pub const FORMATS: &[Format] = &[
    Format::Fp4Fast,
    Format::Fp2(Fp2Dialect::Signed),
    Format::Fp2(Fp2Dialect::SignedNeg),
    Format::Fp2(Fp2Dialect::S40),
    Format::Fp3,
    Format::Q8_0,
    Format::Mxfp4,
    Format::Fp4,
    Format::Fp6(Fp6Endpoint::Zero),
    Format::Fp6(Fp6Endpoint::Neg32),
    Format::Fp8,
    Format::Fp2(Fp2Dialect::Affine),
    Format::Q4K,
    Format::Q2K,
    Format::Iq2Xxs,
];

/// The next width that a row of a format can have.
#[must_use]
pub fn whole(format: Format, k: usize) -> usize {
    k.next_multiple_of(format.block_elems())
}

/// Which kernels: those of few rows, or those of many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// `tiled.cu`, `tiled_more.cu` and `tiled_k.cu`.
    Few,
    /// `grouped.cu`, `grouped_more.cu` and `grouped_k.cu`.
    Many,
}

impl Way {
    fn product(self, w: &Stack, work: &Work) -> Result<Call, KernelError> {
        match self {
            Self::Few => tiled::gemv(w, work),
            Self::Many => grouped::product(w, work),
        }
    }

    fn gate_up(self, w: &Stack, work: &Work, routed: bool) -> Result<Call, KernelError> {
        match self {
            Self::Few => tiled::gate_up(w, work, routed, routed, LIMIT),
            Self::Many => grouped::gate_up(w, work, routed, routed, LIMIT),
        }
    }
}

/// Random file blocks of so many weights: all codes, all valid scales where `wild`, usual ones else; a tenth zero.
#[must_use]
pub fn random_blocks(format: Format, weights: usize, noise: &mut Noise, wild: bool) -> Vec<u8> {
    let count = weights / format.block_elems();
    let mut raw = vec![0u8; count * format.block_bytes()];
    for block in raw.chunks_exact_mut(format.block_bytes()) {
        if noise.below(10) == 0 {
            continue;
        }
        block.fill_with(|| noise.below(256) as u8);
        let mut ue4m3 = || {
            let usual = 0x20 + noise.below(32) as u8;
            if wild { noise.below(0x7f) as u8 } else { usual }
        };
        match format {
            Format::Fp4Fast => block[16] = ue4m3(),
            Format::Fp4 => (block[16], block[17]) = (ue4m3(), ue4m3()),
            Format::Fp6(_) => (block[24], block[25]) = (ue4m3(), ue4m3()),
            Format::Fp8 => block[32] = ue4m3(),
            Format::Fp2(_) => (block[8], block[9]) = (ue4m3(), ue4m3()),
            Format::Fp3 => (block[12], block[13]) = (ue4m3(), ue4m3()),
            Format::Q8_0 | Format::Iq2Xxs => half(block, 0, noise, wild),
            Format::Q4K => [0, 2]
                .into_iter()
                .for_each(|at| half(block, at, noise, wild)),
            Format::Q2K => [80, 82]
                .into_iter()
                .for_each(|at| half(block, at, noise, wild)),
            _ if wild => block[0] = (block[0] % 40) + 100,
            _ => block[0] = 120 + noise.below(8) as u8,
        }
        if format == Format::Fp2(Fp2Dialect::SignedNeg) {
            block[8] |= (noise.below(2) as u8) << 7;
            block[9] |= (noise.below(2) as u8) << 7;
        }
    }
    raw
}

/// Random bits as an f16 from 2^-9 to 2^-2, some negative, some denormal.
fn half(block: &mut [u8], at: usize, noise: &mut Noise, wild: bool) {
    let high = block[at + 1] & 0x83;
    block[at + 1] = match wild && noise.below(7) == 0 {
        true => high,
        false => high | (6 + noise.below(8) as u8) << 2,
    };
}

/// Every format at short, odd and long rows; experts with shared, single and no slots.
///
/// # Errors
/// A failed launch.
pub fn run<R: Runner>(runner: &mut R, depth: Depth) -> Result<Vec<Outcome>, KernelError> {
    let mut alone: Vec<(usize, usize, &[usize])> = vec![
        (33, 544, &[1, 2, 3]),
        (5, 32, &[9]),
        (70, 4608, &[1, 2, 4]),
        (64, 4608, &[1, 3]),
    ];
    let mut experts = vec![(5, 2, 2, 32, 96), (3, 4, 3, 96, 1056)];
    if depth == Depth::Full {
        alone.extend([
            (4096, 4096, &[1usize, 4, 9] as &[usize]),
            (517, 1024, &[1, 8]),
            (95, 16_384, &[1, 5]),
        ]);
        experts.extend([(16, 1, 6, 256, 4096), (32, 8, 6, 512, 1024)]);
    }
    let mut outcomes = Vec::new();
    for format in FORMATS.iter().copied() {
        for (rows, k, cols) in &alone {
            let k = whole(format, *k);
            outcomes.extend(single(runner, Way::Few, format, *rows, k, cols)?);
            runner.reset();
        }
        outcomes.extend(shared(runner, Way::Few, format, 3)?);
        outcomes.extend(shared(runner, Way::Few, format, 1)?);
        for (count, n, used, ff, d) in &experts {
            let shape = Experts {
                count: *count,
                n: *n,
                used: *used,
                ff: whole(format, *ff),
                d: whole(format, *d),
            };
            for wide in [1, 4] {
                outcomes.extend(mixture(runner, Way::Few, format, &shape, wide)?);
                runner.reset();
            }
        }
    }
    outcomes.extend(super::experts::run(runner)?);
    Ok(outcomes)
}

/// Loads a stack and repacks it.
pub(super) fn load<R: Runner>(
    runner: &mut R,
    w: &Stack,
    raw: &[u8],
    skew: usize,
) -> Result<R::Buffer, KernelError> {
    let file = runner.load(raw, skew)?;
    let packed = runner.poisoned(w.packed_bytes()? as usize)?;
    runner.launch(&tiled::repack(w)?, &[file, packed])?;
    Ok(packed)
}

pub(super) fn single<R: Runner>(
    runner: &mut R,
    way: Way,
    format: Format,
    rows: usize,
    k: usize,
    cols: &[usize],
) -> Result<Vec<Outcome>, KernelError> {
    let mut noise = Noise::new((rows * 100_000 + k) as u64);
    let w = Stack {
        format,
        matrices: 1,
        rows,
        k,
    };
    let raw = random_blocks(format, rows * k, &mut noise, !k.is_multiple_of(512));
    let packed = load(runner, &w, &raw, 1)?;
    let mut outcomes = Vec::new();
    if format == Format::Fp4Fast {
        let tile32 = crate::launch::fp4f::Tile32::new(rows, k)?;
        let name = format!("tiled_repack_fp4f {rows}x{k}");
        let want = super::fp4f::packed(&tile32, &raw);
        outcomes.push(compare_bytes(name, &want, &runner.read(packed)?));
    }
    for cols in cols.iter().copied() {
        let mut x = noise.activations(cols, k);
        x[..32].fill(1e-39);
        if cols > 2 {
            x[2 * k + 5] = f32::NAN;
        }
        let x = Activations::new(&x, cols, k);
        let want = reference::product(format, rows, k, &raw, &x)?;
        let buffers = [
            packed,
            runner.load(&x.q, 0)?,
            runner.load(&x.meta, 0)?,
            runner.poisoned(want.len() * 4)?,
        ];
        let call = way.product(&w, &Work::plain(cols))?;
        runner.launch(&call, &buffers)?;
        let name = format!("{} {format} {rows}x{k} by {cols}", call.kernel);
        outcomes.push(compare_f32(
            &name,
            &want,
            &to_f32(&runner.read(buffers[3])?),
        ));
        if way == Way::Few && rows.is_multiple_of(32) {
            let inputs = [packed, buffers[1], buffers[2]];
            let want = Activations::new(&want, cols, rows);
            outcomes.extend(blocks(runner, &w, &Work::plain(cols), &inputs, &want)?);
        }
    }
    Ok(outcomes)
}

/// The product straight to activation blocks. `inputs`: the launch's buffers before its outputs.
fn blocks<R: Runner>(
    runner: &mut R,
    w: &Stack,
    work: &Work,
    inputs: &[R::Buffer],
    want: &Activations,
) -> Result<[Outcome; 2], KernelError> {
    let (q, meta) = (
        runner.poisoned(want.q.len())?,
        runner.poisoned(want.meta.len())?,
    );
    let call = tiled::gemv_blocks(w, work)?;
    runner.launch(&call, &[inputs, &[q, meta]].concat())?;
    let name = format!("{} {} {}x{} blocks", call.kernel, w.format, w.rows, w.k);
    want.compare(runner, &name, [q, meta])
}

/// Gate, up and activation without units and weights, as the shared expert has them.
pub(super) fn shared<R: Runner>(
    runner: &mut R,
    way: Way,
    format: Format,
    cols: usize,
) -> Result<Vec<Outcome>, KernelError> {
    let (rows, k) = (96, whole(format, 1056));
    let mut noise = Noise::new(cols as u64 + 500);
    let w = Stack {
        format,
        matrices: 1,
        rows,
        k,
    };
    let [gate, up] = [0; 2].map(|_| random_blocks(format, rows * k, &mut noise, false));
    let x = Activations::new(&noise.activations(cols, k), cols, k);
    let (g, u) = (
        reference::product(format, rows, k, &gate, &x)?,
        reference::product(format, rows, k, &up, &x)?,
    );
    let mut want = vec![0f32; g.len()];
    swiglu(&g, &u, LIMIT, None, &mut want);
    let want = Activations::new(&want, cols, rows);
    let buffers = [
        load(runner, &w, &gate, 1)?,
        load(runner, &w, &up, 0)?,
        runner.load(&x.q, 0)?,
        runner.load(&x.meta, 0)?,
        runner.poisoned(want.q.len())?,
        runner.poisoned(want.meta.len())?,
    ];
    let call = way.gate_up(&w, &Work::plain(cols), false)?;
    runner.launch(&call, &buffers)?;
    let name = format!("{} {format} alone {rows}x{k} by {cols}", call.kernel);
    let outcomes = vec![
        compare_bytes(format!("{name} q"), &want.q, &runner.read(buffers[4])?),
        compare_bytes(
            format!("{name} meta"),
            &want.meta,
            &runner.read(buffers[5])?,
        ),
    ];
    runner.reset();
    Ok(outcomes)
}

/// Sizes of a mixture of experts.
pub(super) struct Experts {
    pub(super) count: usize,
    pub(super) n: usize,
    pub(super) used: usize,
    pub(super) ff: usize,
    pub(super) d: usize,
}

/// What one slot's expert gives.
struct Slot {
    h: Vec<f32>,
    y: Vec<f32>,
}

/// Inputs of a mixture and what its slots give.
struct Mixture {
    files: [Vec<u8>; 3],
    chosen: Vec<u32>,
    weights: Vec<f32>,
    x: Activations,
    /// `[slots][ff]` and `[slots][d]`.
    h: Vec<f32>,
    y: Vec<f32>,
}

impl Mixture {
    fn new(format: Format, e: &Experts) -> Result<Self, KernelError> {
        let mut noise = Noise::new((e.count * 1000 + e.ff + e.d) as u64);
        let weights = e.count * e.ff * e.d;
        let files = [0; 3].map(|_| random_blocks(format, weights, &mut noise, false));
        // The last expert has no slot where there are several; the first has several.
        let last = (e.count as u32 - 1).max(1);
        let chosen: Vec<u32> = (0..e.n * e.used)
            .map(|s| if s % 3 == 0 { 0 } else { noise.below(last) })
            .collect();
        let weights: Vec<f32> = chosen.iter().map(|_| noise.value()).collect();
        let x = Activations::new(&noise.activations(e.n, e.d), e.n, e.d);
        let slots = slots_of(format, e, files.each_ref(), &chosen, &weights, &x)?;
        Ok(Self {
            h: slots.iter().flat_map(|s| s.h.clone()).collect(),
            y: slots.iter().flat_map(|s| s.y.clone()).collect(),
            files,
            chosen,
            weights,
            x,
        })
    }
}

/// Gate, up, activation and down of all slots, grouped by expert.
pub(super) fn mixture<R: Runner>(
    runner: &mut R,
    way: Way,
    format: Format,
    e: &Experts,
    wide: usize,
) -> Result<Vec<Outcome>, KernelError> {
    let mix = Mixture::new(format, e)?;
    let slots = mix.chosen.len();
    let stack = |rows, k| Stack {
        format,
        matrices: e.count,
        rows,
        k,
    };
    let (wide_stack, down_stack) = (stack(e.ff, e.d), stack(e.d, e.ff));
    let h = Activations::new(&mix.h, slots, e.ff);
    let (order, units) = planned(&mix.chosen, wide);
    let work = |per| Work {
        slots,
        per,
        wide,
        ordered: true,
    };
    let [gate, up, down] = &mix.files;
    let buffers = [
        load(runner, &wide_stack, gate, 0)?,
        load(runner, &wide_stack, up, 3)?,
        runner.load(&mix.x.q, 0)?,
        runner.load(&mix.x.meta, 0)?,
        runner.load(&u32_bytes(&units), 0)?,
        runner.load(&u32_bytes(&order), 0)?,
        runner.load(&f32_bytes(&mix.weights), 0)?,
        runner.poisoned(h.q.len())?,
        runner.poisoned(h.meta.len())?,
        runner.poisoned(mix.h.len() * 4)?,
    ];
    let call = way.gate_up(&wide_stack, &work(e.used), true)?;
    runner.launch(&call, &buffers)?;
    let of = format!("{slots} of {} experts {}x{}", e.count, e.ff, e.d);
    let name = format!("{} {format} {of}", call.kernel);
    let mut outcomes = vec![
        compare_bytes(format!("{name} q"), &h.q, &runner.read(buffers[7])?),
        compare_bytes(format!("{name} meta"), &h.meta, &runner.read(buffers[8])?),
        compare_f32(
            format!("{name} h"),
            &mix.h,
            &to_f32(&runner.read(buffers[9])?),
        ),
    ];
    let (packed, y) = (
        load(runner, &down_stack, down, 0)?,
        runner.poisoned(mix.y.len() * 4)?,
    );
    let call = way.product(&down_stack, &work(1))?;
    let inputs = [packed, buffers[7], buffers[8], buffers[4], buffers[5]];
    runner.launch(&call, &[&inputs, &[y][..]].concat())?;
    let name = format!("{} {format} {of}", call.kernel);
    outcomes.push(compare_f32(name, &mix.y, &to_f32(&runner.read(y)?)));
    if way == Way::Few && e.d.is_multiple_of(32) {
        let want = Activations::new(&mix.y, slots, e.d);
        outcomes.extend(blocks(runner, &down_stack, &work(1), &inputs, &want)?);
    }
    Ok(outcomes)
}

/// The reference of every slot.
fn slots_of(
    format: Format,
    e: &Experts,
    files: [&Vec<u8>; 3],
    chosen: &[u32],
    weights: &[f32],
    x: &Activations,
) -> Result<Vec<Slot>, KernelError> {
    let bytes = e.ff * e.d / format.block_elems() * format.block_bytes();
    let mut slots = Vec::new();
    for (slot, expert) in chosen.iter().enumerate() {
        let [gate, up, down] = files.map(|f| &f[*expert as usize * bytes..][..bytes]);
        let row = x.only(slot / e.used);
        let g = reference::product(format, e.ff, e.d, gate, &row)?;
        let u = reference::product(format, e.ff, e.d, up, &row)?;
        let mut h = vec![0f32; e.ff];
        swiglu(&g, &u, LIMIT, Some(weights[slot]), &mut h);
        let y = reference::product(format, e.d, e.ff, down, &Activations::new(&h, 1, e.ff))?;
        slots.push(Slot { h, y });
    }
    Ok(slots)
}
