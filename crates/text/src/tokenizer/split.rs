//! The pre-tokenizer: cuts text into the pieces that merges may not cross.
//!
//! Three isolated splits in sequence (spec/ds4-architecture.md 8.1). The first two cut by class
//! alone: groups of at most three `\p{N}`, then runs of CJK and kana. The third is an alternation,
//! leftmost alternative first, applied within what the first two left, so that its look-ahead sees
//! the end of such a part as the end of text:
//!
//! ```text
//! 1  [ascii punctuation][A-Za-z]+
//! 2  [^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+
//! 3   ?[\p{P}\p{S}]+[\r\n]*
//! 4  \s*[\r\n]+
//! 5  \s+(?!\S)
//! 6  \s+
//! ```
//!
//! Characters no alternative takes (controls, unassigned) gather into one piece up to the next
//! match. Classes are those of Unicode 16.0: equal, for every code point, to what the reference
//! implementation's regular expressions match (tests/parity.rs).

use unicode_general_category::{GeneralCategory as G, get_general_category};

/// What the patterns can tell apart. A character has at most one of the first four.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Class {
    Letter,
    Mark,
    Number,
    /// Punctuation or symbol: no pattern separates them.
    Sign,
    /// `\r` and `\n`.
    Break,
    /// White space other than a line break.
    Space,
    Other,
}

fn class(c: char) -> Class {
    if c.is_ascii() {
        return match c {
            'a'..='z' | 'A'..='Z' => Class::Letter,
            '0'..='9' => Class::Number,
            '\r' | '\n' => Class::Break,
            ' ' | '\t' | '\x0b' | '\x0c' => Class::Space,
            _ if c.is_ascii_punctuation() => Class::Sign,
            _ => Class::Other,
        };
    }
    match get_general_category(c) {
        G::UppercaseLetter
        | G::LowercaseLetter
        | G::TitlecaseLetter
        | G::ModifierLetter
        | G::OtherLetter => Class::Letter,
        G::NonspacingMark | G::SpacingMark | G::EnclosingMark => Class::Mark,
        G::DecimalNumber | G::LetterNumber | G::OtherNumber => Class::Number,
        G::ConnectorPunctuation
        | G::DashPunctuation
        | G::OpenPunctuation
        | G::ClosePunctuation
        | G::InitialPunctuation
        | G::FinalPunctuation
        | G::OtherPunctuation
        | G::MathSymbol
        | G::CurrencySymbol
        | G::ModifierSymbol
        | G::OtherSymbol => Class::Sign,
        _ if c.is_whitespace() => Class::Space,
        _ => Class::Other,
    }
}

/// `[一-龥぀-ゟ゠-ヿ]`: the second split.
fn is_cjk(c: char) -> bool {
    matches!(c, '\u{4e00}'..='\u{9fa5}' | '\u{3040}'..='\u{30ff}')
}

/// Digits to a piece, at most.
const DIGITS: usize = 3;

/// Calls `piece` with the pieces of `text` in order; together they are `text`.
pub(crate) fn for_each_piece<'t>(text: &'t str, mut piece: impl FnMut(&'t str)) {
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if class(first) == Class::Number {
            let len = run(rest, DIGITS, |c| class(c) == Class::Number);
            piece(take(&mut rest, len));
            continue;
        }
        let cjk = is_cjk(first);
        let len = run(rest, usize::MAX, |c| {
            is_cjk(c) == cjk && class(c) != Class::Number
        });
        split_words(take(&mut rest, len), &mut piece);
    }
}

/// The third split, on a part that the first two left whole.
fn split_words<'t>(text: &'t str, piece: &mut impl FnMut(&'t str)) {
    let mut rest = text;
    let mut unmatched = 0;
    while unmatched < rest.len() {
        let at = &rest[unmatched..];
        let len = word(at);
        if len == 0 {
            unmatched += at.chars().next().map_or(0, char::len_utf8);
            continue;
        }
        if unmatched > 0 {
            piece(take(&mut rest, unmatched));
            unmatched = 0;
        }
        piece(take(&mut rest, len));
    }
    if !rest.is_empty() {
        piece(rest);
    }
}

/// Length of the match at the start of `text`, 0 for none.
fn word(text: &str) -> usize {
    let mut chars = text.chars();
    let Some(first) = chars.next() else { return 0 };
    let second = chars.next();
    let skip = first.len_utf8();
    if first.is_ascii_punctuation() && second.is_some_and(|c| c.is_ascii_alphabetic()) {
        return skip + run(&text[skip..], usize::MAX, |c| c.is_ascii_alphabetic());
    }
    let lead = class(first);
    let takes_lead = !matches!(lead, Class::Break | Class::Letter | Class::Sign);
    if is_letter(first) || (takes_lead && second.is_some_and(is_letter)) {
        return skip + run(&text[skip..], usize::MAX, is_letter);
    }
    if lead == Class::Sign || (first == ' ' && second.is_some_and(is_sign)) {
        let signs = skip + run(&text[skip..], usize::MAX, is_sign);
        return signs + run(&text[signs..], usize::MAX, is_break);
    }
    spaces(text)
}

