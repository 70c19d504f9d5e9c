//! Every byte and every decoded bit of the golden file (`tests/data/README.md`).

#![allow(clippy::unwrap_used)]

mod common;

use common::{Golden, GoldenFormat, Rng, bits};
use fpx_quant::mix::Codebook;
use fpx_quant::{EncodeMode, Format, Fp2Dialect, decode_row, encode_rows};

const ROW: usize = 512;

/// Compares byte for byte and names the first block that differs.
fn same_blocks(format: Format, what: &str, got: &[u8], want: &[u8]) {
    assert_eq!(got.len(), want.len(), "{format} {what}: bytes");
    let size = format.block_bytes();
    for (i, (g, w)) in got.chunks(size).zip(want.chunks(size)).enumerate() {
        assert_eq!(g, w, "{format} {what}: row {} block {}", i / 16, i % 16);
    }
}

fn inputs(golden: &Golden, format: &GoldenFormat) -> Vec<f32> {
    let clean = |v: f32| {
        if v.is_finite() || !format.finite_only {
            v
        } else {
            0.0
        }
    };
    golden.inputs.concat().into_iter().map(clean).collect()
}

fn encode(format: Format, x: &[f32], imatrix: Option<&[f32]>, mode: EncodeMode) -> Vec<u8> {
    let mut out = vec![0xa5; format.matrix_bytes(x.len() / ROW, ROW).unwrap()];
    encode_rows(format, x, ROW, imatrix, mode, &mut out).unwrap();
    out
}

#[test]
fn the_golden_file_is_complete() {
    let golden = Golden::load();
    assert_eq!(golden.formats.len(), 11);
    assert_eq!(golden.inputs.len(), 8);
    assert!(golden.inputs.iter().all(|row| row.len() == ROW));
    let weighted = golden.formats.iter().filter(|f| f.quant_imatrix.is_some());
    assert_eq!(weighted.count(), 8);
}

#[test]
fn encoders_without_importance() {
    let golden = Golden::load();
    let mut checked = 0;
    for f in &golden.formats {
        if matches!(f.format, Format::Mix2 | Format::Mix3) {
            continue;
        }
        let x = inputs(&golden, f);
        for mode in [EncodeMode::Reference, EncodeMode::Fast] {
            let got = encode(f.format, &x, None, mode);
            same_blocks(f.format, &format!("{mode:?}"), &got, &f.quant.concat());
            checked += 1;
        }
    }
    assert_eq!(checked, 18);
}

#[test]
fn encoders_with_importance() {
    let golden = Golden::load();
    let mut checked = 0;
    for f in &golden.formats {
        let Some(want) = &f.quant_imatrix else {
            continue;
        };
        let x = inputs(&golden, f);
        for mode in [EncodeMode::Reference, EncodeMode::Fast, EncodeMode::Better] {
            let got = encode(f.format, &x, Some(&golden.imatrix), mode);
            same_blocks(
                f.format,
                &format!("{mode:?} weighted"),
                &got,
                &want.concat(),
            );
            checked += 1;
        }
    }
    assert_eq!(checked, 24);
}

#[test]
fn decoders() {
    let golden = Golden::load();
    let mut checked = 0;
    for f in &golden.formats {
        if matches!(f.format, Format::Mix2 | Format::Mix3) {
            continue;
        }
        for (row, (bytes, want)) in f.quant.iter().zip(&f.dequant).enumerate() {
            let mut out = vec![f32::NAN; ROW];
            decode_row(f.format, bytes, &mut out).unwrap();
            assert_eq!(bits(&out), *want, "{} row {row}", f.format);
            checked += 1;
        }
    }
    assert_eq!(checked, 9 * 8);
}

#[test]
fn decoders_with_codebook() {
    let golden = Golden::load();
    let mut checked = 0;
    for f in &golden.formats {
        let levels = match f.format {
            Format::Mix2 => &golden.books[0],
            Format::Mix3 => &golden.books[1],
            _ => continue,
        };
        let book = Codebook::adaptive(f.format, levels).unwrap();
        for (row, (bytes, want)) in f.quant.iter().zip(&f.dequant).enumerate() {
            let mut out = vec![f32::NAN; ROW];
            book.decode_row(bytes, &mut out).unwrap();
            assert_eq!(bits(&out), *want, "{} row {row}", f.format);
            checked += 1;
        }
    }
    assert_eq!(checked, 2 * 8);
}

