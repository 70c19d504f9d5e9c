//! Cases of `embed.cu` and `head.cu`, and of a Markov chain that runs on the device alone.

use fpx_quant::{EncodeMode, Format, Matrix, Out, decode_row, encode_rows, matmul_f32};

use super::draws::{draw, noise_row};
use super::tiled::{FORMATS, random_blocks, whole};
use super::{
    Depth, Noise, Outcome, Runner, compare_bytes, compare_f32, f32_bytes, to_f32, u32_bytes,
};
use crate::KernelError;
use crate::launch::dense;
use crate::launch::head::{self, PARTS, Plan};

/// Rows of every format; draws of every plan from plain and odd rows; a chain.
///
/// # Errors
/// A failed launch.
pub fn run<R: Runner>(runner: &mut R, depth: Depth) -> Result<Vec<Outcome>, KernelError> {
    let mut outcomes = Vec::new();
    let floats = [Format::F32, Format::F16, Format::BF16];
    for format in FORMATS.iter().copied().chain(floats) {
        outcomes.push(embed(runner, format)?);
        runner.reset();
    }
    let mut vocabularies = vec![9_001, 5];
    if depth == Depth::Full {
        vocabularies.extend([129_280, 70_001]);
    }
    for vocabulary in vocabularies {
        for base in [false, true] {
            outcomes.extend(draws(runner, vocabulary, base)?);
            runner.reset();
        }
    }
    outcomes.push(sound(runner)?);
    runner.reset();
    outcomes.push(chain(
        runner,
        if depth == Depth::Full { 129_280 } else { 700 },
    )?);
    runner.reset();
    Ok(outcomes)
}

fn embed<R: Runner>(runner: &mut R, format: Format) -> Result<Outcome, KernelError> {
    let (vocabulary, copies) = (9, 4);
    let d = whole(format, 288);
    let mut noise = Noise::new(77);
    let raw = if format.is_float() {
        let values: Vec<f32> = (0..vocabulary * d).map(|_| noise.value()).collect();
        let mut raw = vec![0; format.matrix_bytes(vocabulary, d)?];
        encode_rows(format, &values, d, None, EncodeMode::Reference, &mut raw)?;
        raw
    } else {
        random_blocks(format, vocabulary * d, &mut noise, true)
    };
    let tokens = [8u32, 0, 3, 3, vocabulary as u32, head::NOTHING];
    let size = format.row_bytes(d)?;
    let mut want = Vec::new();
    for token in tokens {
        let mut row = vec![f32::NAN; d];
        if let Some(bytes) = raw.chunks(size).nth(token as usize) {
            decode_row(format, bytes, &mut row)?;
        }
        (0..copies).for_each(|_| want.extend_from_slice(&row));
    }
    let skew = if format.is_float() { 0 } else { 1 };
    let buffers = [
        runner.load(&raw, skew)?,
        runner.load(&u32_bytes(&tokens), 0)?,
        runner.poisoned(want.len() * 4)?,
    ];
    let call = head::embed(format, vocabulary, d, tokens.len(), copies)?;
    runner.launch(&call, &buffers)?;
    let name = format!("{} {format} {}x{d}", call.kernel, tokens.len());
    Ok(compare_f32(name, &want, &to_f32(&runner.read(buffers[2])?)))
}

/// Rows with NaN at the start, at the end and nowhere; infinities are numbers.
fn sound<R: Runner>(runner: &mut R) -> Result<Outcome, KernelError> {
    let vocabulary = 33_000;
    let mut rows = vec![1.5f32; 4 * vocabulary];
    rows[3] = f32::INFINITY;
    rows[vocabulary] = f32::NAN;
    rows[3 * vocabulary - 1] = -f32::NAN;
    let buffers = [
        runner.load(&f32_bytes(&rows), 0)?,
        runner.load(&u32_bytes(&[5, 6, 7, 8]), 0)?,
    ];
    runner.launch(&head::sound(4, vocabulary)?, &buffers)?;
    let want = u32_bytes(&[5, head::NOTHING, head::NOTHING, 8]);
    Ok(compare_bytes(
        "draw_sound",
        &want,
        &runner.read(buffers[1])?,
    ))
}

