//! Activation blocks (a8): 32 values along K as int8 with an f32 scale.
//!
//! Apart from the weight formats because nothing of it is ever stored: it is the one activation
//! side of every integer product, so its layout serves the row kernels. Must not know: weight
//! formats, devices. Source: docs/adr/0001-arithmetic.md rule 1.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;

use std::ops::Range;

use crate::rows::Isa;

/// Elements of an activation block.
pub const BLOCK: usize = 32;

/// Blocks whose largest magnitude is below 2^-96 quantise to zero.
pub const TINY: f32 = f32::from_bits((127 - 96) << 23);

/// Scale of a block that contains a NaN.
pub const NAN_SCALE: f32 = f32::from_bits(0x7fc0_0000);

/// Quantised activation rows, structure of arrays. Memory is kept between calls of
/// [`A8Rows::quantize`], so that a reused value allocates only when it grows.
///
/// Values are i8 `[n][k]`, held twice: in element order, and with every 16 transposed as 4 x 4
/// (element `4 i + j` at `4 j + i`), the order in which 2-bit codes leave a packed byte by shifts.
/// Scales and sums are [`A8Block`] `[n][k / 32]`.
#[derive(Clone, Debug, Default)]
pub struct A8Rows {
    n: usize,
    k: usize,
    q: Vec<i8>,
    q_by_4: Vec<i8>,
    blocks: Vec<A8Block>,
}

/// What belongs to 32 values besides the values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct A8Block {
    /// Scale: value = d * q.
    pub d: f32,
    /// Exact sum of the 32 q, an integer up to 4,064.
    pub sum: f32,
    /// Exact sums of q 0..16 and 16..32.
    pub halves: [f32; 2],
}

/// One row of [`A8Rows`].
#[derive(Clone, Copy, Debug)]
pub struct A8Row<'a> {
    /// Values in element order, i8 `[k]`.
    pub q: &'a [i8],
    /// The same values, every 16 transposed as 4 x 4, i8 `[k]`.
    pub q_by_4: &'a [i8],
    /// Scale and sums of each 32 values, `[k / 32]`.
    pub blocks: &'a [A8Block],
}

impl A8Rows {
    /// No rows.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Rows held.
    #[must_use]
    pub fn n(&self) -> usize {
        self.n
    }

    /// Elements of a row.
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// Row `index`.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    #[inline(always)]
    pub fn row(&self, index: usize) -> A8Row<'_> {
        assert!(index < self.n, "row {index} of {}", self.n);
        let blocks = self.k / BLOCK;
        A8Row {
            q: &self.q[index * self.k..][..self.k],
            q_by_4: &self.q_by_4[index * self.k..][..self.k],
            blocks: &self.blocks[index * blocks..][..blocks],
        }
    }

    /// Replaces the content by `n` rows of `k` values, x f32 `[n][k]`, on the best instructions of this
    /// processor.
    ///
    /// # Panics
    /// If `k` is not a multiple of 32 or `x` does not hold `n * k` values.
    pub fn quantize(&mut self, x: &[f32], n: usize, k: usize) {
        self.quantize_on(Isa::best(), x, n, k);
    }

    /// [`A8Rows::quantize`] on given instructions: the same bits.
    ///
    /// # Panics
    /// As [`A8Rows::quantize`], and if this processor has not these instructions.
    pub fn quantize_on(&mut self, isa: Isa, x: &[f32], n: usize, k: usize) {
        self.resize(n, k);
        assert_eq!(Some(x.len()), n.checked_mul(k), "values of {n} rows of {k}");
        self.writers(n.max(1))
            .for_each(|mut w| w.quantize_on(isa, x));
    }

    /// Sets the shape; the content of the rows is then unspecified until they are quantised.
    ///
    /// # Panics
    /// If `k` is not a multiple of 32 or the size overflows.
    pub fn resize(&mut self, n: usize, k: usize) {
        assert!(k.is_multiple_of(BLOCK), "{k} is not a multiple of {BLOCK}");
        let Some(len) = n.checked_mul(k) else {
            panic!("{n} rows of {k} overflow")
        };
        (self.n, self.k) = (n, k);
        self.q.resize(len, 0);
        self.q_by_4.resize(len, 0);
        self.blocks.resize(len / BLOCK, A8Block::default());
    }

    /// Writers of `rows_each` rows (the last one fewer), for several threads.
    ///
    /// # Panics
    /// If `rows_each` is 0.
    pub fn writers(&mut self, rows_each: usize) -> impl Iterator<Item = A8Writer<'_>> {
        let (n, k) = (self.n, self.k);
        let blocks = (rows_each * (k / BLOCK)).max(1);
        assert!(rows_each > 0, "no rows a writer");
        let q = self.q.as_chunks_mut().0.chunks_mut(blocks);
        let q_by_4 = self.q_by_4.as_chunks_mut().0.chunks_mut(blocks);
        let parts = q.zip(q_by_4).zip(self.blocks.chunks_mut(blocks));
        parts
            .enumerate()
            .map(move |(i, ((q, q_by_4), blocks))| A8Writer {
                rows: i * rows_each..n.min((i + 1) * rows_each),
                k,
                out: Blocks { q, q_by_4, blocks },
            })
    }
}