/// The file's inputs are what its generator says: integer arithmetic and exact f32 products, so
/// that nothing about the file rests on a libm.
#[test]
fn inputs_follow_the_generator() {
    let golden = Golden::load();
    for (r, row) in golden.inputs.iter().enumerate() {
        let mut rng = Rng(0x5eed_0000 + r as u64);
        let want: Vec<f32> = (0..ROW).map(|i| input(r, i, &mut rng)).collect();
        assert_eq!(bits(row), bits(&want), "row {r}");
    }
    let mut rng = Rng(0x5eed_1000);
    let imatrix: Vec<f32> = (0..ROW)
        .map(|_| ((rng.next() >> 48) + 1) as f32 / 4096.0)
        .collect();
    assert_eq!(bits(&golden.imatrix), bits(&imatrix));
}

fn input(row: usize, i: usize, rng: &mut Rng) -> f32 {
    let h = rng.normal();
    let (block, j) = (i / 32, i % 32);
    match row {
        0 => h,
        1 => h / 64.0,
        2 => f32::from((rng.next() & 0xffff) as u16 as i16) / 32768.0,
        3 => h * h * h,
        4 => f32::from_bits((h * 0.02f32).to_bits() & 0xffff_0000),
        5 => edge(block, j, h),
        6 => h.abs(),
        _ => h * 2f32.powi(block as i32 - 8),
    }
}

fn edge(block: usize, j: usize, h: f32) -> f32 {
    match (block, j) {
        (0, _) => 0.0,
        (1, _) => 1.0,
        (2, _) => [3.0, -3.0][j % 2],
        (3, 0) => -0.0,
        (3, 1) => f32::from_bits(1),
        (3, 2) => f32::from_bits(0x8000_0001),
        (3, 3..=15) => h * 2f32.powi(-126),
        (3, 31) => -1.0,
        (3, _) => 0.0,
        (4, 3) => f32::NAN,
        (4, 7) => f32::INFINITY,
        (4, 20) => f32::NEG_INFINITY,
        (5, _) => h * 1e30,
        (6, _) => h * 1e-30,
        (7, _) => j as f32 - 16.0,
        (8, 0..=15) => 0.0,
        (9, 5) => 500.0,
        (9, _) => h * 0.001,
        (10, _) => h / 4096.0,
        (11, _) => h * 4096.0,
        (12..=15, _) if j == block => h * 50.0,
        _ => h,
    }
}

/// Encoded forms of the ramp (i - 16) / 8.
#[test]
fn the_ramp() {
    let x: Vec<f32> = (0..32).map(|i| (i as f32 - 16.0) / 8.0).collect();
    let cases = [
        (Format::Fp2(Fp2Dialect::Signed), "000040555 5aafaff433d"),
        (Format::Fp3, "ffffdbb6db16401249d2b66d3635"),
        (Format::Fp4, "0f1f1f2e3e3e4d4d5d5c5c6b6b6a79792c2c"),
        (Format::Fp4Fast, "0f1f1f2e3e3e4d4d5d5c5c6b6b6a79792c"),
        (
            Format::Fp6(fpx_quant::Fp6Endpoint::Zero),
            "f0ebb6ecaaa6e86996e42886804018 88c238904459 98c6792820",
        ),
        (
            Format::Fp6(fpx_quant::Fp6Endpoint::Neg32),
            "a0cfebb84dcbb0cbaaa8498a804018 88c238904459 98c6792020",
        ),
        (
            Format::Fp8,
            "81889098a0a8b0b8c0c8d0d8e0e8f0f80008101820283038404850586068707810",
        ),
        (Format::Fp2(Fp2Dialect::S40), "00005455aaaaffff3434"),
        (Format::Fp2(Fp2Dialect::Affine), "00405555aaaafeff4146"),
    ];
    for (format, text) in cases {
        let text = text.replace(' ', "");
        let want: Vec<u8> = (0..text.len() / 2)
            .map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap())
            .collect();
        for mode in [EncodeMode::Reference, EncodeMode::Fast] {
            let mut out = vec![0; format.block_bytes()];
            encode_rows(format, &x, 32, None, mode, &mut out).unwrap();
            assert_eq!(out, want, "{format} {mode:?}");
        }
    }
}
