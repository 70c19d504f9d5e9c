//! Rules about Rust files: a header that says what the module is for, a length a reader can hold,
//! unsafe code only where it is fenced, ignored tests only for soak runs, and the environment read
//! in one crate.

use std::collections::BTreeMap;

use super::source::{self, Line};
use super::{Finding, Tree, allow};

const CODE_LINES_MAX: usize = 600;

/// Every module opens with `//!`, kernel sources with `//`. Test modules beside the code belong to
/// the module they test, whose header speaks for both.
pub(crate) fn headers(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts(|p| is_rust(p) || is_kernel(p)) {
        if path.contains("/src/") && source::is_test_file(path) {
            continue;
        }
        let mark = if is_rust(path) { "//!" } else { "//" };
        let attribute = |line: &&str| line.is_empty() || (is_rust(path) && line.starts_with("#!["));
        let first = text.lines().map(str::trim).find(|line| !attribute(line));
        if !first.is_some_and(|line| line.starts_with(mark)) {
            let what = format!("must open with `{mark}`: what it is for and what it must not know");
            findings.push(Finding::new(path, 1, what));
        }
    }
    findings
}

/// No file has more code than a reader can hold.
pub(crate) fn length(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts(|p| is_rust(p) || is_kernel(p)) {
        let count = code_lines(path, text);
        let allowed = allow::LONG_FILES.iter().any(|(file, _)| *file == path);
        if count > CODE_LINES_MAX && !allowed && !text.contains(concat!("@", "generated")) {
            let what = format!("{count} lines of code, the limit is {CODE_LINES_MAX}: split it");
            findings.push(Finding::new(path, 0, what));
        }
    }
    findings
}

fn code_lines(path: &str, text: &str) -> usize {
    let counts = |line: &Line| !line.test && !line.code.trim().is_empty();
    source::lines(path, text)
        .iter()
        .filter(|line| counts(line))
        .count()
}

/// Unsafe code stands in listed modules only.
pub(crate) fn unsafety(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts(is_rust) {
        if allow::UNSAFE_MODULES
            .iter()
            .any(|(prefix, _)| path.starts_with(prefix))
        {
            continue;
        }
        for line in source::lines(path, text)
            .iter()
            .filter(|line| is_unsafe(line))
        {
            let what = "unsafe code outside the modules listed in xtask/src/tidy/allow.rs";
            findings.push(Finding::new(path, line.number, what));
        }
    }
    findings
}

/// How many unsafe blocks, functions and impls each folder of a crate has.
pub(crate) fn unsafe_counts(tree: &Tree) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for (path, text) in tree.texts(is_rust) {
        let found = source::lines(path, text)
            .iter()
            .filter(|line| is_unsafe(line))
            .count();
        if found > 0 {
            let parts: Vec<&str> = path.split('/').collect();
            let name = if parts[0] == "crates" {
                parts[1]
            } else {
                parts[0]
            };
            *counts.entry(name.to_owned()).or_default() += found;
        }
    }
    counts
}

fn is_unsafe(line: &Line) -> bool {
    source::has_word(&line.code, "unsafe")
}

/// An ignored test is a soak test and says so.
pub(crate) fn ignores(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts(is_rust) {
        for line in source::lines(path, text) {
            if line.code.contains("#[ignore") && !line.raw.contains("#[ignore = \"soak: ") {
                let what = "an ignored test must be #[ignore = \"soak: REASON\"]";
                findings.push(Finding::new(path, line.number, what));
            }
        }
    }
    findings
}

/// Only listed places read the environment.
pub(crate) fn environment(tree: &Tree) -> Vec<Finding> {
    let reads = ["env::var", "env::vars", "env::var_os", "env::vars_os"];
    let mut findings = Vec::new();
    for (path, text) in tree.texts(is_rust) {
        let listed = allow::ENV_READERS
            .iter()
            .any(|(prefix, _)| path.starts_with(prefix));
        if listed || path.ends_with("/build.rs") {
            continue;
        }
        for line in source::lines(path, text) {
            if reads.iter().any(|read| source::has_word(&line.code, read)) {
                let what = "reads the environment: go through the crate `switches`";
                findings.push(Finding::new(path, line.number, what));
            }
        }
    }
    findings
}

