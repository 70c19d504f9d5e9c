//! Cases of `hc.cu`, and those of `hc_dots.cu` behind them.

use super::reference::Activations;
use super::{
    Depth, Noise, Outcome, Runner, compare_bytes, compare_f32, f32_bytes, hc_dots, to_f32,
};
use crate::KernelError;
use crate::cpu::{
    HcMix, HcParams, add_rows, hc_collapse, hc_head_weights, hc_mix, hc_post, hc_tap, rms_factor,
    rms_norm, scale_in_place,
};
use crate::launch::hc::{self, Beside, Dots, SITE, STREAMS, Site};

const RMS_EPS: f32 = 1e-6;
pub(super) const EPS: f32 = 1e-6;

/// Widths with short segments, without whole blocks and past what a thread takes at 4096; one and many tokens, one and twenty
/// rounds; more slots than are read at once.
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
        (1, 4224, 2),
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
        for used in [0, 6, 11] {
            outcomes.push(post(runner, n, d, used)?);
            runner.reset();
        }
    }
    outcomes.extend(hc_dots::run(runner, depth)?);
    Ok(outcomes)
}

/// A site's tensors and constants; tokens are not among them.
pub(super) struct Params {
    pub(super) base: Vec<f32>,
    pub(super) scale: Vec<f32>,
    pub(super) norm: Vec<f32>,
    pub(super) site: Site,
}

impl Params {
    pub(super) fn new(
        floats: &mut impl FnMut(usize) -> Vec<f32>,
        d: usize,
        iterations: usize,
    ) -> Self {
        Self {
            base: floats(SITE),
            scale: floats(3),
            norm: floats(d),
            site: Site {
                n: 1,
                d,
                iterations,
                rms_eps: RMS_EPS,
                eps: EPS,
            },
        }
    }

    fn host(&self) -> HcParams<'_> {
        HcParams {
            base: &self.base,
            scale: &self.scale,
            iterations: self.site.iterations as u32,
            eps: EPS,
        }
    }
}

/// What a site's kernel must give: mixing weights, collapsed rows, their norms.
#[derive(Default)]
pub(super) struct Want {
    pub(super) mix: Vec<f32>,
    u: Vec<f32>,
    pub(super) h: Vec<f32>,
}

impl Want {
    /// Streams `[n][4][d]` and their dots `[n][24]`, before a sublayer.
    pub(super) fn site(&mut self, x: &[f32], m: &[f32], p: &Params) {
        for (x, m) in x.chunks(STREAMS * p.site.d).zip(m.chunks(SITE)) {
            let mix = hc_mix(&scaled(m, x), &p.host());
            self.mix.extend(flat(&mix));
            self.token(x, &mix.pre, &p.norm);
        }
    }

    /// The same of the final merge.
    fn head(&mut self, x: &[f32], m: &[f32], p: &Params) {
        for (x, m) in x.chunks(STREAMS * p.site.d).zip(m.chunks(SITE)) {
            let weights = hc_head_weights(&scaled(m, x), &p.host());
            self.mix.extend(weights);
            self.token(x, &weights, &p.norm);
        }
    }

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

/// Dots times the factor of their streams.
fn scaled(m: &[f32], x: &[f32]) -> Vec<f32> {
    let mut m = m.to_vec();
    scale_in_place(&mut m, rms_factor(x, RMS_EPS));
    m
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
    let m = floats(n * SITE);
    let mut p = Params::new(&mut floats, d, iterations);
    if n > 2 {
        p.norm[7] = f32::NAN; // the block's d says so
    }
    let (mut pre, mut head) = (Want::default(), Want::default());
    pre.site(&x, &m, &p);
    head.head(&x, &m, &p);
    let s = Site { n, ..p.site };
    let head_m: Vec<f32> = m.chunks(SITE).flat_map(|m| m[..STREAMS].to_vec()).collect();
    let mut outcomes = Vec::new();
    let beside = Beside {
        u: true,
        a8: d.is_multiple_of(32),
    };
    for (call, m, want) in [
        (hc::pre(&s, Dots::Whole, beside)?, &m, &pre),
        (hc::head(&s, beside)?, &head_m, &head),
    ] {
        let blocks = beside.a8.then(|| Activations::new(&want.h, n, d));
        let inputs = [&x, m, &p.base, &p.scale, &p.norm];
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

/// Streams after slots and a block.
pub(super) fn posted(
    x: &[f32],
    block: &[f32],
    slots: &[f32],
    mix: &[f32],
    used: usize,
) -> Vec<f32> {
    let d = block.len() / (mix.len() / SITE);
    let mut want = x.to_vec();
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
    want
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
    let want = posted(&x, &block, &slots, &mix, used);
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
