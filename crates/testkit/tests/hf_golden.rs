//! The oracle against a recorded run of an implementation nobody here wrote (transformers).
//!
//! The recording is f32, the oracle f64, so what differs is the recording's rounding. Largest
//! differences seen: logits 2.9e-6, streams 6.6e-6, sublayer inputs 1.3e-5, sublayer outputs
//! 3.4e-6, compressed rows 2.1e-5 (their angle), route weights and index scores below 1e-5; all
//! these values are of order 1. The bounds are five times that.

// Helpers of a test file are tests too.
#![allow(clippy::unwrap_used)]

use testkit::golden::{Golden, hf_golden, hf_model};
use testkit::oracle::{Dump, Mat, OracleModel, RunOptions, Tensor, argmax};

const LENGTHS: [usize; 5] = [1, 5, 130, 300, 700];

struct Case {
    n: usize,
    dump: Dump,
    keep: Vec<usize>,
}

fn cases(model: &OracleModel, golden: &Golden) -> Vec<Case> {
    let case = |n: usize| {
        let ids = golden.ids(&format!("n{n}.ids")).unwrap();
        assert_eq!(ids.len(), n);
        let dump = model.forward(&ids, &RunOptions::default()).unwrap();
        let keep = golden.ids(&format!("n{n}.keep")).unwrap();
        Case {
            n,
            dump,
            keep: keep.iter().map(|r| *r as usize).collect(),
        }
    };
    LENGTHS.into_iter().map(case).collect()
}

impl Case {
    fn name(&self, what: &str) -> String {
        format!("n{}.{what}", self.n)
    }

    fn assert_close(&self, golden: &Golden, what: &str, got: &Mat, limit: f64) {
        let want = golden.get(&self.name(what)).unwrap();
        assert_eq!(got.data.len(), want.data.len(), "{}", self.name(what));
        for (i, (g, w)) in got.data.iter().zip(&want.data).enumerate() {
            let diff = (g - f64::from(*w)).abs();
            assert!(diff <= limit, "{} [{i}]: {g} and {w}", self.name(what));
        }
    }

    fn kept(&self, m: &Mat) -> Mat {
        m.gather(self.keep.iter().copied())
    }
}

#[test]
fn logits_agree_at_all_lengths() {
    let (model, golden) = (hf_model().unwrap(), hf_golden().unwrap());
    for case in cases(&model, &golden) {
        case.assert_close(&golden, "logits", &case.kept(&case.dump.logits), 1.5e-5);
        case.assert_close(
            &golden,
            "final_norm",
            &case.kept(&case.dump.final_norm),
            5e-5,
        );
        let best: Vec<u32> = (0..case.n)
            .map(|r| argmax(case.dump.logits.row(r)).unwrap())
            .collect();
        let want = golden.ids(&case.name("argmax")).unwrap();
        if want.len() == case.n {
            assert_eq!(best, want, "n{}", case.n);
        } else {
            let best: Vec<u32> = case.keep.iter().map(|r| best[*r]).collect();
            assert_eq!(best, want, "n{}", case.n);
        }
    }
}

#[test]
fn every_layer_agrees() {
    let (model, golden) = (hf_model().unwrap(), hf_golden().unwrap());
    for case in cases(&model, &golden) {
        for (i, layer) in case.dump.layers.iter().enumerate() {
            let check = |what: &str, got: &Mat, limit: f64| {
                case.assert_close(&golden, &format!("layer{i}.{what}"), got, limit);
            };
            check("streams", &case.kept(&layer.streams), 3e-5);
            check("attn_in", &case.kept(&layer.attn_in), 6e-5);
            check("attn_out", &case.kept(&layer.attn.out), 1.5e-5);
            check("ffn_out", &case.kept(&layer.moe.out), 1.5e-5);
            if model.config.ratios[i] != 0 {
                check("comp_kv", &layer.attn.comp_kv, 1e-4);
            }
        }
    }
}