/// Plans with and without filters.
fn plans() -> Vec<Plan> {
    let plan = |i: u32, temperature, top_k, min_p, top_p| Plan {
        noise: noise_row(42, i, 1000 + i),
        temperature,
        top_k,
        min_p,
        top_p,
    };
    vec![
        plan(0, 0.0, 0, 0.0, 1.0),
        plan(1, 1.0, 0, 0.0, 1.0),
        plan(2, 0.6, 0, 0.0, 1.0),
        plan(3, 1.3, 40, 0.0, 1.0),
        plan(4, 1.0, 0, 0.05, 1.0),
        plan(5, 1.0, 0, 0.0, 0.9),
        plan(6, 0.7, 20, 0.02, 0.8),
        plan(7, 2.0, 1, 0.0, 1.0),
        plan(8, 1.0, 0, 0.0, 1e-12),
        plan(9, 1.5, 1_000_000, 0.0, 0.999_99),
    ]
}

/// Rows of several kinds under all plans.
struct Rows {
    plans: Vec<Plan>,
    logits: Vec<f32>,
    /// Added to the logits, and their sums.
    base: Option<Vec<f32>>,
    sums: Vec<f32>,
}

impl Rows {
    fn new(vocabulary: usize, base: bool) -> Self {
        let mut noise = Noise::new(vocabulary as u64 + u64::from(base));
        let kinds: [&dyn Fn(&mut Noise) -> f32; 4] = [
            &|n| n.value() * 6.0,
            &|n| (n.value() * 3.0).round(),
            &|_| 1.5,
            &|n| match n.below(3) {
                0 => f32::NAN,
                _ => n.value() - 40.0,
            },
        ];
        let (mut all, mut logits) = (Vec::new(), Vec::new());
        for kind in kinds {
            for plan in plans() {
                all.push(plan);
                logits.extend((0..vocabulary).map(|_| kind(&mut noise)));
            }
        }
        // Nothing to draw, one value, an infinite one.
        for (at, value) in [(0, None), (1, Some(-3.0)), (2, Some(f32::INFINITY))] {
            let row = &mut logits[(30 + at) * vocabulary..][..vocabulary];
            row.fill(f32::NEG_INFINITY);
            row[vocabulary / 2] = value.unwrap_or(f32::NAN);
        }
        let base = base.then(|| {
            let values = (0..logits.len()).map(|_| (noise.value() * 2.0).round());
            values.collect::<Vec<f32>>()
        });
        let sums = match &base {
            Some(base) => logits.iter().zip(base).map(|(a, b)| a + b).collect(),
            None => logits.clone(),
        };
        Self {
            plans: all,
            logits,
            base,
            sums,
        }
    }

    /// The tokens, with the plans' filters or without.
    fn tokens(&self, filters: bool) -> Vec<u8> {
        let vocabulary = self.sums.len() / self.plans.len();
        let rows = self.sums.chunks(vocabulary).zip(&self.plans);
        let tokens = rows.map(|(row, plan)| {
            let mut plan = *plan;
            if !filters {
                (plan.top_k, plan.min_p, plan.top_p) = (0, 0.0, 1.0);
            }
            draw(row, &plan)
        });
        u32_bytes(&tokens.collect::<Vec<u32>>())
    }
}

