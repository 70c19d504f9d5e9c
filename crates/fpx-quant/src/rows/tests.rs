use std::ops::Range;

use super::matmul::{matmul_a8_on, matmul_f32_on};
use super::testing::{FORMATS, Noise, paths, same, weights};
use super::*;
use crate::a8::A8Rows;
use crate::format::Format;
use crate::native;

const GUARD: f32 = 1234.5;

/// A weight matrix with all its products by definition, f32 `[cols][rows]`.
struct Case {
    format: Format,
    rows: usize,
    k: usize,
    /// One byte before the matrix, so that nothing is aligned.
    bytes: Vec<u8>,
    x: Vec<f32>,
    a8: A8Rows,
    want: Vec<f32>,
}

impl Case {
    fn new(format: Format, rows: usize, cols: usize, k: usize, noise: &mut Noise) -> Self {
        let bytes = weights(format, rows, k, noise);
        let x = noise.vec(cols * k);
        Self::of(format, rows, k, bytes, x)
    }

    fn of(format: Format, rows: usize, k: usize, mut bytes: Vec<u8>, x: Vec<f32>) -> Self {
        let cols = x.len() / k;
        bytes.insert(0, 0xa5);
        let mut a8 = A8Rows::new();
        if k.is_multiple_of(32) {
            a8.quantize_on(Isa::Baseline, &x, cols, k);
        }
        let mut case = Self {
            format,
            rows,
            k,
            bytes,
            x,
            a8,
            want: Vec::new(),
        };
        for c in 0..cols {
            for r in 0..rows {
                let row = case.matrix().row(r);
                let value = if format.is_float() {
                    dot_row_f32(format, row, &case.x[c * k..][..k])
                } else {
                    dot_row_a8(format, row, &case.a8.row(c))
                };
                case.want.push(value);
            }
        }
        case
    }

    fn matrix(&self) -> Matrix<'_> {
        Matrix::new(self.format, self.rows, self.k, &self.bytes[1..]).unwrap()
    }

    fn run(&self, isa: Isa, rows: Range<usize>, cols: Range<usize>, out: &mut Out<'_>) {
        if self.format.is_float() {
            matmul_f32_on(isa, &self.matrix(), rows, &self.x, cols, out);
        } else {
            matmul_a8_on(isa, &self.matrix(), rows, &self.a8, cols, out);
        }
    }

    /// Runs a rectangle into a poisoned buffer with a guard around it; the first wrong element.
    fn first_wrong(&self, isa: Isa, rows: Range<usize>, cols: Range<usize>) -> Option<String> {
        let (n, m) = (cols.len(), rows.len());
        let mut buffer = vec![GUARD; n * (m + 2)];
        let view = Out::new(&mut buffer, n, m + 2).split_rows(1).1;
        let mut view = view.split_rows(m).0;
        (0..n).for_each(|c| view.col(c).fill(f32::NAN));
        self.run(isa, rows.clone(), cols.clone(), &mut view);
        for c in 0..n {
            let got = &buffer[c * (m + 2)..][..m + 2];
            let place = format!("{} {isa:?} {rows:?} {cols:?} k {}", self.format, self.k);
            if got[0] != GUARD || got[m + 1] != GUARD {
                return Some(format!("{place}: column {c} wrote outside"));
            }
            for r in 0..m {
                let want = self.want[(cols.start + c) * self.rows + rows.start + r];
                if !same(got[r + 1], want) {
                    let got = got[r + 1];
                    return Some(format!("{place}: row {r} column {c}: {got} for {want}"));
                }
            }
        }
        None
    }

    fn check(&self, isa: Isa, rows: Range<usize>, cols: Range<usize>) {
        if let Some(wrong) = self.first_wrong(isa, rows, cols) {
            panic!("{wrong}");
        }
    }
}

fn lengths(format: Format) -> impl Iterator<Item = usize> {
    let all = [32, 64, 256, 512, 544, 1024, 4096];
    all.into_iter()
        .filter(move |k: &usize| k.is_multiple_of(format.block_elems()))
}

#[test]
fn fast_is_the_reference_for_every_shape() {
    for (i, format) in FORMATS.into_iter().enumerate() {
        for k in lengths(format) {
            let case = Case::new(format, 17, 9, k, &mut Noise::new((i * 10_000 + k) as u64));
            assert!(
                case.want.iter().all(|v| v.is_finite()),
                "{format}: a blind case"
            );
            for isa in paths() {
                for rows in [1, 7, 8, 9, 17] {
                    for cols in 1..=9 {
                        case.check(isa, 0..rows, 0..cols);
                    }
                }
            }
        }
    }
}

