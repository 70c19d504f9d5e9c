//! The list of requirements of the draft worker in `docs/worker.md` as data: every row is there once, and
//! names tests that exist and one that names the row, or says why it is open.
//!
//! Must not know: whether a test passes.

use std::collections::{BTreeMap, BTreeSet};

use super::{Finding, Tree};

const PATH: &str = "docs/worker.md";
/// Rows go from 1 to this.
const LAST: u32 = 44;
const OPEN: &str = "open:";

/// A line of the table.
struct Line<'a> {
    number: usize,
    rows: Vec<u32>,
    /// What shows them.
    shown: &'a str,
}

impl Line<'_> {
    /// Names of tests: `name`, or `package name`; a test's name has several words.
    fn tests(&self) -> impl Iterator<Item = &str> {
        let quoted = self.shown.split('`').skip(1).step_by(2);
        let names = quoted.filter_map(|words| words.split(' ').next_back());
        let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        names.filter(move |name| name.matches('_').count() >= 2 && name.chars().all(word))
    }

    fn is_open(&self) -> bool {
        self.shown.contains(OPEN)
    }
}

/// `A-07` as 7.
fn id(word: &str) -> Option<u32> {
    word.trim().strip_prefix("A-")?.parse().ok()
}

/// The rows of a first cell: one, several with commas, or a range.
fn ids(cell: &str) -> Option<Vec<u32>> {
    match cell.split_once(" to ") {
        Some((from, to)) => Some((id(from)?..=id(to)?).collect()),
        None => cell.split(',').map(id).collect(),
    }
}

fn lines(text: &str) -> Vec<Line<'_>> {
    let table = text.lines().enumerate().filter_map(|(at, line)| {
        let mut cells = line.strip_prefix('|')?.split('|');
        let rows = ids(cells.next()?)?;
        let shown = cells.nth(1)?;
        let number = at + 1;
        Some(Line {
            number,
            rows,
            shown,
        })
    });
    table.collect()
}

/// Names of functions, and rows that are named, in the sources.
fn sources(tree: &Tree) -> (BTreeSet<&str>, BTreeSet<u32>) {
    let (mut functions, mut named) = (BTreeSet::new(), BTreeSet::new());
    // This file names rows of its own making.
    let wanted = |path: &str| path.ends_with(".rs") && !path.ends_with("tidy/rows.rs");
    for (_, text) in tree.texts(wanted) {
        for part in text.split("fn ").skip(1) {
            functions.extend(part.split('(').next());
        }
        for mark in ["A-", "fn a_"] {
            let digits = text.split(mark).skip(1).filter_map(|rest| rest.get(..2));
            named.extend(digits.filter_map(|two| two.parse::<u32>().ok()));
        }
    }
    (functions, named)
}

/// Rows that are missing, twice, or not shown by what they say.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(text) = tree.text(PATH) else {
        return Vec::new();
    };
    let (functions, named) = sources(tree);
    let mut findings = Vec::new();
    let mut object = |line: usize, what: String| findings.push(Finding::new(PATH, line, what));
    let mut seen = BTreeMap::new();
    for line in lines(text) {
        for row in &line.rows {
            *seen.entry(*row).or_insert(0) += 1;
            if !line.is_open() && !named.contains(row) {
                object(line.number, format!("no test names the row A-{row:02}"));
            }
        }
        for test in line.tests().filter(|test| !functions.contains(test)) {
            object(line.number, format!("there is no test `{test}`"));
        }
        if line.tests().next().is_none() && !line.is_open() {
            let what = format!("names neither a test nor, after `{OPEN}`, a reason");
            object(line.number, what);
        }
    }
    for row in (1..=LAST).filter(|row| seen.get(row) != Some(&1)) {
        let times = seen.get(&row).copied().unwrap_or(0);
        object(0, format!("row A-{row:02} stands there {times} times"));
    }
    findings
}

/// How many rows have a test, and which have none.
pub(crate) fn summary(tree: &Tree) -> String {
    let lines = tree.text(PATH).map(lines).unwrap_or_default();
    let (open, shown): (Vec<_>, Vec<_>) = lines.iter().partition(|l| l.tests().next().is_none());
    let count: usize = shown.iter().map(|line| line.rows.len()).sum();
    let open = open.iter().flat_map(|line| &line.rows);
    let open: Vec<String> = open.map(|row| format!("A-{row:02}")).collect();
    format!(
        "{count} rows of the worker have tests, open: {}",
        open.join(" ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A document of all rows, shown by one test but for what `change` makes of the lines.
    fn found(change: fn(&mut Vec<String>)) -> Vec<String> {
        let line = |row: u32| format!("| A-{row:02} | it | `pack a_test_of_it` |");
        let mut lines: Vec<String> = (1..=LAST).map(line).collect();
        change(&mut lines);
        let named: String = (1..=LAST).map(|row| format!("/// A-{row:02}\n")).collect();
        let named = named.replace("/// A-09\n", "");
        let code = format!("{named}fn a_test_of_it() {{}}\nfn a_09_another() {{}}\n");
        let tree = Tree::of(&[(PATH, &lines.join("\n")), ("crates/x/src/lib.rs", &code)]);
        check(&tree).into_iter().map(|f| f.what).collect()
    }

    #[test]
    fn a_whole_list_is_fine() {
        assert_eq!(found(|_| {}), [""; 0]);
        // Lines may hold several rows, and be open.
        let several = |lines: &mut Vec<String>| {
            lines.truncate(40);
            lines.push("| A-41, A-42 | it | `a_test_of_it`; more | ".to_owned());
            lines.push("| A-43 to A-44 | it | open: `gguf` files are needed |".to_owned());
        };
        assert_eq!(found(several), [""; 0]);
    }

    #[test]
    fn what_is_wrong_is_found() {
        let missing = found(|lines| drop(lines.remove(4)));
        assert_eq!(missing, ["row A-05 stands there 0 times"]);
        let twice = found(|lines| lines.push(lines[6].clone()));
        assert_eq!(twice, ["row A-07 stands there 2 times"]);
        let renamed = found(|lines| lines[0] = "| A-01 | it | `a_test_of_that` |".to_owned());
        assert_eq!(renamed, ["there is no test `a_test_of_that`"]);
        let nothing = found(|lines| lines[0] = "| A-01 | it | by eye |".to_owned());
        assert_eq!(nothing.len(), 1);
        assert!(nothing[0].contains("neither a test"), "{nothing:?}");
    }

    #[test]
    fn a_row_that_no_test_names_is_found() {
        let text = "| A-03 | it | `a_test_of_it` |";
        let tree = Tree::of(&[(PATH, text), ("a.rs", "fn a_test_of_it() {}")]);
        let what = &check(&tree)[0].what;
        assert_eq!(what, "no test names the row A-03");
        let open = "| A-02 | it | open: no device |\n| A-03 | it | `a_test_of_it` |";
        let said = summary(&Tree::of(&[(PATH, open)]));
        assert_eq!(said, "1 rows of the worker have tests, open: A-02");
    }
}
