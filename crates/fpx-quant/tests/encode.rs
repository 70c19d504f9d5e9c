//! Properties of the encoders on inputs nobody wrote down: the fast search is the reference, the
//! reference is the best there is, and what comes back is close to what went in.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Rng, encodable};
use fpx_quant::block::{self, Unpacked};
use fpx_quant::{
    EncodeMode, Format, Fp2Dialect, Fp6Endpoint, decode_row, encode_rows, scale, validate_row_data,
};
use proptest::prelude::*;

const NEG32: Format = Format::Fp6(Fp6Endpoint::Neg32);
const AFFINE: Format = Format::Fp2(Fp2Dialect::Affine);

fn encode(format: Format, x: &[f32], imatrix: Option<&[f32]>, mode: EncodeMode) -> Vec<u8> {
    let elems = imatrix.map_or(64, <[f32]>::len);
    let mut out = vec![0xa5; format.matrix_bytes(x.len() / elems, elems).unwrap()];
    encode_rows(format, x, elems, imatrix, mode, &mut out).unwrap();
    out
}

/// Fast bytes are reference bytes, and valid.
fn check_fast(format: Format, x: &[f32], imatrix: Option<&[f32]>) {
    let reference = encode(format, x, imatrix, EncodeMode::Reference);
    let fast = encode(format, x, imatrix, EncodeMode::Fast);
    assert_eq!(reference, fast, "{format} {x:?} {imatrix:?}");
    validate_row_data(format, &fast).unwrap();
    if format != Format::Fp8 || imatrix.is_some() {
        let better = encode(format, x, imatrix, EncodeMode::Better);
        assert_eq!(better, fast, "{format}");
    }
}

#[test]
fn fast_is_the_reference_on_normal_weights() {
    let mut rng = Rng(2024);
    for format in encodable() {
        for sigma in [1e-4, 2e-3, 0.02, 0.1, 1.0, 30.0, 3000.0] {
            let x: Vec<f32> = (0..2048).map(|_| rng.normal() * sigma).collect();
            let imatrix: Vec<f32> = (0..64).map(|_| rng.normal().abs() + 1e-3).collect();
            check_fast(format, &x, None);
            check_fast(format, &x, Some(&imatrix));
        }
    }
}

/// Values at which something happens: zeros, denormals, thresholds of every level set at scales
/// that exist, values so large that errors or weights overflow, and what is not finite.
fn nasty() -> impl Strategy<Value = f32> {
    let threshold = (1u8..0x7f, -130i32..=130, -1i32..=1).prop_map(|(byte, half, ulp)| {
        let value = scale::decode(byte) * half as f32 / 2.0;
        f32::from_bits(value.to_bits().wrapping_add_signed(ulp))
    });
    prop_oneof![
        4 => threshold,
        3 => -3.0f32..3.0,
        1 => any::<f32>(),
        1 => prop::sample::select(vec![
            0.0, -0.0, 1e-40, -1e-40, 1e30, -1e30, f32::MAX, f32::MIN, 2e6, 2_097_152.0, -2_097_153.0,
            f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 448.0, 28_448.0, 1e18, 2e19,
        ]),
    ]
}

