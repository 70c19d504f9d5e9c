//! Cases of `hc.cu`.

use super::reference::Activations;
use super::{Depth, Noise, Outcome, Runner, compare_bytes, compare_f32, f32_bytes, to_f32};
use crate::KernelError;
use crate::cpu::{
    HcMix, HcParams, add_rows, hc_collapse, hc_head_weights, hc_mix, hc_post, hc_tap, rms_factor,
    rms_norm, scale_in_place,
};
use crate::launch::hc::{self, Beside, SITE, STREAMS, Site};

const RMS_EPS: f32 = 1e-6;
const EPS: f32 = 1e-6;

/// Widths with short segments and without whole blocks, one and many tokens, one and twenty rounds.
///
/// # Errors
/// A failed launch.
pub fn run<R: Runner>(runner: &mut R, depth: Depth) -> Result<Vec<Outcome>, KernelError> {
    let mut shapes = vec![
        (1, 256, 20),
        (3, 544, 2),
        (2, 1000, 20),
        (9, 32, 1),
        (8, 96, 3),
    ];
    if depth == Depth::Full {
        shapes.extend([(1, 4096, 20), (8, 4096, 20), (256, 4096, 20), (5, 7168, 20)]);
    }
    let mut outcomes = Vec::new();
    for (n, d, iterations) in shapes {
        outcomes.extend(site(runner, n, d, iterations)?);
        runner.reset();
        outcomes.push(tap(runner, n, d)?);
        runner.reset();
        for used in [0, 6] {
            outcomes.push(post(runner, n, d, used)?);
            runner.reset();
        }
    }
    Ok(outcomes)
}

/// What a site's kernel must give: mixing weights, collapsed rows, their norms.
#[derive(Default)]
struct Want {
    mix: Vec<f32>,
    u: Vec<f32>,
    h: Vec<f32>,
}

impl Want {
    fn token(&mut self, x: &[f32], pre: &[f32; STREAMS], norm: &[f32]) {
        let (mut u, mut h) = (vec![0f32; norm.len()], vec![0f32; norm.len()]);
        hc_collapse(x, pre, &mut u);
        rms_norm(&u, norm, RMS_EPS, &mut h);
        self.u.extend(u);
        self.h.extend(h);
    }
}

/// The mixing weights as the kernels hold them.
fn flat(mix: &HcMix) -> Vec<f32> {
    let all = mix.pre.iter().chain(&mix.post);
    all.chain(mix.comb.as_flattened()).copied().collect()
}

/// `hc_pre` and `hc_head` on the same streams.
fn site<R: Runner>(
    runner: &mut R,
    n: usize,
    d: usize,
    iterations: usize,
) -> Result<Vec<Outcome>, KernelError> {
    let mut noise = Noise::new((n * 100_000 + d) as u64);
    let x = noise.activations(n * STREAMS, d);
    let mut floats = |count: usize| (0..count).map(|_| noise.value()).collect::<Vec<f32>>();
    let (m, base, scale, mut norm) = (floats(n * SITE), floats(SITE), floats(3), floats(d));
    if n > 2 {
        norm[7] = f32::NAN; // the block's d says so
    }
    let p = HcParams {
        base: &base,
        scale: &scale,
        iterations: iterations as u32,
        eps: EPS,
    };
    let (mut pre, mut head) = (Want::default(), Want::default());
    for (x, m) in x.chunks(STREAMS * d).zip(m.chunks(SITE)) {
        let mut m = m.to_vec();
        scale_in_place(&mut m, rms_factor(x, RMS_EPS));
        let mix = hc_mix(&m, &p);
        pre.mix.extend(flat(&mix));
        pre.token(x, &mix.pre, &norm);
        let weights = hc_head_weights(&m, &p);
        head.mix.extend(weights);
        head.token(x, &weights, &norm);
    }
    let s = Site {
        n,
        d,
        iterations,
        rms_eps: RMS_EPS,
        eps: EPS,
    };
    let head_m: Vec<f32> = m.chunks(SITE).flat_map(|m| m[..STREAMS].to_vec()).collect();
    let mut outcomes = Vec::new();
    let beside = Beside {
        u: true,
        a8: d.is_multiple_of(32),
    };
    for (call, m, want) in [
        (hc::pre(&s, beside)?, &m, &pre),
        (hc::head(&s, beside)?, &head_m, &head),
    ] {
        let blocks = beside.a8.then(|| Activations::new(&want.h, n, d));
        let inputs = [&x, m, &base, &scale, &norm];
        let mut buffers = Vec::new();
        for input in inputs {
            buffers.push(runner.load(&f32_bytes(input), 0)?);
        }
        for out in [&want.mix, &want.u, &want.h] {
            buffers.push(runner.poisoned(out.len() * 4)?);
        }
        for out in blocks.iter().flat_map(|b| [&b.q, &b.meta]) {
            buffers.push(runner.poisoned(out.len())?);
        }
        runner.launch(&call, &buffers)?;
        let name = format!("{} {n}x{d} x{iterations}", call.kernel);
        let outs = [(&want.mix, "mix"), (&want.u, "u"), (&want.h, "h")];
        for (at, (want, what)) in outs.into_iter().enumerate() {
            let got = to_f32(&runner.read(buffers[5 + at])?);
            outcomes.push(compare_f32(format!("{name} {what}"), want, &got));
        }
        if let Some(b) = &blocks {
            outcomes.extend(b.compare(runner, &name, [buffers[8], buffers[9]])?);
        }
    }
    Ok(outcomes)
}