#[test]
fn ranges_select_rows_and_columns() {
    for format in FORMATS {
        let case = Case::new(format, 40, 12, 768, &mut Noise::new(99));
        for isa in paths() {
            for (rows, cols) in [
                (3..40, 1..12),
                (8..24, 11..12),
                (39..40, 0..7),
                (5..5, 0..3),
            ] {
                case.check(isa, rows, cols);
            }
            case.check(isa, 0..17, 4..4);
        }
    }
}

#[test]
fn many_columns() {
    for format in [Format::Fp4Fast, Format::Fp8, Format::Q2K, Format::F16] {
        let case = Case::new(format, 19, 70, 1280, &mut Noise::new(4));
        for isa in paths() {
            case.check(isa, 0..19, 0..70);
        }
    }
}

#[test]
fn float_rows_of_any_length() {
    for format in [Format::F32, Format::F16, Format::BF16] {
        for k in [1, 5, 8, 31, 33, 100, 511, 513, 1500] {
            let case = Case::new(format, 9, 5, k, &mut Noise::new(k as u64));
            for isa in paths() {
                case.check(isa, 0..9, 0..5);
                case.check(isa, 0..7, 0..1);
            }
        }
    }
}

#[test]
fn untamed_bytes_and_values() {
    let mut noise = Noise::new(2024);
    for format in FORMATS {
        let k = 512;
        let mut bytes = noise.bytes(format.matrix_bytes(24, k).unwrap());
        let row = format.row_bytes(k).unwrap();
        bytes[..row].fill(0);
        bytes[row..2 * row].fill(0xff);
        bytes[2 * row..3 * row].fill(0x80);
        bytes[3 * row..4 * row].fill(0x7e);
        let mut x = noise.vec(9 * k);
        x[..k].fill(0.0);
        x[k..2 * k].fill(-1.0);
        x[2 * k + 40] = f32::NAN;
        x[3 * k + 70] = f32::INFINITY;
        x[4 * k..5 * k].iter_mut().for_each(|v| *v *= 1e38);
        x[5 * k..6 * k].iter_mut().for_each(|v| *v *= 2e-29);
        x[6 * k..7 * k].iter_mut().for_each(|v| *v *= 1e-44);
        let case = Case::of(format, 24, k, bytes, x);
        for isa in paths() {
            case.check(isa, 0..24, 0..9);
            case.check(isa, 0..24, 0..4);
            case.check(isa, 0..24, 2..4);
            case.check(isa, 0..24, 4..7);
        }
    }
}

/// The largest integers a block can reach: levels at their ends against q = +-127.
#[test]
fn extreme_levels() {
    for format in FORMATS {
        let k = 1024;
        let mut bytes = weights(format, 16, k, &mut Noise::new(8));
        let per = format.block_bytes();
        for (i, block) in bytes.chunks_exact_mut(per).enumerate() {
            let fill = [0x00, 0xff, 0x77, 0x80, 0x7f, 0x81, 0x55, 0xaa][i % 8];
            let codes = match format {
                Format::Fp2(_) => 0..8,
                Format::Fp3 => 0..12,
                Format::Fp4 | Format::Fp4Fast => 0..16,
                Format::Fp6(_) => 0..24,
                Format::Fp8 => 0..32,
                Format::Q8_0 => 2..34,
                Format::Mxfp4 => 1..17,
                Format::Q4K => 4..144,
                Format::Q2K => 0..80,
                Format::Iq2Xxs => 2..66,
                _ => 0..0,
            };
            block[codes].fill(fill);
        }
        let mut x = vec![1.0; 5 * k];
        x[k..2 * k].fill(-1.0);
        (0..k).for_each(|i| x[2 * k + i] = if i % 2 == 0 { 1.0 } else { -1.0 });
        (0..k).for_each(|i| x[3 * k + i] = if i % 16 < 8 { 3.0 } else { -3.0 });
        (0..k).for_each(|i| x[4 * k + i] = if i % 8 < 4 { -2.0 } else { 2.0 });
        let case = Case::of(format, 16, k, bytes, x);
        assert!(case.want.iter().all(|v| v.is_finite()));
        for isa in paths() {
            // Few columns and many take different paths.
            (1..=5).for_each(|cols| case.check(isa, 0..16, 0..cols));
        }
    }
}

#[test]
fn reference_is_close_to_f64() {
    for format in FORMATS {
        let k = 4096;
        let case = Case::new(format, 6, 3, k, &mut Noise::new(55));
        for r in 0..6 {
            let mut w = vec![0.0; k];
            decode_row(format, case.matrix().row(r), &mut w);
            for c in 0..3 {
                let x: Vec<f64> = if format.is_float() {
                    case.x[c * k..][..k].iter().map(|&v| f64::from(v)).collect()
                } else {
                    let row = case.a8.row(c);
                    let value = |i: usize| f64::from(row.q[i]) * f64::from(row.blocks[i / 32].d);
                    (0..k).map(value).collect()
                };
                let products: Vec<f64> = w.iter().zip(&x).map(|(w, x)| f64::from(*w) * x).collect();
                let want: f64 = products.iter().sum();
                let size: f64 = products.iter().map(|p| p.abs()).sum();
                let error = (f64::from(case.want[c * 6 + r]) - want).abs();
                assert!(
                    error <= 2e-6 * size,
                    "{format} row {r} column {c}: {error:e} of {size:e}"
                );
            }
        }
    }
}