fn importance() -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![
        6 => 1e-3f32..10.0,
        1 => prop::sample::select(vec![0.0, -1.0, 1e-38, 1e38, f32::NAN, f32::INFINITY]),
    ];
    // The last element of every group is usable.
    prop::collection::vec(value, 64).prop_map(|mut v| {
        v.iter_mut().skip(15).step_by(16).for_each(|x| *x = 1.0);
        v
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn fast_is_the_reference(
        x in prop::collection::vec(nasty(), 64),
        imatrix in prop::option::of(importance()),
    ) {
        for format in encodable() {
            check_fast(format, &x, imatrix.as_deref());
        }
    }
}

#[test]
#[ignore = "soak: the fast search against the reference on 10^5 groups a format and spread"]
fn soak_fast_is_the_reference() {
    let mut rng = Rng(99);
    for format in encodable() {
        for sigma in [5e-3, 0.02, 1.0, 30.0] {
            for _ in 0..100 {
                let x: Vec<f32> = (0..16_384).map(|_| rng.normal() * sigma).collect();
                let imatrix: Vec<f32> = (0..64).map(|_| rng.normal().abs() + 1e-3).collect();
                check_fast(format, &x, None);
                check_fast(format, &x, Some(&imatrix));
            }
        }
    }
}

/// Squared error of a group for one scale, each weight at its best level (f64).
fn best_error(levels: &[i8], scale: f32, x: &[f32]) -> f64 {
    let one = |&x: &f32| {
        levels
            .iter()
            .map(|&l| (f64::from(x) - f64::from(l) * f64::from(scale)).powi(2))
            .fold(f64::INFINITY, f64::min)
    };
    x.iter().map(one).sum()
}

fn error(x: &[f32], y: &[f32]) -> f64 {
    x.iter()
        .zip(y)
        .map(|(&x, &y)| (f64::from(x) - f64::from(y)).powi(2))
        .sum()
}

/// The levels that occur in a format, found by unpacking blocks of every byte.
fn level_set(format: Format) -> Vec<i8> {
    let mut levels: Vec<i8> = (0..=255u8)
        .flat_map(|byte| {
            let Unpacked { levels, .. } = block::unpack(format, &vec![byte; format.block_bytes()]);
            levels
        })
        .collect();
    levels.sort_unstable();
    levels.dedup();
    if format == Format::Fp8 {
        // The encoder stays symmetric.
        levels.retain(|&l| l != -128);
    }
    levels
}

/// No choice of scale byte and levels has a smaller error than what the encoder chose. (ROCmFP6
/// with -32 is left out: its definition ends the search early, `-32` being out of its reach. The
/// affine dialect alternates between its two bytes and promises less: see below.)
#[test]
fn no_scale_byte_is_better() {
    let mut rng = Rng(5);
    for format in encodable().filter(|&f| f != NEG32 && f != AFFINE) {
        let levels = level_set(format);
        let group = match format {
            Format::Fp4Fast | Format::Fp8 => 32,
            _ => 16,
        };
        for round in 0..60 {
            let sigma = [0.005, 0.1, 1.0, 20.0][round % 4];
            let x: Vec<f32> = (0..64).map(|_| rng.normal() * sigma).collect();
            let bytes = encode(format, &x, None, EncodeMode::Better);
            let mut y = vec![f32::NAN; 64];
            decode_row(format, &bytes, &mut y).unwrap();
            for (x, y) in x.chunks(group).zip(y.chunks(group)) {
                let got = error(x, y);
                let best = (1..=scale::MAX_SCALE_BYTE)
                    .map(|byte| best_error(&levels, scale::decode(byte), x))
                    .fold(f64::INFINITY, f64::min);
                // The search sums in f32.
                assert!(
                    got <= best * (1.0 + 1e-5),
                    "{format}: {got} against {best} for {x:?}"
                );
            }
        }
    }
}

/// The affine search ends where no other scale byte helps.
#[test]
fn no_affine_scale_is_better() {
    let mut rng = Rng(6);
    for _ in 0..60 {
        let x: Vec<f32> = (0..64).map(|_| rng.normal()).collect();
        let bytes = encode(AFFINE, &x, None, EncodeMode::Fast);
        let mut y = vec![f32::NAN; 64];
        decode_row(AFFINE, &bytes, &mut y).unwrap();
        for (i, block) in bytes.chunks(10).enumerate() {
            let got = error(&x[32 * i..][..32], &y[32 * i..][..32]);
            let offset = scale::decode(block[9]);
            let shifted: Vec<f32> = x[32 * i..][..32].iter().map(|v| v + offset).collect();
            for byte in 1..=scale::MAX_SCALE_BYTE {
                let other = best_error(&[0, 1, 2, 3], scale::decode(byte), &shifted);
                assert!(
                    got <= other * (1.0 + 1e-4),
                    "scale {byte:#x}: {got} against {other}"
                );
            }
        }
    }
}

/// Normalised squared errors at three spreads stay at what the formats are known for (within 6 %;
/// ROCmFP8 by squared error reaches 3.1e-5 at spread 1, three times better than its first writer).
#[test]
fn quality_by_spread() {
    let cases = [
        (
            Format::Fp2(Fp2Dialect::Signed),
            EncodeMode::Fast,
            [1.2497e-1, 1.2532e-1, 1.2533e-1],
        ),
        (
            Format::Fp2(Fp2Dialect::S40),
            EncodeMode::Fast,
            [9.4219e-2, 9.4336e-2, 9.4886e-2],
        ),
        (AFFINE, EncodeMode::Fast, [9.8030e-2, 9.7418e-2, 9.7545e-2]),
        (
            Format::Fp3,
            EncodeMode::Fast,
            [2.9439e-2, 2.9457e-2, 2.9644e-2],
        ),
        (
            Format::Fp4,
            EncodeMode::Fast,
            [6.0278e-3, 6.0463e-3, 7.3133e-3],
        ),
        (
            Format::Fp4Fast,
            EncodeMode::Fast,
            [7.7259e-3, 7.7241e-3, 8.6854e-3],
        ),
        (
            Format::Fp6(Fp6Endpoint::Zero),
            EncodeMode::Fast,
            [3.8165e-4, 4.0912e-4, 7.3504e-4],
        ),
        (NEG32, EncodeMode::Fast, [3.7194e-4, 3.9824e-4, 7.2204e-4]),
        (
            Format::Fp8,
            EncodeMode::Fast,
            [1.0262e-4, 2.8159e-3, 1.9805e-4],
        ),
        (Format::Fp8, EncodeMode::Better, [3.1e-5, 4.5e-5, 2.0e-4]),
    ];
    for (format, mode, wants) in cases {
        for (sigma, want) in [1.0, 0.1, 0.02].into_iter().zip(wants) {
            let mut rng = Rng(31);
            let x: Vec<f32> = (0..1 << 16).map(|_| rng.normal() * sigma).collect();
            let mut y = vec![f32::NAN; x.len()];
            decode_row(format, &encode(format, &x, None, mode), &mut y).unwrap();
            let power: f64 = x.iter().map(|&v| f64::from(v).powi(2)).sum();
            let nmse = error(&x, &y) / power;
            // Without a search everything hangs on a block's largest weight, and the tails of the
            // generators differ.
            let searched = format != Format::Fp8 || mode == EncodeMode::Better;
            let tolerance = if searched { 0.06 } else { 0.15 };
            assert!(
                (nmse / want - 1.0).abs() < tolerance,
                "{format} {mode:?} {sigma}: {nmse:e}"
            );
        }
    }
}

/// What is not finite is stored as zero and changes nothing else.
#[test]
fn non_finite_weights() {
    let mut rng = Rng(8);
    for format in encodable() {
        let clean: Vec<f32> = (0..64)
            .map(|i| if i % 9 == 4 { 0.0 } else { rng.normal() })
            .collect();
        let imatrix = vec![1.0; 64];
        for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let dirty: Vec<f32> = (0..64)
                .map(|i| if i % 9 == 4 { poison } else { clean[i] })
                .collect();
            for imatrix in [None, Some(&imatrix[..])] {
                let mode = EncodeMode::Fast;
                let bytes = encode(format, &dirty, imatrix, mode);
                assert_eq!(bytes, encode(format, &clean, imatrix, mode), "{format}");
                let mut y = vec![f32::NAN; 64];
                decode_row(format, &bytes, &mut y).unwrap();
                let stored = (4..64).step_by(9).map(|i| y[i]);
                let least = if format == Format::Fp2(Fp2Dialect::S40) {
                    1.0
                } else {
                    0.0
                };
                if format != AFFINE {
                    assert!(
                        stored.into_iter().all(|v| v.abs() <= least),
                        "{format}: {y:?}"
                    );
                }
            }
        }
    }
}

