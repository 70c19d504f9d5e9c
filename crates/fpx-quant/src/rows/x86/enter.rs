//! Checked entries into code compiled for more instructions.

use std::ops::Range;

use crate::a8::{self, A8Rows, BLOCK};
use crate::rows::isa::Isa;
use crate::rows::matrix::Matrix;
use crate::rows::out::Out;
use crate::rows::{avx2, avx512};

/// See [`crate::a8::A8Rows::quantize`].
pub(crate) fn quantize_avx2(x: &[[f32; BLOCK]], out: &mut a8::Blocks<'_>) {
    Isa::Avx2.require();
    // SAFETY: the processor has the instructions, by the line above.
    unsafe { a8::avx2::quantize(x, out) }
}

/// See [`crate::rows::matmul_a8`].
pub(crate) fn matmul_a8_avx2(w: &Matrix<'_>, x: &A8Rows, cols: Range<usize>, out: &mut Out<'_>) {
    Isa::Avx2.require();
    // SAFETY: the processor has the instructions, by the line above.
    unsafe { avx2::matmul_a8(w, x, cols, out) }
}

/// See [`crate::rows::matmul_a8`].
pub(crate) fn matmul_a8_avx512(w: &Matrix<'_>, x: &A8Rows, cols: Range<usize>, out: &mut Out<'_>) {
    Isa::Avx512.require();
    // SAFETY: the processor has the instructions, by the line above.
    unsafe { avx512::matmul_a8(w, x, cols, out) }
}

/// See [`crate::rows::matmul_f32`].
pub(crate) fn matmul_f32_avx2(w: &Matrix<'_>, x: &[f32], out: &mut Out<'_>) {
    Isa::Avx2.require();
    // SAFETY: the processor has the instructions, by the line above.
    unsafe { avx2::matmul_f32(w, x, out) }
}
