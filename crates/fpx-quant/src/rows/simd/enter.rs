//! Checked entries into code compiled for more instructions.

use std::ops::Range;

use crate::a8::{self, A8Rows, BLOCK};
use crate::rows::generic;
use crate::rows::isa::Isa;
use crate::rows::matrix::Matrix;
use crate::rows::out::Out;
use crate::rows::term::Term;

fn require(isa: Isa) {
    assert!(isa.available(), "this processor has no {isa:?}");
}

/// See [`crate::a8::A8Rows::quantize`].
pub(crate) fn quantize_avx2(x: &[[f32; BLOCK]], out: &mut a8::Blocks<'_>) {
    require(Isa::Avx2);
    // SAFETY: the processor has the instructions, by the line above.
    unsafe { a8::avx2::quantize(x, out) }
}

/// See [`crate::rows::matmul_a8`].
pub(crate) fn matmul_a8_avx2(
    term: Term,
    w: &Matrix<'_>,
    x: &A8Rows,
    cols: Range<usize>,
    out: &mut Out<'_>,
) {
    #[target_feature(enable = "avx2,fma,f16c")]
    fn body(term: Term, w: &Matrix<'_>, x: &A8Rows, cols: Range<usize>, out: &mut Out<'_>) {
        generic::matmul_a8(term, w, x, cols, out);
    }
    require(Isa::Avx2);
    // SAFETY: the processor has the instructions, by the line above.
    unsafe { body(term, w, x, cols, out) }
}

/// See [`crate::rows::matmul_f32`].
pub(crate) fn matmul_f32_avx2(w: &Matrix<'_>, x: &[f32], out: &mut Out<'_>) {
    #[target_feature(enable = "avx2,fma,f16c")]
    fn body(w: &Matrix<'_>, x: &[f32], out: &mut Out<'_>) {
        generic::matmul_f32(w, x, out);
    }
    require(Isa::Avx2);
    // SAFETY: the processor has the instructions, by the line above.
    unsafe { body(w, x, out) }
}
