//! What is refused, by which name, with which values: wrong files and wrong calls.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::{OracleSource, feed, meta, source, span, target};
use ds4_target::source::{Bytes, MetaValue, RawTensor, Source};
use ds4_target::{LoadError, Model, Options};
use engine_core::{Fault, LayerId, Out, SamplePlan, SeqId, Tap, Target, TokenId, Want};
use fpx_quant::Format;
use testkit::fixture::{Fixture, Kind};

/// A fixture with one key or tensor changed.
struct Changed {
    inner: &'static OracleSource,
    key: Option<(String, Option<MetaValue>)>,
    tensor: Option<(String, Option<RawTensor>)>,
}

thread_local! {
    /// Made once a test: the tensors of a model are slow to draw.
    static SHARED: &'static OracleSource = Box::leak(Box::new(fixture()));
}

fn fixture() -> OracleSource {
    source(Fixture::new(Kind::T0i, 7).unwrap().model)
}

fn with_key(key: &str, value: Option<MetaValue>) -> Changed {
    Changed {
        inner: SHARED.with(|s| *s),
        key: Some((key.to_owned(), value)),
        tensor: None,
    }
}

fn with_tensor(name: &str, change: impl FnOnce(RawTensor) -> Option<RawTensor>) -> Changed {
    let inner = SHARED.with(|s| *s);
    let new = change(inner.tensor(name).unwrap());
    Changed {
        inner,
        key: None,
        tensor: Some((name.to_owned(), new)),
    }
}

impl Source for Changed {
    fn name(&self) -> &str {
        "changed.gguf"
    }

    fn meta(&self, key: &str) -> Option<MetaValue> {
        match &self.key {
            Some((k, value)) if k == key => value.clone(),
            _ => meta(&self.inner.model.config, key),
        }
    }

    fn tensor(&self, name: &str) -> Option<RawTensor> {
        match &self.tensor {
            Some((n, tensor)) if n == name => tensor.clone(),
            _ => self.inner.tensor(name),
        }
    }

    fn tensor_names(&self) -> Vec<String> {
        let mut names = self.inner.tensor_names();
        match &self.tensor {
            Some((n, None)) => names.retain(|name| name != n),
            Some((n, Some(_))) if !names.contains(n) => names.push(n.clone()),
            _ => {}
        }
        names
    }
}

fn refusal(source: &dyn Source) -> LoadError {
    Model::load(source).expect_err("must be refused")
}

#[test]
fn every_shape_bearing_key_is_required() {
    let keys = [
        "block_count",
        "context_length",
        "embedding_length",
        "vocab_size",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "rope.dimension_count",
        "attention.q_lora_rank",
        "attention.output_lora_rank",
        "attention.output_group_count",
        "attention.sliding_window",
        "attention.indexer.head_count",
        "attention.indexer.key_length",
        "attention.indexer.top_k",
        "attention.compress_ratios",
        "attention.compress_rope_freq_base",
        "attention.layer_norm_rms_epsilon",
        "rope.freq_base",
        "rope.scaling.factor",
        "rope.scaling.original_context_length",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
        "expert_count",
        "expert_used_count",
        "expert_shared_count",
        "expert_feed_forward_length",
        "expert_weights_scale",
        "hash_layer_count",
        "swiglu_clamp_exp",
        "hyper_connection.count",
        "hyper_connection.sinkhorn_iterations",
        "hyper_connection.epsilon",
    ];
    for key in keys {
        let key = format!("deepseek4.{key}");
        match refusal(&with_key(&key, None)) {
            LoadError::MissingKey {
                key: named, file, ..
            } => {
                assert_eq!((named, file.as_str()), (key, "changed.gguf"));
            }
            other => panic!("{key}: {other}"),
        }
    }
}

