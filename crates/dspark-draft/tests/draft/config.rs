//! Metadata of both forms, read strictly.

use ds4_target::fingerprint::to_mark;
use ds4_target::source::MetaValue;
use dspark_draft::config::{ConfidenceInput, DraftMeta, Markov, TargetMatch};
use dspark_draft::names::Form;
use engine_core::LayerId;
use engine_core::seams::Target;
use testkit::fixture::llama_cpp_form;

use crate::support::{Memory, NATIVE, toy};

fn native() -> Memory {
    Memory::draft(&toy().draft.oracle)
}

fn llama_cpp() -> Memory {
    let (meta, tensors) = llama_cpp_form(&toy().draft);
    Memory::new(&meta, tensors)
}

fn int(v: i64) -> Option<MetaValue> {
    Some(MetaValue::Int(v))
}

fn text(s: &str) -> Option<MetaValue> {
    Some(MetaValue::Str(s.to_owned()))
}

#[test]
fn both_forms_say_the_same() {
    let a = DraftMeta::read(&native()).unwrap();
    let b = DraftMeta::read(&llama_cpp()).unwrap();
    assert_eq!((a.form, b.form), (Form::Native, Form::LlamaCpp));
    assert_eq!(
        DraftMeta {
            form: Form::Native,
            ..b
        },
        a
    );
    assert_eq!((a.block, a.mask), (5, 3));
    assert_eq!(a.capture, [3, 4, 5].map(LayerId), "outputs of these layers");
    assert_eq!(a.markov, Markov::Vanilla { rank: 32 });
    assert_eq!(a.confidence, Some(ConfidenceInput::StateAndMarkov));
    assert_eq!((a.feature_width(), a.confidence_width()), (768, 288));
    assert_eq!(a.stage.rope_theta, 10_000.0);
    assert_eq!(a.target_fingerprint, None);
}

/// Rotary angles of the stages are the window layers': theta 10000, no YaRN.
#[test]
fn the_base_of_compressed_layers_is_not_used() {
    let other = native().with(
        "attention.compress_rope_freq_base",
        Some(MetaValue::Float(7.0)),
    );
    let meta = DraftMeta::read(&other).unwrap();
    assert_eq!(
        meta.stage.rope_of(ds4_target::Ratio::None),
        (10_000.0, None)
    );
    let none = native().with("attention.compress_rope_freq_base", None);
    assert_eq!(DraftMeta::read(&none).unwrap().stage.rope_theta, 10_000.0);
}

#[test]
fn other_architectures_are_refused_by_name() {
    for (arch, reason) in [
        ("deepseek41-dflash-draft", "V4.1"),
        ("qwen35-dflash-draft", "another model family"),
        ("deepseek4", "a target, not a drafter"),
        ("eagle", "eagle"),
    ] {
        let m = native().with("general.architecture", text(arch));
        let e = DraftMeta::read(&m).unwrap_err().to_string();
        assert!(
            e.contains(arch) && e.contains(reason) && e.contains("memory"),
            "{e}"
        );
    }
    let none = native().with("general.architecture", None);
    assert!(DraftMeta::read(&none).is_err());
}

#[test]
fn other_markov_heads_are_refused_by_name() {
    let kind = |m: Memory, kind: &str| m.with("dflash.dspark.markov_head_type", text(kind));
    DraftMeta::read(&kind(native(), "vanilla")).unwrap();
    for (name, why) in [
        ("gated", "gated by"),
        ("rnn", "recurrent"),
        ("tree", "tree"),
    ] {
        let e = DraftMeta::read(&kind(native(), name))
            .unwrap_err()
            .to_string();
        assert!(
            e.contains("markov_head_type") && e.contains(why) && e.contains("vanilla"),
            "{e}"
        );
    }
    let mut other = llama_cpp();
    let gated = MetaValue::Str("gated".to_owned());
    other
        .meta
        .insert("dflash.markov_head_type".to_owned(), gated);
    let e = DraftMeta::read(&other).unwrap_err().to_string();
    assert!(e.contains("dflash.markov_head_type"), "{e}");
}