/// The recording lists experts in no particular order, beside their weights.
#[test]
fn routes_agree_for_every_token() {
    let (model, golden) = (hf_model().unwrap(), hf_golden().unwrap());
    let k = model.config.n_expert_used;
    for case in cases(&model, &golden) {
        for (i, layer) in case.dump.layers.iter().enumerate() {
            let ids = golden
                .ids(&case.name(&format!("layer{i}.route_id")))
                .unwrap();
            for (t, want) in ids.chunks_exact(k).enumerate() {
                let (mut got, mut want) = (layer.moe.route_id[t].clone(), want.to_vec());
                got.sort_unstable();
                want.sort_unstable();
                assert_eq!(got, want, "n{} layer {i} token {t}", case.n);
            }
            let weights = golden
                .get(&case.name(&format!("layer{i}.route_w")))
                .unwrap();
            assert_eq!(weights.shape, [case.keep.len(), k]);
            for (row, t) in case.keep.iter().enumerate() {
                for (id, w) in ids[t * k..][..k].iter().zip(weights.row(row)) {
                    let slot = layer.moe.route_id[*t].iter().position(|g| g == id).unwrap();
                    let diff = layer.moe.route_w[*t][slot] - f64::from(*w);
                    assert!(diff.abs() < 1e-5, "n{} layer {i} token {t}: {diff}", case.n);
                }
            }
        }
    }
}

/// Scores where visible, -inf where not; picks as sets, -1 where there were too few.
#[test]
fn indexer_scores_and_picks_agree() {
    let (model, golden) = (hf_model().unwrap(), hf_golden().unwrap());
    let mut narrowed = 0;
    for case in cases(&model, &golden) {
        for (i, layer) in case.dump.layers.iter().enumerate() {
            let Some(index) = &layer.attn.index else {
                continue;
            };
            let array = |what: &str| -> &Tensor {
                golden.get(&case.name(&format!("layer{i}.{what}"))).unwrap()
            };
            let (scores, picks) = (array("index_score"), array("index_topk"));
            for (row, t) in case.keep.iter().enumerate() {
                let visible = (t + 1) / 4;
                assert_eq!(index.scores[*t].len(), visible);
                for (c, want) in scores.row(row).iter().enumerate() {
                    match index.scores[*t].get(c) {
                        Some(got) => assert!((got - f64::from(*want)).abs() < 5e-5),
                        None => assert_eq!(*want, f32::NEG_INFINITY),
                    }
                }
                let mut want: Vec<u32> = picks
                    .row(row)
                    .iter()
                    .filter(|p| **p >= 0.0)
                    .map(|p| *p as u32)
                    .collect();
                want.sort_unstable();
                assert_eq!(index.picks[*t], want, "n{} layer {i} token {t}", case.n);
                narrowed += usize::from(want.len() < visible);
            }
        }
    }
    assert!(
        narrowed > 20,
        "the selection must have had something to leave out: {narrowed}"
    );
}

/// Teacher forcing: the recorded continuation is greedy if each of its tokens is the argmax after
/// the ones before it.
#[test]
fn greedy_continuations_agree() {
    let (model, golden) = (hf_model().unwrap(), hf_golden().unwrap());
    for n in [5, 130] {
        let mut ids = golden.ids(&format!("n{n}.ids")).unwrap();
        let greedy = golden.ids(&format!("greedy.n{n}")).unwrap();
        ids.extend(&greedy[..greedy.len() - 1]);
        let dump = model.forward(&ids, &RunOptions::default()).unwrap();
        let best = (n - 1..ids.len()).map(|t| argmax(dump.logits.row(t)).unwrap());
        assert_eq!(best.collect::<Vec<_>>(), greedy);
    }
}

/// The recording computes its table in f32, so the last bits may differ.
#[test]
fn frequency_tables_agree() {
    let (model, golden) = (hf_model().unwrap(), hf_golden().unwrap());
    for (ratio, name) in [(0, "inv_freq.main"), (4, "inv_freq.compress")] {
        let got = testkit::oracle::rope::Rope::new(&model.config, ratio).freq;
        let want = &golden.get(name).unwrap().data;
        assert_eq!(got.len(), want.len());
        for (g, w) in got.iter().zip(want) {
            assert!((g / w - 1.0).abs() < 4e-7, "{g} {w}");
        }
    }
}
