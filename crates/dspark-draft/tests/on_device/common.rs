//! The shipped drafter in several formats, devices, and short ways to compare.

use std::path::Path;
use std::sync::Arc;

use device::driver::Driver;
use device::{Device, cpu, fake};
use ds4_target::GgufSource;
use ds4_target::on_device::Settings;
use ds4_target::source::{Bytes, MetaValue, RawTensor, Source};
use dspark_draft::backbone::Options;
use dspark_draft::weights::DraftModel;
use fpx_quant::{EncodeMode, Format, decode_row, encode_rows};

/// The shipped drafter, some matrices encoded anew.
pub(crate) struct Recoded(GgufSource, fn(&str) -> Option<Format>);

impl Source for Recoded {
    fn name(&self) -> &str {
        "recoded"
    }

    fn meta(&self, key: &str) -> Option<MetaValue> {
        self.0.meta(key)
    }

    fn tensor(&self, name: &str) -> Option<RawTensor> {
        let raw = self.0.tensor(name)?;
        let Some(format) = (self.1)(name) else {
            return Some(raw);
        };
        let k = raw.shape[0] as usize;
        let mut values = vec![0f32; raw.shape.iter().product::<u64>() as usize];
        decode_row(raw.format, raw.bytes.as_slice(), &mut values).unwrap();
        let mut bytes = vec![0; format.matrix_bytes(values.len() / k, k).unwrap()];
        encode_rows(format, &values, k, None, EncodeMode::Fast, &mut bytes).unwrap();
        Some(RawTensor {
            shape: raw.shape,
            format,
            bytes: Bytes::from_vec(bytes),
        })
    }

    fn tensor_names(&self) -> Vec<String> {
        self.0.tensor_names()
    }
}

pub(crate) fn as_shipped(_: &str) -> Option<Format> {
    None
}

/// FP4_FAST for dense matrices and experts in three bits, as a full-size drafter may be stored.
pub(crate) fn narrow(name: &str) -> Option<Format> {
    let dense = [
        "attn_q_a.",
        "attn_q_b.",
        "attn_kv.",
        "attn_output_",
        "shexp",
    ];
    let is = |names: &[&str]| names.iter().any(|n| name.contains(n));
    match () {
        () if is(&dense) || name.contains("fc.") => Some(Format::Fp4Fast),
        () if is(&["_exps"]) => Some(Format::Fp3),
        () => None,
    }
}

/// Halves for the heads, as files of full size have them.
pub(crate) fn halves_in_heads(name: &str) -> Option<Format> {
    name.contains("markov").then_some(Format::F16)
}

/// Halves for dense matrices.
pub(crate) fn halves(name: &str) -> Option<Format> {
    let dense = ["attn_q_a.", "attn_q_b.", "attn_kv.", "attn_output_", "fc."];
    dense
        .iter()
        .any(|n| name.contains(n))
        .then_some(Format::F16)
}

pub(crate) fn model(format_of: fn(&str) -> Option<Format>) -> Arc<DraftModel> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny-draft.gguf");
    let file = gguf::Gguf::open(&path, &gguf::OpenOptions::default()).unwrap();
    let source = Recoded(GgufSource::new(file), format_of);
    Arc::new(DraftModel::load(&source).unwrap())
}

pub(crate) fn options() -> Options {
    Options {
        n_seq_max: 3,
        verify_max: 8,
        kv_round: false,
    }
}

pub(crate) fn settings(graph_tokens: usize) -> Settings<'static> {
    Settings {
        cache: None,
        // Nothing is kept of it.
        progress: Box::leak(Box::new(|_, _| {})),
        graph_tokens,
        check: false,
    }
}

pub(crate) fn cpu_device() -> Device<cpu::Cpu> {
    cpu::runtime(2 << 30).open(0).unwrap()
}

pub(crate) fn fake_device(seed: u64) -> Device<impl Driver> {
    let settings = fake::Settings {
        seed,
        memory: 1 << 30,
        ..fake::Settings::default()
    };
    fake::runtime(&settings).open(0).unwrap()
}

pub(crate) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}
