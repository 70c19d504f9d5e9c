//! F32, F16 and BF16 rows times f32 columns (contract rule 4).
//!
//! The 32 partial sums of a segment are four registers of eight lanes. Few columns: a row streams
//! once past each. Many columns: eight rows of a segment are widened once, then tiles of two rows
//! and four columns run over one quarter of the lanes at a time, so that eight accumulators feed
//! the multiply-add units from six loads.

use std::arch::x86_64::*;

use engine_core::math::{LANES, SEGMENT, fma, fold_lanes, row_total};

use super::ROWS;
use crate::format::Format;
use crate::native;
use crate::rows::matrix::Matrix;
use crate::rows::out::Out;
use crate::rows::x86::mem::{load_f32x8, load_u8x16, load_u8x32, store_f32x8};

const F32: u8 = 0;
const F16: u8 = 1;
const BF16: u8 = 2;

/// Columns from which widening rows first pays.
const MANY: usize = 4;

/// See [`crate::rows::matmul_f32`]; x f32 `[out.cols()][k]`, K is not 0.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::rows) fn matmul_f32(w: &Matrix<'_>, x: &[f32], out: &mut Out<'_>) {
    match w.format() {
        _ if out.cols() >= MANY => many_columns(w, x, out),
        Format::F32 => few_columns::<F32, 4>(w, x, out),
        Format::F16 => few_columns::<F16, 2>(w, x, out),
        _ => few_columns::<BF16, 2>(w, x, out),
    }
}

/// Three rows at a time share the loads of a column.
#[target_feature(enable = "avx2,fma,f16c")]
fn few_columns<const TYPE: u8, const BYTES: usize>(w: &Matrix<'_>, x: &[f32], out: &mut Out<'_>) {
    let whole = w.rows() / 3 * 3;
    for (c, x) in x.chunks_exact(w.k()).enumerate() {
        let cells = out.col(c);
        for row in (0..whole).step_by(3) {
            let rows = [w.row(row), w.row(row + 1), w.row(row + 2)];
            let sums = rows_by_column::<TYPE, BYTES, 3>(rows, x);
            cells[row..row + 3].copy_from_slice(&sums);
        }
        for row in whole..w.rows() {
            cells[row] = rows_by_column::<TYPE, BYTES, 1>([w.row(row)], x)[0];
        }
    }
}

/// Whole products of R rows with a column.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn rows_by_column<const TYPE: u8, const BYTES: usize, const R: usize>(
    w: [&[u8]; R],
    x: &[f32],
) -> [f32; R] {
    let mut total = [0.0; R];
    for first in (0..x.len()).step_by(SEGMENT) {
        let x = &x[first..x.len().min(first + SEGMENT)];
        let stripes = &x.as_chunks::<8>().0.as_chunks::<4>().0;
        let mut p = [[_mm256_setzero_ps(); 4]; R];
        for (s, x) in stripes.iter().enumerate() {
            for r in 0..R {
                let at = (first + s * LANES) * BYTES;
                let w = w[r][at..at + LANES * BYTES].as_chunks::<BYTES>().0;
                for j in 0..4 {
                    let w = widen::<TYPE, BYTES>(&w.as_chunks().0[j]);
                    p[r][j] = _mm256_fmadd_ps(w, load_f32x8(&x[j]), p[r][j]);
                }
            }
        }
        let done = stripes.len() * LANES;
        for r in 0..R {
            let tail = &w[r][(first + done) * BYTES..(first + x.len()) * BYTES];
            let sum = fold_with_tail::<TYPE>(p[r], tail, &x[done..]);
            total[r] = row_total(first == 0, total[r], sum);
        }
    }
    total
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn widen<const TYPE: u8, const BYTES: usize>(w: &[[u8; BYTES]; 8]) -> __m256 {
    let bytes = w.as_flattened();
    if TYPE == F32 {
        let Some(all) = bytes.first_chunk() else {
            unreachable!("8 elements have 32 bytes")
        };
        return _mm256_castsi256_ps(load_u8x32(all));
    }
    let Some(half) = bytes.first_chunk() else {
        unreachable!("8 elements have 16 bytes")
    };
    let half = load_u8x16(half);
    if TYPE == F16 {
        return _mm256_cvtph_ps(half);
    }
    _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(half)))
}

