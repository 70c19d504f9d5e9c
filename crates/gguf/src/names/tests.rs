//! Real tensor tables bind completely; what is missing, left over or ambiguous is named.

use fpx_quant::Format;

use super::{Dialect, Role, Structure, derive, find, keys, parse, resolve, tensor_name};
use crate::fixture::{FLASH_BYTES, FLASH_TENSORS, flash_builder, flash_structure, flash_table};
use crate::{Error, ErrorKind, Gguf, GgufBuilder, OpenOptions};

/// A sparse file of what `b` declares.
fn sparse(b: &GgufBuilder) -> Gguf {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    b.write_sparse(&path).unwrap();
    Gguf::open(&path, &OpenOptions::default()).unwrap()
}

/// The small model's table as llama.cpp wrote it, with the keys that matter here.
fn tiny() -> GgufBuilder {
    let mut b = GgufBuilder::new();
    b.set("deepseek4.block_count", 7u32).unwrap();
    b.set(
        "deepseek4.attention.compress_ratios",
        vec![0i32, 0, 4, 128, 4, 128, 4],
    )
    .unwrap();
    b.set("deepseek4.hash_layer_count", 3u32).unwrap();
    b.set("tokenizer.ggml.tokens", vec!["x".to_owned(); 4096])
        .unwrap();
    for line in include_str!("../../tests/data/llama-cpp-tiny.txt").lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let shape: Vec<u64> = words[2].split('x').map(|d| d.parse().unwrap()).collect();
        let format = match words[1] {
            "0" => Format::F32,
            "8" => Format::Q8_0,
            "26" => Format::I32,
            other => panic!("type {other}"),
        };
        b.tensor(words[0], &shape, format).unwrap();
    }
    b
}

/// `b` without the tensors and keys that `drop` names, and with `more` tensors.
fn edited(b: &GgufBuilder, drop: &[&str], more: &[&str]) -> Gguf {
    let file = sparse(b);
    let mut out = GgufBuilder::new();
    for (k, v) in file.metadata().iter().filter(|(k, _)| !drop.contains(k)) {
        out.set(k, v.clone()).unwrap();
    }
    for t in b
        .tensors()
        .iter()
        .filter(|t| !drop.contains(&t.name.as_str()))
    {
        out.tensor(&t.name, &t.shape, t.format).unwrap();
    }
    for name in more {
        out.tensor(name, &[1], Format::F32).unwrap();
    }
    sparse(&out)
}

#[test]
fn flash_is_inspected_without_its_87_gigabytes() {
    for dialect in [Dialect::Antirez, Dialect::LlamaCpp, Dialect::EarlyPort] {
        let file = sparse(&flash_builder(dialect).unwrap());
        assert_eq!(file.tensors().len(), FLASH_TENSORS);
        assert_eq!(file.tensor_bytes(), FLASH_BYTES);
        let structure = Structure::of(&file).unwrap();
        assert_eq!(structure, flash_structure());
        let binding = resolve(&file, &structure).unwrap();
        binding.complete(&file).unwrap();
        assert_eq!(binding.to_string(), "1328 of 1328 tensors bound");
        assert_eq!(binding.dialect, dialect);
        let down = binding.tensor(&file, Role::FfnDownExps, Some(42)).unwrap();
        assert_eq!(down.shape, [2048, 4096, 256]);
        assert_eq!(down.bytes(), 2048 / 256 * 84 * 4096 * 256);
    }
}

#[test]
fn flash_has_the_types_of_the_published_mix() {
    let table = flash_table(Dialect::Antirez);
    let count = |f: Format| table.iter().filter(|t| t.format == f).count();
    // Counted by a program of its own from the same table of shapes.
    assert_eq!(count(Format::F16), 359);
    assert_eq!(count(Format::F32), 492);
    assert_eq!(count(Format::Q8_0), 345);
    assert_eq!(count(Format::I32), 3);
    assert_eq!(count(Format::Iq2Xxs), 86);
    assert_eq!(count(Format::Q2K), 43);
}

#[test]
fn llama_cpp_s_own_file_binds_whole() {
    let file = sparse(&tiny());
    let structure = Structure::of(&file).unwrap();
    let binding = resolve(&file, &structure).unwrap();
    binding.complete(&file).unwrap();
    assert_eq!(binding.to_string(), "212 of 212 tensors bound");
    assert_eq!(binding.dialect, Dialect::LlamaCpp);
    // Its names are those of the table: none came from an alias.
    for (role, layer) in structure.expected() {
        let name = &binding.tensor(&file, role, layer).unwrap().name;
        assert_eq!(*name, tensor_name(Dialect::Antirez, role, layer));
    }
}

