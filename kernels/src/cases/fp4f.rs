//! Cases of the FP4_FAST kernels: repack, 4-way dots, matrix units, tiles; all against one
//! reference.

use fpx_quant::Format;

use super::reference::{self, Activations};
use super::{Depth, Noise, Outcome, Runner, compare_bytes, compare_f32, to_f32};
use crate::KernelError;
use crate::launch::fp4f::{self, BLOCK_BYTES, Gemv, Tile32};

/// One matrix and the numbers of activation rows to multiply it with.
#[derive(Clone, Copy, Debug)]
struct Case {
    rows: usize,
    k: usize,
    cols: &'static [usize],
    /// Bytes by which the file's blocks miss alignment.
    skew: usize,
    /// All valid scale bytes instead of usual ones.
    wild: bool,
}

const fn case(rows: usize, k: usize, cols: &'static [usize], skew: usize, wild: bool) -> Case {
    Case {
        rows,
        k,
        cols,
        skew,
        wild,
    }
}

const QUICK: &[Case] = &[
    case(1, 32, &[1, 8, 9], 1, true),
    case(33, 512, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 63], 3, false),
    case(95, 544, &[1, 8, 9], 1, true),
    case(70, 1024, &[1, 8, 9, 16, 33], 0, false),
    case(130, 1536, &[1, 3, 9], 2, true),
    case(257, 1056, &[1, 8], 5, false),
    case(67, 4096, &[1, 8, 9], 7, true),
    case(37, 8192, &[1, 2, 9], 13, false),
    case(45, 544, &[256], 1, true),
    case(150, 1024, &[256, 65], 0, false),
];

const FULL: &[Case] = &[
    case(1003, 512, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 256], 1, false),
    case(517, 1024, &[1, 8, 9, 256, 300], 3, true),
    case(769, 4096, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 256], 5, false),
    case(331, 8192, &[1, 8, 9, 256], 7, true),
    case(4096, 4096, &[1, 8, 9, 256], 0, false),
    case(1030, 544, &[1, 8, 9, 256], 1, true),
    case(95, 7168, &[1, 8, 9, 256], 2, false),
    case(64, 16_384, &[1, 8, 9, 256], 11, true),
];

/// Random blocks of a matrix, a tenth of them zero.
#[must_use]
pub fn random_matrix(rows: usize, k: usize, seed: u64, wild: bool) -> Vec<u8> {
    let mut noise = Noise::new(seed);
    let mut raw = vec![0u8; rows * k / 32 * BLOCK_BYTES];
    for block in raw.chunks_exact_mut(BLOCK_BYTES) {
        if noise.below(10) == 0 {
            continue;
        }
        let (codes, scale) = block.split_at_mut(16);
        codes.fill_with(|| noise.below(256) as u8);
        scale[0] = if wild {
            noise.below(0x7f) as u8
        } else {
            0x20 + noise.below(32) as u8
        };
    }
    raw
}

/// The bytes of a matrix in tile32 order, as `gpu/fs_fp4.h` describes it.
#[must_use]
pub fn packed(w: &Tile32, raw: &[u8]) -> Vec<u8> {
    let mut out = vec![0u8; w.packed_bytes() as usize];
    let (codes, scales) = out.split_at_mut(w.code_bytes() as usize);
    let (blocks, _) = raw.as_chunks::<BLOCK_BYTES>();
    for (index, block) in blocks.iter().enumerate() {
        let (row, b) = (index / w.blocks(), index % w.blocks());
        let (tile, lane) = (row / 32, row % 32);
        scales[((tile * w.segments() + b / 16) * 32 + lane) * 16 + b % 16] = block[16];
        for element in 0..32 {
            let byte = block[element % 16];
            let code = if element < 16 { byte & 15 } else { byte >> 4 };
            let unit = ((tile * w.groups() + b / 4) * 4 + element / 8) * 32 + lane;
            let at = unit * 16 + b % 4 * 4 + element % 8 / 2;
            codes[at] |= code << (4 * (element % 2));
        }
    }
    out
}

