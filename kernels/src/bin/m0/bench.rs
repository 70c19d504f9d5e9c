//! Measurements. A time is the median of 31 graph replays over as many different matrices as fill
//! 1.2 GB (at least four; the L2 holds 60 MB), divided by the number of launches: it includes the
//! gap, ramp and tail of a launch that follows another one.

use std::io::Write;

use device::driver::Driver;
use ds4_kernels::KernelError;
use ds4_kernels::cases::{Runner, compare_f32, to_f32};
use ds4_kernels::launch::bench as bench_call;
use ds4_kernels::launch::fp4f::{self, Gemm, Gemv, Tile32};
use ds4_kernels::launch::{Call, a8};

use crate::report::{Compiled, Line, Report, Timing};
use crate::rig::{Buffer, Rig};

pub(crate) const REPLAYS: usize = 31;
const TUNING: usize = 5;
const ROTATE: u64 = 1_200_000_000;

const GEMV: [(usize, usize); 4] = [(4096, 4096), (32_768, 1024), (4096, 8192), (129_280, 4096)];
const GEMM: [(usize, usize, usize); 3] =
    [(4096, 4096, 2048), (4096, 4096, 512), (32_768, 1024, 2048)];
/// Rows between decoding and prefill: where the narrow product's groups stop paying ([`fp4f::fastest`]).
const BETWEEN: [usize; 6] = [16, 24, 32, 64, 128, 256];

/// Ceilings, resources, then every shape.
pub(crate) fn run(
    gpu: &mut Rig<impl Driver>,
    report: &mut Report,
    out: &mut impl Write,
) -> Result<(), Box<dyn std::error::Error>> {
    ceilings(gpu, report)?;
    gpu.reset();
    for (rows, k) in GEMV {
        let bench = Bench::new(gpu, rows, k, 8)?;
        bench.check(gpu, report, 8)?;
        for cols in [1, 2, 4, 8] {
            report.lines.push(bench.gemv(gpu, cols)?);
        }
        gpu.reset();
        writeln!(out, "measured {rows}x{k}")?;
    }
    for (rows, k, cols) in GEMM {
        let bench = Bench::new(gpu, rows, k, cols)?;
        bench.check(gpu, report, cols)?;
        let line = bench.gemm(gpu, report)?;
        report.lines.push(line);
        gpu.reset();
        writeln!(out, "measured {rows}x{k} by {cols}")?;
    }
    for (rows, k) in [(4096, 4096), (32_768, 1024)] {
        let bench = Bench::new(gpu, rows, k, 256)?;
        for cols in BETWEEN {
            report.lines.push(bench.between(gpu, cols)?);
        }
        gpu.reset();
        writeln!(out, "measured {rows}x{k} by {BETWEEN:?}")?;
    }
    Ok(())
}

pub(crate) fn timing(name: String, mut ms: Vec<f32>, launches: usize) -> Timing {
    ms.sort_by(f32::total_cmp);
    let at = |part: usize| f64::from(ms[ms.len() * part / 4]);
    let us = at(2) * 1e3 / launches as f64;
    Timing {
        name,
        us,
        spread: (at(3) - at(1)) / at(2) * 100.0,
    }
}

/// Bandwidth of reading, and of copying by a kernel and by the driver, over 2 GiB.
fn ceilings(gpu: &mut Rig<impl Driver>, report: &mut Report) -> Result<(), KernelError> {
    const BYTES: usize = 2 << 30;
    let (_, processors) = gpu.describe();
    let (a, b, sink) = (gpu.raw(BYTES)?, gpu.raw(BYTES)?, gpu.raw(16)?);
    fill(gpu, a, 1, u32::MAX, 0)?;
    fill(gpu, b, 2, u32::MAX, 0)?;
    let blocks = processors * 2;
    let (read, copy) = (
        bench_call::read(BYTES, blocks)?,
        bench_call::copy(BYTES, blocks)?,
    );
    let gbs = |ms: Vec<f32>, bytes: usize| bytes as f64 / timing(String::new(), ms, 1).us / 1e3;
    let ms = gpu.time(REPLAYS, |g| g.submit(&read, &[a, sink]))?;
    report.ceilings.push(("read".into(), gbs(ms, BYTES)));
    let ms = gpu.time(REPLAYS, |g| g.submit(&copy, &[a, b]))?;
    report
        .ceilings
        .push(("copy kernel".into(), gbs(ms, 2 * BYTES)));
    let ms = gpu.time_direct(REPLAYS, |g| g.copy(a, b))?;
    report.ceilings.push(("copy".into(), gbs(ms, 2 * BYTES)));
    Ok(())
}