/// [`fold_lanes`] after the last, partly filled stripe of a row (mostly there is none).
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn fold_with_tail<const TYPE: u8>(p: [__m256; 4], w: &[u8], x: &[f32]) -> f32 {
    if x.is_empty() {
        return fold(p);
    }
    let format = [Format::F32, Format::F16, Format::BF16][TYPE as usize];
    let mut wide = [0f32; LANES];
    native::widen(format, w, &mut wide[..x.len()]);
    fold_tail(p, &wide[..x.len()], x)
}

#[target_feature(enable = "avx2,fma,f16c")]
fn fold_tail(p: [__m256; 4], w: &[f32], x: &[f32]) -> f32 {
    let mut lanes = [0f32; LANES];
    for (lanes, p) in lanes.as_chunks_mut().0.iter_mut().zip(p) {
        store_f32x8(lanes, p);
    }
    for (p, (w, x)) in lanes.iter_mut().zip(w.iter().zip(x)) {
        *p = fma(*w, *x, *p);
    }
    fold_lanes(lanes)
}

/// [`fold_lanes`]: xor 16, 8, 4, 2, 1.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn fold(p: [__m256; 4]) -> f32 {
    let eight = fold_to_8(p);
    let four = _mm_add_ps(
        _mm256_castps256_ps128(eight),
        _mm256_extractf128_ps::<1>(eight),
    );
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    let one = _mm_add_ss(two, _mm_shuffle_ps::<1>(two, two));
    _mm_cvtss_f32(one)
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn fold_to_8(p: [__m256; 4]) -> __m256 {
    _mm256_add_ps(_mm256_add_ps(p[0], p[2]), _mm256_add_ps(p[1], p[3]))
}

/// A segment of eight rows, f32.
#[repr(align(64))]
struct Wide([[f32; SEGMENT]; ROWS]);

#[target_feature(enable = "avx2,fma,f16c")]
fn many_columns(w: &Matrix<'_>, x: &[f32], out: &mut Out<'_>) {
    let (k, bytes, n) = (w.k(), w.format().block_bytes(), out.cols());
    let mut wide = Wide([[0.0; SEGMENT]; ROWS]);
    for row in (0..w.rows()).step_by(ROWS) {
        let live = row..w.rows().min(row + ROWS);
        for first in (0..k).step_by(SEGMENT) {
            let here = first..k.min(first + SEGMENT);
            for (row, wide) in live.clone().zip(&mut wide.0) {
                let bytes = &w.row(row)[first * bytes..here.end * bytes];
                widen_row(w.format(), bytes, &mut wide[..here.len()]);
            }
            for c in (0..n).step_by(4) {
                let columns = each!(4, i => &x[(c + i).min(n - 1) * k..][here.clone()]);
                // A missing column repeats the last one; missing rows are whatever was there.
                let mut sums = [[0.0; ROWS]; 4];
                for pair in (0..live.len()).step_by(2) {
                    let rows = each!(2, r => &wide.0[pair + r][..here.len()]);
                    let tile = tile(rows, &columns);
                    for c in 0..4 {
                        sums[c][pair..pair + 2].copy_from_slice(&tile[c]);
                    }
                }
                for (c, sums) in (c..n.min(c + 4)).zip(&sums) {
                    add_to(&mut out.col(c)[live.clone()], first == 0, sums);
                }
            }
        }
    }
}

