//! Names, shapes against the tables that tests have of the real models, fingerprints that were written down.

use std::collections::BTreeMap;

use fpx_quant::Fp2Dialect;
use gguf::fixture;

use super::*;
use crate::{Ds4Meta, GgufSource, Model};

fn parsed(name: &str) -> Synth {
    name.parse().unwrap()
}

fn source(name: &str) -> SynthSource {
    SynthSource::new(&parsed(name))
}

#[test]
fn names_are_read_in_any_order_and_printed_whole() {
    let whole = "synth:flash,recipe=fp2-fp3-fp4f,seed=0";
    assert_eq!(parsed("synth:flash").to_string(), whole);
    assert_eq!(parsed(whole), parsed("synth:flash"));
    let other = parsed("synth:pro,seed=18446744073709551615,recipe=iq2_xxs-q2_k-q8_0");
    assert_eq!(
        other,
        Synth {
            size: Size::Pro,
            recipe: Recipe {
                gate_up: Format::Iq2Xxs,
                down: Format::Q2K,
                rest: Format::Q8_0,
            },
            seed: u64::MAX,
        }
    );
    assert_eq!(parsed(&other.to_string()), other);
    assert_eq!(
        parsed("synth:tiny,recipe=fp8-fp6-bf16").recipe.rest,
        Format::BF16
    );
    assert!(Synth::is_meant("synth:") && !Synth::is_meant("./synth:flash"));
}

#[test]
fn what_cannot_be_read_is_refused_with_what_is_allowed() {
    for (name, why) in [
        ("flash", "beginning: expected \"synth:\", got \"flash\""),
        ("synth:", "size: expected flash, pro, tiny, got \"\""),
        (
            "synth:Flash",
            "size: expected flash, pro, tiny, got \"Flash\"",
        ),
        (
            "synth:flash,",
            "option: expected recipe=.. or seed=.., each once, got \"\"",
        ),
        ("synth:flash,seed=1,seed=1", "each once, got \"seed=1\""),
        ("synth:flash,sede=1", "each once, got \"sede=1\""),
        (
            "synth:flash,seed=-1",
            "seed: expected a number below 2^64, got \"-1\"",
        ),
        ("synth:flash,seed=+1", "got \"+1\""),
        ("synth:flash,seed=", "got \"\""),
        (
            "synth:flash,seed=18446744073709551616",
            "a number below 2^64",
        ),
        (
            "synth:flash,recipe=fp2-fp3",
            "as fp2-fp3-fp4f, of fp2, fp3,",
        ),
        (
            "synth:flash,recipe=f16-fp3-fp4f",
            "the last one also f16, bf16, f32, got \"f16-fp3-fp4f\"",
        ),
        ("synth:flash,recipe=fp2-fp3-fp5", "got \"fp2-fp3-fp5\""),
        ("synth:flash?seed=1", "size: expected flash, pro, tiny"),
    ] {
        let error = name.parse::<Synth>().unwrap_err().to_string();
        assert!(error.starts_with(&format!("{name:?}: ")), "{error}");
        assert!(error.contains(why), "{error}");
    }
}

#[test]
fn flash_has_the_tensors_of_flash() {
    let source = source("synth:flash");
    let table: BTreeMap<String, fixture::TensorSpec> = fixture::flash_table(Dialect::Antirez)
        .into_iter()
        .map(|t| (t.name.clone(), t))
        .collect();
    let names = source.tensor_names();
    assert_eq!(names.len(), fixture::FLASH_TENSORS);
    let mut bytes = 0;
    for name in &names {
        let (got, want) = (source.tensor(name).unwrap(), &table[name]);
        assert_eq!(got.shape, want.shape, "{name}");
        let expected = match want.format {
            Format::Iq2Xxs => Format::Fp2(Fp2Dialect::Signed),
            Format::Q2K => Format::Fp3,
            Format::Q8_0 => Format::Fp4Fast,
            other => other,
        };
        assert_eq!(got.format, expected, "{name}");
        bytes += got.bytes.len() as u64;
    }
    // What the records of this mix call 103.6 GB.
    assert_eq!(bytes, 103_615_101_276);
    assert_eq!(
        names
            .iter()
            .filter(|n| source.tensor(n).unwrap().bytes.made().is_none())
            .count(),
        3
    );
}

