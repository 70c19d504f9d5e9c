//! Whole files of the small model: against recorded transformers runs, and llama.cpp's own file
//! against its f32 twin. The files are not in the repository (size); a run without them is a
//! visible skip. `target/fixtures/peer/`: `tiny-f32.gguf` (converted here), `tiny-q8_0.gguf` (made
//! with llama.cpp's converter and quantiser).
#![allow(clippy::unwrap_used)]

mod common;

use std::path::PathBuf;

use common::{feed, greedy, target};
use ds4_kernels::cpu::argmax;
use ds4_target::{CpuTarget, GgufSource, Options};
use engine_core::{Out, Target};
use gguf::{Gguf, OpenOptions};
use testkit::compare::nmse;
use testkit::golden::{tiny_dev, tiny_long};
use testkit::require;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../target/fixtures/peer")
        .join(name)
}

fn open(name: &str, kv_sim: bool) -> CpuTarget {
    let file = Gguf::open(fixture(name), &OpenOptions::default()).unwrap();
    let options = Options {
        n_ctx: 2048,
        span_max: 2048,
        kv_sim,
        threads: 2,
        ..Options::default()
    };
    target(&GgufSource::new(file), options)
}

/// The bound for every logit of the F32 path.
const LIMIT: f32 = 5e-4;

#[test]
fn the_small_model_in_f32_equals_transformers() {
    require!(
        fixture("tiny-f32.gguf").exists(),
        "no target/fixtures/peer/tiny-f32.gguf"
    );
    let mut t = open("tiny-f32.gguf", false);
    let v = t.info().n_vocab;
    let golden = tiny_dev().unwrap();
    let mut texts = 0;
    for i in 0.. {
        if !golden.has(&format!("{i}.ids")) {
            break;
        }
        let ids = golden.ids(&format!("{i}.ids")).unwrap();
        let want = golden.ids(&format!("{i}.greedy")).unwrap();
        assert_eq!(greedy(&mut t, &ids, want.len()), want, "prompt {i}");
        texts += 1;
    }
    assert_eq!(texts, 12);
    let golden = tiny_long().unwrap();
    let ids = golden.ids("ids").unwrap();
    let rows = golden.ids("rows").unwrap();
    let seq = t.open().unwrap();
    let logits = feed(&mut t, seq, &ids, Out::All);
    for (i, row) in rows.iter().enumerate() {
        let got = &logits[*row as usize * v..][..v];
        for (g, w) in got.iter().zip(golden.get("logits").unwrap().row(i)) {
            assert!((g - w).abs() <= LIMIT, "position {row}: {g} and {w}");
        }
    }
    let top = golden.get("top5_id").unwrap();
    for (row, got) in logits.chunks_exact(v).enumerate() {
        assert_eq!(argmax(got), top.row(row)[0] as u32, "position {row}");
    }
    let mut next = argmax(&logits[(ids.len() - 1) * v..]);
    for (i, want) in golden.ids("greedy").unwrap().into_iter().enumerate() {
        assert_eq!(next, want, "greedy token {i} after {}", ids.len());
        next = argmax(&feed(&mut t, seq, &[next], Out::Last));
    }
}

#[test]
fn llama_cpps_file_loads_and_agrees_with_its_f32_twin() {
    require!(
        fixture("tiny-q8_0.gguf").exists(),
        "no target/fixtures/peer/tiny-q8_0.gguf"
    );
    require!(
        fixture("tiny-f32.gguf").exists(),
        "no target/fixtures/peer/tiny-f32.gguf"
    );
    let (mut twin, mut peer) = (open("tiny-f32.gguf", false), open("tiny-q8_0.gguf", false));
    let ids = tiny_long().unwrap().ids("ids").unwrap();
    let run = |t: &mut CpuTarget| {
        let seq = t.open().unwrap();
        feed(t, seq, &ids, Out::All)
    };
    let (want, got) = (run(&mut twin), run(&mut peer));
    let want: Vec<f64> = want.iter().map(|v| f64::from(*v)).collect();
    let error = nmse(&want, &got, 2e-3).unwrap();
    assert!(
        error > 1e-9,
        "a quantised file cannot agree exactly: {error:e}"
    );
    println!("nmse of llama.cpp's Q8_0 file against F32: {error:.2e}");
}