#[test]
fn a_canonical_name_finds_its_tensor_in_every_dialect() {
    for dialect in [Dialect::Antirez, Dialect::EarlyPort] {
        let mut b = GgufBuilder::new();
        for t in flash_table(dialect) {
            b.tensor(&t.name, &t.shape, t.format).unwrap();
        }
        let file = sparse(&b);
        for (role, layer) in flash_structure().expected() {
            let canonical = tensor_name(Dialect::Antirez, role, layer);
            assert_eq!(parse(&canonical), Some((role, layer)), "{canonical}");
            let found = find(&file, role, layer).unwrap();
            assert_eq!(found.name, tensor_name(dialect, role, layer));
        }
    }
    for odd in [
        "blk.attn_kv.weight",
        "blk.2.attn_kv",
        "blk.2.token_embd.weight",
        "attn_kv.weight",
        "blk.2.exp_probs_b.weight",
        "blk.-1.attn_kv.weight",
        "blk.2.attn_kv_a_mqa.weight",
        "",
    ] {
        assert_eq!(parse(odd), None, "{odd}");
    }
}

#[test]
fn names_without_their_suffix_bind() {
    let mut b = GgufBuilder::new();
    let full = tiny();
    for (k, v) in sparse(&full).metadata().iter() {
        b.set(k, v.clone()).unwrap();
    }
    for t in full.tensors() {
        let bare = [
            "attn_sinks.weight",
            "hc_attn_base.weight",
            "output_hc_fn.weight",
        ];
        let cut = bare.iter().any(|s| t.name.ends_with(s));
        let name = if cut {
            t.name.trim_end_matches(".weight")
        } else {
            &t.name
        };
        b.tensor(name, &t.shape, t.format).unwrap();
    }
    let file = sparse(&b);
    let binding = resolve(&file, &Structure::of(&file).unwrap()).unwrap();
    binding.complete(&file).unwrap();
    assert_eq!(binding.dialect, Dialect::EarlyPort);
}

#[test]
fn missing_and_unknown_tensors_are_named() {
    let file = edited(
        &tiny(),
        &["blk.5.ffn_up_shexp.weight"],
        &["blk.5.ffn_extra.weight", "odd"],
    );
    let binding = resolve(&file, &Structure::of(&file).unwrap()).unwrap();
    assert_eq!((binding.bound(), binding.expected), (211, 212));
    assert_eq!(binding.missing, ["blk.5.ffn_up_shexp.weight"]);
    assert_eq!(binding.unknown, ["blk.5.ffn_extra.weight", "odd"]);
    let e = binding.complete(&file).unwrap_err();
    assert!(matches!(
        e.kind(),
        ErrorKind::Unbound {
            bound: 211,
            expected: 212,
            ..
        }
    ));
    let text = e.to_string();
    assert!(
        text.contains("blk.5.ffn_up_shexp.weight") && text.contains("odd"),
        "{text}"
    );
    let e = binding
        .tensor(&file, Role::FfnUpShexp, Some(5))
        .unwrap_err();
    assert!(e.to_string().contains("blk.5.ffn_up_shexp.weight"), "{e}");
}

#[test]
fn a_tensor_of_the_wrong_layer_kind_is_unknown() {
    // Layer 1 has no compressor, layer 3 no indexer, layer 0 no score bias.
    let odd = [
        "blk.1.attn_compressor_kv.weight",
        "blk.3.indexer.proj.weight",
        "blk.0.exp_probs_b.bias",
        "blk.3.ffn_gate_tid2eid.weight",
    ];
    let file = edited(&tiny(), &[], &odd);
    let binding = resolve(&file, &Structure::of(&file).unwrap()).unwrap();
    assert_eq!(binding.unknown, odd);
}