/// Blocks of zeros (of either sign, or of nothing finite) have one encoding.
#[test]
fn zero_blocks() {
    for format in encodable() {
        let mut want = vec![0; format.block_bytes()];
        if format == Format::Fp2(Fp2Dialect::Signed) {
            want[..8].fill(0x55);
        }
        for value in [0.0, -0.0, f32::NAN, f32::NEG_INFINITY] {
            for mode in [EncodeMode::Reference, EncodeMode::Fast, EncodeMode::Better] {
                for imatrix in [None, Some(&[1.0; 32][..])] {
                    let mut out = vec![0xa5; format.block_bytes()];
                    encode_rows(format, &[value; 32], 32, imatrix, mode, &mut out).unwrap();
                    assert_eq!(out, want, "{format} {value} {mode:?}");
                }
            }
        }
    }
}

/// The rows of a matrix do not influence each other.
#[test]
fn rows_are_independent() {
    let mut rng = Rng(9);
    let x: Vec<f32> = (0..40 * 64).map(|_| rng.normal()).collect();
    let imatrix: Vec<f32> = (0..64).map(|_| rng.normal().abs() + 1e-3).collect();
    for format in encodable() {
        let whole = encode(format, &x, Some(&imatrix), EncodeMode::Fast);
        let rows = x
            .chunks(64)
            .map(|row| encode(format, row, Some(&imatrix), EncodeMode::Fast));
        assert_eq!(whole, rows.collect::<Vec<_>>().concat(), "{format}");
    }
}