/// Left-over macros, in test code too.
pub(crate) fn left_overs(tree: &Tree) -> Vec<Finding> {
    let macros = ["todo!", "unimplemented!", "dbg!"];
    let mut findings = Vec::new();
    for (path, text) in tree.texts(is_rust) {
        for line in source::lines(path, text) {
            // `has_word` looks at the character after the exclamation mark: a bracket.
            for name in macros
                .iter()
                .filter(|name| source::has_word(&line.code, name))
            {
                findings.push(Finding::new(
                    path,
                    line.number,
                    format!("left-over `{name}`"),
                ));
            }
        }
    }
    findings
}

fn is_rust(path: &str) -> bool {
    path.ends_with(".rs")
}

fn is_kernel(path: &str) -> bool {
    [".cu", ".cuh", ".h", ".hpp", ".cpp", ".hip"]
        .iter()
        .any(|end| path.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(path: &str, text: &str) -> Tree {
        Tree::of(&[(path, text)])
    }

    #[test]
    fn headers_are_asked_for() {
        for good in ["//! x\n", "\n#![forbid(unsafe_code)]\n//! x\n"] {
            assert_eq!(headers(&one("crates/a/src/lib.rs", good)), [], "{good}");
        }
        for bad in ["", "// x\n", "use a;\n//! late\n"] {
            assert_eq!(headers(&one("crates/a/src/lib.rs", bad)).len(), 1, "{bad}");
        }
        assert_eq!(
            headers(&one("crates/a/src/b/tests.rs", "use super::*;\n")),
            []
        );
        assert_eq!(
            headers(&one("crates/a/tests/b.rs", "use super::*;\n")).len(),
            1
        );
        assert_eq!(headers(&one("kernels/src_gpu/a.cu", "// formula\n")), []);
        assert_eq!(headers(&one("kernels/src_gpu/a.cu", "int a;\n")).len(), 1);
    }

    #[test]
    fn only_code_outside_tests_has_a_length() {
        let code = "let a = 1;\n".repeat(CODE_LINES_MAX);
        let comments = "// why\n\n".repeat(900);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{code}}}\n");
        let good = format!("{code}{comments}{tests}");
        assert_eq!(length(&one("crates/a/src/lib.rs", &good)), []);
        assert_eq!(
            length(&one("crates/a/src/lib.rs", &format!("{good}let b = 1;\n"))).len(),
            1
        );
        assert_eq!(
            length(&one("crates/a/tests/b.rs", &format!("{code}{code}"))),
            []
        );
        let made = format!("{}{}\n{code}{code}", "// @", "generated");
        assert_eq!(length(&one("crates/a/src/b.rs", &made)), []);
    }

    #[test]
    fn unsafe_is_fenced() {
        let fenced = allow::UNSAFE_MODULES[0].0;
        let text = "fn a() { unsafe { b() } }\n// unsafe\n#![deny(unsafe_code)]\n";
        let tree = Tree::of(&[("crates/zz/src/lib.rs", text), (fenced, text)]);
        let found = unsafety(&tree);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].path.as_str(), found[0].line),
            ("crates/zz/src/lib.rs", 1)
        );
        assert_eq!(unsafe_counts(&tree)["zz"], 1);
    }

    #[test]
    fn ignored_tests_are_soak_tests() {
        let good = "#[ignore = \"soak: an hour\"]\n// #[ignore]\n";
        assert_eq!(ignores(&one("a/b.rs", good)), []);
        let bad = "#[ignore]\n#[ignore = \"later\"]\n";
        assert_eq!(ignores(&one("a/b.rs", bad)).len(), 2);
    }

    #[test]
    fn environment_is_read_in_one_crate() {
        let text = "let a = std::env::var(\"A\");\nlet b = env!(\"B\");\nlet c = env::args();\n";
        assert_eq!(environment(&one("crates/a/src/b.rs", text)).len(), 1);
        assert_eq!(environment(&one("crates/switches/src/b.rs", text)), []);
        assert_eq!(environment(&one("crates/a/build.rs", text)), []);
        assert_eq!(
            environment(&one("crates/a/src/b.rs", "for (k, v) in env::vars_os() {}")).len(),
            1
        );
    }

    #[test]
    fn left_overs_are_found() {
        let text = format!("{}!();\n// {}!()\n{}!(x);\n", "todo", "todo", "dbg");
        assert_eq!(left_overs(&one("a/tests/b.rs", &text)).len(), 2);
    }
}
