//! Made-up models on the processor.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::Arc;

use common::span;
use ds4_target::synth::{Synth, SynthSource};
use ds4_target::{CpuTarget, LoadError, Model, Options};
use engine_core::{Out, SeqId, Target, TokenId};

fn model(name: &str) -> Arc<Model> {
    let synth: Synth = name.parse().unwrap();
    Arc::new(Model::load(&SynthSource::new(&synth)).unwrap())
}

/// Logits of the last of many tokens, all of which must be numbers.
fn last(name: &str, n: usize) -> Vec<u32> {
    let options = Options {
        n_ctx: n,
        n_seq_max: 1,
        span_max: 256,
        ..Options::default()
    };
    let mut target = CpuTarget::new(model(name), options).unwrap();
    let seq = target.open().unwrap();
    let tokens: Vec<TokenId> = (0..n as u32).map(|i| i * 1237 % 4096).collect();
    let mut bits = Vec::new();
    for part in tokens.chunks(256) {
        let pos = target.pos(seq).unwrap();
        let ticket = target
            .submit(part, &[span(seq, pos, part.len(), Out::All)])
            .unwrap();
        let rows = target.wait(ticket, None).unwrap();
        assert!(rows.logits.iter().all(|v| v.is_finite()), "{name} at {pos}");
        let vocab = rows.logits.len() / part.len();
        bits = rows.logits[rows.logits.len() - vocab..]
            .iter()
            .map(|v| v.to_bits())
            .collect();
        target.commit(seq, pos + part.len() as u32);
    }
    assert_eq!(seq, SeqId(0));
    bits
}

#[test]
fn logits_stay_finite_over_thousands_of_tokens_and_follow_the_seed() {
    let first = last("synth:tiny", 2048);
    assert_ne!(first, last("synth:tiny,seed=1", 2048));
    assert!(first.iter().any(|b| *b != first[0]), "all logits are one");
}

#[test]
fn every_format_of_a_recipe_gives_finite_logits() {
    // Formats of 256 do not divide this model's rows of 128.
    for format in ["fp2", "fp3", "fp4", "fp4f", "fp6", "fp8", "q8_0", "mxfp4"] {
        last(&format!("synth:tiny,recipe={format}-{format}-{format}"), 40);
    }
    for rest in ["f32", "f16", "bf16"] {
        last(&format!("synth:tiny,recipe=fp2-fp3-{rest}"), 40);
    }
}

#[test]
fn formats_that_do_not_divide_the_rows_are_refused_by_tensor() {
    let synth: Synth = "synth:tiny,recipe=fp2-q2_k-fp4f".parse().unwrap();
    let error = Model::load(&SynthSource::new(&synth)).unwrap_err();
    assert!(matches!(error, LoadError::Format { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("ffn_down_exps") && text.contains("rows of 128"),
        "{text}"
    );
}

/// Needs a machine that the model does not fit; the comparison itself is tested where it is made.
#[test]
fn a_host_without_the_memory_is_told_both_numbers() {
    let model = model("synth:pro");
    let error = CpuTarget::new(model, Options::default());
    match error {
        Err(LoadError::HostMemory {
            model,
            needed,
            available,
        }) => {
            assert_eq!(model, "synth:pro,recipe=fp2-fp3-fp4f,seed=0");
            assert!(needed > available && needed > 500_000_000_000, "{needed}");
        }
        other => panic!("{other:?}"),
    }
}