fn post<R: Runner>(
    runner: &mut R,
    n: usize,
    d: usize,
    used: usize,
) -> Result<Outcome, KernelError> {
    let mut noise = Noise::new((n * 100_000 + d * 10 + used) as u64);
    let x = noise.activations(n * STREAMS, d);
    let mut floats = |count: usize| (0..count).map(|_| noise.value()).collect::<Vec<f32>>();
    let (block, slots, mix) = (floats(n * d), floats(n * used * d), floats(n * SITE));
    let mut want = x.clone();
    for (token, x) in want.chunks_mut(STREAMS * d).enumerate() {
        let w = &mix[token * SITE..][..SITE];
        let weights = HcMix {
            pre: [0.0; 4],
            post: std::array::from_fn(|k| w[4 + k]),
            comb: std::array::from_fn(|j| std::array::from_fn(|k| w[8 + 4 * j + k])),
        };
        let shared = &block[token * d..][..d];
        let mut sum = shared.to_vec();
        if used > 0 {
            add_rows(&slots[token * used * d..][..used * d], shared, &mut sum);
        }
        hc_post(x, &sum, &weights);
    }
    let mut buffers = vec![
        runner.load(&f32_bytes(&x), 0)?,
        runner.load(&f32_bytes(&block), 0)?,
    ];
    if used > 0 {
        buffers.push(runner.load(&f32_bytes(&slots), 0)?);
    }
    buffers.push(runner.load(&f32_bytes(&mix), 0)?);
    runner.launch(&hc::post(n, d, used)?, &buffers)?;
    let name = format!("hc_post {n}x{d} with {used} slots");
    Ok(compare_f32(name, &want, &to_f32(&runner.read(buffers[0])?)))
}

/// The middle one of three layers; the others' places stay as they are.
fn tap<R: Runner>(runner: &mut R, n: usize, d: usize) -> Result<Outcome, KernelError> {
    let x = Noise::new((n + d) as u64).activations(n * STREAMS, d);
    let mut want = vec![f32::from_bits(u32::MAX); n * 3 * d];
    for (x, out) in x.chunks(STREAMS * d).zip(want.chunks_mut(3 * d)) {
        hc_tap(x, &mut out[d..2 * d]);
    }
    let buffers = [
        runner.load(&f32_bytes(&x), 0)?,
        runner.poisoned(want.len() * 4)?,
    ];
    runner.launch(&hc::tap(n, d, 3, 1)?, &buffers)?;
    let got = runner.read(buffers[1])?;
    let name = format!("hc_tap {n}x{d}");
    Ok(compare_bytes(name, &f32_bytes(&want), &got))
}
