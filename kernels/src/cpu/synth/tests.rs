//! The definition, held by values that were written down, and what its bytes mean.

use fpx_quant::{Fp6Endpoint, decode_row, validate_row_data};

use super::*;

/// Every format whose blocks can be made up.
const FORMATS: [Format; 18] = [
    Format::F32,
    Format::F16,
    Format::BF16,
    Format::Q8_0,
    Format::Mxfp4,
    Format::Q4K,
    Format::Q2K,
    Format::Iq2Xxs,
    Format::Fp2(Fp2Dialect::Signed),
    Format::Fp2(Fp2Dialect::SignedNeg),
    Format::Fp2(Fp2Dialect::Affine),
    Format::Fp2(Fp2Dialect::S40),
    Format::Fp3,
    Format::Fp4,
    Format::Fp4Fast,
    Format::Fp6(Fp6Endpoint::Zero),
    Format::Fp6(Fp6Endpoint::Neg32),
    Format::Fp8,
];

fn made(seed: u64, name: &str, format: Format) -> Made {
    Made::new(key(seed, name), Field::of(format).unwrap())
}

fn bytes(made: &Made, first: u64, n: usize) -> Vec<u8> {
    let mut out = vec![0xaa; n];
    made.fill(first, &mut out);
    out
}

/// The definition once more, a byte at a time.
fn byte(made: &Made, i: u64) -> u8 {
    let raw = (word(made.key, i / 8) >> (8 * (i % 8))) as u8;
    let f = made.field;
    let at = (i % u64::from(f.block)) as u32;
    if at < f.at || at >= f.at + f.len {
        return raw;
    }
    let part = |of: u32| (of >> (8 * (at - f.at))) as u8;
    raw & part(f.keep) | part(f.set)
}

#[test]
fn the_words_are_those_of_splitmix64() {
    // The published outputs of SplitMix64 from state 1234567.
    let want = [
        6_457_827_717_110_365_317,
        3_203_168_211_198_807_973,
        9_817_491_932_198_370_423,
        4_593_380_528_125_082_431,
    ];
    assert_eq!([0, 1, 2, 3].map(|n| word(1_234_567, n)), want);
}

#[test]
fn the_bytes_are_what_they_were_when_this_was_written() {
    // A change here makes other models of the same names, and voids records and fingerprints.
    let k = key(1, "blk.3.ffn_up_exps.weight");
    assert_eq!(k, GOLDEN_KEY);
    let fp2 = made(
        1,
        "blk.3.ffn_up_exps.weight",
        Format::Fp2(Fp2Dialect::Signed),
    );
    assert_eq!(bytes(&fp2, 0, 20), GOLDEN_FP2);
    let fp4f = made(1, "blk.3.ffn_up_exps.weight", Format::Fp4Fast);
    // Far behind 2^32.
    assert_eq!(bytes(&fp4f, 17 << 36, 17), GOLDEN_FP4F);
    let f32s = made(0, "output_norm.weight", Format::F32);
    assert_eq!(bytes(&f32s, 0, 8), GOLDEN_F32);
    assert_eq!(ids(k, 256, 6, 2), GOLDEN_IDS);
}

// Made by another implementation of the definition, in Python.
const GOLDEN_KEY: u64 = 0x0d99_a732_7b51_e989;
const GOLDEN_FP2: [u8; 20] = [
    0xde, 0x97, 0xd3, 0xc2, 0xd9, 0x2b, 0x6d, 0x6c, 0x19, 0x1a, 0x71, 0x4c, 0xc9, 0x8, 0x75, 0x8,
    0xfb, 0xa4, 0x1e, 0x1b,
];
const GOLDEN_FP4F: [u8; 17] = [
    0x9d, 0x70, 0xd0, 0x3e, 0xd6, 0x91, 0xb1, 0x41, 0xff, 0x68, 0x88, 0xbf, 0x46, 0xf3, 0xb9, 0xda,
    0xb,
];
const GOLDEN_F32: [u8; 8] = [0x9c, 0xa1, 0x48, 0x3f, 0x15, 0x6a, 0x25, 0x3f];
const GOLDEN_IDS: [u32; 12] = [222, 241, 4, 23, 42, 61, 17, 46, 75, 104, 133, 162];