/// Adds the sums of a segment to some rows of a column; the first segment replaces.
#[inline(always)]
fn add_to(cells: &mut [f32], first: bool, sums: &[f32; ROWS]) {
    for (cell, sum) in cells.iter_mut().zip(sums) {
        *cell = row_total(first, *cell, *sum);
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn widen_row(format: Format, bytes: &[u8], out: &mut [f32]) {
    match format {
        Format::F32 => widen_stripes::<F32, 4>(format, bytes, out),
        Format::F16 => widen_stripes::<F16, 2>(format, bytes, out),
        _ => widen_stripes::<BF16, 2>(format, bytes, out),
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn widen_stripes<const TYPE: u8, const BYTES: usize>(
    format: Format,
    bytes: &[u8],
    out: &mut [f32],
) {
    let done = out.len() / 8 * 8;
    native::widen(format, &bytes[done * BYTES..], &mut out[done..]);
    let stripes = bytes.as_chunks::<BYTES>().0.as_chunks::<8>().0;
    for (out, w) in out.as_chunks_mut::<8>().0.iter_mut().zip(stripes) {
        store_f32x8(out, widen::<TYPE, BYTES>(w));
    }
}

/// Segment sums of two rows and four columns, `[column][row]`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn tile(w: [&[f32]; 2], x: &[&[f32]; 4]) -> [[f32; 2]; 4] {
    let len = w[0].len();
    let stripes = len / LANES;
    let sw = each!(2, i => &w[i].as_chunks::<8>().0.as_chunks::<4>().0[..stripes]);
    let sx = each!(4, i => &x[i].as_chunks::<8>().0.as_chunks::<4>().0[..stripes]);
    let mut p = [[[_mm256_setzero_ps(); 4]; 4]; 2];
    for j in 0..4 {
        let mut acc = [[_mm256_setzero_ps(); 4]; 2];
        for s in 0..stripes {
            let w = each!(2, r => load_f32x8(&sw[r][s][j]));
            for c in 0..4 {
                let x = load_f32x8(&sx[c][s][j]);
                acc[0][c] = _mm256_fmadd_ps(w[0], x, acc[0][c]);
                acc[1][c] = _mm256_fmadd_ps(w[1], x, acc[1][c]);
            }
        }
        for r in 0..2 {
            for c in 0..4 {
                p[r][c][j] = acc[r][c];
            }
        }
    }
    let mut sums = [[0.0; 2]; 4];
    if stripes * LANES == len {
        let eights = each!(8, i => fold_to_8(p[i % 2][i / 2]));
        let mut flat = [0.0; 8];
        store_f32x8(&mut flat, fold_eight(eights));
        return each!(4, c => [flat[2 * c], flat[2 * c + 1]]);
    }
    for c in 0..4 {
        for r in 0..2 {
            let done = stripes * LANES;
            sums[c][r] = fold_tail(p[r][c], &w[r][done..], &x[c][done..]);
        }
    }
    sums
}

/// The rest of [`fold_lanes`] for eight sets of eight lanes: xor 4, 2, 1.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn fold_eight(v: [__m256; 8]) -> __m256 {
    // Set i in the low half, set i + 4 in the high one, four lanes each.
    let four = each!(4, i => _mm256_add_ps(
        _mm256_permute2f128_ps::<0x20>(v[i], v[i + 4]),
        _mm256_permute2f128_ps::<0x31>(v[i], v[i + 4]),
    ));
    // Sets i and i + 1, two lanes each.
    let two = each!(2, i => _mm256_add_ps(
        _mm256_shuffle_ps::<0b01_00_01_00>(four[2 * i], four[2 * i + 1]),
        _mm256_shuffle_ps::<0b11_10_11_10>(four[2 * i], four[2 * i + 1]),
    ));
    _mm256_add_ps(
        _mm256_shuffle_ps::<0b10_00_10_00>(two[0], two[1]),
        _mm256_shuffle_ps::<0b11_01_11_01>(two[0], two[1]),
    )
}
