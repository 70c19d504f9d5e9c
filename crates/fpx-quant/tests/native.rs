//! The formats of ggml against ggml itself (`tests/data/README.md`), and by hand where it has none.

#![allow(clippy::unwrap_used)]

mod common;

use common::bits;
use fpx_quant::native::{decode, encode};
use fpx_quant::{EncodeMode, Format, FormatError, decode_row, encode_rows};
use serde_json::Value;

struct Vector {
    format: Format,
    bytes: Vec<u8>,
    values: Vec<f32>,
}

fn vectors(kind: &str) -> Vec<Vector> {
    let root: Value = serde_json::from_str(include_str!("data/native-golden.json")).unwrap();
    let of_kind = root
        .as_array()
        .unwrap()
        .iter()
        .filter(|v| v["kind"] == kind);
    of_kind
        .map(|v| {
            let name = v["format"].as_str().unwrap();
            let known = [
                Format::Q8_0,
                Format::Mxfp4,
                Format::Q4K,
                Format::Q2K,
                Format::Iq2Xxs,
            ];
            let hex = |field: &str, digits: usize| -> Vec<u32> {
                let text = v[field].as_str().unwrap().as_bytes();
                let chunks = text.chunks(digits).map(|c| std::str::from_utf8(c).unwrap());
                chunks
                    .map(|c| u32::from_str_radix(c, 16).unwrap())
                    .collect()
            };
            Vector {
                format: known.into_iter().find(|f| f.name() == name).unwrap(),
                bytes: hex("bytes", 2).into_iter().map(|b| b as u8).collect(),
                values: hex("values", 8).into_iter().map(f32::from_bits).collect(),
            }
        })
        .collect()
}

#[test]
fn decoders_give_the_bits_of_ggml() {
    let vectors = vectors("decode");
    assert_eq!(vectors.len(), 5);
    for v in vectors {
        let mut out = vec![f32::NAN; v.values.len()];
        decode_row(v.format, &v.bytes, &mut out).unwrap();
        let (got, want) = (bits(&out), bits(&v.values));
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            assert_eq!(got, want, "{} weight {i}", v.format);
        }
    }
}

#[test]
fn encoders_give_the_bytes_of_ggml() {
    let vectors = vectors("encode");
    assert_eq!(vectors.len(), 2);
    for v in vectors {
        for mode in [EncodeMode::Reference, EncodeMode::Fast] {
            let mut out = vec![0xa5; v.bytes.len()];
            encode_rows(v.format, &v.values, 64, None, mode, &mut out).unwrap();
            let size = v.format.block_bytes();
            for (i, (got, want)) in out.chunks(size).zip(v.bytes.chunks(size)).enumerate() {
                assert_eq!(got, want, "{} {mode:?} block {i}", v.format);
            }
        }
    }
}

#[test]
fn values_that_are_not_finite_become_zero() {
    for format in [Format::Q8_0, Format::Mxfp4] {
        let mut x = [1.0f32; 32];
        (x[3], x[4], x[20]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
        let (mut out, mut back) = (vec![0; format.block_bytes()], [f32::NAN; 32]);
        encode(format, &x, &mut out);
        decode(format, &out, &mut back);
        for (i, value) in back.iter().enumerate() {
            let want = if matches!(i, 3 | 4 | 20) { 0.0 } else { 1.0 };
            assert!(
                (value - want).abs() < 0.001,
                "{format} element {i}: {value}"
            );
        }
    }
}

#[test]
fn scales_at_the_ends_of_mxfp4() {
    let mut block = [0x22u8; 17];
    let mut out = [0.0; 32];
    for (byte, scale) in [
        (0, 2f32.powi(-128)),
        (1, 2f32.powi(-127)),
        (2, 2f32.powi(-126)),
    ] {
        block[0] = byte;
        decode(Format::Mxfp4, &block, &mut out);
        assert_eq!(out, [2.0 * scale; 32], "scale byte {byte}");
    }
    block[0] = 255;
    decode(Format::Mxfp4, &block, &mut out);
    assert_eq!(out, [f32::INFINITY; 32]);
    // Smaller than any scale: the least one.
    encode(Format::Mxfp4, &[f32::from_bits(1); 32], &mut block);
    assert_eq!(block, [0; 17]);
    encode(Format::Mxfp4, &[f32::MAX; 32], &mut block);
    decode(Format::Mxfp4, &block, &mut out);
    assert_eq!(out, [2f32.powi(127) * 1.5; 32]);
}

#[test]
fn floats_round_to_even_and_widen_exactly() {
    let ties = [
        1.0 + 2f32.powi(-11),
        1.0 + 3.0 * 2f32.powi(-11),
        2f32.powi(-24),
        65520.0,
    ];
    let mut half = [0u8; 8];
    encode(Format::F16, &ties, &mut half);
    let halves = half.as_chunks::<2>().0.map_to(u16::from_le_bytes);
    assert_eq!(halves, [0x3c00, 0x3c02, 0x0001, 0x7c00]);
    let mut back = [0.0; 4];
    decode(Format::F16, &half, &mut back);
    assert_eq!(
        back,
        [1.0, 1.0 + 2f32.powi(-9), 2f32.powi(-24), f32::INFINITY]
    );

    let ties = [
        1.0 + 2f32.powi(-8),
        1.0 + 3.0 * 2f32.powi(-8),
        -0.0,
        f32::MAX,
    ];
    encode(Format::BF16, &ties, &mut half);
    let halves = half.as_chunks::<2>().0.map_to(u16::from_le_bytes);
    assert_eq!(halves, [0x3f80, 0x3f82, 0x8000, 0x7f80]);
    decode(Format::BF16, &half, &mut back);
    assert_eq!(
        bits(&back),
        bits(&[1.0, 1.0 + 2f32.powi(-6), -0.0, f32::INFINITY])
    );

    let mut four = [0u8; 16];
    encode(Format::F32, &ties, &mut four);
    decode(Format::F32, &four, &mut back);
    assert_eq!(bits(&back), bits(&ties));

    // A NaN stays one, whatever its payload.
    for format in [Format::F16, Format::BF16, Format::F32] {
        let mut out = vec![0; format.block_bytes()];
        encode(format, &[f32::from_bits(0x7f80_0001)], &mut out);
        decode(format, &out, &mut back[..1]);
        assert!(back[0].is_nan(), "{format}");
    }
}

/// Each element of an array through a function.
trait MapTo<A> {
    fn map_to<B>(&self, f: impl Fn(A) -> B) -> Vec<B>;
}

impl<A: Copy> MapTo<A> for [A] {
    fn map_to<B>(&self, f: impl Fn(A) -> B) -> Vec<B> {
        self.iter().map(|&a| f(a)).collect()
    }
}

#[test]
fn what_does_not_exist_is_refused() {
    let mut out = [0u8; 144];
    for format in [Format::Q4K, Format::Q2K, Format::Iq2Xxs, Format::I32] {
        let elems = format.block_elems();
        let bytes = format.block_bytes();
        let got = encode_rows(
            format,
            &vec![0.0; elems],
            elems,
            None,
            EncodeMode::Fast,
            &mut out[..bytes],
        );
        assert!(
            matches!(got, Err(FormatError::Unsupported { .. })),
            "{format}: {got:?}"
        );
    }
    let mut values = [0.0; 1];
    let got = decode_row(Format::I32, &[0; 4], &mut values);
    assert!(
        matches!(got, Err(FormatError::Unsupported { .. })),
        "{got:?}"
    );
}
