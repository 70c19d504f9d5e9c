//! Versions stand in one place, the root table, so that no crate is built in two versions by
//! accident; every crate takes the workspace's lints; the lock file names no source but crates.io.

use super::{Finding, Tree};

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Applies the rule.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, manifest) in tree.manifests() {
        for dep in manifest.deps.iter().filter(|d| !d.inherits) {
            let what = format!(
                "`{}` must take its version from [workspace.dependencies]",
                dep.name
            );
            findings.push(Finding::new(path, dep.line, what));
        }
        if !manifest.lints {
            findings.push(Finding::new(
                path,
                0,
                "`[lints] workspace = true` is missing",
            ));
        }
    }
    for (number, line) in tree
        .text("Cargo.lock")
        .unwrap_or_default()
        .lines()
        .enumerate()
    {
        if let Some(source) = line.strip_prefix("source = ")
            && source.trim_matches('"') != CRATES_IO
        {
            findings.push(Finding::new(
                "Cargo.lock",
                number + 1,
                "a source other than crates.io",
            ));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "[package]\nname = \"a\"\n[dependencies]\nhalf.workspace = true\n\
                        [lints]\nworkspace = true\n";

    #[test]
    fn inherited_versions_are_fine() {
        let lock = format!("name = \"half\"\nsource = \"{CRATES_IO}\"\n");
        let tree = Tree::of(&[("crates/a/Cargo.toml", GOOD), ("Cargo.lock", &lock)]);
        assert_eq!(check(&tree), []);
    }

    #[test]
    fn own_versions_and_missing_lints_are_found() {
        let bad = "[package]\nname = \"a\"\n[dependencies]\nhalf = \"2\"\n";
        let found = check(&Tree::of(&[("crates/a/Cargo.toml", bad)]));
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].line, found[1].line), (4, 0));
        assert!(found[0].what.contains("half"));
    }

    #[test]
    fn other_registries_are_found() {
        let lock = "source = \"git+https://example.org/x\"\n";
        assert_eq!(check(&Tree::of(&[("Cargo.lock", lock)])).len(), 1);
    }
}
