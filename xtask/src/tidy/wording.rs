//! Words that must not stand in a public tree: paths of one machine, and talk about how the work
//! was organised instead of what the code does.
//!
//! The patterns are phrases, so that ordinary words (a chat session, a helper function, a user
//! agent) stay free. They are written in two pieces here, so that this file passes its own rule.

use super::{Finding, Tree, allow};

/// What to look for, lower case, in any text file.
const FORBIDDEN: &[(&str, &str)] = &[
    (concat!("/wo", "rk/"), "a path of one machine"),
    (concat!("/ro", "ot/"), "a path of one machine"),
    (concat!("/fa", "rm/"), "a path of one machine"),
    (
        concat!("/tm", "p/"),
        "a path of one machine: ask for a temporary folder",
    ),
    (concat!("../sha", "red"), "a folder outside the repository"),
    (concat!("this ", "session"), "how the work was organised"),
    (concat!("next ", "session"), "how the work was organised"),
    (
        concat!("previous ", "session"),
        "how the work was organised",
    ),
    (concat!("earlier ", "session"), "how the work was organised"),
    (concat!("another ", "session"), "how the work was organised"),
    (concat!("sub", "agent"), "how the work was organised"),
    (concat!("sub-", "agent"), "how the work was organised"),
    (concat!("other ", "agents"), "how the work was organised"),
    (concat!("another ", "helper"), "how the work was organised"),
    (concat!("other ", "helpers"), "how the work was organised"),
    (concat!("helper ", "session"), "how the work was organised"),
    (concat!("my ", "brief"), "how the work was organised"),
    (concat!("the ", "brief"), "how the work was organised"),
    (concat!("brief", ".md"), "how the work was organised"),
    (concat!("a ", "colleague"), "how the work was organised"),
    (concat!("the ", "lead "), "how the work was organised"),
    (concat!("lent ", "machine"), "how the work was organised"),
    (concat!("work", "tree"), "how the work was organised"),
    (concat!("fix", "me"), "a left-over: finish it or file it"),
    (concat!("to", "do:"), "a left-over: finish it or file it"),
];

/// Applies the rule.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts(is_prose_or_code) {
        for (number, line) in text.lines().enumerate() {
            let lower = line.to_lowercase();
            for (word, why) in FORBIDDEN.iter().filter(|(word, _)| lower.contains(word)) {
                if !allowed(path, word) {
                    findings.push(Finding::new(path, number + 1, format!("`{word}`: {why}")));
                }
            }
        }
    }
    findings
}

fn allowed(path: &str, word: &str) -> bool {
    allow::WORDS
        .iter()
        .any(|(file, of, _)| *file == path && *of == word)
}

/// Fixture data is what its source made it; the lock file is cargo's.
fn is_prose_or_code(path: &str) -> bool {
    let data = ["/data/", "LICENSE", "Cargo.lock"];
    !data.iter().any(|part| path.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_words_are_free() {
        let text = "A chat session ends; a helper function; the User-Agent header; agents call it.\n\
                    leading work; the leader; briefly; ./shared/ptr; networking/x\n";
        assert_eq!(check(&Tree::of(&[("README.md", text)])), []);
    }

    #[test]
    fn paths_and_talk_are_found() {
        for (word, _) in FORBIDDEN {
            let text = format!("first line\nsee {}x\n", word.to_uppercase());
            let found = check(&Tree::of(&[("crates/a/src/lib.rs", &text)]));
            assert!(
                found.iter().any(|f| f.line == 2 && f.what.contains(word)),
                "{word}"
            );
        }
    }

    #[test]
    fn data_is_left_alone() {
        let text = format!("{}x", FORBIDDEN[0].0);
        assert_eq!(
            check(&Tree::of(&[("crates/a/tests/data/x.txt", &text)])),
            []
        );
    }
}
