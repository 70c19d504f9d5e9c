//! The small model's tokenizer from `data/vocab.txt`.

use text::{TokenKind, Tokenizer, TokenizerParts};

/// Special tokens, a blank line, merges. The vocabulary is: specials, the byte alphabet in order of
/// its characters, the joined merges (`data/make_parity.py` asserts it).
pub(crate) fn tiny() -> Tokenizer {
    let (specials, merges) = include_str!("../data/vocab.txt")
        .split_once("\n\n")
        .unwrap();
    let merges: Vec<String> = merges.lines().map(String::from).collect();
    let mut tokens: Vec<String> = specials.lines().map(String::from).collect();
    let mut kinds = vec![TokenKind::Control; tokens.len()];
    tokens.extend(alphabet().map(String::from));
    tokens.extend(merges.iter().map(|m| m.replace(' ', "")));
    kinds.resize(tokens.len(), TokenKind::Normal);
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