/// Activation rows with corners in the second and NaN and infinity in the last of several.
fn activations(cols: usize, k: usize, seed: u64) -> Vec<f32> {
    let mut x = Noise::new(seed).activations(cols, k);
    x[..32].fill(1e-39); // a block that quantises to zero
    if cols > 1 && k >= 512 {
        let second = &mut x[k..2 * k];
        second[64..96].fill(0.0);
        second[96..128].iter_mut().for_each(|v| *v *= 1e-27);
        let last = &mut x[(cols - 1) * k..];
        last[200] = if cols.is_multiple_of(2) {
            f32::NAN
        } else {
            0.0
        };
        last[300] = if cols.is_multiple_of(3) {
            f32::INFINITY
        } else {
            0.0
        };
    }
    x
}

/// All kernels on all matrices.
///
/// # Errors
/// A failed launch.
pub fn run<R: Runner>(runner: &mut R, depth: Depth) -> Result<Vec<Outcome>, KernelError> {
    let mut outcomes = Vec::new();
    let lists: &[&[Case]] = if depth == Depth::Quick {
        &[QUICK]
    } else {
        &[QUICK, FULL]
    };
    for case in lists.iter().copied().flatten() {
        let seed = (case.rows * 100_000 + case.k) as u64;
        let raw = random_matrix(case.rows, case.k, seed, case.wild);
        let w = Tile32::new(case.rows, case.k)?;
        let name = format!("{}x{}", case.rows, case.k);
        let file = runner.load(&raw, case.skew)?;
        let weights = runner.poisoned(w.packed_bytes() as usize)?;
        runner.launch(&fp4f::repack(&w)?, &[file, weights])?;
        let got = runner.read(weights)?;
        outcomes.push(compare_bytes(
            format!("fp4f_repack {name}"),
            &packed(&w, &raw),
            &got,
        ));
        for cols in case.cols {
            outcomes.extend(products(runner, &w, &raw, weights, *cols, seed)?);
        }
        runner.reset();
    }
    for (rows, k) in PAIRS {
        for (cols, processors) in [(1, 1), (1, 10_000), (2, 1), (runner.width(), 1)] {
            outcomes.extend(pair(runner, *rows, *k, cols, processors)?);
            runner.reset();
        }
    }
    for (rows, k, cols) in STACKS {
        outcomes.extend(stack(runner, *rows, *k, cols)?);
        runner.reset();
    }
    Ok(outcomes)
}

/// Rows and k of the matrices of a stack, and columns.
const STACKS: &[(usize, usize, &[usize])] = &[
    (64, 4096, &[2, 8, 9]),
    (96, 544, &[1, 6, 17]),
    (33, 8192, &[3]),
    (32, 32, &[2]),
];

/// Three matrices with a row each for every column, as f32 and, of whole blocks, as activation blocks.
fn stack<R: Runner>(
    runner: &mut R,
    rows: usize,
    k: usize,
    cols: &[usize],
) -> Result<Vec<Outcome>, KernelError> {
    const MATRICES: usize = 3;
    let w = Tile32::new(rows, k)?;
    let raw: Vec<Vec<u8>> = (0..MATRICES)
        .map(|z| random_matrix(rows, k, (rows + z) as u64, false))
        .collect();
    let all: Vec<u8> = raw.iter().flat_map(|raw| packed(&w, raw)).collect();
    let mut outcomes = Vec::new();
    for cols in cols.iter().copied() {
        let x = Activations::new(&activations(cols * MATRICES, k, 9), cols * MATRICES, k);
        let mut want = Vec::new();
        for slot in 0..cols * MATRICES {
            let one = x.only(slot);
            want.extend(reference::product(
                Format::Fp4Fast,
                rows,
                k,
                &raw[slot % MATRICES],
                &one,
            )?);
        }
        let inputs = [
            runner.load(&all, 0)?,
            runner.load(&x.q, 0)?,
            runner.load(&x.meta, 0)?,
        ];
        let name = format!("fp4f_mma_stack {MATRICES}x{rows}x{k} by {cols}");
        let y = runner.poisoned(want.len() * 4)?;
        let call = fp4f::stack(&w, MATRICES, cols, runner.width(), false)?;
        runner.launch(&call, &[&inputs[..], &[y]].concat())?;
        outcomes.push(compare_f32(name.clone(), &want, &to_f32(&runner.read(y)?)));
        if rows.is_multiple_of(32) {
            let blocks = Activations::new(&want, cols * MATRICES, rows);
            let out = [
                runner.poisoned(blocks.q.len())?,
                runner.poisoned(blocks.meta.len())?,
            ];
            let call = fp4f::stack(&w, MATRICES, cols, runner.width(), true)?;
            runner.launch(&call, &[&inputs[..], &out].concat())?;
            outcomes.extend(blocks.compare(runner, &name, out)?);
        }
    }
    Ok(outcomes)
}