/// Alternatives 4 to 6, on a run of white space: up to its last line break; else all of it at the
/// end of the part; else all but its last character, which goes with what follows; else that one.
fn spaces(text: &str) -> usize {
    let len = run(text, usize::MAX, is_space);
    let all = &text[..len];
    if let Some(last_break) = all.rfind(is_break) {
        return last_break + 1;
    }
    let Some(last) = all.chars().next_back() else {
        return 0;
    };
    let kept = len - last.len_utf8();
    if len == text.len() || kept == 0 {
        len
    } else {
        kept
    }
}

fn is_letter(c: char) -> bool {
    matches!(class(c), Class::Letter | Class::Mark)
}

fn is_sign(c: char) -> bool {
    class(c) == Class::Sign
}

fn is_break(c: char) -> bool {
    class(c) == Class::Break
}

fn is_space(c: char) -> bool {
    matches!(class(c), Class::Break | Class::Space)
}

/// Bytes of the longest prefix of at most `limit` characters that all satisfy `keep`.
fn run(text: &str, limit: usize, keep: impl Fn(char) -> bool) -> usize {
    text.char_indices()
        .enumerate()
        .find(|&(n, (_, c))| n == limit || !keep(c))
        .map_or(text.len(), |(_, (at, _))| at)
}

fn take<'t>(rest: &mut &'t str, len: usize) -> &'t str {
    let (head, tail) = rest.split_at(len);
    *rest = tail;
    head
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(text: &str) -> Vec<&str> {
        let mut out = Vec::new();
        for_each_piece(text, |p| out.push(p));
        out
    }

    #[test]
    fn pieces_match_hand_derived_ones() {
        let cases: &[(&str, &[&str])] = &[
            ("", &[]),
            ("Hello world", &["Hello", " world"]),
            (" ~", &[" ~"]),
            ("2026", &["202", "6"]),
            ("in 2026", &["in", " ", "202", "6"]),
            ("    int", &["   ", " int"]),
            (">;\nx", &[">;\n", "x"]),
            ("a  \n\n  b", &["a", "  \n\n", " ", " b"]),
            ("a   ", &["a", "   "]),
            ("a 1", &["a", " ", "1"]),
            ("a  1", &["a", "  ", "1"]),
            ("don't", &["don", "'t"]),
            ("((x", &["((", "x"]),
            ("(x((", &["(x", "(("]),
            ("\tx", &["\tx"]),
            ("\t\tx", &["\t", "\tx"]),
            ("\rx\n", &["\r", "x", "\n"]),
            ("x\u{0}\u{0}y", &["x", "\u{0}", "\u{0}y"]),
            ("\u{0}\u{1}", &["\u{0}\u{1}"]),
            ("e\u{301}a", &["e\u{301}a"]),
            ("\u{301}", &["\u{301}"]),
            ("!\u{301}", &["!", "\u{301}"]),
            ("你好。", &["你好", "。"]),
            (" 你", &[" ", "你"]),
            ("カ・ナ", &["カ", "・", "ナ"]),
            ("，a", &["，", "a"]),
            ("１２３４", &["１２３", "４"]),
            ("x٣y", &["x", "٣", "y"]),
            ("  ,\r\n\r\n", &[" ", " ,\r\n\r\n"]),
            ("\u{a0}\u{a0}a", &["\u{a0}", "\u{a0}a"]),
            ("🙂a", &["🙂", "a"]),
        ];
        for (text, want) in cases {
            assert_eq!(&pieces(text), want, "{text:?}");
        }
    }

    #[test]
    fn ascii_classes_equal_the_table() {
        for c in (0u8..0x80).map(char::from) {
            let want = match get_general_category(c) {
                G::UppercaseLetter | G::LowercaseLetter => Class::Letter,
                G::DecimalNumber => Class::Number,
                G::Control if c == '\r' || c == '\n' => Class::Break,
                _ if c.is_whitespace() => Class::Space,
                G::Control => Class::Other,
                _ => Class::Sign,
            };
            assert_eq!(class(c), want, "{c:?}");
        }
    }

    #[test]
    fn classes_equal_the_reference_for_every_character() {
        let mut digest = 0xcbf2_9ce4_8422_2325u64;
        for c in '\0'..=char::MAX {
            let letter = match class(c) {
                Class::Letter => b'L',
                Class::Mark => b'M',
                Class::Number => b'N',
                Class::Sign => b'S',
                Class::Break => b'B',
                Class::Space => b'W',
                Class::Other => b'-',
            };
            digest = (digest ^ u64::from(letter)).wrapping_mul(0x100_0000_01b3);
        }
        let want = include_str!("../../tests/data/classes.txt").trim();
        assert_eq!(format!("{digest:016x}"), want);
    }
}
