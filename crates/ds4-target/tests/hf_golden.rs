//! The engine against a recorded transformers run (F32 weights, no fp8/fp4 roundings).
#![allow(clippy::unwrap_used)]

mod common;

use common::{feed, greedy, source, target};
use ds4_kernels::cpu::argmax;
use ds4_target::Options;
use engine_core::{Out, Target};
use testkit::golden::{hf_golden, hf_model};

/// The bound for every logit of the F32 path.
const LIMIT: f32 = 5e-4;

fn options(threads: usize) -> Options {
    Options {
        n_ctx: 1024,
        span_max: 1024,
        kv_sim: false,
        threads,
        ..Options::default()
    }
}

#[test]
fn every_logit_and_argmax_agrees() {
    let golden = hf_golden().unwrap();
    let mut t = target(&source(hf_model().unwrap()), options(2));
    let n_vocab = t.info().n_vocab;
    let mut worst = 0f32;
    for n in [1usize, 5, 130, 300, 700] {
        let ids = golden.ids(&format!("n{n}.ids")).unwrap();
        let keep = golden.ids(&format!("n{n}.keep")).unwrap();
        let best = golden.ids(&format!("n{n}.argmax")).unwrap();
        let want = golden.get(&format!("n{n}.logits")).unwrap();
        let seq = t.open().unwrap();
        let got = feed(&mut t, seq, &ids, Out::All);
        t.close(seq);
        for (i, row) in keep.iter().enumerate() {
            let got = &got[*row as usize * n_vocab..][..n_vocab];
            for (g, w) in got.iter().zip(want.row(i)) {
                worst = worst.max((g - w).abs());
                assert!((g - w).abs() <= LIMIT, "n{n} row {row}: {g} and {w}");
            }
        }
        let rows: Vec<u32> = if best.len() == n {
            (0..n as u32).collect()
        } else {
            keep
        };
        for (row, best) in rows.iter().zip(&best) {
            let got = &got[*row as usize * n_vocab..][..n_vocab];
            assert_eq!(argmax(got), *best, "n{n} row {row}");
        }
    }
    assert!(
        worst > 0.0,
        "a comparison that finds no difference compared nothing"
    );
}

#[test]
fn greedy_continuations_agree() {
    let golden = hf_golden().unwrap();
    let mut t = target(&source(hf_model().unwrap()), options(1));
    for n in [5, 130] {
        let ids = golden.ids(&format!("n{n}.ids")).unwrap();
        let want = golden.ids(&format!("greedy.n{n}")).unwrap();
        assert_eq!(greedy(&mut t, &ids, want.len()), want, "n{n}");
    }
}