/// Rows of two matrices, and their k.
const PAIRS: &[([usize; 2], usize)] = &[([64, 33], 1024), ([5, 70], 544), ([96, 40], 4608)];

/// Two matrices in one launch, on a device of so many processors.
fn pair<R: Runner>(
    runner: &mut R,
    rows: [usize; 2],
    k: usize,
    cols: usize,
    processors: usize,
) -> Result<Vec<Outcome>, KernelError> {
    let x = Activations::new(&activations(cols, k, 77), cols, k);
    let mut buffers = vec![runner.load(&x.q, 0)?, runner.load(&x.meta, 0)?];
    let mut wants = Vec::new();
    let w = [Tile32::new(rows[0], k)?, Tile32::new(rows[1], k)?];
    for w in &w {
        let raw = random_matrix(w.rows(), k, w.rows() as u64, false);
        let want = reference::product(Format::Fp4Fast, w.rows(), k, &raw, &x)?;
        buffers.push(runner.load(&packed(w, &raw), 0)?);
        buffers.push(runner.poisoned(want.len() * 4)?);
        wants.push(want);
    }
    let call = fp4f::pair([&w[0], &w[1]], cols, runner.width(), processors)?;
    runner.launch(&call, &buffers)?;
    let mut outcomes = Vec::new();
    for (at, want) in wants.iter().enumerate() {
        let got = to_f32(&runner.read(buffers[3 + 2 * at])?);
        let name = format!("{} {at} of {rows:?}x{k} by {cols}", call.kernel);
        outcomes.push(compare_f32(name, want, &got));
    }
    Ok(outcomes)
}

/// Every kernel that takes `cols` columns.
fn products<R: Runner>(
    runner: &mut R,
    w: &Tile32,
    raw: &[u8],
    weights: R::Buffer,
    cols: usize,
    seed: u64,
) -> Result<Vec<Outcome>, KernelError> {
    let x = activations(cols, w.k(), seed + cols as u64);
    let x = Activations::new(&x, cols, w.k());
    let want = reference::product(Format::Fp4Fast, w.rows(), w.k(), raw, &x)?;
    let inputs = [weights, runner.load(&x.q, 0)?, runner.load(&x.meta, 0)?];
    let mut calls = Vec::new();
    if cols <= 9 {
        for spread in Gemv::ALL {
            calls.push(fp4f::gemv(w, cols, *spread)?);
        }
    }
    if cols <= 8 * runner.width() {
        calls.push(fp4f::mma(w, cols, runner.width())?);
    }
    for variant in runner.gemms() {
        calls.push(fp4f::gemm(w, cols, *variant)?);
    }
    let mut outcomes = Vec::new();
    for call in calls {
        let y = runner.poisoned(want.len() * 4)?;
        runner.launch(&call, &[inputs[0], inputs[1], inputs[2], y])?;
        let name = format!("{} {}x{} by {cols}", call.kernel, w.rows(), w.k());
        outcomes.push(compare_f32(name, &want, &to_f32(&runner.read(y)?)));
    }
    Ok(outcomes)
}
