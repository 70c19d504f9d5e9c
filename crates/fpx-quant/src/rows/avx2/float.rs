//! F32, F16 and BF16 rows times f32 columns (contract rule 4): the 32 partial sums of a segment
//! are four registers of eight lanes.

use std::arch::x86_64::*;

use engine_core::math::{LANES, SEGMENT, fma, fold_lanes, row_total};

use crate::format::Format;
use crate::native;
use crate::rows::matrix::Matrix;
use crate::rows::out::Out;
use crate::rows::simd::x86::{load_f32x8, load_u8x16, load_u8x32, store_f32x8};

const F32: u8 = 0;
const F16: u8 = 1;
const BF16: u8 = 2;

/// See [`crate::rows::matmul_f32`]; x f32 `[out.cols()][k]`, K is not 0.
#[target_feature(enable = "avx2,fma,f16c")]
pub(in crate::rows) fn matmul_f32(w: &Matrix<'_>, x: &[f32], out: &mut Out<'_>) {
    match w.format() {
        Format::F32 => all::<F32, 4>(w, x, out),
        Format::F16 => all::<F16, 2>(w, x, out),
        _ => all::<BF16, 2>(w, x, out),
    }
}

/// Three rows against one column share its loads; with more columns, one row against three.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn all<const TYPE: u8, const BYTES: usize>(w: &Matrix<'_>, x: &[f32], out: &mut Out<'_>) {
    let k = w.k();
    let n = x.len() / k;
    let mut row = 0;
    if n < 3 {
        while row + 3 <= w.rows() {
            for (c, x) in x.chunks_exact(k).enumerate() {
                let rows = [w.row(row), w.row(row + 1), w.row(row + 2)];
                let sums = product::<TYPE, BYTES, 3, 1>(rows, [x]);
                (0..3).for_each(|i| out.col(c)[row + i] = sums[i][0]);
            }
            row += 3;
        }
    }
    for row in row..w.rows() {
        let (groups, rest) = x.split_at(n / 3 * 3 * k);
        for (g, x) in groups.chunks_exact(3 * k).enumerate() {
            let x = [&x[..k], &x[k..2 * k], &x[2 * k..]];
            let sums = product::<TYPE, BYTES, 1, 3>([w.row(row)], x);
            (0..3).for_each(|i| out.col(3 * g + i)[row] = sums[0][i]);
        }
        for (c, x) in rest.chunks_exact(k).enumerate() {
            let sums = product::<TYPE, BYTES, 1, 1>([w.row(row)], [x]);
            out.col(n / 3 * 3 + c)[row] = sums[0][0];
        }
    }
}

/// Products of R rows with C columns.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn product<const TYPE: u8, const BYTES: usize, const R: usize, const C: usize>(
    w: [&[u8]; R],
    x: [&[f32]; C],
) -> [[f32; C]; R] {
    let mut total = [[0.0; C]; R];
    let k = x[0].len();
    for first in (0..k).step_by(SEGMENT) {
        let end = k.min(first + SEGMENT);
        let w = w.map(|w| &w[first * BYTES..end * BYTES]);
        let x = x.map(|x| &x[first..end]);
        let sums = segment::<TYPE, BYTES, R, C>(w, x);
        for r in 0..R {
            for c in 0..C {
                total[r][c] = row_total(first == 0, total[r][c], sums[r][c]);
            }
        }
    }
    total
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn segment<const TYPE: u8, const BYTES: usize, const R: usize, const C: usize>(
    w: [&[u8]; R],
    x: [&[f32]; C],
) -> [[f32; C]; R] {
    let stripes = x[0].len() / LANES;
    let (cw, cx) = (
        w.map(|w| {
            &w.as_chunks::<BYTES>()
                .0
                .as_chunks::<8>()
                .0
                .as_chunks::<4>()
                .0[..stripes]
        }),
        x.map(|x| &x.as_chunks::<8>().0.as_chunks::<4>().0[..stripes]),
    );
    let mut p = [[[_mm256_setzero_ps(); 4]; C]; R];
    for s in 0..stripes {
        for j in 0..4 {
            for r in 0..R {
                let w = widen::<TYPE, BYTES>(&cw[r][s][j]);
                for c in 0..C {
                    p[r][c][j] = _mm256_fmadd_ps(w, load_f32x8(&cx[c][s][j]), p[r][c][j]);
                }
            }
        }
    }
    let mut out = [[0.0; C]; R];
    for r in 0..R {
        for c in 0..C {
            let done = stripes * LANES;
            let (w, x) = (&w[r][done * BYTES..], &x[c][done..]);
            out[r][c] = if x.is_empty() {
                fold(p[r][c])
            } else {
                fold_tail::<TYPE>(p[r][c], w, x)
            };
        }
    }
    out
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn widen<const TYPE: u8, const BYTES: usize>(w: &[[u8; BYTES]; 8]) -> __m256 {
    let bytes = w.as_flattened();
    let half = || match bytes.first_chunk() {
        Some(half) => load_u8x16(half),
        None => unreachable!("8 elements have 16 bytes or 32"),
    };
    match TYPE {
        F16 => _mm256_cvtph_ps(half()),
        BF16 => _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(half()))),
        _ => match bytes.first_chunk() {
            Some(all) => _mm256_castsi256_ps(load_u8x32(all)),
            None => unreachable!("8 elements have 32 bytes"),
        },
    }
}

/// `fold_lanes`: xor 16, 8, 4, 2, 1, the lower index on the left.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn fold(p: [__m256; 4]) -> f32 {
    let sixteen = [_mm256_add_ps(p[0], p[2]), _mm256_add_ps(p[1], p[3])];
    let eight = _mm256_add_ps(sixteen[0], sixteen[1]);
    let four = _mm_add_ps(
        _mm256_castps256_ps128(eight),
        _mm256_extractf128_ps::<1>(eight),
    );
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    let one = _mm_add_ss(two, _mm_shuffle_ps::<1>(two, two));
    _mm_cvtss_f32(one)
}

/// The last, partly filled stripe of a row.
#[target_feature(enable = "avx2,fma,f16c")]
fn fold_tail<const TYPE: u8>(p: [__m256; 4], w: &[u8], x: &[f32]) -> f32 {
    let format = [Format::F32, Format::F16, Format::BF16][TYPE as usize];
    let (mut lanes, mut wide) = ([0f32; LANES], [0f32; LANES]);
    for (lanes, p) in lanes.as_chunks_mut().0.iter_mut().zip(p) {
        store_f32x8(lanes, p);
    }
    native::widen(format, w, &mut wide[..x.len()]);
    for (p, (w, x)) in lanes.iter_mut().zip(wide.iter().zip(x)) {
        *p = fma(*w, *x, *p);
    }
    fold_lanes(lanes)
}