#[test]
fn an_mtp_block_is_skipped_and_not_counted() {
    let nextn = [
        "blk.7.nextn.eh_proj.weight",
        "blk.7.attn_norm.weight",
        "mtp.0.norm.weight",
    ];
    let mut b = tiny();
    b.set("deepseek4.block_count", 8u32).unwrap();
    b.set(
        "deepseek4.attention.compress_ratios",
        vec![0i32, 0, 4, 128, 4, 128, 4, 0],
    )
    .unwrap();
    b.set("deepseek4.nextn_predict_layers", 1u32).unwrap();
    let file = edited(&b, &[], &nextn);
    assert_eq!(derive::layers(&file).unwrap().value, 7);
    let binding = resolve(&file, &Structure::of(&file).unwrap()).unwrap();
    binding.complete(&file).unwrap();
    assert_eq!(binding.skipped, nextn);
    assert_eq!(
        binding.to_string(),
        "212 of 212 tensors bound, 3 of an MTP block skipped"
    );
    // The key alone says nothing: some files have it and no such tensors.
    let mut b = tiny();
    b.set("deepseek4.nextn_predict_layers", 1u32).unwrap();
    assert_eq!(derive::layers(&sparse(&b)).unwrap().value, 7);
}

#[test]
fn one_role_under_two_names_is_refused() {
    let file = edited(&tiny(), &[], &["blk.2.attn_kv_a_mqa.weight"]);
    let e = resolve(&file, &Structure::of(&file).unwrap()).unwrap_err();
    assert!(
        matches!(e.kind(), ErrorKind::Ambiguous { first, second }
            if first == "blk.2.attn_kv.weight" && second == "blk.2.attn_kv_a_mqa.weight"),
        "{e}"
    );
}

type Derive = fn(&Gguf) -> Result<derive::Found<u32>, Error>;

#[test]
fn values_left_out_are_derived_and_say_from_what() {
    let full = flash_builder(Dialect::Antirez).unwrap();
    let given = sparse(&full);
    let bare = sparse(&flash_builder(Dialect::EarlyPort).unwrap());
    let cases: [(keys::KeySpec, Derive, u32, &str); 5] = [
        (
            keys::VOCAB_SIZE,
            derive::vocab_size,
            129_280,
            "length of tokenizer.ggml.tokens",
        ),
        (
            keys::HC_COUNT,
            derive::hc_count,
            4,
            "dimension 0 of hc_head_base.weight",
        ),
        (
            keys::Q_LORA_RANK,
            derive::q_lora_rank,
            1024,
            "dimension 1 of blk.0.attn_q_a.weight",
        ),
        (
            keys::OUTPUT_GROUP_COUNT,
            derive::output_group_count,
            8,
            "shapes of attn_q_b and attn_output_a",
        ),
        (
            keys::OUTPUT_LORA_RANK,
            derive::output_lora_rank,
            1024,
            "shape of attn_output_a",
        ),
    ];
    for (key, get, value, origin) in cases {
        let by_key = get(&given).unwrap();
        assert_eq!(
            (by_key.value, by_key.origin.as_str()),
            (value, key.canonical)
        );
        let derived = get(&bare).unwrap();
        assert_eq!((derived.value, derived.origin.as_str()), (value, origin));
    }
    assert_eq!(derive::hash_layer_count(&bare, 43).unwrap().value, 3);
    let key = keys::COMPRESS_RATIOS.canonical;
    let file = edited(&flash_builder(Dialect::EarlyPort).unwrap(), &[key], &[]);
    let ratios = derive::compress_ratios(&file, 43).unwrap();
    assert_eq!(ratios.value, flash_structure().ratios);
    assert_eq!(ratios.origin, "shapes of attn_compressor_ape");
}

#[test]
fn the_vocabulary_falls_back_to_the_embedding_and_then_to_an_error_that_names_the_key() {
    let no_tokens = edited(&tiny(), &["tokenizer.ggml.tokens"], &[]);
    assert_eq!(derive::vocab_size(&no_tokens).unwrap().value, 4096);
    let nothing = edited(
        &tiny(),
        &["tokenizer.ggml.tokens", "token_embd.weight"],
        &[],
    );
    let e = derive::vocab_size(&nothing).unwrap_err();
    assert!(e.to_string().contains("deepseek4.vocab_size"), "{e}");
}

#[test]
fn a_damaged_layer_count_is_refused_before_it_is_used() {
    let mut b = tiny();
    b.set("deepseek4.block_count", u32::MAX).unwrap();
    b.set("deepseek4.attention.compress_ratios", 4u32).unwrap();
    let e = Structure::of(&sparse(&b)).unwrap_err();
    assert!(matches!(e.kind(), ErrorKind::KeyValue { .. }), "{e}");
    let mut b = tiny();
    b.set("deepseek4.attention.compress_ratios", vec![0i32, 0, 4])
        .unwrap();
    let e = Structure::of(&sparse(&b)).unwrap_err();
    assert!(e.to_string().contains("at least 7 elements"), "{e}");
}