/// All plans on rows of several kinds.
fn draws<R: Runner>(
    runner: &mut R,
    vocabulary: usize,
    base: bool,
) -> Result<Vec<Outcome>, KernelError> {
    let rows = Rows::new(vocabulary, base);
    let n = rows.plans.len();
    let mut inputs = vec![runner.load(&f32_bytes(&rows.logits), 0)?];
    if let Some(base) = &rows.base {
        inputs.push(runner.load(&f32_bytes(base), 0)?);
    }
    let plans: Vec<u8> = rows.plans.iter().flat_map(Plan::bytes).collect();
    inputs.push(runner.load(&plans, 0)?);
    let with = |outs: &[R::Buffer]| [&inputs[..], outs].concat();
    let name = format!("{n} of {vocabulary}, base {base}");
    // Filled with a token, because a row without numbers gives all ones.
    let (best, tokens) = (
        runner.poisoned(n * PARTS * 8)?,
        runner.load(&vec![7; n * 4], 0)?,
    );
    runner.launch(&head::part(n, vocabulary, base)?, &with(&[best]))?;
    runner.launch(&head::merge(n)?, &[best, tokens])?;
    let got = runner.read(tokens)?;
    let mut outcomes = vec![compare_bytes(
        format!("draw_part {name}"),
        &rows.tokens(false),
        &got,
    )];
    let (y, tokens) = (
        runner.poisoned(rows.logits.len() * 4)?,
        runner.load(&vec![7; n * 4], 0)?,
    );
    runner.launch(&head::filtered(n, vocabulary, base)?, &with(&[y, tokens]))?;
    let got = runner.read(tokens)?;
    outcomes.push(compare_bytes(
        format!("draw_filtered {name}"),
        &rows.tokens(true),
        &got,
    ));
    Ok(outcomes)
}

/// A chain of five tokens: Markov row of the last token, its product with the vocabulary, plus the
/// base, a draw; each step finds the token of the one before on the device.
fn chain<R: Runner>(runner: &mut R, vocabulary: usize) -> Result<Outcome, KernelError> {
    let (rank, steps, seed) = (64, 5, 3u32);
    let mut noise = Noise::new(vocabulary as u64);
    let mut halves = |n: usize| -> Vec<u8> {
        let one = |w: u32| ((w & 0x83ff) as u16 | (9 + (w >> 16) as u16 % 8) << 10).to_le_bytes();
        (0..n).flat_map(|_| one(noise.word())).collect()
    };
    let (w1, w2) = (halves(vocabulary * rank), halves(vocabulary * rank));
    let base: Vec<f32> = (0..steps * vocabulary).map(|_| noise.value()).collect();
    let plan = |step: usize| Plan {
        noise: noise_row(9, 0, 100 + step as u32),
        temperature: if step == 2 { 0.0 } else { 0.8 },
        top_p: 1.0,
        ..Plan::default()
    };
    let matrix = Matrix::new(Format::F16, vocabulary, rank, &w2)?;
    let (mut want, mut previous) = (Vec::new(), seed);
    for step in 0..steps {
        let mut row = vec![0f32; rank];
        decode_row(
            Format::F16,
            &w1[previous as usize * rank * 2..][..rank * 2],
            &mut row,
        )?;
        let mut logits = vec![0f32; vocabulary];
        matmul_f32(
            &matrix,
            0..vocabulary,
            &row,
            0..1,
            &mut Out::new(&mut logits, 1, vocabulary),
        );
        let own = &base[step * vocabulary..][..vocabulary];
        logits.iter_mut().zip(own).for_each(|(v, b)| *v += b);
        previous = draw(&logits, &plan(step));
        want.push(previous);
    }
    let (w1, w2) = (runner.load(&w1, 0)?, runner.load(&w2, 0)?);
    let mut token = runner.load(&seed.to_le_bytes(), 0)?;
    let mut got = Vec::new();
    for step in 0..steps {
        let row = runner.poisoned(rank * 4)?;
        runner.launch(
            &head::embed(Format::F16, vocabulary, rank, 1, 1)?,
            &[w1, token, row],
        )?;
        let logits = runner.poisoned(vocabulary * 4)?;
        runner.launch(
            &dense::product(Format::F16, vocabulary, rank, 1)?,
            &[w2, row, logits],
        )?;
        let own = runner.load(&f32_bytes(&base[step * vocabulary..][..vocabulary]), 0)?;
        let plans = runner.load(&plan(step).bytes(), 0)?;
        let best = runner.poisoned(PARTS * 8)?;
        let next = runner.poisoned(4)?;
        runner.launch(
            &head::part(1, vocabulary, true)?,
            &[logits, own, plans, best],
        )?;
        runner.launch(&head::merge(1)?, &[best, next])?;
        got.extend(runner.read(next)?);
        token = next;
    }
    Ok(compare_bytes(
        format!("chain of {steps} from {vocabulary}"),
        &u32_bytes(&want),
        &got,
    ))
}
