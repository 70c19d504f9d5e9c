//! Sums by role add up to the file; plans follow metadata and options.
#![allow(clippy::unwrap_used)]

mod common;

use common::{Naming, Storage};
use ds4_target::Options;
use gguf::{Gguf, OpenOptions};
use model_tools::inspect::Inspection;
use model_tools::plan::plan;
use model_tools::{Recipe, Role, convert};

fn file(recipe: &str) -> (tempfile::TempDir, Gguf) {
    let dir = tempfile::tempdir().unwrap();
    let tensors = common::tensors(&common::target_rows(), Naming::Official, Storage::BF16);
    common::write_folder(dir.path(), &common::config(), &tensors);
    let options = convert::Options::new(Recipe::parse(recipe).unwrap());
    let out = dir.path().join("out.gguf");
    convert::target(dir.path(), &out, &options, &mut ()).unwrap();
    let file = Gguf::open(out, &OpenOptions::default()).unwrap();
    (dir, file)
}

#[test]
fn roles_add_up_to_the_file() {
    let (_dir, file) = file("*=ROCMFP4,attn.q_b=ROCMFP6,experts.down=F16");
    let i = Inspection::of(&file);
    assert_eq!(i.architecture.as_deref(), Some("deepseek4"));
    assert_eq!(
        i.recipe.as_deref(),
        Some("*=ROCMFP4,attn.q_b=ROCMFP6,experts.down=F16")
    );
    assert_eq!(i.tensors.len(), common::target_rows().len());
    assert_eq!(i.bytes, file.tensor_bytes());
    assert_eq!(i.roles.iter().map(|r| r.bytes).sum::<u64>(), i.bytes);
    assert_eq!(i.roles.iter().map(|r| r.elems).sum::<u64>(), i.elems);
    let down = i
        .roles
        .iter()
        .find(|r| r.role == Some(Role::ExpertDown))
        .unwrap();
    let elems = (3 * common::EXPERTS * common::FF * common::N) as u64;
    assert_eq!(
        (down.tensors, down.elems, down.bytes),
        (3, elems, 2 * elems)
    );
    let up = i
        .roles
        .iter()
        .find(|r| r.role == Some(Role::ExpertUp))
        .unwrap();
    assert_eq!(up.bytes, elems / 32 * 18);
    assert!(i.bits_per_weight() > 4.5 && i.bits_per_weight() < 16.0);
    assert!(i.tensors.iter().all(|t| t.place.is_some()));
}

#[test]
fn plans_grow_with_context_and_sequences() {
    let (_dir, file) = file("*=F16");
    let options = |n_ctx, n_seq_max, kv_sim| Options {
        n_ctx,
        n_seq_max,
        verify_max: 8,
        span_max: 64,
        kv_sim,
        threads: 1,
    };
    let one = plan(&file, &options(1024, 1, false)).unwrap();
    assert_eq!(one.weight_bytes, file.tensor_bytes());
    // Window 8, verify 8: rings of 16 rows in 3 layers.
    assert_eq!(one.state.raw, 3 * 16 * 4 * 128);
    assert_eq!(one.state.compressed, (1024 / 4 + 1024 / 8) * 4 * 128);
    assert_eq!(one.state.index, 1024 / 4 * 4 * 32);
    // Rings of (key, gate) rows: ratio 4 overlapping (16 rows, twice as wide), ratio 8 (16 rows).
    let open = 16 * 2 * 128 + 16 * 2 * 32 + 16 * 128;
    assert_eq!(one.state.open, open * 2 * 4);
    assert_eq!(
        one.total,
        one.weight_bytes + one.state.total() + one.scratch
    );
    let four = plan(&file, &options(1024, 4, false)).unwrap();
    assert_eq!(four.total - one.total, 3 * one.state.total());
    let long = plan(&file, &options(2048, 1, false)).unwrap();
    assert_eq!(long.state.compressed, 2 * one.state.compressed);
    assert_eq!(long.state.raw, one.state.raw);
    assert!(plan(&file, &options(1024, 1, true)).unwrap().state.index < one.state.index / 7);
    let mut wide = options(1024, 1, false);
    wide.span_max = 128;
    let wide = plan(&file, &wide).unwrap();
    assert!(wide.scratch > one.scratch && wide.scratch < 2 * one.scratch);
}

#[test]
fn a_drafter_has_no_plan_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.gguf");
    let mut b = gguf::GgufBuilder::new();
    b.set("general.architecture", "deepseek4-dflash-draft")
        .unwrap();
    b.create(&path).unwrap().finish().unwrap();
    let file = Gguf::open(&path, &OpenOptions::default()).unwrap();
    let error = plan(&file, &Options::default()).unwrap_err().to_string();
    assert!(error.contains("DSpark drafter"), "{error}");
    assert!(Inspection::of(&file).tensors.is_empty());
}
