//! Cases of `hc_dots.cu`, with `hc_pre` behind it: the chain of a site of few tokens.

use fpx_quant::{Format, Matrix, Out, matmul_f32};

use super::dense::weights;
use super::hc::{EPS, Params, Want, posted};
use super::{Depth, Noise, Outcome, Runner, compare_f32, f32_bytes, to_f32};
use crate::KernelError;
use crate::launch::hc::{self, Beside, Dots, Open, SITE, STREAMS, Site};
use crate::launch::rows::{self, Row, Tokens};
use crate::launch::{Call, route};

/// Streams as they are, after a block, and after slots and a block: few, and more than are read at once.
const AFTER: [Option<usize>; 4] = [None, Some(0), Some(6), Some(11)];

/// Every format; segments whole, short, over two streams, and more than are added at once; one to 49 tokens: with few and with
/// enough of them blocks share a segment and do not.
///
/// # Errors
/// A failed launch.
pub(super) fn run<R: Runner>(runner: &mut R, depth: Depth) -> Result<Vec<Outcome>, KernelError> {
    let mut shapes = vec![(1, 256), (2, 544), (3, 1000), (9, 33), (8, 96), (49, 160)];
    if depth == Depth::Full {
        shapes.extend([(1, 4096), (2, 4096), (8, 4096), (3, 7168), (1, 8192)]);
    }
    let mut outcomes = Vec::new();
    for format in [Format::F32, Format::F16, Format::BF16] {
        for (n, d) in &shapes {
            for after in AFTER {
                outcomes.extend(chain(runner, format, [*n, *d], after)?);
                runner.reset();
            }
        }
    }
    outcomes.extend(chain(runner, Format::F16, [1, 4224], Some(6))?);
    runner.reset();
    Ok(outcomes)
}

/// Sums of segments `[n][segments][25]` in order: `[n][24]`, and the squares `[n]`.
fn summed(part: &[f32], d: usize) -> (Vec<f32>, Vec<f32>) {
    let (mut dots, mut squares) = (Vec::new(), Vec::new());
    for token in part.chunks(hc::segments(d) * (SITE + 1)) {
        let mut rows = token.chunks(SITE + 1);
        let mut total = rows.next().unwrap_or_default().to_vec();
        for row in rows {
            total.iter_mut().zip(row).for_each(|(t, v)| *t += v);
        }
        squares.extend(total.pop());
        dots.extend(total);
    }
    (dots, squares)
}

/// `hc_dots`, and `hc_pre` with what it gives.
fn chain<R: Runner>(
    runner: &mut R,
    format: Format,
    [n, d]: [usize; 2],
    after: Option<usize>,
) -> Result<Vec<Outcome>, KernelError> {
    let mut noise = Noise::new((n * 100_000 + d * 10) as u64 + after.unwrap_or(9) as u64);
    let x = noise.activations(n * STREAMS, d);
    let w = weights(format, SITE * STREAMS * d, &mut noise);
    let mut floats = |count: usize| (0..count).map(|_| noise.value()).collect::<Vec<f32>>();
    let used = after.unwrap_or(0);
    let (block, slots, mix) = (floats(n * d), floats(n * used * d), floats(n * SITE));
    let p = Params::new(&mut floats, d, 20);
    let next = match after {
        None => x.clone(),
        Some(used) => posted(&x, &block, &slots, &mix, used),
    };
    let matrix = Matrix::new(format, SITE, STREAMS * d, &w)?;
    let mut m = vec![0f32; n * SITE];
    let mut out = Out::new(&mut m, n, SITE);
    matmul_f32(&matrix, 0..SITE, &next, 0..n, &mut out);
    let (x, w) = (runner.load(&f32_bytes(&x), 0)?, runner.load(&w, 0)?);
    let mut buffers = vec![x, w];
    if after.is_some() {
        buffers.push(runner.load(&f32_bytes(&block), 0)?);
        if used > 0 {
            buffers.push(runner.load(&f32_bytes(&slots), 0)?);
        }
        buffers.push(runner.load(&f32_bytes(&mix), 0)?);
        buffers.push(runner.poisoned(next.len() * 4)?);
    }
    let part = runner.poisoned(n * hc::segments(d) * (SITE + 1) * 4)?;
    buffers.push(part);
    let call = hc::dots(format, n, d, after)?;
    runner.launch(&call, &buffers)?;
    let name = format!("{} {n}x{d} after {after:?}", call.kernel);
    let (dots, squares) = summed(&to_f32(&runner.read(part)?), d);
    let want = squares_of(&next, d);
    let mut outcomes = vec![
        compare_f32(format!("{name} dots"), &m, &dots),
        compare_f32(format!("{name} squares"), &want, &squares),
    ];
    let now = buffers[buffers.len() - 2];
    let now = if after.is_some() { now } else { x };
    let got = to_f32(&runner.read(now)?);
    outcomes.push(compare_f32(format!("{name} streams"), &next, &got));
    let again = runner.poisoned(n * hc::segments(d) * (SITE + 1) * 4)?;
    let call = hc::dots_many(format, n, d)?;
    runner.launch(&call, &[now, w, again])?;
    let (dots, squares) = summed(&to_f32(&runner.read(again)?), d);
    let name = format!("{} {n}x{d}", call.kernel);
    outcomes.push(compare_f32(format!("{name} dots"), &m, &dots));
    outcomes.push(compare_f32(format!("{name} squares"), &want, &squares));
    outcomes.extend(pre(runner, &p, [n, d], &name, [now, part], (&next, &m))?);
    Ok(outcomes)
}

