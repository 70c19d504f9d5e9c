//! Rows of f32 to blocks: cleans the input, weights the error, searches each group's scale, codes.
//!
//! Must not know: how a format rounds or packs (`coder`), how the search walks (`search`).
//! Source: spec/fpx-formats.md 5.

use std::marker::PhantomData;

use rayon::prelude::*;

use super::affine;
use super::coder::{Coder, Fp2S40, Fp2Signed, Fp3, Fp4, Fp6Neg32, Fp6Zero, Fp8};
use super::search::{self, Group};
use super::weights::Importance;
use crate::codec::EncodeMode;
use crate::format::{Format, FormatError, Fp2Dialect, Fp6Endpoint};
use crate::scale;
use crate::simd::{self, Kernel};

/// A matrix to encode; sizes have been checked: `values` and `out` hold the same whole rows.
pub(crate) struct Job<'a> {
    pub(crate) format: Format,
    pub(crate) values: &'a [f32],
    pub(crate) row_elems: usize,
    pub(crate) imatrix: Option<&'a [f32]>,
    pub(crate) mode: EncodeMode,
    pub(crate) out: &'a mut [u8],
}

/// Encodes the rows of a base format.
pub(crate) fn rows(job: Job<'_>) -> Result<(), FormatError> {
    match job.format {
        Format::Fp2(Fp2Dialect::Signed) => searched::<Fp2Signed>(job),
        Format::Fp2(Fp2Dialect::S40) => searched::<Fp2S40>(job),
        Format::Fp2(Fp2Dialect::Affine) => each_row(job, 32, true, affine::block),
        Format::Fp3 => searched::<Fp3>(job),
        Format::Fp4 => searched::<Fp4<2>>(job),
        Format::Fp4Fast => searched::<Fp4<1>>(job),
        Format::Fp6(Fp6Endpoint::Zero) => searched::<Fp6Zero>(job),
        Format::Fp6(Fp6Endpoint::Neg32) => searched::<Fp6Neg32>(job),
        Format::Fp8 if job.imatrix.is_none() && job.mode != EncodeMode::Better => {
            each_row(job, 32, true, unsearched::<Fp8>)
        }
        Format::Fp8 => searched::<Fp8>(job),
        format => Err(FormatError::Unsupported {
            format,
            what: "encoding",
        }),
    }
}

fn searched<C: Coder>(job: Job<'_>) -> Result<(), FormatError> {
    each_row(job, 32 / C::GROUPS, C::GUARDED, block::<C>)
}

/// How one block is encoded: weights, error weights, whether to prune, bytes.
type EncodeBlock = fn(&[f32; 32], &[f32; 32], bool, &mut [u8]);

fn each_row(
    job: Job<'_>,
    group: usize,
    guarded: bool,
    encode: EncodeBlock,
) -> Result<(), FormatError> {
    let importance = job
        .imatrix
        .map(|values| Importance::new(job.format, values, job.row_elems, group, guarded))
        .transpose()?;
    let row_bytes = job.format.row_bytes(job.row_elems)?;
    if row_bytes == 0 {
        return Ok(());
    }
    let fast = job.mode != EncodeMode::Reference;
    let one = |(row, out): (&[f32], &mut [u8])| encode_row(row, importance, fast, encode, out);
    if fast {
        // A task of fewer weights than this costs more to hand over than to do.
        let least = (1 << 14) / job.row_elems + 1;
        job.values
            .par_chunks_exact(job.row_elems)
            .zip(job.out.par_chunks_exact_mut(row_bytes))
            .with_min_len(least)
            .for_each(one);
    } else {
        let outs = job.out.chunks_exact_mut(row_bytes);
        job.values
            .chunks_exact(job.row_elems)
            .zip(outs)
            .for_each(one);
    }
    Ok(())
}

fn encode_row(
    row: &[f32],
    importance: Option<Importance<'_>>,
    fast: bool,
    encode: EncodeBlock,
    out: &mut [u8],
) {
    let energy = importance.map_or(0.0, |m| m.row_energy(row));
    let (blocks, _) = row.as_chunks::<32>();
    let size = out.len() / blocks.len().max(1);
    for (i, (x, out)) in blocks.iter().zip(out.chunks_exact_mut(size)).enumerate() {
        // What is not finite is stored as zero and does not count.
        let x = x.map(|v| if v.is_finite() { v } else { 0.0 });
        let w = importance.map_or([1.0; 32], |m| m.block(energy, 32 * i, &x));
        encode(&x, &w, fast, out);
    }
}

/// A block of a format with a scale search.
fn block<C: Coder>(x: &[f32; 32], w: &[f32; 32], fast: bool, out: &mut [u8]) {
    let size = 32 / C::GROUPS;
    finish::<C>(x, out, |g| {
        let span = g * size..(g + 1) * size;
        let group = Group {
            x: &x[span.clone()],
            w: &w[span],
        };
        if group.max_abs() == 0.0 {
            0
        } else if fast {
            simd::dispatch(Fast::<C>(group, PhantomData))
        } else {
            search::reference::<C>(&group)
        }
    });
}

/// A block of a format whose writer takes the scale nearest to `max / reach` (ROCmFP8 without an
/// importance matrix).
fn unsearched<C: Coder>(x: &[f32; 32], w: &[f32; 32], _fast: bool, out: &mut [u8]) {
    let group = Group { x, w };
    finish::<C>(x, out, |_| scale::nearest(group.max_abs() / C::REACH));
}

/// Codes a block by the scale bytes that `choose` gives for each group (0: an all-zero group).
fn finish<C: Coder>(x: &[f32; 32], out: &mut [u8], choose: impl Fn(usize) -> u8) {
    let size = 32 / C::GROUPS;
    let mut scales = [0; 2];
    let mut codes = [C::ZERO_CODE; 32];
    for g in 0..C::GROUPS {
        scales[g] = choose(g);
        if scales[g] != 0 {
            let inverse = 1.0 / scale::decode(scales[g]);
            for i in g * size..(g + 1) * size {
                codes[i] = C::code(C::level(x[i] * inverse));
            }
        }
    }
    C::pack(&codes, scales, out);
}

struct Fast<'a, C>(Group<'a>, PhantomData<C>);

impl<C: Coder> Kernel for Fast<'_, C> {
    type Out = u8;

    #[inline(always)]
    fn run(self) -> u8 {
        search::fast::<C>(&self.0)
    }
}
