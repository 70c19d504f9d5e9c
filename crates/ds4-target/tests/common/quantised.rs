//! A fixture in any weight format.

use std::cell::RefCell;
use std::collections::BTreeMap;

use ds4_target::source::{Bytes, MetaValue, RawTensor, Source};
use fpx_quant::{EncodeMode, Format, decode_row, encode_rows};
use testkit::oracle::{OracleModel, Tensor};
use testkit::rng::Rng;

use super::meta;

/// A fixture with its matrices in `format`, or those weights widened to F32 again.
pub(crate) struct Quantised {
    model: OracleModel,
    format: Format,
    widened: bool,
    /// Tensors are asked for several times, and encoding is slow.
    cache: RefCell<BTreeMap<String, RawTensor>>,
}

/// Formats without an encoder get random codes under scales that keep weights of the usual size.
fn random_blocks(format: Format, blocks: usize, k: usize, name: &str) -> Vec<u8> {
    let mut rng = Rng::named(11, name);
    let mut bytes: Vec<u8> = (0..blocks * format.block_bytes())
        .map(|_| rng.next_u64() as u8)
        .collect();
    // Weights of about 1 / sqrt(k): a Q4_K weight is about d * 32 * 4, Q2_K d * 8 * 1.5,
    // IQ2_XXS d * 4 * 20.
    let (at, divisor) = match format {
        Format::Q4K => (0, 128.0),
        Format::Q2K => (80, 12.0),
        Format::Iq2Xxs => (0, 80.0),
        other => panic!("{other} has an encoder"),
    };
    let d = half::f16::from_f32(1.0 / (k as f32).sqrt() / divisor).to_le_bytes();
    let dmin = half::f16::from_f32(0.5 / (k as f32).sqrt() / divisor).to_le_bytes();
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        block[at..at + 2].copy_from_slice(&d);
        if format != Format::Iq2Xxs {
            block[at + 2..at + 4].copy_from_slice(&dmin);
        }
    }
    bytes
}

impl Quantised {
    pub(crate) fn new(model: OracleModel, format: Format, widened: bool) -> Self {
        Self {
            model,
            format,
            widened,
            cache: RefCell::default(),
        }
    }

    fn stored(&self, name: &str, t: &Tensor) -> (Format, Vec<u8>) {
        let k = t.cols();
        let matrix = t.shape.len() > 1 && !name.contains("ffn_gate_inp") && !name.contains("ape");
        let format = if matrix && k.is_multiple_of(self.format.block_elems()) {
            self.format
        } else {
            Format::F32
        };
        let mut bytes = vec![0; format.matrix_bytes(t.data.len() / k, k).unwrap()];
        if encode_rows(format, &t.data, k, None, EncodeMode::Fast, &mut bytes).is_err() {
            bytes = random_blocks(format, t.data.len() / format.block_elems(), k, name);
        }
        if !self.widened {
            return (format, bytes);
        }
        let mut values = vec![0f32; t.data.len()];
        decode_row(format, &bytes, &mut values).unwrap();
        (
            Format::F32,
            values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        )
    }
}

impl Source for Quantised {
    fn name(&self) -> &str {
        "fixture"
    }

    fn meta(&self, key: &str) -> Option<MetaValue> {
        meta(&self.model.config, key)
    }

    fn tensor(&self, name: &str) -> Option<RawTensor> {
        if let Some(raw) = self.cache.borrow().get(name) {
            return Some(raw.clone());
        }
        let t = self.model.tensors.get(name)?;
        let shape: Vec<u64> = t.shape.iter().rev().map(|d| *d as u64).collect();
        let (format, bytes) = if name.contains("tid2eid") {
            (
                Format::I32,
                t.data
                    .iter()
                    .flat_map(|v| (*v as i32).to_le_bytes())
                    .collect(),
            )
        } else {
            self.stored(name, t)
        };
        let raw = RawTensor {
            shape,
            format,
            bytes: Bytes::from_vec(bytes),
        };
        self.cache.borrow_mut().insert(name.to_owned(), raw.clone());
        Some(raw)
    }

    fn tensor_names(&self) -> Vec<String> {
        self.model.tensors.keys().cloned().collect()
    }
}
