//! The small model's tokenizer from `data/vocab.txt`, and variants of it.

#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "test helpers; each file uses some"
)]

pub(crate) mod answers;

use text::{TokenKind, Tokenizer, TokenizerParts};

/// All markers of the prompt format.
pub(crate) const MARKERS: &[&str] = &[
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<tool_result>",
    "</tool_result>",
    "<｜latest_reminder｜>",
    "<｜action｜>",
    "<｜query｜>",
    "<｜authority｜>",
    "<｜domain｜>",
    "<｜title｜>",
    "<｜read_url｜>",
];

pub(crate) fn tiny() -> Tokenizer {
    build(|specials| specials)
}

/// With the markers the small model lacks, at the end of the vocabulary.
pub(crate) fn tiny_with_all_markers() -> Tokenizer {
    build(|mut specials| {
        for marker in MARKERS {
            if !specials.contains(marker) {
                specials.push(marker);
            }
        }
        specials
    })
}

pub(crate) fn without_specials() -> Tokenizer {
    build(|_| Vec::new())
}

/// Special tokens, a blank line, merges. The vocabulary is: specials, the byte alphabet in order of
/// its characters, the joined merges (`data/make_parity.py` asserts it).
fn build<'a>(change: impl FnOnce(Vec<&'a str>) -> Vec<&'a str>) -> Tokenizer {
    let (specials, merges) = include_str!("../data/vocab.txt")
        .split_once("\n\n")
        .unwrap();
    let merges: Vec<String> = merges.lines().map(String::from).collect();
    let own: Vec<&str> = specials.lines().collect();
    let n_own = own.len();
    let wanted = change(own);
    let mut tokens: Vec<String> = wanted.iter().take(n_own).map(ToString::to_string).collect();
    let mut kinds = vec![TokenKind::Control; tokens.len()];
    tokens.extend(alphabet().map(String::from));
    tokens.extend(merges.iter().map(|m| m.replace(' ', "")));
    kinds.resize(tokens.len(), TokenKind::Normal);
    tokens.extend(wanted.iter().skip(n_own).map(ToString::to_string));
    kinds.resize(tokens.len(), TokenKind::Control);
    Tokenizer::new(TokenizerParts {
        tokens: &tokens,
        kinds: &kinds,
        merges: &merges,
        pre: "deepseek-v3",
    })
    .unwrap()
}

fn alphabet() -> impl Iterator<Item = char> {
    ('!'..='~')
        .chain('¡'..='¬')
        .chain('®'..='ÿ')
        .chain('Ā'..='Ń')
}