/// A wrong value must be refused or change the shapes, which the tensors then contradict.
#[test]
fn a_wrong_value_of_a_shape_bearing_key_is_noticed() {
    let wrong = [
        ("embedding_length", 512),
        ("vocab_size", 511),
        ("attention.head_count", 8),
        ("attention.head_count_kv", 4),
        ("attention.key_length", 64),
        ("rope.dimension_count", 63),
        ("attention.q_lora_rank", 65),
        ("attention.output_lora_rank", 16),
        ("attention.output_group_count", 3),
        ("attention.indexer.head_count", 8),
        ("attention.indexer.key_length", 64),
        ("expert_count", 7),
        ("expert_used_count", 9),
        ("expert_feed_forward_length", 128),
        ("hash_layer_count", 2),
        ("hyper_connection.count", 2),
        ("block_count", 5),
        ("block_count", 7),
        ("expert_gating_func", 1),
        ("expert_shared_count", 2),
        ("attention.sliding_window", 0),
    ];
    for (key, value) in wrong {
        let key = format!("deepseek4.{key}");
        let error = refusal(&with_key(&key, Some(MetaValue::Int(value))));
        let text = error.to_string();
        assert!(
            text.starts_with("changed.gguf: "),
            "{key} = {value}: {text}"
        );
    }
    let short = MetaValue::Ints(vec![0, 0, 4, 128, 4]);
    let error = refusal(&with_key(
        "deepseek4.attention.compress_ratios",
        Some(short),
    ));
    assert!(error.to_string().contains("at least 6 entries"), "{error}");
}

#[test]
fn other_architectures_are_refused_by_name() {
    let names = [
        ("deepseek41", "V4.1"),
        ("deepseek4-pflash", "PFlash"),
        ("deepseek4-dflash-draft", "drafter"),
        ("llama", "llama"),
    ];
    for (name, says) in names {
        let arch = Some(MetaValue::Str(name.to_owned()));
        let error = refusal(&with_key("general.architecture", arch)).to_string();
        assert!(
            error.contains(says) && error.contains("deepseek4"),
            "{error}"
        );
    }
}

