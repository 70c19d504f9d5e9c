//! What several test files share: the golden file, a generator of random numbers, format lists.

#![allow(dead_code)]

use fpx_quant::{Format, Fp2Dialect, Fp6Endpoint};
use serde_json::Value;

/// Every format without a codebook.
pub(crate) const BASE: [Format; 10] = [
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

/// Those of [`BASE`] that can be written.
pub(crate) fn encodable() -> impl Iterator<Item = Format> {
    BASE.into_iter()
        .filter(|&f| f != Format::Fp2(Fp2Dialect::SignedNeg))
}

/// splitmix64.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Sum of twelve uniform 16-bit numbers, centred: about N(0, 1), exact in f32.
    pub(crate) fn normal(&mut self) -> f32 {
        let mut sum = 0i32;
        for _ in 0..3 {
            let z = self.next();
            sum += (0..4).map(|i| (z >> (16 * i) & 0xffff) as i32).sum::<i32>();
        }
        (sum - 393_210) as f32 / 65_536.0
    }
}

/// Bytes of random blocks, scale bytes valid for the format.
pub(crate) fn random_blocks(rng: &mut Rng, format: Format, blocks: usize) -> Vec<u8> {
    let size = format.block_bytes();
    let mut bytes: Vec<u8> = (0..blocks * size).map(|_| rng.next() as u8).collect();
    let scales = match format {
        Format::Fp4Fast | Format::Fp8 => 1,
        _ => 2,
    };
    let sign = match format {
        Format::Fp2(Fp2Dialect::SignedNeg) | Format::Mix2 | Format::Mix3 => 0x80,
        _ => 0,
    };
    for block in bytes.chunks_exact_mut(size) {
        for byte in &mut block[size - scales..] {
            *byte = (*byte & sign) | ((*byte & 0x7f) % 0x7f);
        }
    }
    bytes
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// The golden file.
pub(crate) struct Golden {
    pub(crate) inputs: Vec<Vec<f32>>,
    pub(crate) imatrix: Vec<f32>,
    /// Two books of 4 levels, then two of 8, as bf16 bits.
    pub(crate) books: [Vec<u16>; 2],
    pub(crate) formats: Vec<GoldenFormat>,
}

/// One format's rows: bytes, decoded bits, bytes with the importance matrix.
pub(crate) struct GoldenFormat {
    pub(crate) format: Format,
    /// Non-finite inputs were +0.0.
    pub(crate) finite_only: bool,
    pub(crate) quant: Vec<Vec<u8>>,
    pub(crate) dequant: Vec<Vec<u32>>,
    pub(crate) quant_imatrix: Option<Vec<Vec<u8>>>,
}

impl Golden {
    pub(crate) fn load() -> Self {
        let root: Value = serde_json::from_str(include_str!("../data/fpx-golden.json")).unwrap();
        Self {
            inputs: list(&root["inputs"], floats),
            imatrix: floats(&root["imatrix"]),
            books: ["cb4_bf16", "cb8_bf16"].map(|key| {
                let text = root[key].as_str().unwrap();
                (0..text.len() / 4)
                    .map(|i| u16::from_str_radix(&text[4 * i..4 * i + 4], 16).unwrap())
                    .collect()
            }),
            formats: root["formats"]
                .as_array()
                .unwrap()
                .iter()
                .map(GoldenFormat::new)
                .collect(),
        }
    }
}

impl GoldenFormat {
    fn new(value: &Value) -> Self {
        let format = match value["name"].as_str().unwrap() {
            "q2_0_rocmfp2" => Format::Fp2(Fp2Dialect::Signed),
            "q2_0_rocmfpx_s40" => Format::Fp2(Fp2Dialect::S40),
            "q2_0_rocmfp2_affine" => Format::Fp2(Fp2Dialect::Affine),
            "q3_0_rocmfpx" => Format::Fp3,
            "q4_0_rocmfp4" => Format::Fp4,
            "q4_0_rocmfp4_fast" => Format::Fp4Fast,
            "q6_0_rocmfpx" => Format::Fp6(Fp6Endpoint::Zero),
            "q6_0_rocmfpx_neg32" => Format::Fp6(Fp6Endpoint::Neg32),
            "q8_0_rocmfpx" => Format::Fp8,
            "q2_1_rocmfp2_mix" => Format::Mix2,
            "q3_1_rocmfp3_mix" => Format::Mix3,
            other => panic!("unknown golden format {other}"),
        };
        assert_eq!(
            value["block_bytes"].as_u64(),
            Some(format.block_bytes() as u64)
        );
        Self {
            format,
            finite_only: value["finite_only"].as_bool().unwrap(),
            quant: list(&value["quant"], hex),
            dequant: list(&value["dequant"], words),
            quant_imatrix: value.get("quant_imatrix").map(|v| list(v, hex)),
        }
    }
}

fn list<T>(value: &Value, item: impl Fn(&Value) -> T) -> Vec<T> {
    value.as_array().unwrap().iter().map(item).collect()
}

fn hex(value: &Value) -> Vec<u8> {
    let text = value.as_str().unwrap();
    (0..text.len() / 2)
        .map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap())
        .collect()
}

fn words(value: &Value) -> Vec<u32> {
    hex(value)
        .chunks_exact(4)
        .map(|w| u32::from_be_bytes([w[0], w[1], w[2], w[3]]))
        .collect()
}

fn floats(value: &Value) -> Vec<f32> {
    words(value).into_iter().map(f32::from_bits).collect()
}