/// Some whole rows of an [`A8Rows`], to be quantised by one thread.
#[derive(Debug)]
pub struct A8Writer<'a> {
    rows: Range<usize>,
    k: usize,
    out: Blocks<'a>,
}

impl A8Writer<'_> {
    /// The rows this writer covers.
    #[must_use]
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Quantises all its rows, x f32 `[rows][k]`.
    ///
    /// # Panics
    /// If `x` has another size.
    pub fn quantize(&mut self, x: &[f32]) {
        self.quantize_on(Isa::best(), x);
    }

    /// [`A8Writer::quantize`] on given instructions: the same bits.
    ///
    /// # Panics
    /// As [`A8Writer::quantize`], and if this processor has not these instructions.
    pub fn quantize_on(&mut self, isa: Isa, x: &[f32]) {
        assert_eq!(
            x.len(),
            self.rows.len() * self.k,
            "values of {:?}",
            self.rows
        );
        isa.require();
        let (x, _) = x.as_chunks::<BLOCK>();
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 | Isa::Avx512 => crate::rows::x86::quantize_avx2(x, &mut self.out),
            _ => quantize_blocks(x, &mut self.out),
        }
    }
}

/// Where a run of blocks goes.
#[derive(Debug)]
pub(crate) struct Blocks<'a> {
    pub(crate) q: &'a mut [[i8; BLOCK]],
    pub(crate) q_by_4: &'a mut [[i8; BLOCK]],
    pub(crate) blocks: &'a mut [A8Block],
}

fn quantize_blocks(x: &[[f32; BLOCK]], out: &mut Blocks<'_>) {
    for (i, x) in x.iter().enumerate() {
        let (q, d) = quantize_block(x);
        out.q[i] = q;
        out.q_by_4[i] = by_4(&q);
        let halves = sums(&q);
        let sum = halves[0] + halves[1];
        out.blocks[i] = A8Block { d, sum, halves };
    }
}

/// One block: the definition.
#[must_use]
pub fn quantize_block(x: &[f32; BLOCK]) -> ([i8; BLOCK], f32) {
    if x.iter().any(|v| v.is_nan()) {
        return ([0; BLOCK], NAN_SCALE);
    }
    let amax = x.iter().fold(0f32, |m, v| m.max(v.abs()));
    if amax < TINY {
        return ([0; BLOCK], 0.0);
    }
    let inv = 127.0 / amax;
    // An infinity times the inv of 0 is a NaN, and `as` makes that 0 like the rest of its block.
    let q = x.map(|v| (v * inv).round_ties_even().clamp(-127.0, 127.0) as i8);
    (q, amax / 127.0)
}

/// Every 16 elements transposed as 4 x 4.
#[must_use]
fn by_4(q: &[i8; BLOCK]) -> [i8; BLOCK] {
    std::array::from_fn(|p| q[(p & 16) + 4 * (p % 4) + p % 16 / 4])
}

/// Sums of the two halves.
#[must_use]
fn sums(q: &[i8; BLOCK]) -> [f32; 2] {
    [&q[..16], &q[16..]].map(|h| h.iter().map(|&v| i32::from(v)).sum::<i32>() as f32)
}

#[cfg(test)]
mod tests;
