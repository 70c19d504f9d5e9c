//! Models with their matrices in other formats, on the CPU as a device: what the shipped formats do not reach.
//! FP4_FAST for the dense matrices, experts in few bits and halves for compressors is how the Flash model's mix is stored.
#![cfg(feature = "host-exec")]
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::sync::Arc;

use common::quantised::Quantised;
use common::span;
use device::cpu;
use device::driver::Driver;
use ds4_target::on_device::{DeviceTarget, Settings};
use ds4_target::source::{Bytes, MetaValue, RawTensor, Source};
use ds4_target::{CpuTarget, GgufSource, Model, Options};
use engine_core::{Fault, Out, SeqId, Target, TokenId};
use fpx_quant::{EncodeMode, Format, Fp2Dialect, decode_row, encode_rows};
use testkit::fixture::{Fixture, Kind};
use testkit::oracle::OracleConfig;

/// The shipped model, some matrices encoded anew.
struct Recoded(GgufSource);

/// The format of a matrix, if it is another one than in the file.
fn format_of(name: &str) -> Option<Format> {
    let formats: [(Format, &[&str]); 4] = [
        (Format::Fp4Fast, &["attn_q_a.", "attn_q_b.", "attn_kv."]),
        (Format::Fp4Fast, &["attn_output_", "shexp"]),
        (Format::Fp3, &["_exps"]),
        (
            Format::F16,
            &["compressor_kv.", "compressor_gate.", "indexer.proj"],
        ),
    ];
    let of = |names: &&[&str]| names.iter().any(|n| name.contains(n));
    let format = formats.iter().find(|(_, names)| of(names));
    format.map(|(format, _)| *format)
}

impl Source for Recoded {
    fn name(&self) -> &str {
        "recoded"
    }

    fn meta(&self, key: &str) -> Option<MetaValue> {
        self.0.meta(key)
    }

    fn tensor(&self, name: &str) -> Option<RawTensor> {
        let raw = self.0.tensor(name)?;
        let Some(format) = format_of(name) else {
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

fn model() -> Arc<Model> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny.gguf");
    let file = gguf::Gguf::open(&path, &gguf::OpenOptions::default()).unwrap();
    Arc::new(Model::load(&Recoded(GgufSource::new(file))).unwrap())
}

/// Runs the tokens as one span on a target: bits of the logits, and the state after.
fn run<T: Target>(target: &mut T, tokens: &[TokenId]) -> Vec<u32> {
    let seq = engine_core::SeqId(0);
    let pos = target.pos(seq).unwrap();
    let spans = [span(seq, pos, tokens.len(), Out::All)];
    let ticket = target.submit(tokens, &spans).unwrap();
    let rows = target.wait(ticket, None).unwrap();
    let bits = rows.logits.iter().map(|v| v.to_bits()).collect();
    target.commit(seq, pos + tokens.len() as u32);
    bits
}

fn options() -> Options {
    Options {
        n_ctx: 256,
        n_seq_max: 1,
        verify_max: 4,
        span_max: 16,
        kv_sim: true,
        threads: 2,
    }
}

/// A sequence beside each other on the processor and on a device that is the processor.
struct Both<R: Driver> {
    on_cpu: CpuTarget,
    on_device: DeviceTarget<R>,
}

fn both(model: &Arc<Model>) -> Both<cpu::Cpu> {
    let device = cpu::runtime(2 << 30).open(0).unwrap();
    let settings = Settings {
        cache: None,
        progress: &mut |_, _| {},
        graph_tokens: 0,
        check: false,
    };
    let mut on_cpu = CpuTarget::new(Arc::clone(model), options()).unwrap();
    let on_device = DeviceTarget::new(Arc::clone(model), options(), &device, settings);
    let mut on_device = on_device.unwrap();
    on_device.poison().unwrap();
    assert_eq!(on_device.open().unwrap(), on_cpu.open().unwrap());
    Both { on_cpu, on_device }
}

impl<R: Driver> Both<R> {
    /// Many rows, then a step, and a verify of two: bits of logits and the state after each. How many tokens that
    /// were.
    fn same(&mut self, tokens: &[TokenId], what: &str) -> usize {
        let mut at = 0;
        for n in [11, 1, 2] {
            let part = &tokens[at..at + n];
            let want = run(&mut self.on_cpu, part);
            assert!(
                want == run(&mut self.on_device, part),
                "{what}: logits of {n} tokens from {at}"
            );
            let state = |digest: Result<[u8; 32], Fault>| digest.unwrap();
            let want = state(self.on_cpu.digest(SeqId(0)));
            assert_eq!(
                state(self.on_device.digest(SeqId(0))),
                want,
                "{what}: state after {n} tokens from {at}"
            );
            at += n;
        }
        at
    }
}

/// Formats with offsets and with blocks of 256, every matrix that can have one.
#[test]
fn k_quants_iq2_and_affine_fp2_equal_the_cpu() {
    // Heads as devices take them.
    let config = OracleConfig {
        n_head: 8,
        ..Kind::T256.config()
    };
    let fixture = Fixture::of(config, 3).unwrap();
    let tokens = fixture.tokens(14, 5);
    for format in [
        Format::Q4K,
        Format::Q2K,
        Format::Iq2Xxs,
        Format::Fp2(Fp2Dialect::Affine),
    ] {
        let source = Quantised::new(fixture.model.clone(), format, false);
        let model = Arc::new(Model::load(&source).unwrap());
        both(&model).same(&tokens, &format.to_string());
    }
}

#[test]
fn dense_matrices_in_fp4_fast_and_compressors_in_halves_equal_the_cpu() {
    let model = model();
    let mut both = both(&model);
    let tokens: Vec<TokenId> = (0..40).map(|i| i * 97 % 4096).collect();
    let at = both.same(&tokens, "the small model");
    let Both {
        mut on_cpu,
        mut on_device,
    } = both;
    let before = on_device.counts().launches;
    on_device.clock().unwrap();
    let want = run(&mut on_cpu, &tokens[at..=at]);
    assert!(
        want == run(&mut on_device, &tokens[at..=at]),
        "a timed step"
    );
    let clocked = on_device.clocked().unwrap();
    let of = |kernel: &str| {
        let mine = clocked.iter().filter(|c| c.kernel.contains(kernel));
        mine.map(|c| c.launches).sum::<u64>()
    };
    // Seven layers, of which three have an indexer and two more a compressor.
    assert_eq!((of("_pair"), of("dense_f16_set")), (7 + 3, 5));
    assert_eq!((of("gate_up_with"), of("gemv_with")), (7, 7));
    let launches = on_device.counts().launches - before;
    assert_eq!(launches, 134, "{clocked:#?}");
    let read = |c: Option<engine_core::seams::Counters>| c.unwrap().weight_bytes.unwrap();
    let (got, want) = (read(on_device.counters()), read(on_cpu.counters()));
    assert_eq!(got, want, "bytes of weights read");
}
