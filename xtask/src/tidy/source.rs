//! Rust source as the rules need it: code without comments and string contents, line by line, with
//! the lines of test code marked.
//!
//! A small scanner, not a parser: it knows comments, strings, characters and braces. That is enough
//! to find a word in code and not in prose, and to see where a test module ends.

/// One line of a source file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    /// Line number from 1.
    pub(crate) number: usize,
    /// As it stands in the file.
    pub(crate) raw: &'a str,
    /// Without comments; strings keep their quotes only.
    pub(crate) code: String,
    /// Inside an item under `#[cfg(test)]`, or in a file that is all tests.
    pub(crate) test: bool,
}

/// Scans a file.
pub(crate) fn lines<'a>(path: &str, text: &'a str) -> Vec<Line<'a>> {
    let stripped = strip(text);
    let all_test = is_test_file(path);
    let mut region = Region::default();
    let pairs = text.lines().zip(stripped.lines()).enumerate();
    pairs
        .map(|(at, (raw, code))| {
            let test = region.feed(code) || all_test;
            Line {
                number: at + 1,
                raw,
                code: code.to_owned(),
                test,
            }
        })
        .collect()
}

/// Whether a file holds nothing but tests or benches.
pub(crate) fn is_test_file(path: &str) -> bool {
    let folders = ["tests/", "benches/"];
    path.ends_with("/tests.rs")
        || path.contains("/tests/")
        || path.contains("/benches/")
        || folders.iter().any(|f| path.starts_with(f))
}

/// Whether `word` stands in `code` as a whole word.
pub(crate) fn has_word(code: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        !before.is_some_and(part) && !after.is_some_and(part)
    })
}

/// Follows `#[cfg(test)]` to the end of the item it stands on.
#[derive(Default)]
struct Region {
    waiting: bool,
    depth: usize,
}

impl Region {
    /// Whether this line belongs to test code.
    fn feed(&mut self, code: &str) -> bool {
        let mut rest = code;
        if self.depth == 0 && !self.waiting {
            let Some(at) = code.find("#[cfg(test)]") else {
                return false;
            };
            self.waiting = true;
            rest = &code[at + "#[cfg(test)]".len()..];
        }
        for c in rest.chars() {
            match c {
                '{' => {
                    self.depth += 1;
                    self.waiting = false;
                }
                '}' => self.depth = self.depth.saturating_sub(1),
                ';' if self.waiting => self.waiting = false,
                _ => {}
            }
        }
        true
    }
}

/// Blanks comments and the contents of strings and characters, keeping line breaks.
fn strip(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let next = chars.get(at + 1).copied();
        let end = match (chars[at], next) {
            ('/', Some('/')) => line_end(&chars, at),
            ('/', Some('*')) => block_end(&chars, at),
            ('"', _) => string_end(&chars, at),
            ('r', Some('"' | '#')) if !is_name(&chars, at) => raw_end(&chars, at),
            ('\'', _) => char_end(&chars, at),
            _ => at,
        };
        if end == at {
            out.push(chars[at]);
            at += 1;
            continue;
        }
        let quoted = chars[at] != '/';
        if quoted {
            out.push('"');
        }
        out.extend(chars[at..end].iter().filter(|c| **c == '\n'));
        if quoted {
            out.push('"');
        }
        at = end;
    }
    out
}

/// Whether the character before `at` continues a name, as in `for"` or `br"` (the latter is raw).
fn is_name(chars: &[char], at: usize) -> bool {
    let Some(before) = at.checked_sub(1).map(|b| chars[b]) else {
        return false;
    };
    before != 'b' && before != 'c' && (before.is_alphanumeric() || before == '_')
}

fn line_end(chars: &[char], at: usize) -> usize {
    chars[at..]
        .iter()
        .position(|c| *c == '\n')
        .map_or(chars.len(), |n| at + n)
}

fn block_end(chars: &[char], start: usize) -> usize {
    let mut depth = 0;
    let mut at = start;
    while at + 1 < chars.len() {
        match (chars[at], chars[at + 1]) {
            ('/', '*') => (depth, at) = (depth + 1, at + 2),
            ('*', '/') => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    chars.len()
}

fn string_end(chars: &[char], start: usize) -> usize {
    let mut at = start + 1;
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

/// End of a raw string from its `r`; `at` itself if it is a raw identifier (`r#fn`).
fn raw_end(chars: &[char], at: usize) -> usize {
    let marks = chars[at + 1..].iter().take_while(|c| **c == '#').count();
    let open = at + 1 + marks;
    if chars.get(open) != Some(&'"') {
        return at;
    }
    let closes = |from: usize| {
        chars[from] == '"'
            && chars[from + 1..]
                .iter()
                .take(marks)
                .filter(|c| **c == '#')
                .count()
                == marks
    };
    (open + 1..chars.len())
        .find(|from| closes(*from))
        .map_or(chars.len(), |from| from + 1 + marks)
}

/// End of a character literal; `at` itself if it is a lifetime.
fn char_end(chars: &[char], at: usize) -> usize {
    match (chars.get(at + 1), chars.get(at + 2)) {
        (Some('\\'), _) => {
            let close = chars[at + 3..].iter().position(|c| *c == '\'');
            close.map_or(chars.len(), |n| at + 3 + n + 1)
        }
        (Some(_), Some('\'')) => at + 3,
        _ => at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(text: &str) -> Vec<String> {
        lines("crates/a/src/lib.rs", text)
            .into_iter()
            .map(|l| l.code)
            .collect()
    }

    #[test]
    fn comments_and_strings_are_blanked() {
        let text = "let a = \"unsafe // x\"; // unsafe\n/* a\n/* b */ unsafe */ let c = 'x';\n";
        assert_eq!(codes(text), ["let a = \"\"; ", "", " let c = \"\";"]);
    }

    #[test]
    fn raw_strings_lifetimes_and_escapes() {
        let text =
            "fn f<'a>(x: &'a str) { g(r#\"a \" }\"#, '\\'', '{', \"\\\"}\", r#fn, br\"}\") }";
        assert_eq!(
            codes(text),
            ["fn f<'a>(x: &'a str) { g(\"\", \"\", \"\", \"\", r#fn, b\"\") }"]
        );
    }

    #[test]
    fn strings_over_several_lines_keep_the_count() {
        assert_eq!(codes("a(\"x\ny\");\nb"), ["a(\"", "\");", "b"]);
    }

    #[test]
    fn a_test_module_is_marked_to_its_end() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() { \"}\"; }\n}\nfn c() {}\n\
                    #[cfg(test)]\nmod other;\nfn d() {}\n#[cfg(test)]\nimpl X { }\nfn e() {}";
        let test: Vec<bool> = lines("x/src/a.rs", text).iter().map(|l| l.test).collect();
        let want = [
            false, true, true, true, true, false, true, true, false, true, true, false,
        ];
        assert_eq!(test, want);
    }

    #[test]
    fn files_of_tests_are_all_test() {
        for path in [
            "crates/a/tests/b.rs",
            "crates/a/src/x/tests.rs",
            "tests/a.rs",
            "benches/b.rs",
        ] {
            assert!(is_test_file(path), "{path}");
        }
        assert!(!is_test_file("crates/a/src/contests.rs"));
    }

    #[test]
    fn words_are_whole() {
        assert!(has_word("unsafe {", "unsafe") && has_word("x(unsafe)", "unsafe"));
        assert!(!has_word("unsafe_code", "unsafe") && !has_word("deny_unsafe", "unsafe"));
    }
}