#[test]
fn tensors_are_bound_exactly_once() {
    let gone = with_tensor("blk.3.exp_probs_b.bias", |_| None);
    let error = refusal(&gone);
    assert!(
        matches!(&error, LoadError::MissingTensor { tensor, .. } if tensor == "blk.3.exp_probs_b.bias"),
        "{error}"
    );
    let mut stray = with_tensor("blk.0.attn_norm.weight", Some);
    stray.tensor = stray
        .tensor
        .map(|(_, t)| ("blk.0.stray.weight".to_owned(), t));
    let error = refusal(&stray);
    assert!(
        matches!(&error, LoadError::UnknownTensors { tensor, count: 1, .. } if tensor == "blk.0.stray.weight"),
        "{error}"
    );
    let error = refusal(&with_tensor("blk.2.attn_kv.weight", |mut t| {
        t.shape.reverse();
        Some(t)
    }));
    let LoadError::Shape { expected, got, .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(
        (expected.as_slice(), got.as_slice()),
        (&[256u64, 128][..], &[128u64, 256][..])
    );
}

#[test]
fn impossible_values_are_refused() {
    let nan = with_tensor("blk.1.attn_norm.weight", |t| {
        let mut bytes = t.bytes.as_slice().to_vec();
        bytes[8..12].copy_from_slice(&f32::NAN.to_le_bytes());
        Some(RawTensor {
            bytes: ds4_target::source::Bytes::from_vec(bytes),
            ..t
        })
    });
    let error = refusal(&nan);
    assert!(
        matches!(&error, LoadError::Value { index: 2, got, .. } if got == "NaN"),
        "{error}"
    );
    let expert = with_tensor("blk.0.ffn_gate_tid2eid.weight", |t| {
        let mut bytes = t.bytes.as_slice().to_vec();
        bytes[4..8].copy_from_slice(&(-1i32).to_le_bytes());
        Some(RawTensor {
            bytes: ds4_target::source::Bytes::from_vec(bytes),
            ..t
        })
    });
    let error = refusal(&expert);
    assert!(
        matches!(&error, LoadError::Value { index: 1, got, .. } if got == "-1"),
        "{error}"
    );
}

#[test]
fn a_router_of_few_bits_is_refused() {
    let mut four_bit = fixture();
    four_bit.format_of = |name| {
        if name.contains("ffn_gate_inp") {
            Format::Fp4Fast
        } else {
            Format::F32
        }
    };
    let error = refusal(&four_bit);
    assert!(
        matches!(&error, LoadError::Format { got, .. } if got == "ROCMFP4_FAST"),
        "{error}"
    );
    let mut eight_bit = fixture();
    eight_bit.format_of = |name| {
        if name.contains("ffn_gate_inp") {
            Format::Fp8
        } else {
            Format::F32
        }
    };
    Model::load(&eight_bit).unwrap();
}

/// A target whose sequence 0 stands at 3 and sequence 1 at 0, out of 20 positions.
fn small() -> (ds4_target::CpuTarget, SeqId, SeqId) {
    let options = Options {
        n_ctx: 20,
        span_max: 16,
        n_seq_max: 2,
        ..Options::default()
    };
    let mut t = target(&fixture(), options);
    let (a, b) = (t.open().unwrap(), t.open().unwrap());
    feed(&mut t, a, &[1, 2, 3], Out::None);
    (t, a, b)
}

/// A sequence whose rows give no token does not take the pass from its neighbour.
#[test]
fn a_row_without_a_token_is_its_own_affair() {
    let (mut t, a, b) = small();
    let bans = (0..512).map(|token| (token, f32::NEG_INFINITY)).collect();
    let banned = SamplePlan {
        bias: bans,
        ..SamplePlan::greedy()
    };
    let want = |plan: SamplePlan| Want::Ids(Arc::new(plan));
    let mut spans = [span(a, 3, 2, Out::All), span(b, 0, 1, Out::Last)];
    spans[0].want = want(banned);
    spans[1].want = want(SamplePlan::greedy());
    spans[1].range = 2..3;
    let ticket = t.submit(&[5, 6, 7], &spans).unwrap();
    let ids = t.wait(ticket, None).unwrap().ids.clone();
    assert_eq!(ids[..2], [TokenId::MAX; 2]);
    assert!(ids[2] < 512);
    // Rows that hold NaN, drawn greedily and with noise: no token, though most logits are numbers.
    let nan = with_tensor("output.weight", |t| {
        let mut bytes = t.bytes.as_slice().to_vec();
        bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
        let bytes = Bytes::from_vec(bytes);
        Some(RawTensor { bytes, ..t })
    });
    let mut t = target(&nan, Options::default());
    for temperature in [0.0, 1.0] {
        let seq = t.open().unwrap();
        let mut one = span(seq, 0, 1, Out::Last);
        one.want = want(SamplePlan {
            temperature,
            ..SamplePlan::greedy()
        });
        let ticket = t.submit(&[5], &[one]).unwrap();
        let ids = &t.wait(ticket, None).unwrap().ids;
        assert_eq!(ids[..], [TokenId::MAX], "temperature {temperature}");
        t.close(seq);
    }
}

#[test]
fn a_fingerprint_is_the_same_wherever_it_is_computed() {
    let hex = |print: [u8; 32]| print.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let own = Model::load(SHARED.with(|s| *s)).unwrap().fingerprint;
    // Written down: files and saved sequences of other builds name it.
    let pinned = "fe776a0b71b65f00c5d8e5fd86daf8539f0b6b7e8e3546e5588c40322062f8ff";
    assert_eq!(hex(own), pinned);
    let key = "deepseek4.attention.layer_norm_rms_epsilon";
    let other = with_key(key, Some(MetaValue::Float(2e-6)));
    assert_ne!(Model::load(&other).unwrap().fingerprint, own, "a key");
    let other = with_tensor("output.weight", |t| {
        let mut bytes = t.bytes.as_slice().to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        let bytes = Bytes::from_vec(bytes);
        Some(RawTensor { bytes, ..t })
    });
    assert_ne!(Model::load(&other).unwrap().fingerprint, own, "a weight");
}

#[test]
fn wrong_calls_are_refused_and_change_nothing() {
    let (mut t, a, b) = small();
    assert!(matches!(t.open(), Err(Fault::Exhausted { limit: 2, .. })));
    let before = t.digest(a).unwrap();
    let mut refused =
        |tokens: &[u32], spans: &[engine_core::Span]| t.submit(tokens, spans).unwrap_err();
    let bad = refused(&[512], &[span(a, 3, 1, Out::None)]);
    assert!(
        matches!(
            bad,
            Fault::BadToken {
                token: 512,
                index: 0,
                n_vocab: 512
            }
        ),
        "{bad}"
    );
    let bad = refused(&[5], &[span(a, 2, 1, Out::None)]);
    assert!(
        matches!(
            bad,
            Fault::WrongPosition {
                expected: 3,
                got: 2,
                ..
            }
        ),
        "{bad}"
    );
    let bad = refused(&[5], &[span(SeqId(9), 0, 1, Out::None)]);
    assert!(matches!(bad, Fault::NoSuchSequence(SeqId(9))), "{bad}");
    let bad = refused(&[5], &[span(a, 3, 1, Out::None), span(a, 3, 1, Out::None)]);
    assert!(matches!(bad, Fault::DuplicateSpan(s) if s == a), "{bad}");
    let bad = refused(&[5; 17], &[span(b, 0, 17, Out::None)]);
    assert!(
        matches!(
            bad,
            Fault::Exhausted {
                wanted: 17,
                limit: 16,
                ..
            }
        ),
        "{bad}"
    );
    let bad = refused(&[5], &[span(b, 0, 2, Out::None)]);
    assert!(
        matches!(
            bad,
            Fault::BadRange {
                start: 0,
                end: 2,
                len: 1,
                ..
            }
        ),
        "{bad}"
    );
    assert!(matches!(
        refused(&[], &[span(b, 0, 0, Out::None)]),
        Fault::BadRange { .. }
    ));
    assert_eq!(t.digest(a).unwrap(), before);
    assert_eq!((t.pos(a), t.pos(b)), (Some(3), Some(0)));
}

#[test]
fn a_full_context_and_an_unknown_layer_are_refused() {
    let (mut t, a, b) = small();
    let mut tapped = span(a, 3, 1, Out::None);
    tapped.tap = Tap {
        layers: [LayerId(6)].into(),
    };
    assert!(matches!(
        t.submit(&[5], &[tapped]),
        Err(Fault::Unsupported(_))
    ));
    feed(&mut t, b, &[7; 16], Out::None);
    let bad = t.submit(&[5; 5], &[span(b, 16, 5, Out::None)]).unwrap_err();
    assert!(
        matches!(
            bad,
            Fault::ContextFull {
                wanted: 21,
                limit: 20,
                ..
            }
        ),
        "{bad}"
    );
    assert_eq!(t.pos(b), Some(16));
}

#[test]
fn damaged_saved_state_is_refused_and_the_slot_stays_free() {
    let mut t = target(
        &fixture(),
        Options {
            n_seq_max: 1,
            ..Options::default()
        },
    );
    let seq = t.open().unwrap();
    feed(&mut t, seq, &[1; 9], Out::None);
    let mut saved = Vec::new();
    t.save(seq, &mut saved).unwrap();
    t.close(seq);
    for (at, field) in [
        (0, "magic"),
        (9, "model fingerprint"),
        (40, "kv_sim"),
        (46, "position"),
    ] {
        let mut damaged = saved.clone();
        damaged[at] ^= 0x55;
        match t.load(&mut damaged.as_slice()) {
            Err(Fault::BadState { field: named, .. }) => assert_eq!(named, field),
            other => panic!("byte {at}: {other:?}"),
        }
    }
    for len in [0, 7, 47, 48, saved.len() - 1] {
        assert!(
            matches!(t.load(&mut &saved[..len]), Err(Fault::Io(_))),
            "{len} bytes"
        );
    }
    let longer = [saved.as_slice(), &[0]].concat();
    assert!(matches!(
        t.load(&mut longer.as_slice()),
        Err(Fault::BadState {
            field: "length",
            ..
        })
    ));
    t.load(&mut saved.as_slice()).unwrap();
}

#[test]
fn options_that_do_not_fit_the_model_are_refused() {
    let model = std::sync::Arc::new(Model::load(&fixture()).unwrap());
    let refused = |o: Options| {
        ds4_target::CpuTarget::new(std::sync::Arc::clone(&model), o)
            .unwrap_err()
            .to_string()
    };
    assert!(
        refused(Options {
            n_ctx: 2_000_000,
            ..Options::default()
        })
        .contains("1048576")
    );
    assert!(
        refused(Options {
            span_max: 4,
            verify_max: 8,
            ..Options::default()
        })
        .contains("span_max")
    );
    assert!(
        refused(Options {
            threads: 0,
            ..Options::default()
        })
        .contains("threads 0")
    );
    let small = testkit::golden::hf_model().unwrap();
    let model = std::sync::Arc::new(Model::load(&source(small)).unwrap());
    let error = ds4_target::CpuTarget::new(model, Options::default())
        .unwrap_err()
        .to_string();
    assert!(error.contains("kv_sim") && error.contains("64"), "{error}");
}
