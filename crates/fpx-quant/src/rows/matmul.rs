//! Matrix products: checks, and the choice of instructions. The arithmetic is in the kernels.

use std::ops::Range;

use crate::a8::A8Rows;
use crate::rows::generic;
use crate::rows::isa::Isa;
use crate::rows::matrix::Matrix;
#[cfg(target_arch = "aarch64")]
use crate::rows::neon;
use crate::rows::out::Out;
use crate::rows::term::Term;
#[cfg(target_arch = "x86_64")]
use crate::rows::x86;

/// `out[c][r] = w[rows.start + r] . x[cols.start + c]` (contract rules 2 and 3) for a format with
/// a [`Term`]. Each weight row is read once. The previous content of `out` does not matter.
///
/// # Panics
/// If a range leaves its operand, the lengths along K differ, or `out` is not
/// `[cols.len()][rows.len()]`.
pub fn matmul_a8(
    w: &Matrix<'_>,
    rows: Range<usize>,
    x: &A8Rows,
    cols: Range<usize>,
    out: &mut Out<'_>,
) {
    matmul_a8_on(Isa::best(), w, rows, x, cols, out);
}

/// [`matmul_a8`] on given instructions: the same bits.
///
/// # Panics
/// As [`matmul_a8`], and if this processor has not these instructions.
pub fn matmul_a8_on(
    isa: Isa,
    w: &Matrix<'_>,
    rows: Range<usize>,
    x: &A8Rows,
    cols: Range<usize>,
    out: &mut Out<'_>,
) {
    let Some(term) = Term::of(w.format()) else {
        panic!("{}: no integer product", w.format())
    };
    isa.require();
    check(w, &rows, x.k(), x.n(), &cols, out);
    let w = w.slice(rows);
    match isa {
        _ if w.k() == 0 => fill_zero(out),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => x86::matmul_a8_avx2(&w, x, cols, out),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => x86::matmul_a8_avx512(&w, x, cols, out),
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => neon::matmul_a8(term, &w, x, cols, out),
        _ => generic::matmul_a8(term, &w, x, cols, out),
    }
}

/// `out[c][r] = w[rows.start + r] . x[cols.start + c]` (contract rule 4) for F32, F16 and BF16;
/// x f32 `[n][k]`. Each weight row is read once. The previous content of `out` does not matter.
///
/// # Panics
/// If the format is another, a range leaves its operand, `x` is not whole rows of K, or `out` is
/// not `[cols.len()][rows.len()]`.
pub fn matmul_f32(
    w: &Matrix<'_>,
    rows: Range<usize>,
    x: &[f32],
    cols: Range<usize>,
    out: &mut Out<'_>,
) {
    matmul_f32_on(Isa::best(), w, rows, x, cols, out);
}

/// [`matmul_f32`] on given instructions: the same bits.
///
/// # Panics
/// As [`matmul_f32`], and if this processor has not these instructions.
pub fn matmul_f32_on(
    isa: Isa,
    w: &Matrix<'_>,
    rows: Range<usize>,
    x: &[f32],
    cols: Range<usize>,
    out: &mut Out<'_>,
) {
    assert!(w.format().is_float(), "{}: not a float matrix", w.format());
    isa.require();
    if w.k() == 0 {
        check(w, &rows, 0, cols.end, &cols, out);
        return fill_zero(out);
    }
    assert!(
        x.len().is_multiple_of(w.k()),
        "{} values in rows of {}",
        x.len(),
        w.k()
    );
    check(w, &rows, w.k(), x.len() / w.k(), &cols, out);
    let w = w.slice(rows);
    let x = &x[cols.start * w.k()..cols.end * w.k()];
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx512 => x86::matmul_f32_avx2(&w, x, out),
        _ => generic::matmul_f32(&w, x, out),
    }
}

fn check(
    w: &Matrix<'_>,
    rows: &Range<usize>,
    k: usize,
    n: usize,
    cols: &Range<usize>,
    out: &Out<'_>,
) {
    assert_eq!(
        k,
        w.k(),
        "elements of an activation row against a weight row"
    );
    assert!(
        rows.start <= rows.end && rows.end <= w.rows(),
        "{rows:?} of {} rows",
        w.rows()
    );
    assert!(
        cols.start <= cols.end && cols.end <= n,
        "{cols:?} of {n} columns"
    );
    let (got, want) = ((out.cols(), out.rows()), (cols.len(), rows.len()));
    assert_eq!(got, want, "columns and rows of the result");
}

/// The empty sum is +0.
fn fill_zero(out: &mut Out<'_>) {
    (0..out.cols()).for_each(|c| out.col(c).fill(0.0));
}
