//! Against the reference implementation's ids (data/README.md), and properties that hold for any
//! text.

#![allow(clippy::unwrap_used, reason = "test helpers")]

mod common;

use std::sync::LazyLock;

use proptest::prelude::*;
use text::{Decoder, Tokenizer};

fn golden() -> Vec<(String, Vec<u32>)> {
    include_str!("data/parity.jsonl")
        .lines()
        .map(|line| {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            let ids = serde_json::from_value(row["ids"].clone()).unwrap();
            (row["text"].as_str().unwrap().to_owned(), ids)
        })
        .collect()
}

#[test]
fn ids_equal_the_reference() {
    let tokenizer = common::tiny();
    assert_eq!(tokenizer.n_vocab(), 4096);
    let mut tokens = 0;
    for (text, want) in golden() {
        assert_eq!(tokenizer.encode_text(&text), want, "{text:?}");
        assert_eq!(tokenizer.decode(&want).unwrap(), text.as_bytes());
        tokens += want.len();
    }
    assert!(tokens >= 20_000, "only {tokens} tokens compared");
}

fn decode_one_by_one(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let (mut decoder, mut out) = (Decoder::default(), String::new());
    for id in ids {
        decoder.push(tokenizer.token_bytes(*id).unwrap(), &mut out);
    }
    decoder.finish(&mut out);
    out
}

#[test]
fn streaming_gives_back_the_text_of_every_golden_row() {
    let tokenizer = common::tiny();
    for (text, ids) in golden() {
        assert_eq!(decode_one_by_one(&tokenizer, &ids), text);
    }
}

#[test]
fn every_token_and_every_marker_decodes_to_itself() {
    let tokenizer = common::tiny();
    for id in 0..4096 {
        let bytes = tokenizer.token_bytes(id).unwrap();
        if let Ok(text) = std::str::from_utf8(bytes) {
            assert_eq!(decode_one_by_one(&tokenizer, &[id]), text);
        }
    }
    for text in ["｜", "▁", "<｜DSML｜tool_calls>", "🙂", "你"] {
        let ids = tokenizer.encode_text(text);
        assert_eq!(decode_one_by_one(&tokenizer, &ids), text);
    }
}

#[test]
fn no_text_of_a_special_token_encodes_to_it() {
    let tokenizer = common::tiny();
    for id in 0..12u32 {
        let text = String::from_utf8(tokenizer.token_bytes(id).unwrap().to_vec()).unwrap();
        assert_eq!(tokenizer.special(&text), Some(id));
        for around in ["", " ", "x", "\n"] {
            let ids = tokenizer.encode_text(&format!("{around}{text}{around}"));
            assert!(ids.iter().all(|i| *i >= 12), "{text}: {ids:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn decoding_gives_back_any_text(text in "\\PC*|[ -~\\s]{0,200}|(\\p{L}|\\p{M}|\\p{N}|\\s|<|｜){0,60}") {
        static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(common::tiny);
        let ids = TOKENIZER.encode_text(&text);
        prop_assert_eq!(decode_one_by_one(&TOKENIZER, &ids), text);
    }
}
