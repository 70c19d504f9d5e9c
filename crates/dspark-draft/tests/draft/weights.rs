//! Tensors: each bound once, strays refused, the optional ones neutral.

use std::sync::Arc;

use ds4_target::source::MetaValue;
use dspark_draft::weights::DraftModel;
use fpx_quant::Format;
use testkit::fixture::llama_cpp_form;

use crate::support::{Memory, backbone_of, bits, observe, run, toy};

fn native() -> Memory {
    Memory::draft(&toy().draft.oracle)
}

/// Normed rows of a block at position 20.
fn drafted(memory: &Memory) -> Vec<f32> {
    let model = Arc::new(DraftModel::load(memory).unwrap());
    let mut b = backbone_of(&model);
    observe(&mut b, 0, 0, toy().rows(0..20));
    run(&mut b, 0, 20, &toy().block(7)).normed
}

#[test]
fn every_tensor_is_bound_once_in_both_forms() {
    let (meta, tensors) = llama_cpp_form(&toy().draft);
    for memory in [native(), Memory::new(&meta, tensors)] {
        let t = DraftModel::load(&memory).unwrap().tensors;
        // 24 a stage, and 10.
        assert_eq!((t.in_file, t.bound), (58, 58));
        assert_eq!((t.ignored.len(), t.absent.len()), (0, 0));
    }
}

#[test]
fn both_forms_draft_the_same() {
    let (meta, tensors) = llama_cpp_form(&toy().draft);
    let other = Memory::new(&meta, tensors);
    assert_eq!(bits(&drafted(&native())), bits(&drafted(&other)));
}

/// A tensor under a name that no module has is not dropped silently (shared experts under another
/// name cost one public engine half its acceptance), and one that is missing is named.
#[test]
fn unknown_and_missing_tensors_are_refused() {
    for stray in [
        "blk.2.attn_norm.weight",
        "blk.43.attn_norm.weight",
        "blk.0.ffn_gate_shexp.bias",
        "mtp.0.norm.weight",
        "dflash.fc.bias",
    ] {
        let e = DraftModel::load(&native().plus(stray, &[256])).unwrap_err();
        assert!(e.to_string().contains(stray), "{e}");
    }
    for name in native().tensors.keys() {
        let result = DraftModel::load(&native().minus(name));
        let optional = ["attn_sinks.weight", "exp_probs_b.bias", "confidence.bias"];
        if optional.iter().any(|o| name.ends_with(o)) {
            result.unwrap();
        } else {
            let e = result
                .err()
                .unwrap_or_else(|| panic!("{name} was not needed"));
            assert!(e.to_string().contains(name.as_str()), "{name}: {e}");
        }
    }
}

#[test]
fn a_whole_model_is_refused() {
    for (name, why) in [
        ("token_embd.weight", "embedding"),
        ("output.weight", "output matrix"),
    ] {
        let e = DraftModel::load(&native().plus(name, &[512, 256])).unwrap_err();
        let e = e.to_string();
        assert!(e.contains(name) && e.contains(why), "{e}");
    }
}

/// Parts of other checkpoints, by a list.
#[test]
fn router_extras_are_ignored_by_name() {
    let extra = native()
        .plus("blk.0.ffn_gate_tid2eid.weight", &[512, 2])
        .plus("blk.1.exp_probs_b.bias_vl", &[8]);
    let t = DraftModel::load(&extra).unwrap().tensors;
    assert_eq!((t.in_file, t.bound, t.ignored.len()), (60, 58, 2));
    assert_eq!(bits(&drafted(&native())), bits(&drafted(&extra)));
    // The list is no pattern.
    let other = native().plus("blk.0.exp_probs_c.bias_vl", &[8]);
    assert!(DraftModel::load(&other).is_err());
}

/// No sinks: as if they took no weight. No selection bias: zeros. No confidence bias: zero.
#[test]
fn optional_tensors_are_neutral_when_absent() {
    let mut neutral = native();
    for (name, t) in &mut neutral.tensors {
        if name.ends_with("attn_sinks.weight") {
            t.data.fill(-1e30);
        }
        if name.ends_with("exp_probs_b.bias") {
            t.data.fill(0.0);
        }
    }
    let mut absent = native();
    absent.tensors.retain(|name, _| {
        !name.ends_with("attn_sinks.weight") && !name.ends_with("exp_probs_b.bias")
    });
    let t = DraftModel::load(&absent).unwrap().tensors;
    assert_eq!((t.in_file, t.bound, t.absent.len()), (54, 54, 4));
    let (with, without) = (drafted(&neutral), drafted(&absent));
    assert!(with.iter().all(|v| v.is_finite()));
    assert_eq!(bits(&with), bits(&without));
    assert_ne!(
        bits(&with),
        bits(&drafted(&native())),
        "sinks and biases matter"
    );

    let no_bias = native().minus("dflash.dspark.confidence.bias");
    let head = DraftModel::load(&no_bias)
        .unwrap()
        .heads
        .confidence
        .unwrap();
    assert_eq!(head.bias, 0.0);
}

#[test]
fn a_confidence_head_is_there_as_a_whole_or_not_at_all() {
    let none = native()
        .with("dflash.dspark.confidence_dim", Some(MetaValue::Int(0)))
        .with("dflash.dspark.confidence.enabled", Some(MetaValue::Int(0)));
    // Its tensors have no place then.
    assert!(DraftModel::load(&none).is_err());
    let none = none.minus("dflash.dspark.confidence.weight");
    assert!(
        DraftModel::load(&none).is_err(),
        "a bias without its weight"
    );
    let none = none.minus("dflash.dspark.confidence.bias");
    assert!(DraftModel::load(&none).unwrap().heads.confidence.is_none());
}

#[test]
fn shapes_follow_from_the_metadata() {
    for (key, value, tensor) in [
        ("dflash.dspark.markov_rank", 16, "markov.w1"),
        ("attention.q_lora_rank", 32, "attn_q_a"),
        ("expert_feed_forward_length", 128, "ffn_gate_exps"),
    ] {
        let mut memory = native().with(key, Some(MetaValue::Int(value)));
        if key.ends_with("rank") {
            // Else the head's width disagrees first.
            let dim = Some(MetaValue::Int(256));
            memory = memory.with("dflash.dspark.confidence_dim", dim);
        }
        let e = DraftModel::load(&memory).unwrap_err().to_string();
        assert!(e.contains(tensor) && e.contains("expected shape"), "{e}");
    }
}

#[test]
fn a_fingerprint_tells_files_apart() {
    let print = |m: &Memory| DraftModel::load(m).unwrap().fingerprint;
    let own = print(&native());
    assert_eq!(own, print(&native()));
    let mut other = native();
    other.tensors.get_mut("dflash.fc.weight").unwrap().data[0] += 1.0;
    assert_ne!(own, print(&other));
    let mut half = native();
    half.format = Format::F16;
    assert_ne!(own, print(&half));
    let mut named = native();
    let key = "fourspark.target_fingerprint".to_owned();
    named
        .meta
        .insert(key, MetaValue::Str(format!("1:{}", "0".repeat(64))));
    assert_eq!(
        own,
        print(&named),
        "which target it names is no part of the model"
    );
}
