//! The oracle against recorded transformers runs of the small trained model. Needs its checkpoint
//! (`golden::tiny_dir`), which is not in the repository. Largest differences seen: logits 3.1e-5,
//! streams 1.8e-4 of 600.

// Helpers of a test file are tests too.
#![allow(clippy::unwrap_used)]

use testkit::golden::{tiny_dev, tiny_dir, tiny_long};
use testkit::oracle::{Mat, OracleModel, RunOptions, Tensor, argmax, load_dir};
use testkit::require_some;

fn model() -> Option<OracleModel> {
    tiny_dir().map(|dir| load_dir(&dir).unwrap())
}

fn max_abs(got: &Mat, want: &Tensor) -> f64 {
    assert_eq!(got.data.len(), want.data.len());
    let diffs = got
        .data
        .iter()
        .zip(&want.data)
        .map(|(g, w)| (g - f64::from(*w)).abs());
    diffs.fold(0.0, |m, d| if d > m || d.is_nan() { d } else { m })
}

fn pick(m: &Mat, rows: &[u32]) -> Mat {
    m.gather(rows.iter().map(|r| *r as usize))
}

#[test]
fn short_prompts_agree() {
    let model = require_some!(model(), "no checkpoint at target/fixtures/tiny-model");
    let golden = tiny_dev().unwrap();
    for i in 0..12 {
        let ids = |what: &str| golden.ids(&format!("{i}.{what}")).unwrap();
        let (want, mut fed) = (ids("argmax"), ids("ids"));
        let n = fed.len();
        fed.extend(ids("greedy"));
        fed.truncate(want.len());
        let dump = model.forward(&fed, &RunOptions::default()).unwrap();
        let best: Vec<u32> = (0..fed.len())
            .map(|t| argmax(dump.logits.row(t)).unwrap())
            .collect();
        assert_eq!(best, want, "prompt {i}");
        assert_eq!(
            best[n - 1..],
            ids("greedy")[..want.len() + 1 - n],
            "prompt {i}"
        );
        let logits = golden.get(&format!("{i}.logits")).unwrap();
        let diff = max_abs(&pick(&dump.logits, &ids("rows")), logits);
        assert!(diff < 1e-4, "prompt {i}: {diff:e}");
    }
}

/// Long enough for the window to wrap, ratio 128 to emit and the indexer to leave rows out.
#[test]
fn long_prose_agrees() {
    let model = require_some!(model(), "no checkpoint at target/fixtures/tiny-model");
    let golden = tiny_long().unwrap();
    let ids = golden.ids("ids").unwrap();
    let greedy = golden.ids("greedy").unwrap();
    let mut fed = ids.clone();
    fed.extend(&greedy[..greedy.len() - 1]);
    let dump = model.forward(&fed, &RunOptions::default()).unwrap();
    let best: Vec<u32> = (0..fed.len())
        .map(|t| argmax(dump.logits.row(t)).unwrap())
        .collect();
    assert_eq!(best[ids.len() - 1..], greedy, "continuation");

    let rows = golden.ids("rows").unwrap();
    let diff = max_abs(&pick(&dump.logits, &rows), golden.get("logits").unwrap());
    assert!(diff < 1e-4, "logits {diff:e}");
    let rows = golden.ids("stream_rows").unwrap();
    for (i, layer) in dump.layers.iter().enumerate() {
        let want = golden.get(&format!("layer{i}.streams")).unwrap();
        let diff = max_abs(&pick(&layer.streams, &rows), want);
        // Streams grow to 600 in the last layer.
        assert!(diff < 1e-3, "layer {i} streams {diff:e}");
    }
    let (top, logit) = (
        golden.ids("top5_id").unwrap(),
        golden.get("top5_logit").unwrap(),
    );
    for t in 0..ids.len() {
        assert_eq!(best[t], top[t * 5], "position {t}");
        for (id, want) in top[t * 5..][..5].iter().zip(logit.row(t)) {
            let diff = (dump.logits.row(t)[*id as usize] - f64::from(*want)).abs();
            assert!(diff < 1e-4, "position {t} token {id}: {diff:e}");
        }
    }
    let loss = (0..ids.len() - 1).map(|t| cross_entropy(dump.logits.row(t), ids[t + 1]));
    let ce = loss.sum::<f64>() / (ids.len() - 1) as f64;
    assert!(
        (ce - f64::from(golden.get("ce").unwrap().data[0])).abs() < 1e-5,
        "{ce}"
    );
}

fn cross_entropy(logits: &[f64], id: u32) -> f64 {
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = logits.iter().map(|v| (v - max).exp()).sum();
    max + sum.ln() - logits[id as usize]
}
