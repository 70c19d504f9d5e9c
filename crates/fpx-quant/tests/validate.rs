//! What is refused: every scale byte in every place, every wrong size, with the right error. And
//! the censuses of the two ambiguous ids.

#![allow(clippy::unwrap_used)]

mod common;

use common::{BASE, Rng, encodable, random_blocks};
use fpx_quant::census::{Fp2Alarm, Fp2Census, Fp6Census};
use fpx_quant::{
    EncodeMode, Format, FormatError, Fp2Dialect, Fp6Endpoint, block, decode_row, decode_row_lossy,
    encode_rows, validate_row_data,
};

fn scale_places(format: Format) -> std::ops::Range<usize> {
    let size = format.block_bytes();
    let count = match format {
        Format::Fp4Fast | Format::Fp8 => 1,
        _ => 2,
    };
    size - count..size
}

#[test]
fn every_byte_as_scale() {
    for format in BASE {
        let size = format.block_bytes();
        let mask = match format {
            Format::Fp2(Fp2Dialect::SignedNeg) => 0x7f,
            _ => 0xff,
        };
        for place in scale_places(format) {
            for byte in 0..=255u8 {
                let mut bytes = random_blocks(&mut Rng(byte.into()), format, 3);
                bytes[2 * size + place] = byte;
                let want = if byte & mask > 0x7e {
                    Err(FormatError::InvalidScale {
                        format,
                        block: 2,
                        byte,
                        limit: 0x7e,
                    })
                } else {
                    Ok(())
                };
                let mut out = [f32::NAN; 96];
                assert_eq!(
                    validate_row_data(format, &bytes),
                    want,
                    "{format} {byte:#x}"
                );
                assert_eq!(decode_row(format, &bytes, &mut out), want);
                assert_eq!(
                    out.iter().all(|v| v.is_nan()),
                    want.is_err(),
                    "untouched on error"
                );
                decode_row_lossy(format, &bytes, &mut out).unwrap();
                let block = block::unpack(format, &bytes[2 * size..]);
                assert_eq!(out[64..], block.weights(), "{format} {byte:#x} lossy");
            }
        }
    }
}

#[test]
fn an_invalid_scale_reads_as_zero_when_lossy() {
    let mut block = [0xff; 14];
    block[12] = 0x40;
    let mut out = [f32::NAN; 32];
    decode_row_lossy(Format::Fp3, &block, &mut out).unwrap();
    assert_eq!(out[..16], [-4.0; 16]);
    assert_eq!(out[16..], [0.0; 16]);
}

#[test]
fn sizes() {
    for format in BASE {
        let size = format.block_bytes();
        let bytes = random_blocks(&mut Rng(1), format, 2);
        for cut in 1..size {
            let want = FormatError::Bytes {
                format,
                expected: size,
                got: 2 * size - cut,
            };
            assert_eq!(validate_row_data(format, &bytes[cut..]), Err(want));
        }
        let got = decode_row(format, &bytes[1..], &mut [0.0; 64]);
        let want = FormatError::Bytes {
            format,
            expected: 2 * size,
            got: 2 * size - 1,
        };
        assert_eq!(got, Err(want));
        let got = decode_row(format, &bytes, &mut [0.0; 63]);
        assert!(matches!(
            got,
            Err(FormatError::PartialBlock { elems: 63, .. })
        ));
        decode_row(format, &[], &mut []).unwrap();
        validate_row_data(format, &[]).unwrap();
    }
}

#[test]
fn sizes_of_the_encoder() {
    for format in encodable() {
        let size = format.block_bytes();
        let mut out = vec![0xa5; 4 * size];
        let encode = |x: &[f32], elems, out: &mut [u8]| {
            encode_rows(format, x, elems, None, EncodeMode::Fast, out)
        };
        encode(&[1.0; 128], 64, &mut out).unwrap();
        encode(&[], 64, &mut []).unwrap();
        encode(&[], 0, &mut []).unwrap();
        let got = encode(&[1.0; 128], 64, &mut out[..4 * size - 1]);
        let want = FormatError::Bytes {
            format,
            expected: 4 * size,
            got: 4 * size - 1,
        };
        assert_eq!(got, Err(want));
        for (values, elems) in [(128, 48), (96, 64), (32, 0)] {
            let got = encode(&vec![1.0; values], elems, &mut out);
            assert!(
                matches!(got, Err(FormatError::PartialBlock { .. })),
                "{got:?}"
            );
        }
    }
}

#[test]
fn decode_only_formats() {
    for format in [
        Format::Fp2(Fp2Dialect::SignedNeg),
        Format::Mix2,
        Format::Mix3,
    ] {
        let mut out = vec![0xa5; format.block_bytes()];
        let got = encode_rows(
            format,
            &[1.0; 32],
            32,
            None,
            EncodeMode::Reference,
            &mut out,
        );
        let want = FormatError::Unsupported {
            format,
            what: "encoding",
        };
        assert_eq!(got, Err(want));
        assert!(out.iter().all(|&b| b == 0xa5), "untouched on error");
    }
}