/// Every shape-bearing key of the native form is needed, and the error names it.
#[test]
fn a_missing_key_is_an_error_and_not_a_default() {
    let optional = [
        "context_length",
        "attention.value_length",
        "attention.compress_rope_freq_base",
        "rope.scaling.factor",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
        "hash_layer_count",
        "dflash.n_target_layers",
        "dflash.head_hc_enabled",
        "dflash.dspark.enabled",
        "dflash.dspark.confidence.enabled",
    ];
    let keys: Vec<String> = native().meta.into_keys().collect();
    assert!(keys.len() > 35, "{}", keys.len());
    for key in keys {
        let short = key.strip_prefix(&format!("{NATIVE}.")).unwrap_or(&key);
        let result = DraftMeta::read(&native().with(&key, None).with(short, None));
        if optional.contains(&short) {
            result.unwrap_or_else(|e| panic!("{short}: {e}"));
        } else {
            let e = result
                .err()
                .unwrap_or_else(|| panic!("{short} was not needed"));
            assert!(e.to_string().contains(short), "{short}: {e}");
        }
    }
}

#[test]
fn values_outside_their_range_are_refused_with_both() {
    let cases: [(&str, i64, &str); 20] = [
        ("attention.sliding_window", 9000, "1..=8192"),
        ("block_count", 0, "1..=64"),
        ("block_count", 65, "1..=64"),
        ("embedding_length", 40_000, "32768"),
        ("vocab_size", 2_000_000, "1000000"),
        ("vocab_size", 513, "513"),
        ("dflash.dspark.vocab_size", 511, "512 (vocab_size)"),
        ("attention.head_count", 513, "512"),
        ("attention.head_count_kv", 2, "1..=1"),
        ("attention.output_group_count", 3, "divisor"),
        ("attention.value_length", 64, "128"),
        ("rope.dimension_count", 63, "even"),
        ("expert_count", 5000, "4096"),
        ("expert_used_count", 9, "at most expert_count 8"),
        ("hyper_connection.count", 2, "4"),
        ("dflash.block_size", 1, "2..=16"),
        ("dflash.block_size", 17, "2..=16"),
        ("dflash.mask_token_id", 512, "0..=511"),
        ("dflash.dspark.markov_rank", 0, "1..=32768"),
        ("dflash.dspark.confidence_dim", 100, "288"),
    ];
    for (key, value, expected) in cases {
        let e = DraftMeta::read(&native().with(key, int(value)));
        let e = e
            .err()
            .unwrap_or_else(|| panic!("{key} {value} was taken"))
            .to_string();
        assert!(e.contains(expected), "{key} {value}: {e}");
        let about_vocab = key.ends_with("vocab_size");
        assert!(
            about_vocab || (e.contains(key) && e.contains(&value.to_string())),
            "{e}"
        );
    }
}

#[test]
fn captured_layers_are_checked() {
    let ids = |v: &[i64]| Some(MetaValue::Ints(v.to_vec()));
    let key = "dflash.capture_layer_ids";
    for bad in [&[][..], &[-1, 2, 3], &[3, 3, 4], &[3, 4, 5000], &[3, 4]] {
        let e = DraftMeta::read(&native().with(key, ids(bad)));
        assert!(e.is_err(), "{bad:?} was taken");
    }
    // The generic converter's key stands in, the other is preferred.
    let generic = native().with(key, None);
    let generic = generic.with("dflash.target_layer_ids", ids(&[1, 2, 4]));
    let meta = DraftMeta::read(&generic).unwrap();
    assert_eq!(meta.capture, [1, 2, 4].map(LayerId));
    let both = native().with("dflash.target_layer_ids", ids(&[1, 2, 4]));
    assert_eq!(
        DraftMeta::read(&both).unwrap().capture,
        [3, 4, 5].map(LayerId)
    );
    // llama.cpp counts layer inputs: 0 would be the embedding's.
    let mut other = llama_cpp();
    let key = "dflash.target_layers".to_owned();
    other.meta.insert(key, MetaValue::Ints(vec![0, 1, 2]));
    assert!(DraftMeta::read(&other).is_err());
}

