//! The fence of the NEON kernels: their entry, loads and stores through references to arrays. NEON
//! belongs to the base set of aarch64, so nothing needs to be probed.

use std::arch::aarch64::*;
use std::ops::Range;

use crate::a8::A8Rows;
use crate::rows::matrix::Matrix;
use crate::rows::out::Out;
use crate::rows::term::Term;

/// See [`crate::rows::matmul_a8`].
pub(in crate::rows) fn matmul_a8(
    term: Term,
    w: &Matrix<'_>,
    x: &A8Rows,
    cols: Range<usize>,
    out: &mut Out<'_>,
) {
    // SAFETY: the kernel needs NEON, which every aarch64 target of this crate has.
    unsafe { super::kernel(term, w, x, cols, out) }
}

/// Loads 16 signed bytes.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn load_i8x16(from: &[i8; 16]) -> int8x16_t {
    // SAFETY: the reference covers the 16 bytes read; the instruction needs no alignment.
    unsafe { vld1q_s8(from.as_ptr()) }
}

/// Loads 16 bytes.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn load_u8x16(from: &[u8; 16]) -> uint8x16_t {
    // SAFETY: the reference covers the 16 bytes read; the instruction needs no alignment.
    unsafe { vld1q_u8(from.as_ptr()) }
}

/// Stores 16 signed bytes.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn store_i8x16(to: &mut [i8; 16], value: int8x16_t) {
    // SAFETY: the exclusive reference covers the 16 bytes written; no alignment is needed.
    unsafe { vst1q_s8(to.as_mut_ptr(), value) }
}

/// Loads 4 floats.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn load_f32x4(from: &[f32; 4]) -> float32x4_t {
    // SAFETY: the reference covers the 16 bytes read; the instruction needs no alignment.
    unsafe { vld1q_f32(from.as_ptr()) }
}

/// Stores 4 floats.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn store_f32x4(to: &mut [f32; 4], value: float32x4_t) {
    // SAFETY: the exclusive reference covers the 16 bytes written; no alignment is needed.
    unsafe { vst1q_f32(to.as_mut_ptr(), value) }
}