#[test]
fn importance_that_guides_nothing() {
    for format in encodable() {
        let group = match format {
            Format::Fp4Fast | Format::Fp8 | Format::Fp2(Fp2Dialect::Affine) => 32,
            _ => 16,
        };
        let mut out = vec![0xa5; 2 * format.block_bytes()];
        let mut encode = |imatrix: &[f32]| {
            let mode = EncodeMode::Fast;
            encode_rows(format, &[0.5; 64], 64, Some(imatrix), mode, &mut out)
        };
        let bad = |got: Result<(), FormatError>| {
            assert!(
                matches!(got, Err(FormatError::BadWeights { .. })),
                "{format}: {got:?}"
            );
        };
        bad(encode(&[1.0; 63]));
        bad(encode(&[1.0; 96]));
        for useless in [0.0, 1e-40, -1.0, f32::NAN, f32::INFINITY] {
            let mut imatrix = [1.0; 64];
            imatrix[64 - group..].fill(useless);
            bad(encode(&imatrix));
            imatrix[63] = 1e-3;
            encode(&imatrix).unwrap();
        }
    }
}

fn normal(count: usize, sigma: f32) -> Vec<f32> {
    let mut rng = Rng(12345);
    (0..count).map(|_| rng.normal() * sigma).collect()
}

fn encoded(format: Format, x: &[f32]) -> Vec<u8> {
    let mut out = vec![0; format.matrix_bytes(x.len() / 256, 256).unwrap()];
    encode_rows(format, x, 256, None, EncodeMode::Fast, &mut out).unwrap();
    out
}

#[test]
fn census_of_the_endpoint() {
    let x = normal(1 << 14, 1.0);
    let zero = Fp6Census::of(&encoded(Format::Fp6(Fp6Endpoint::Zero), &x)).unwrap();
    assert_eq!((zero.blocks, zero.blocks_with_code_32), (512, 0));
    assert!(zero.endpoint_is_irrelevant());
    let bytes = encoded(Format::Fp6(Fp6Endpoint::Neg32), &x);
    let neg = Fp6Census::of(&bytes).unwrap();
    assert!(!neg.endpoint_is_irrelevant());
    let by_unpacking = bytes.chunks(26).filter(|b| {
        block::unpack(Format::Fp6(Fp6Endpoint::Neg32), b)
            .levels
            .contains(&-32)
    });
    assert_eq!(neg.blocks_with_code_32, by_unpacking.count() as u64);
    // About a fifth of the blocks at this spread.
    assert!((70..140).contains(&neg.blocks_with_code_32), "{neg:?}");
    assert!(Fp6Census::of(&bytes[1..]).is_err());
}

/// Every dialect's own tensor passes, and each of the other two is noticed.
#[test]
fn census_of_the_2_bit_dialects() {
    let x = normal(1 << 18, 0.02);
    let dialects = [Fp2Dialect::Signed, Fp2Dialect::S40, Fp2Dialect::Affine];
    // Shares of the codes 0..3 in the specification's own measurement.
    let shares = [
        [0.308, 0.386, 0.232, 0.074],
        [0.184, 0.317, 0.316, 0.183],
        [0.140, 0.333, 0.356, 0.171],
    ];
    for (writer, shares) in dialects.into_iter().zip(shares) {
        let census = Fp2Census::of(&encoded(Format::Fp2(writer), &x)).unwrap();
        assert_eq!(
            (census.blocks, census.top_bits, census.invalid),
            (1 << 13, 0, 0)
        );
        for (got, want) in census.shares().into_iter().zip(shares) {
            assert!(
                (got - want).abs() < 0.01,
                "{writer:?}: {:?}",
                census.shares()
            );
        }
        for reader in dialects {
            let alarm = census.alarm(reader);
            assert_eq!(
                alarm.is_none(),
                reader == writer,
                "{writer:?} as {reader:?}: {alarm:?}"
            );
        }
    }
}

#[test]
fn census_of_odd_bytes() {
    let mut bytes = encoded(Format::Fp2(Fp2Dialect::Signed), &normal(512, 0.02));
    let alarm = |bytes: &[u8], dialect| Fp2Census::of(bytes).unwrap().alarm(dialect);
    assert_eq!(
        alarm(&bytes, Fp2Dialect::Affine),
        None,
        "too few blocks to judge"
    );
    bytes[8] |= 0x80;
    assert_eq!(alarm(&bytes, Fp2Dialect::Signed), Some(Fp2Alarm::TopBits));
    assert_eq!(alarm(&bytes, Fp2Dialect::SignedNeg), None);
    bytes[19] = 0x7f;
    assert_eq!(
        alarm(&bytes, Fp2Dialect::SignedNeg),
        Some(Fp2Alarm::Invalid)
    );
    assert!(Fp2Census::of(&bytes[..15]).is_err());
    assert_eq!(Fp2Census::of(&[]).unwrap().shares(), [0.0; 4]);
}