/// Converters copy the target's number; stages have no tables whatever it says.
#[test]
fn tables_are_never_used() {
    let meta = DraftMeta::read(&native().with("hash_layer_count", int(3))).unwrap();
    assert_eq!(meta.stage.n_hash, 0);
}

#[test]
fn a_confidence_head_without_markov_part_and_none_are_legal() {
    let state = native().with("dflash.dspark.confidence_dim", int(256));
    let meta = DraftMeta::read(&state).unwrap();
    assert_eq!(meta.confidence, Some(ConfidenceInput::State));
    let none = native().with("dflash.dspark.confidence_dim", int(0));
    let e = DraftMeta::read(&none).unwrap_err().to_string();
    assert!(e.contains("confidence.enabled"), "{e}");
    let none = none.with("dflash.dspark.confidence.enabled", int(0));
    assert_eq!(DraftMeta::read(&none).unwrap().confidence, None);
}

#[test]
fn a_drafter_is_checked_against_its_target() {
    let t = toy().cpu_target();
    let meta = DraftMeta::read(&native()).unwrap();
    assert_eq!(
        meta.check_target("f", t.info()).unwrap(),
        TargetMatch::Unrecorded
    );
    let refused = |change: fn(&mut DraftMeta), what: &str| {
        let mut meta = meta.clone();
        change(&mut meta);
        let e = meta
            .check_target("the file", t.info())
            .unwrap_err()
            .to_string();
        assert!(e.contains(what) && e.contains("the file"), "{e}");
    };
    refused(
        |m| m.stage.n_embd = 128,
        "embedding_length: expected 256 (the target's), got 128",
    );
    refused(
        |m| m.stage.n_vocab = 511,
        "vocab_size: expected 512 (the target's), got 511",
    );
    refused(
        |m| m.capture[1] = LayerId(6),
        "captured layers: expected layers below 6",
    );
}

#[test]
fn a_recorded_target_is_compared_and_reported() {
    let t = toy().cpu_target();
    let own = t.info().fingerprint;
    let record = |print: [u8; 32]| {
        let mut m = native();
        let key = "fourspark.target_fingerprint".to_owned();
        m.meta.insert(key, MetaValue::Str(to_mark(&print)));
        DraftMeta::read(&m)
            .unwrap()
            .check_target("f", t.info())
            .unwrap()
    };
    assert_eq!(record(own), TargetMatch::Same);
    let mut recorded = own;
    recorded[31] ^= 1;
    assert_eq!(
        record(recorded),
        TargetMatch::Other {
            recorded,
            target: own
        }
    );
    for old in [&to_mark(&own)[2..], &format!("2:{}", "0".repeat(64))] {
        let mut m = native();
        let key = "fourspark.target_fingerprint".to_owned();
        m.meta.insert(key, MetaValue::Str((*old).to_owned()));
        let e = DraftMeta::read(&m).unwrap_err().to_string();
        assert!(
            e.contains("expected a mark of version 1 (`fourspark mark`"),
            "{e}"
        );
    }
    for bad in ["12", "", &"g".repeat(64), &"0".repeat(65), "\u{e9}"] {
        let mut m = native();
        let key = "fourspark.target_fingerprint".to_owned();
        m.meta.insert(key, MetaValue::Str((*bad).to_owned()));
        let e = DraftMeta::read(&m).unwrap_err().to_string();
        assert!(e.contains("64 hexadecimal"), "{e}");
    }
}