#[test]
fn flash_has_the_metadata_of_flash() {
    let folder = tempfile();
    fixture::flash_builder(Dialect::Antirez)
        .unwrap()
        .write_sparse(&folder)
        .unwrap();
    let file = gguf::Gguf::open(&folder, &gguf::OpenOptions::default()).unwrap();
    std::fs::remove_file(&folder).unwrap();
    let want = Ds4Meta::read(&GgufSource::new(file)).unwrap();
    assert_eq!(Ds4Meta::read(&source("synth:flash")).unwrap(), want);
}

fn tempfile() -> std::path::PathBuf {
    std::env::temp_dir().join(format!("synth-flash-meta-{}.gguf", std::process::id()))
}

#[test]
fn pro_has_its_own_shapes() {
    let pro = Model::load(&source("synth:pro")).unwrap().meta;
    let count = |wanted: Option<u32>| pro.ratios.iter().filter(|r| r.tokens() == wanted).count();
    assert_eq!([None, Some(4), Some(128)].map(count), [0, 30, 31]);
    assert_eq!(
        (pro.n_layer, pro.n_embd, pro.n_head, pro.head_dim),
        (61, 7168, 128, 512)
    );
    assert_eq!(
        (pro.q_lora, pro.o_groups, pro.o_lora, pro.n_ff),
        (1536, 16, 1024, 3072)
    );
    assert_eq!((pro.n_expert, pro.n_used, pro.index_top_k), (384, 6, 1024));
    assert_eq!(
        (pro.route_scale, pro.n_vocab, pro.window),
        (2.5, 129_280, 128)
    );
}

#[test]
fn tiny_has_the_shapes_of_the_shipped_model() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/tiny.gguf");
    let file = gguf::Gguf::open(path, &gguf::OpenOptions::default()).unwrap();
    let (want, got) = (GgufSource::new(file), source("synth:tiny"));
    assert_eq!(Ds4Meta::read(&got).unwrap(), Ds4Meta::read(&want).unwrap());
    let sorted = |s: &dyn Source| {
        let mut names = s.tensor_names();
        names.sort();
        names
    };
    let names = sorted(&got);
    assert_eq!(names, sorted(&want));
    for name in names {
        let shapes = [&got as &dyn Source, &want].map(|s| s.tensor(&name).unwrap().shape);
        assert_eq!(shapes[0], shapes[1], "{name}");
    }
}

#[test]
fn tensors_it_does_not_have_are_none() {
    let flash = source("synth:flash");
    for name in [
        "blk.43.attn_norm.weight",
        "blk.0.attn_compressor_kv.weight",
        "blk.3.indexer.proj.weight",
        "blk.3.ffn_gate_tid2eid.weight",
        "blk.2.exp_probs_b.bias",
        "attn_norm.weight",
        "nonsense",
    ] {
        assert!(flash.tensor(name).is_none(), "{name}");
    }
}

/// The fingerprint covers shapes, formats and samples of every tensor: another machine has the same model.
#[test]
fn fingerprints_are_what_they_were_when_this_was_written() {
    let print = |name: &str| {
        let print = Model::load(&source(name)).unwrap().fingerprint;
        print[..8]
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect::<String>()
    };
    let tiny = print("synth:tiny");
    assert_eq!(
        (tiny.as_str(), print("synth:flash").as_str()),
        (TINY, FLASH)
    );
    for other in ["synth:tiny,seed=1", "synth:tiny,recipe=fp2-fp3-fp4"] {
        assert_ne!(print(other), tiny, "{other}");
    }
}

const TINY: &str = "f107998f02f8b9c8";
const FLASH: &str = "00f9aa8c84c701ba";
