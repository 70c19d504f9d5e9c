//! A real pass scored: of a model against itself and against its quantised form.
#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;
use std::sync::Arc;

use common::{Naming, Storage};
use ds4_target::{CpuTarget, GgufSource, Model, Options};
use gguf::{Gguf, OpenOptions};
use model_tools::recorded::{self, Recorded};
use model_tools::{Recipe, ToolError, convert, eval, quantize};

fn target(path: &Path, span_max: usize) -> CpuTarget {
    let file = Gguf::open(path, &OpenOptions::default()).unwrap();
    let model = Arc::new(Model::load(&GgufSource::new(file)).unwrap());
    let options = Options {
        n_ctx: 64,
        span_max,
        kv_sim: false,
        threads: 2,
        ..Options::default()
    };
    CpuTarget::new(model, options).unwrap()
}

#[test]
fn a_model_diverges_from_its_quantised_form_and_not_from_itself() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let tensors = common::tensors(&common::target_rows(), Naming::Official, Storage::F32);
    common::write_folder(dir.path(), &common::config(), &tensors);
    let options = convert::Options::new(Recipe::parse("*=F32").unwrap());
    convert::target(dir.path(), &at("f32.gguf"), &options, &mut ()).unwrap();
    let source = Gguf::open(at("f32.gguf"), &OpenOptions::default()).unwrap();
    for (recipe, name) in [("*=ROCMFP8", "fine.gguf"), ("*=ROCMFP3", "coarse.gguf")] {
        let options = quantize::Options::new(Recipe::parse(recipe).unwrap());
        quantize::quantize(&source, &at(name), &options, &mut ()).unwrap();
    }
    let tokens: Vec<u32> = (0..100)
        .map(|i| (i * 31 + i * i) % common::VOCAB as u32)
        .collect();
    let windows = eval::windows(&tokens, 48).unwrap();
    let mut reference = target(&at("f32.gguf"), 512);
    let score = eval::perplexity(&mut reference, &windows, &mut ()).unwrap();
    assert_eq!(score.scored, 2 * 23);
    // Random weights know nothing: near the vocabulary's size, by no means better.
    assert!(score.value() > 0.5 * common::VOCAB as f64, "{score:?}");
    // The length of passes changes no bit.
    let mut narrow = target(&at("f32.gguf"), 9);
    let same = eval::compare(&mut reference, &mut narrow, &windows, &mut ()).unwrap();
    assert_eq!((same.kl, same.kl_max, same.top1), (0.0, 0.0, 1.0));
    assert_eq!((same.reference, same.model), (score, score));
    recorded_rows(&mut reference, &at("f32.gguf"), &windows, dir.path());
    let mut against = |name: &str| {
        let mut model = target(&at(name), 512);
        eval::compare(&mut reference, &mut model, &windows, &mut ()).unwrap()
    };
    let (fine, coarse) = (against("fine.gguf"), against("coarse.gguf"));
    assert!(
        0.0 < fine.kl && 3.0 * fine.kl < coarse.kl,
        "{fine:?} {coarse:?}"
    );
}

/// Rows in a file stand for the model that made them, to the last bit, and a damaged file or another text is
/// refused.
fn recorded_rows(
    reference: &mut CpuTarget,
    model: &Path,
    windows: &[eval::Window<'_>],
    dir: &Path,
) {
    let rows = dir.join("rows");
    let head = recorded::record(reference, windows, &rows, &mut ()).unwrap();
    assert_eq!((head.n_vocab, head.rows), (common::VOCAB as u64, 2 * 23));
    let mut model = target(model, 9);
    let open = || Recorded::open(&rows).unwrap();
    assert_eq!(*open().head(), head);
    let by_file = recorded::compare(open(), &mut model, windows, &mut ()).unwrap();
    let by_model = eval::compare(reference, &mut model, windows, &mut ()).unwrap();
    assert_eq!(by_file, by_model);
    assert_eq!((by_file.kl, by_file.kl_max), (0.0, 0.0));
    // Never over a file that is there.
    assert!(recorded::record(reference, windows, &rows, &mut ()).is_err());
    let mut refused = |recorded: Result<Recorded, ToolError>, windows: &[eval::Window<'_>]| {
        let compared = recorded.and_then(|r| recorded::compare(r, &mut model, windows, &mut ()));
        compared.unwrap_err().to_string()
    };
    let fewer = refused(Recorded::open(&rows), &windows[..1]);
    assert!(fewer.contains("rows: expected 23, got 46"), "{fewer}");
    let swapped: Vec<_> = windows.iter().rev().copied().collect();
    let other = refused(Recorded::open(&rows), &swapped);
    assert!(other.contains("windows"), "{other}");
    let bytes = std::fs::read(&rows).unwrap();
    let damaged = dir.join("damaged");
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = bytes.clone();
        change(&mut bytes);
        std::fs::write(&damaged, bytes).unwrap();
        Recorded::open(&damaged)
    };
    // One bit of one row.
    let flipped = refused(with(&|b| b[200] ^= 1), windows);
    assert!(flipped.contains("digest"), "{flipped}");
    let name = |change: &dyn Fn(&mut Vec<u8>)| with(change).unwrap_err().to_string();
    assert!(name(&|b| b[0] = b'X').contains("magic"));
    assert!(name(&|b| b.truncate(b.len() - 1)).contains("length"));
    assert!(name(&|b| b.truncate(20)).contains("head"));
    assert!(name(&|b| b[8..16].fill(0xff)).contains("vocabulary"));
    assert!(name(&|b| b[8..16].fill(0)).contains("vocabulary"));
    assert!(name(&|b| b[16..24].fill(0xff)).contains("length"));
}