fn decode_row(format: Format, row: &[u8], out: &mut [f32]) {
    if format.is_float() || native::has_blocks(format) {
        return native::decode(format, row, out);
    }
    let blocks = row.chunks_exact(format.block_bytes());
    for (out, block) in out.as_chunks_mut::<32>().0.iter_mut().zip(blocks) {
        *out = crate::block::unpack(format, block).weights();
    }
}

/// Rule 3 by hand. One ulp of the first block's term is 16; the others give less than half.
#[test]
fn segments_are_added_in_order() {
    let row = |terms: &[(usize, f32, u8)]| {
        let mut row = vec![0u8; 34 * 18];
        for (block, scale, level) in terms {
            let at = 34 * block;
            row[at..at + 2].copy_from_slice(&half::f16::from_f32(*scale).to_le_bytes());
            row[at + 2] = *level;
        }
        row
    };
    let mut x = vec![0.0; 18 * 32];
    x.iter_mut().step_by(32).for_each(|v| *v = 127.0);
    let mut a8 = A8Rows::new();
    a8.quantize(&x, 1, x.len());
    assert_eq!((a8.row(0).q[0], a8.row(0).blocks[0].d), (127, 1.0));
    let dot = |terms: &[_]| dot_row_a8(Format::Q8_0, &row(terms), &a8.row(0));
    let (first, small) = ((0, 16384.0, 127), |block| (block, 1.0 / 16.0, 1));
    let sum = 16384.0 * 16129.0;
    assert_eq!(dot(&[first]), sum);
    assert_eq!(dot(&[first, small(1), small(15)]), sum, "lost one by one");
    assert_eq!(dot(&[first, small(15), small(16)]), sum, "lost one by one");
    assert_eq!(
        dot(&[first, small(16), small(17)]),
        sum + 16.0,
        "a segment of their own"
    );
}

#[test]
fn the_comparer_notices_a_wrong_answer() {
    let mut case = Case::new(Format::Fp4Fast, 9, 3, 64, &mut Noise::new(1));
    assert_eq!(case.first_wrong(Isa::Baseline, 0..9, 0..3), None);
    let bits = case.want[2 * 9 + 8].to_bits();
    case.want[2 * 9 + 8] = f32::from_bits(bits ^ 1);
    let wrong = case.first_wrong(Isa::Baseline, 0..9, 0..3).unwrap();
    assert!(wrong.contains("row 8 column 2"), "{wrong}");
    case.want[2 * 9 + 8] = f32::NAN;
    assert!(case.first_wrong(Isa::Baseline, 0..9, 0..3).is_some());
}

#[test]
fn k_zero_gives_zero() {
    let mut buffer = [f32::NAN; 6];
    let w = Matrix::new(Format::Fp8, 3, 0, &[]).unwrap();
    let mut a8 = A8Rows::new();
    a8.quantize(&[], 2, 0);
    matmul_a8(&w, 0..3, &a8, 0..2, &mut Out::new(&mut buffer, 2, 3));
    assert_eq!(buffer, [0.0; 6]);
    buffer.fill(f32::NAN);
    let w = Matrix::new(Format::F16, 3, 0, &[]).unwrap();
    matmul_f32(&w, 0..3, &[], 0..2, &mut Out::new(&mut buffer, 2, 3));
    assert_eq!(buffer, [0.0; 6]);
}

#[test]
#[should_panic(expected = "columns and rows of the result")]
fn a_result_of_another_shape_is_refused() {
    let case = Case::new(Format::Fp8, 4, 2, 32, &mut Noise::new(1));
    let mut buffer = [0.0; 6];
    case.run(Isa::Baseline, 0..4, 0..2, &mut Out::new(&mut buffer, 2, 3));
}

#[test]
#[should_panic(expected = "this processor has no")]
fn instructions_of_another_machine_are_refused() {
    let Some(isa) = Isa::ALL.into_iter().find(|isa| !isa.available()) else {
        unreachable!("no processor has them all")
    };
    let case = Case::new(Format::Fp8, 4, 2, 32, &mut Noise::new(1));
    let mut buffer = [0.0; 8];
    case.run(isa, 0..4, 0..2, &mut Out::new(&mut buffer, 2, 4));
}