fn fill(
    gpu: &mut Rig<impl Driver>,
    buffer: Buffer,
    seed: u32,
    and: u32,
    or: u32,
) -> Result<(), KernelError> {
    gpu.submit(&bench_call::fill(buffer.len(), seed, and, or)?, &[buffer])
}

/// Notes a kernel's resources once.
pub(crate) fn note(
    gpu: &mut Rig<impl Driver>,
    report: &mut Report,
    call: &Call,
) -> Result<(), KernelError> {
    if !report.compiled.iter().any(|c| c.kernel == call.kernel) {
        let r = gpu.resources(call)?;
        let (registers, local, shared) = (r.registers, r.local, r.shared);
        report.compiled.push(Compiled {
            kernel: call.kernel,
            registers,
            local,
            shared,
        });
    }
    Ok(())
}

/// A shape with its matrices and activations on the device.
struct Bench {
    w: Tile32,
    cols: usize,
    matrices: Vec<Buffer>,
    /// q and meta of the activation rows.
    inputs: [Buffer; 2],
    y: Buffer,
}

impl Bench {
    fn new(
        gpu: &mut Rig<impl Driver>,
        rows: usize,
        k: usize,
        cols: usize,
    ) -> Result<Self, KernelError> {
        let w = Tile32::new(rows, k)?;
        let bytes = w.packed_bytes();
        let count = ROTATE.div_ceil(bytes).max(4) as usize;
        let all = gpu.raw(bytes as usize * count)?;
        let mut matrices = Vec::with_capacity(count);
        for i in 0..count {
            let m = all.part(i * bytes as usize, bytes as usize);
            let codes = w.code_bytes() as usize;
            fill(gpu, m.part(0, codes), i as u32 * 77 + 1, u32::MAX, 0)?;
            fill(
                gpu,
                m.part(codes, m.len() - codes),
                i as u32 * 77 + 2,
                0x1f1f_1f1f,
                0x2020_2020,
            )?;
            matrices.push(m);
        }
        // Activations of magnitude 0.5 to 1, quantised by the kernel that serves them.
        let x = gpu.raw((cols * k * 4).next_multiple_of(bench_call::FILL_UNIT))?;
        fill(gpu, x, 3, 0x807f_ffff, 0x3f00_0000)?;
        let inputs = [
            gpu.raw(cols * k)?,
            gpu.raw(cols * w.blocks() * a8::META_BYTES)?,
        ];
        gpu.submit(&a8::quantise(cols, k)?, &[x, inputs[0], inputs[1]])?;
        let y = gpu.raw(cols * rows * 4)?;
        gpu.wait()?;
        Ok(Self {
            w,
            cols,
            matrices,
            inputs,
            y,
        })
    }

    fn buffers(&self, matrix: usize) -> [Buffer; 4] {
        [
            self.matrices[matrix],
            self.inputs[0],
            self.inputs[1],
            self.y,
        ]
    }

    /// Median of launches over all matrices.
    fn time(
        &self,
        gpu: &mut Rig<impl Driver>,
        name: String,
        call: &Call,
        replays: usize,
        launches: usize,
    ) -> Result<Timing, KernelError> {
        let ms = gpu.time(replays, |g| {
            (0..launches).try_for_each(|i| g.submit(call, &self.buffers(i % self.matrices.len())))
        })?;
        Ok(timing(name, ms, launches))
    }

    /// The timed kernels agree at this shape, bit for bit.
    fn check(
        &self,
        gpu: &mut Rig<impl Driver>,
        report: &mut Report,
        cols: usize,
    ) -> Result<(), KernelError> {
        let variants = Gemm::EQUAL.iter().map(|v| fp4f::gemm(&self.w, cols, *v));
        let mut calls = variants.collect::<Result<Vec<_>, _>>()?;
        if cols <= 8 {
            for spread in Gemv::ALL {
                calls.push(fp4f::gemv(&self.w, cols, *spread)?);
            }
            note(gpu, report, &fp4f::gemv(&self.w, 1, Gemv::Fine)?)?;
            note(gpu, report, &fp4f::gemv(&self.w, 1, Gemv::Wide)?)?;
            calls.push(fp4f::mma(&self.w, cols, 8)?);
        }
        let mut first = None;
        for call in calls {
            note(gpu, report, &call)?;
            let poison = vec![0xff; self.y.len()];
            gpu.fill_from(&poison, self.y)?;
            gpu.launch(&call, &self.buffers(0))?;
            let got = to_f32(&gpu.read(self.y)?);
            let want = first.get_or_insert_with(|| got.clone());
            let name = format!(
                "{} {}x{} by {cols} against gemm_a",
                call.kernel,
                self.w.rows(),
                self.w.k()
            );
            report.checks.push(compare_f32(name, want, &got));
        }
        Ok(())
    }

