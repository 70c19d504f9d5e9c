//! Size of the tracked tree. It is cloned by everyone and travels to machines without a network, so
//! it has a budget (`docs/adr/0006-budgets.md`).

use super::{Finding, Tree};

const MIB: u64 = 1 << 20;
const TREE_MAX_BYTES: u64 = 36 * MIB;
const FILE_MAX_BYTES: u64 = 12 * MIB;

/// Files that may be larger than others: prefix, limit, reason.
const LARGER: &[(&str, u64, &str)] = &[(
    "models/",
    20 * MIB,
    "the shipped model runs the README's first command",
)];

/// Applies the rule.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        let larger = LARGER
            .iter()
            .find(|(prefix, ..)| file.path.starts_with(prefix));
        let limit = larger.map_or(FILE_MAX_BYTES, |(_, limit, _)| *limit);
        if file.bytes > limit {
            let what = format!("{} bytes, the limit is {limit}", file.bytes);
            findings.push(Finding::new(&file.path, 0, what));
        }
    }
    let total = total(tree);
    if total > TREE_MAX_BYTES {
        let what = format!("the tracked tree has {total} bytes, the limit is {TREE_MAX_BYTES}");
        findings.push(Finding::new(".", 0, what));
    }
    findings
}

/// "1.5 of 36 MiB".
pub(crate) fn summary(tree: &Tree) -> String {
    let tenths = total(tree) * 10 / MIB;
    format!(
        "{}.{} of {} MiB",
        tenths / 10,
        tenths % 10,
        TREE_MAX_BYTES / MIB
    )
}

fn total(tree: &Tree) -> u64 {
    tree.files.iter().map(|f| f.bytes).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::File;

    fn tree(files: &[(&str, u64)]) -> Tree {
        let file = |&(path, bytes): &(&str, u64)| File {
            path: path.into(),
            bytes,
            text: None,
        };
        Tree {
            files: files.iter().map(file).collect(),
        }
    }

    #[test]
    fn within_the_limits() {
        let tree = tree(&[("a", FILE_MAX_BYTES), ("models/m.gguf", 20 * MIB)]);
        assert_eq!(check(&tree), []);
        assert_eq!(summary(&tree), "32.0 of 36 MiB");
    }

    #[test]
    fn a_large_file_and_a_large_tree_are_found() {
        assert_eq!(check(&tree(&[("a", FILE_MAX_BYTES + 1)])).len(), 1);
        assert_eq!(check(&tree(&[("models/m.gguf", 20 * MIB + 1)])).len(), 1);
        let many = [("a", 12 * MIB), ("b", 12 * MIB), ("c", 12 * MIB), ("d", 1)];
        assert_eq!(check(&tree(&many))[0].path, ".");
    }
}
