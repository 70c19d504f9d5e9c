//! Rules about documents: links lead somewhere, decisions are listed and complete, and figures of
//! speed stand only in dated records, where the machine and the commit stand beside them.

use super::{Finding, Tree};

const ADR_INDEX: &str = "docs/adr/README.md";
const ADR_PARTS: &[&str] = &[
    "Status:",
    "## Decision",
    "## Alternatives",
    "## Consequences",
];
const RECORDS: &str = "benches/records/";
const SPEED_UNITS: &[&str] = &[
    "tok/s",
    "tokens/s",
    "tokens per second",
    "tokens a second",
    "gb/s",
    "tb/s",
    "gib/s",
    "gflop/s",
    "gflops",
    "tflop/s",
    "tflops",
    "tops",
];

/// Relative links of Markdown files resolve inside the repository.
pub(crate) fn links(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts(is_markdown) {
        for (number, line) in prose(text) {
            for target in targets(&line) {
                let outside = target.contains("://") || target.starts_with("mailto:");
                let file = target.split('#').next().unwrap_or_default();
                if !outside && !file.is_empty() && !exists(tree, &resolve(path, file)) {
                    findings.push(Finding::new(
                        path,
                        number,
                        format!("`{target}` leads nowhere"),
                    ));
                }
            }
        }
    }
    findings
}

/// Every decision record is in the index and has its parts.
pub(crate) fn decisions(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let index = tree.text(ADR_INDEX).unwrap_or_default();
    for (path, text) in tree.texts(|p| p.starts_with("docs/adr/") && p != ADR_INDEX) {
        let name = path.rsplit('/').next().unwrap_or_default();
        if !index.contains(&format!("({name})")) {
            findings.push(Finding::new(
                path,
                0,
                format!("is not listed in {ADR_INDEX}"),
            ));
        }
        for part in ADR_PARTS
            .iter()
            .filter(|part| !text.lines().any(|l| l.starts_with(**part)))
        {
            findings.push(Finding::new(
                path,
                0,
                format!("has no line starting `{part}`"),
            ));
        }
    }
    findings
}

/// Markers of a figure made from a report of `qualify`.
const REPORT_BEGIN: &str = "<!-- qualify: ";
const REPORT_END: &str = "<!-- /qualify -->";

/// No figure of speed outside records and the markers of a report.
pub(crate) fn figures(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.texts(|p| is_markdown(p) && !p.starts_with(RECORDS)) {
        let mut marked = false;
        for (number, line) in text.lines().enumerate() {
            // What stands between markers is made from a report; `qualify render --check` compares.
            marked = (marked || opens(line)) && line != REPORT_END;
            if !marked && has_figure(&line.to_lowercase()) {
                let what = format!(
                    "a figure of speed belongs into {RECORDS}, or between the markers of a report"
                );
                findings.push(Finding::new(path, number + 1, what));
            }
        }
    }
    findings
}

/// Whether a line opens figures made from a report, naming its id.
fn opens(line: &str) -> bool {
    let named = line
        .strip_prefix(REPORT_BEGIN)
        .and_then(|l| l.strip_suffix(" -->"));
    named
        .and_then(|l| l.split_once(' '))
        .is_some_and(|(id, context)| {
            id.len() >= 12 && id.bytes().all(|b| b.is_ascii_hexdigit()) && !context.is_empty()
        })
}

/// A number directly before a unit of speed.
fn has_figure(line: &str) -> bool {
    SPEED_UNITS.iter().any(|unit| {
        line.match_indices(unit).any(|(at, _)| {
            let before = line[..at].trim_end_matches([' ', '*', '`', '~', '\u{a0}']);
            let after = line[at + unit.len()..].chars().next();
            before.ends_with(|c: char| c.is_ascii_digit())
                && !after.is_some_and(|c| c.is_alphanumeric())
        })
    })
}

fn is_markdown(path: &str) -> bool {
    path.ends_with(".md")
}

/// Lines outside fenced blocks, without code spans.
fn prose(text: &str) -> Vec<(usize, String)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            lines.push((number + 1, line.split('`').step_by(2).collect()));
        }
    }
    lines
}

/// Link targets of a line: `[text](target)` and `[name]: target`.
fn targets(line: &str) -> Vec<&str> {
    let inline = line
        .match_indices("](")
        .filter_map(|(at, _)| line[at + 2..].split(')').next());
    let named = line
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("]: "))
        .map(|(_, t)| t);
    inline
        .chain(named)
        .filter_map(|t| t.split_whitespace().next())
        .collect()
}

/// `path` as seen from the folder of `from`, both relative to the root.
fn resolve(from: &str, path: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    if path.starts_with('/') {
        parts.clear();
    }
    for part in path.split('/') {
        match part {
            "" | "." => {}
            // Leaving the repository must not resolve to something inside.
            ".." if parts.pop().is_none() => parts.push(".."),
            ".." => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

fn exists(tree: &Tree, path: &str) -> bool {
    let folder = format!("{path}/");
    path.is_empty()
        || tree
            .files
            .iter()
            .any(|f| f.path == path || f.path.starts_with(&folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_resolve() {
        let text = "[a](b.md#x) [c](https://example.org) [d](#top) [e](../README.md) [f](adr/)\n\
                    `[code](nowhere.md)`\n```\n[fenced](nowhere.md)\n```\n[named]: b.md\n";
        let tree = Tree::of(&[
            ("docs/a.md", text),
            ("docs/b.md", ""),
            ("README.md", ""),
            ("docs/adr/0001-x.md", ""),
        ]);
        assert_eq!(links(&tree), []);
    }

    #[test]
    fn dead_links_are_found() {
        let text = "[a](c.md)\n[b](../../README.md)\n[c](b.md/x)\n[n]: gone.md\n";
        let found = links(&Tree::of(&[
            ("docs/a.md", text),
            ("docs/b.md", ""),
            ("README.md", ""),
        ]));
        assert_eq!(
            found.iter().map(|f| f.line).collect::<Vec<_>>(),
            [1, 2, 3, 4]
        );
    }

    #[test]
    fn decisions_are_listed_and_complete() {
        let whole = "# 1\nStatus: accepted\n## Decision\n## Alternatives\n## Consequences\n";
        let good = [(ADR_INDEX, "[1](0001-x.md)"), ("docs/adr/0001-x.md", whole)];
        assert_eq!(decisions(&Tree::of(&good)), []);
        let found = decisions(&Tree::of(&[("docs/adr/0002-y.md", "## Decision\n")]));
        assert_eq!(found.len(), 4, "not listed, and three parts missing");
    }

    #[test]
    fn figures_stand_in_records_only() {
        let figure = |text: &str| figures(&Tree::of(&[("README.md", text)])).len();
        assert_eq!(
            figure("it makes 31.5 tok/s\nand ~200 GB/s\n`12`tokens per second\n"),
            3
        );
        assert_eq!(
            figure("prints tokens per second\n3 stops\n512 tokens; GB/s is the unit\n"),
            0
        );
        assert_eq!(
            figures(&Tree::of(&[("benches/records/a.md", "9 tok/s")])),
            []
        );
        let marked = "<!-- qualify: 0123456789ab short -->\n9 tok/s\n<!-- /qualify -->\n";
        assert_eq!(figure(marked), 0);
        assert_eq!(figure(&format!("{marked}9 tok/s\n")), 1, "after the end");
        let bare = "<!-- qualify: short -->\n9 tok/s\n<!-- /qualify -->\n";
        assert_eq!(figure(bare), 1, "a marker without a report");
    }
}
