use super::*;

fn parts() -> (Vec<String>, Vec<TokenKind>, Vec<String>) {
    let mut tokens = vec!["<s>".to_owned(), "<t>".to_owned()];
    let mut kinds = vec![TokenKind::Control, TokenKind::UserDefined];
    tokens.extend((0..=255).map(|b| bytes::char_of_byte(b).to_string()));
    tokens.extend(["ab", "Ġab", "<t"].map(String::from));
    kinds.resize(tokens.len(), TokenKind::Normal);
    let merges = ["a b", "Ġ ab", "< t"].map(String::from).to_vec();
    (tokens, kinds, merges)
}

type Change = fn(&mut Vec<String>, &mut Vec<TokenKind>, &mut Vec<String>);

fn build(change: Change) -> Result<Tokenizer, TextError> {
    let (mut tokens, mut kinds, mut merges) = parts();
    change(&mut tokens, &mut kinds, &mut merges);
    Tokenizer::new(TokenizerParts {
        tokens: &tokens,
        kinds: &kinds,
        merges: &merges,
        pre: "joyai-llm",
    })
}

fn sound() -> Tokenizer {
    build(|_, _, _| ()).unwrap()
}

#[test]
fn only_pieces_said_to_be_special_become_special() {
    let t = sound();
    let lt = 2 + u32::from(b'<');
    let (open, close) = (260, 2 + u32::from(b'>'));
    assert_eq!(t.special("<t>"), Some(1));
    assert_eq!(t.special("ab"), None);
    assert_eq!(t.encode_text("<t>"), [open, close]);
    assert_eq!(t.encode_text("<s>"), [lt, 2 + u32::from(b's'), close]);
    assert_eq!(t.encode(&[Piece::Special(1), Piece::Text("ab")]), [1, 258]);
    assert_eq!(t.decode(&[1, 258]).unwrap(), b"<t>ab");
}

#[test]
fn neighbouring_texts_are_one_text() {
    let t = sound();
    let split = [Piece::Text("x "), Piece::Text("a"), Piece::Text("b")];
    assert_eq!(t.encode(&split), t.encode_text("x ab"));
    let apart = [Piece::Text("a"), Piece::Special(0), Piece::Text("b")];
    assert_eq!(
        t.encode(&apart),
        [2 + u32::from(b'a'), 0, 2 + u32::from(b'b')]
    );
}

#[test]
fn foreign_pre_tokenizers_are_refused_by_name() {
    let (tokens, kinds, merges) = parts();
    for pre in ["deepseek-llm", "deepseek-coder", "gpt-2", "default", ""] {
        let parts = TokenizerParts {
            tokens: &tokens,
            kinds: &kinds,
            merges: &merges,
            pre,
        };
        let error = Tokenizer::new(parts).unwrap_err();
        assert!(
            matches!(&error, TextError::UnknownPreTokenizer { got, .. } if got == pre),
            "{error}"
        );
    }
    for pre in KNOWN_PRE {
        let parts = TokenizerParts {
            tokens: &tokens,
            kinds: &kinds,
            merges: &merges,
            pre,
        };
        assert!(Tokenizer::new(parts).is_ok());
    }
}

#[test]
fn broken_parts_are_refused_with_their_place() {
    let cases: [(Change, TextError); 8] = [
        (
            |_, kinds, _| kinds.truncate(3),
            TextError::Length {
                what: "token types",
                expected: 261,
                got: 3,
            },
        ),
        (
            |tokens, _, _| tokens[260] = "<s>".into(),
            TextError::DuplicateToken {
                first: 0,
                second: 260,
                text: "<s>".into(),
            },
        ),
        (
            |tokens, _, _| tokens[2] = "zz".into(),
            TextError::MissingByte { byte: 0 },
        ),
        (
            |_, _, merges| merges[1] = "ab".into(),
            TextError::BadMerge {
                index: 1,
                got: "ab".into(),
            },
        ),
        (
            |_, _, merges| merges[1] = "a b c".into(),
            TextError::BadMerge {
                index: 1,
                got: "a b c".into(),
            },
        ),
        (
            |_, _, merges| merges[1] = " ab".into(),
            TextError::BadMerge {
                index: 1,
                got: " ab".into(),
            },
        ),
        (
            |_, _, merges| merges[0] = "a c".into(),
            TextError::MergeToken {
                index: 0,
                text: "ac".into(),
            },
        ),
        (
            // "<t" + ">" would turn plain text into the marker.
            |_, _, merges| merges.push("<t >".into()),
            TextError::MergeToken {
                index: 3,
                text: "<t>".into(),
            },
        ),
    ];
    for (change, want) in cases {
        assert_eq!(build(change).unwrap_err(), want);
    }
}

#[test]
fn a_marker_listed_as_normal_is_literal_and_still_special() {
    let t = build(|tokens, kinds, _| {
        tokens.push("<｜User｜>".into());
        kinds.push(TokenKind::Normal);
    })
    .unwrap();
    assert_eq!(t.special("<｜User｜>"), Some(261));
    assert_eq!(t.token_bytes(261), Some("<｜User｜>".as_bytes()));
    assert!(!t.encode_text("<｜User｜>").contains(&261));
}

#[test]
fn unused_entries_may_repeat_and_are_not_special() {
    let t = build(|tokens, kinds, _| {
        tokens.extend(["".into(), "".into(), "ab".into()]);
        kinds.extend([TokenKind::Unused; 3]);
    })
    .unwrap();
    assert_eq!(t.special(""), None);
    assert_eq!(t.encode_text("ab"), [258]);
    assert_eq!(t.n_vocab(), 264);
}

#[test]
fn ids_outside_the_vocabulary_are_refused() {
    let t = sound();
    assert_eq!(t.token_bytes(261), None);
    assert_eq!(t.token_bytes(TokenId::MAX), None);
    assert_eq!(t.kind(261), None);
    let want = TextError::BadToken {
        got: 261,
        n_vocab: 261,
    };
    assert_eq!(t.decode(&[0, 261]), Err(want));
}

#[test]
fn file_numbers_give_kinds() {
    let kinds = [0, 1, 2, 3, 4, 5, 6, -7].map(TokenKind::from_ggml);
    use TokenKind::{Control, Normal, Unused, UserDefined};
    let want = [
        Normal,
        Normal,
        Normal,
        Control,
        UserDefined,
        Unused,
        Normal,
        Normal,
    ];
    assert_eq!(kinds, want);
}