/// Squares of each token's streams by rule 4: the dot of a row with itself.
fn squares_of(x: &[f32], d: usize) -> Vec<f32> {
    x.chunks(STREAMS * d)
        .map(|row| engine_core::math::dot(row, row))
        .collect()
}

/// `hc_pre` on segments; `host`: the streams and their dots.
fn pre<R: Runner>(
    runner: &mut R,
    p: &Params,
    [n, d]: [usize; 2],
    name: &str,
    [x, part]: [R::Buffer; 2],
    host: (&[f32], &[f32]),
) -> Result<Vec<Outcome>, KernelError> {
    let mut want = Want::default();
    want.site(host.0, host.1, p);
    let site = Site { n, d, ..p.site };
    let mut buffers = vec![x, part];
    for input in [&p.base, &p.scale, &p.norm] {
        buffers.push(runner.load(&f32_bytes(input), 0)?);
    }
    let outs = [(&want.mix, "mix"), (&want.h, "h")];
    for (out, _) in outs {
        buffers.push(runner.poisoned(out.len() * 4)?);
    }
    let mut outcomes = Vec::new();
    for by in 0..4 {
        let finisher = finisher(runner, by, n)?;
        let call = match finisher {
            None => hc::pre(&site, Dots::Segments, Beside::default())?,
            Some(_) => hc::pre_open(&site, Dots::Segments, Beside::default())?,
        };
        for (at, (out, _)) in outs.iter().enumerate() {
            buffers[5 + at] = runner.poisoned(out.len() * 4)?;
        }
        runner.launch(&call, &buffers)?;
        let mut kernels = call.kernel.to_owned();
        if let Some((call, mut given)) = finisher {
            given.push(buffers[5]);
            runner.launch(&call, &given)?;
            kernels = format!("{kernels} and {}", call.kernel);
        }
        for (at, (want, what)) in outs.iter().enumerate() {
            let got = to_f32(&runner.read(buffers[5 + at])?);
            outcomes.push(compare_f32(format!("{name}, {kernels} {what}"), want, &got));
        }
    }
    Ok(outcomes)
}

/// A launch that finishes open sites beside its own work, and its buffers without mix: one of three, or none.
#[allow(clippy::type_complexity)] // a launch and its buffers
fn finisher<R: Runner>(
    runner: &mut R,
    by: usize,
    n: usize,
) -> Result<Option<(Call, Vec<R::Buffer>)>, KernelError> {
    const EXPERTS: usize = 8;
    let open = Open {
        iterations: 20,
        eps: EPS,
    };
    let shape = route::Shape {
        n,
        experts: EXPERTS,
        used: 1,
        scale: 1.0,
        counted: false,
        units: route::Units::Later,
    };
    let row = Row { dim: 64, n_rot: 32 };
    let tokens = Tokens {
        n,
        heads: 8,
        rows: 1,
        packed: false,
        index: None,
    };
    let (call, reads, writes) = match by {
        1 => {
            let call = route::top_k_beside(&shape, Some(&open))?;
            (call, vec![n * EXPERTS, EXPERTS], vec![n, n])
        }
        2 => {
            let call = route::hash_beside(&shape, 1, Some(&open))?;
            (call, vec![n * EXPERTS, n, 1], vec![n, n])
        }
        3 => {
            let call = rows::heads_and_keys_beside(&row, &tokens, 1e-6, Some(&open))?;
            (call, vec![n * 8 * 64, n * 64, 64, n * 32, n, 64], vec![])
        }
        _ => return Ok(None),
    };
    // Zeros: experts, tokens and rows that are there.
    let mut given = Vec::new();
    for words in reads {
        given.push(runner.load(&vec![0; words * 4], 0)?);
    }
    for words in writes {
        given.push(runner.poisoned(words * 4)?);
    }
    if by == 3 {
        given[4] = runner.poisoned(n * 4)?; // all ones: key rows go nowhere
    }
    Ok(Some((call, given)))
}
