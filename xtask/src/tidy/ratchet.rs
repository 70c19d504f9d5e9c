//! How many tests each crate has: the number may rise, and falls only by a change of its file that a
//! reviewer sees. `cargo xtask tidy --fix` raises it.

use std::collections::BTreeMap;

use super::{Finding, Tree};

/// Where the counts stand: a line `folder count` for each crate.
pub(crate) const FILE: &str = "xtask/tests.count";

/// Applies the rule.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.text(FILE) else {
        return Vec::new();
    };
    let counts = counts(tree);
    let mut findings = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let listed = line
            .split_once(' ')
            .and_then(|(f, n)| Some((f, n.parse::<usize>().ok()?)));
        let what = match listed {
            None => "expected a folder and a count".to_owned(),
            Some((folder, least)) => {
                let got = counts.get(folder).copied().unwrap_or(0);
                if got >= least {
                    continue;
                }
                format!("{folder} has {got} tests, it had {least}: say why some went, and lower it")
            }
        };
        findings.push(Finding::new(FILE, at + 1, what));
    }
    findings
}

/// Test functions by crate folder.
fn counts(tree: &Tree) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for (path, text) in tree.texts(|p| p.ends_with(".rs")) {
        let parts: Vec<&str> = path.split('/').collect();
        let folder = match parts[..] {
            ["crates", name, ..] => format!("crates/{name}"),
            [name, ..] => name.to_owned(),
            [] => continue,
        };
        let marks = ["#[test]", "#[tokio::test"];
        let tests = text.lines().map(str::trim);
        let n = tests
            .filter(|line| marks.iter().any(|m| line.starts_with(m)))
            .count();
        *counts.entry(folder).or_default() += n;
    }
    counts.retain(|_, n| *n > 0);
    counts
}

/// The file as it should be: the larger of both counts for each crate.
pub(crate) fn redrawn(tree: &Tree) -> String {
    let mut counts = counts(tree);
    for line in tree.text(FILE).unwrap_or_default().lines() {
        if let Some((folder, n)) = line.split_once(' ')
            && let (Ok(n), Some(now)) = (n.parse(), counts.get_mut(folder))
        {
            *now = (*now).max(n);
        }
    }
    counts
        .iter()
        .map(|(folder, n)| format!("{folder} {n}\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = "#[test]\nfn a() {}\n    #[tokio::test(flavor = \"x\")]\nasync fn b() {}\n";

    fn tree(file: &str) -> Tree {
        Tree::of(&[
            ("crates/a/src/b.rs", TWO),
            ("xtask/src/c.rs", "#[test]\n"),
            (FILE, file),
        ])
    }

    /// Row C-39 of the qualification: a drop is found.
    #[test]
    fn c_39_a_drop_of_the_test_count_is_found() {
        assert_eq!(check(&tree("crates/a 2\nxtask 1\n")), []);
        assert_eq!(check(&tree("crates/a 1\n")), [], "it may rise");
        assert_eq!(check(&tree("crates/a 3\n")).len(), 1);
        assert_eq!(check(&tree("crates/gone 1\n")).len(), 1);
        assert_eq!(check(&tree("crates/a many\n")).len(), 1);
    }

    #[test]
    fn c_39_the_file_is_raised_and_never_lowered() {
        assert_eq!(redrawn(&tree("crates/a 9\n")), "crates/a 9\nxtask 1\n");
        assert_eq!(redrawn(&tree("crates/a 1\n")), "crates/a 2\nxtask 1\n");
    }
}