#[test]
fn any_part_is_what_the_whole_has_there() {
    for format in FORMATS {
        let made = made(3, "t", format);
        for first in [0, 1 << 33, (1 << 33) + 5] {
            let whole = bytes(&made, first, 700);
            let want: Vec<u8> = (first..first + 700).map(|i| byte(&made, i)).collect();
            assert_eq!(whole, want, "{format} at {first}");
            for (from, n) in [(0, 0), (1, 1), (3, 4), (7, 90), (16, 17), (33, 600)] {
                let part = bytes(&made, first + from as u64, n);
                assert_eq!(part, whole[from..from + n], "{format}: {n} at {from}");
            }
        }
    }
}

#[test]
fn seed_name_and_place_all_matter() {
    let base = bytes(&made(1, "a", Format::Fp3), 0, 4200);
    let differing = |other: &[u8]| base.iter().zip(other).filter(|(a, b)| a != b).count();
    for other in [
        bytes(&made(2, "a", Format::Fp3), 0, 4200),
        bytes(&made(1, "b", Format::Fp3), 0, 4200),
        bytes(&made(1, "aa", Format::Fp3), 0, 4200),
        bytes(&made(1, "a", Format::Fp3), 14, 4200),
    ] {
        assert!(differing(&other) > 3500, "{}", differing(&other));
    }
    assert_eq!(differing(&base), 0);
}

#[test]
fn every_format_decodes_to_weights_of_a_usual_size() {
    for format in FORMATS {
        let n = 256 * 64;
        let len = format.row_bytes(n).unwrap();
        let row = bytes(&made(9, "row", format), 0, len);
        validate_row_data(format, &row).unwrap();
        let mut values = vec![f32::NAN; n];
        decode_row(format, &row, &mut values).unwrap();
        let largest = values.iter().fold(0f32, |m, v| m.max(v.abs()));
        let square: f64 = values.iter().map(|v| f64::from(*v).powi(2)).sum();
        let rms = (square / n as f64).sqrt();
        let usual = match format {
            Format::F32 => 0.5..1.0,
            _ => 0.015..0.1,
        };
        assert!(values.iter().all(|v| v.is_finite()), "{format}");
        assert!(
            usual.contains(&rms) && largest <= 1.0,
            "{format}: {rms} {largest}"
        );
    }
    let (low, high) = (1.0 / 16.0, 1.0 / 8.0);
    let small = bytes(&Made::new(key(0, "b"), Field::SMALL), 0, 4096);
    let (words, _) = small.as_chunks::<4>();
    let values: Vec<f32> = words.iter().map(|w| f32::from_le_bytes(*w)).collect();
    assert!(values.iter().all(|v| (low..high).contains(v)));
}

#[test]
fn formats_without_blocks_of_their_own_are_refused() {
    let ggml = Format::Ggml {
        id: 2,
        block: 32,
        bytes: 18,
    };
    for format in [Format::I32, Format::Mix2, Format::Mix3, ggml] {
        assert_eq!(Field::of(format), None, "{format}");
    }
}

#[test]
fn tables_name_different_experts_and_all_of_them() {
    for (experts, used) in [(256u32, 6u32), (384, 6), (8, 2), (6, 6), (3, 1)] {
        let table = ids(key(0, "t"), experts, used, 4000);
        assert_eq!(table.len(), 4000 * used as usize);
        let mut seen = vec![0; experts as usize];
        for row in table.chunks(used as usize) {
            let mut row = row.to_vec();
            row.iter().for_each(|e| seen[*e as usize] += 1);
            row.sort_unstable();
            row.dedup();
            assert_eq!(row.len(), used as usize, "{experts} {used}");
        }
        assert!(seen.iter().all(|n| *n > 0), "{experts} {used}");
    }
}