    fn gemv(&self, gpu: &mut Rig<impl Driver>, cols: usize) -> Result<Line, KernelError> {
        let n = self.matrices.len();
        let contract = vec![
            self.time(
                gpu,
                "dp4a".into(),
                &fp4f::gemv(&self.w, cols, Gemv::Fine)?,
                REPLAYS,
                n,
            )?,
            self.time(
                gpu,
                "dp4a wide".into(),
                &fp4f::gemv(&self.w, cols, Gemv::Wide)?,
                REPLAYS,
                n,
            )?,
            self.time(gpu, "mma".into(), &fp4f::mma(&self.w, cols, 8)?, REPLAYS, n)?,
        ];
        let mut free = Vec::new();
        free.extend(self.tuned(gpu, "dp4a", &bench_call::free_dots(&self.w, cols)?)?);
        free.extend(self.tuned(gpu, "mma", &bench_call::free_matrix(&self.w, cols)?)?);
        let (shape, bytes) = ([self.w.rows(), self.w.k(), cols], self.w.packed_bytes());
        Ok(Line {
            family: "gemv",
            shape,
            bytes,
            contract,
            free,
        })
    }

    /// The best of several configurations, measured again in full.
    fn tuned(
        &self,
        gpu: &mut Rig<impl Driver>,
        name: &str,
        calls: &[(String, Call)],
    ) -> Result<Option<Timing>, KernelError> {
        let n = self.matrices.len();
        let mut best: Option<(f64, &(String, Call))> = None;
        for entry in calls {
            let t = self.time(gpu, String::new(), &entry.1, TUNING, n)?;
            if best.is_none_or(|(us, _)| t.us < us) {
                best = Some((t.us, entry));
            }
        }
        let Some((_, (config, call))) = best else {
            return Ok(None);
        };
        self.time(gpu, format!("{name} {config}"), call, REPLAYS, n)
            .map(Some)
    }

    /// The wide products beside the narrow one's groups.
    fn between(&self, gpu: &mut Rig<impl Driver>, cols: usize) -> Result<Line, KernelError> {
        let n = self.matrices.len();
        let mut contract = Vec::new();
        for variant in Gemm::EQUAL {
            let call = fp4f::gemm(&self.w, cols, *variant)?;
            let name = call.kernel.trim_start_matches("fp4f_gemm_").to_string();
            contract.push(self.time(gpu, name, &call, REPLAYS, n)?);
        }
        let groups = fp4f::mma(&self.w, cols, 8)?;
        contract.push(self.time(gpu, "mma".into(), &groups, REPLAYS, n)?);
        Ok(Line {
            family: "gemm",
            shape: [self.w.rows(), self.w.k(), cols],
            bytes: self.w.packed_bytes(),
            contract,
            free: Vec::new(),
        })
    }

    fn gemm(&self, gpu: &mut Rig<impl Driver>, report: &mut Report) -> Result<Line, KernelError> {
        const LAUNCHES: usize = 8;
        let mut lists = [Vec::new(), Vec::new()];
        for (list, variants) in lists.iter_mut().zip([Gemm::EQUAL, Gemm::FREE]) {
            for variant in variants {
                let call = fp4f::gemm(&self.w, self.cols, *variant)?;
                note(gpu, report, &call)?;
                let name = call.kernel.trim_start_matches("fp4f_gemm_").to_string();
                list.push(self.time(gpu, name, &call, REPLAYS, LAUNCHES)?);
            }
        }
        let [contract, free] = lists;
        Ok(Line {
            family: "gemm",
            shape: [self.w.rows(), self.w.k(), self.cols],
            bytes: self.w.packed_bytes(),
            contract,
            free,
        })
    }
}
