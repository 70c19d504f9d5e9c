//! Matrix products over the pool: several products that share a step run in one region, rows split
//! among threads. Each weight row is read once a pass, however many tokens there are; the counter
//! proves it.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use engine_core::mutant::mutant;
use fpx_quant::{A8Rows, Matrix, Out, OutQueue, matmul_a8, matmul_f32};

use crate::pool::Pool;
use crate::profile::Laps;
use crate::tensor::Tensor;

/// Multiply-adds below which a region is not worth a hand-over: some microseconds of one thread.
const SERIAL_MACS: usize = 48_000;

/// Multiply-adds that a piece of a product has at least: taking one and starting a kernel on it is
/// not free.
const PIECE_MACS: usize = 16_000;

/// An activation matrix, `[n, k]` f32, and its int8 blocks for weights that need them.
#[derive(Debug)]
pub(crate) struct Input<'a> {
    x: &'a [f32],
    a8: &'a A8Rows,
}

impl<'a> Input<'a> {
    /// Prepares `x`, `[n, k]`. The int8 blocks are made only if one of `users` needs them.
    pub(crate) fn new(
        pool: &Pool,
        x: &'a [f32],
        n: usize,
        k: usize,
        a8: &'a mut A8Rows,
        users: &[&Tensor],
    ) -> Self {
        if users.iter().any(|w| !w.format.is_float()) {
            quantise(pool, a8, x, n, k);
        }
        Self { x, a8 }
    }
}

fn quantise(pool: &Pool, a8: &mut A8Rows, x: &[f32], n: usize, k: usize) {
    a8.resize(n, k);
    let serial = n * k < 1 << 14;
    let each = if serial {
        n.max(1)
    } else {
        n.div_ceil(4 * pool.threads())
    };
    let writers = Mutex::new(a8.writers(each));
    pool.run(if serial { 1 } else { pool.threads() }, &|_| {
        loop {
            let next = writers
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .next();
            let Some(mut w) = next else { return };
            let rows = w.rows();
            w.quantize(&x[rows.start * k..rows.end * k]);
        }
    });
}

/// One product: `out[c][r] = w[r] . x[cols.start + c]`.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    w: Matrix<'a>,
    input: &'a Input<'a>,
    cols: Range<usize>,
    out: OutQueue<'a>,
}

impl<'a> Job<'a> {
    /// A product of all rows of `w` with columns `cols` of `input`, into `out` `[cols, rows]`.
    #[must_use]
    pub(crate) fn new(
        pool: &Pool,
        w: Matrix<'a>,
        input: &'a Input<'a>,
        cols: Range<usize>,
        out: Out<'a>,
    ) -> Self {
        // Pieces of whole register tiles, a few a thread so that uneven threads even out.
        let even = w.rows().div_ceil(4 * pool.threads());
        let worth = PIECE_MACS / (w.k() * cols.len()).max(1);
        let each = match pool.threads() {
            1 => w.rows().max(1),
            _ => even.max(worth).next_multiple_of(8),
        };
        Self {
            w,
            input,
            cols,
            out: out.into_queue(each),
        }
    }

    fn macs(&self) -> usize {
        self.w.rows() * self.w.k() * self.cols.len()
    }

    fn work(&self) {
        while let Some((rows, mut out)) = self.out.take() {
            if self.w.format().is_float() {
                matmul_f32(&self.w, rows, self.input.x, self.cols.clone(), &mut out);
            } else {
                matmul_a8(&self.w, rows, self.input.a8, self.cols.clone(), &mut out);
            }
            if mutant(43) && self.cols.len() > 1 {
                // A batched kernel with another order of sums: last bit of every value moves.
                for c in 0..out.cols() {
                    out.col(c)
                        .iter_mut()
                        .for_each(|v| *v = f32::from_bits(v.to_bits() ^ 1));
                }
            }
        }
    }
}

/// Room for the jobs of a region, kept from region to region so that a pass allocates nothing. Empty
/// between regions: its lifetime says nothing.
#[derive(Debug, Default)]
pub(crate) struct JobRoom(Vec<Job<'static>>);

impl JobRoom {
    /// An empty list with the room of the last ones.
    pub(crate) fn take<'a>(&mut self) -> Vec<Job<'a>> {
        empty(std::mem::take(&mut self.0))
    }

    /// Gives the room of a list back; the jobs are done.
    pub(crate) fn put_back(&mut self, jobs: Vec<Job<'_>>) {
        self.0 = empty(jobs);
    }
}

/// The memory of a vector for another lifetime: collecting a vector's own iterator happens in place.
/// Should that ever change, `tests/no_alloc.rs` says so.
#[expect(
    clippy::unnecessary_filter_map,
    reason = "a filter cannot change the lifetime"
)]
fn empty<'a>(mut jobs: Vec<Job<'_>>) -> Vec<Job<'a>> {
    jobs.clear();
    jobs.into_iter().filter_map(|_| None).collect()
}

/// Counts what passes read.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Bytes of weights read by products.
    pub(crate) weight_bytes: AtomicU64,
    /// Groups of products that were run.
    pub(crate) products: AtomicU64,
    /// Time by family.
    pub(crate) laps: Laps,
}

/// Runs products in one region.
pub(crate) fn run(pool: &Pool, counters: &Counters, jobs: &[Job<'_>]) {
    let bytes: usize = jobs.iter().map(|j| j.w.data().len()).sum();
    counters
        .weight_bytes
        .fetch_add(bytes as u64, Ordering::Relaxed);
    counters.products.fetch_add(1, Ordering::Relaxed);
    let macs: usize = jobs.iter().map(Job::macs).sum();
    let threads = if macs < SERIAL_MACS {
        1
    } else {
        pool.threads()
    };
    pool.run(threads, &|_| jobs.iter().for_each(Job::work));
}
