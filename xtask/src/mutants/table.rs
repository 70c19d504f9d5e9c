//! `docs/traps.md` as data: which trap is caught by which test, and which mutant proves it.
//!
//! The same table is read by people and by this tool, so that it cannot be right in one place and
//! stale in the other. Columns: mutant (a number, or `-` where a test alone stands for the trap),
//! trap, fault, hook (files), caught by (`package filter`, several parted by `;`, or `open` while no
//! test exists: then `xtask mutants` does not succeed).

use std::collections::BTreeMap;

use crate::tidy::Finding;
use crate::tidy::source;

/// Where the table stands.
pub(crate) const PATH: &str = "docs/traps.md";

/// A test that must fail under the mutant: all tests of a package whose name contains the filter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Catcher {
    pub(crate) package: String,
    pub(crate) filter: String,
}

/// A row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Line in the file, from 1.
    pub(crate) line: usize,
    /// `None`: a trap that a test catches and no mutant can imitate.
    pub(crate) mutant: Option<u32>,
    pub(crate) trap: String,
    pub(crate) fault: String,
    pub(crate) hooks: Vec<String>,
    /// Empty: still open.
    pub(crate) catchers: Vec<Catcher>,
}

/// Reads the rows; what cannot be read is a finding.
pub(crate) fn parse(text: &str) -> (Vec<Row>, Vec<Finding>) {
    let mut rows = Vec::new();
    let mut findings = Vec::new();
    let mut inside = false;
    for (number, line) in text.lines().enumerate() {
        let cells: Vec<&str> = line
            .trim()
            .trim_matches('|')
            .split('|')
            .map(str::trim)
            .collect();
        if !line.starts_with('|') {
            inside = false;
        } else if cells.first() == Some(&"mutant") {
            inside = true;
        } else if inside && !cells[0].starts_with("---") {
            match row(number + 1, &cells) {
                Ok(row) => rows.push(row),
                Err(what) => findings.push(Finding::new(PATH, number + 1, what)),
            }
        }
    }
    (rows, findings)
}

fn row(line: usize, cells: &[&str]) -> Result<Row, String> {
    let [mutant, trap, fault, hook, caught] = cells else {
        return Err(format!("5 columns expected, got {}", cells.len()));
    };
    let mutant = match *mutant {
        "-" => None,
        number => Some(
            number
                .parse()
                .map_err(|_| format!("`{number}` is no mutant number"))?,
        ),
    };
    let words = hook.split_whitespace().map(|w| w.trim_matches(['`', ',']));
    let hooks: Vec<String> = words.filter(|w| *w != "-").map(str::to_owned).collect();
    if mutant.is_some() == hooks.is_empty() {
        return Err("a mutant needs a hook file, and a row without a mutant has none".to_owned());
    }
    let catchers = match *caught {
        "open" => Vec::new(),
        list => list
            .split(';')
            .map(catcher)
            .collect::<Result<Vec<_>, _>>()?,
    };
    let (trap, fault) = ((*trap).to_owned(), (*fault).to_owned());
    Ok(Row {
        line,
        mutant,
        trap,
        fault,
        hooks,
        catchers,
    })
}

fn catcher(text: &str) -> Result<Catcher, String> {
    let mut words = text.trim().trim_matches('`').split_whitespace();
    match (words.next(), words.next(), words.next()) {
        (Some(package), Some(filter), None) => Ok(Catcher {
            package: package.to_owned(),
            filter: filter.to_owned(),
        }),
        _ => Err(format!("`{}` should be `package filter`", text.trim())),
    }
}

/// Every `mutant(N)` in code: number to files.
pub(crate) fn hooks<'a>(
    files: impl Iterator<Item = (&'a str, &'a str)>,
) -> BTreeMap<u32, Vec<String>> {
    let mut found: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for (path, text) in files {
        // Cheap test first: most files have no hook.
        if !text.contains("mutant(") {
            continue;
        }
        for line in source::lines(path, text).iter().filter(|line| !line.test) {
            for id in ids(&line.code) {
                let files = found.entry(id).or_default();
                if !files.iter().any(|f| f == path) {
                    files.push(path.to_owned());
                }
            }
        }
    }
    found
}

fn ids(code: &str) -> impl Iterator<Item = u32> {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices("mutant(").filter_map(move |(at, word)| {
        let whole = !code[..at].chars().next_back().is_some_and(part);
        let number = code[at + word.len()..]
            .split(')')
            .next()?
            .trim()
            .parse()
            .ok()?;
        whole.then_some(number)
    })
}

/// What disagrees between the rows and the hooks.
pub(crate) fn disagreements(rows: &[Row], hooks: &BTreeMap<u32, Vec<String>>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let Some(id) = row.mutant else { continue };
        let mut object = |what: String| findings.push(Finding::new(PATH, row.line, what));
        if rows[..at].iter().any(|other| other.mutant == Some(id)) {
            object(format!("mutant {id} has two rows"));
        }
        for file in &row.hooks {
            if !hooks.get(&id).is_some_and(|files| files.contains(file)) {
                object(format!("mutant {id} has no hook in {file}"));
            }
        }
    }
    for (id, files) in hooks {
        let row = rows.iter().find(|row| row.mutant == Some(*id));
        for file in files
            .iter()
            .filter(|file| !row.is_some_and(|r| r.hooks.contains(file)))
        {
            findings.push(Finding::new(
                file,
                0,
                format!("mutant({id}) has no row in {PATH}"),
            ));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
# Traps

| other | table |
| --- | --- |
| 9 | 9 |

| mutant | trap | fault | hook | caught by |
| --- | --- | --- | --- | --- |
| 1 | 1 | rope on the head | `k/rope.rs` | `ds4-kernels rope::tail` |
| 2 | 3 | amplitude | `k/rope.rs` `k/b.rs` | `ds4-kernels rope; ds4-target norm` |
| - | 48 | defaults hide a wrong file | - | `gguf limits` |
";

    fn hooked(files: &[(&'static str, &'static str)]) -> BTreeMap<u32, Vec<String>> {
        hooks(files.iter().copied())
    }

    #[test]
    fn rows_are_read() {
        let (rows, findings) = parse(TABLE);
        assert_eq!(findings, []);
        assert_eq!(rows.len(), 3);
        assert_eq!((rows[0].mutant, rows[0].line), (Some(1), 9));
        assert_eq!(rows[1].hooks, ["k/rope.rs", "k/b.rs"]);
        let second = Catcher {
            package: "ds4-target".into(),
            filter: "norm".into(),
        };
        assert_eq!(rows[1].catchers[1], second);
        assert_eq!(rows[2].mutant, None);
        let (open, findings) = parse(&format!("{TABLE}| 7 | 7 | x | `k/b.rs` | open |\n"));
        assert!(findings.is_empty() && open[3].catchers.is_empty());
    }

    #[test]
    fn rows_that_cannot_be_read_are_findings() {
        let head =
            "| mutant | trap | fault | hook | caught by |\n| --- | --- | --- | --- | --- |\n";
        for bad in [
            "| 1 | 1 | x | `a.rs` |",
            "| one | 1 | x | `a.rs` | `p f` |",
            "| 1 | 1 | x | - | `p f` |",
            "| - | 1 | x | `a.rs` | `p f` |",
            "| 1 | 1 | x | `a.rs` | `p` |",
            "| 1 | 1 | x | `a.rs` | - |",
        ] {
            let (rows, findings) = parse(&format!("{head}{bad}\n"));
            assert_eq!((rows.len(), findings.len()), (0, 1), "{bad}");
        }
    }

    #[test]
    fn hooks_are_found_in_code_only() {
        let text = "//! mutant(7)\nif mutant(1) { a() } else if engine_core::mutant::mutant( 2 ) {}\n\
                    fn is_mutant(3) {}\n#[cfg(test)]\nmod tests { mutant(4) }\n";
        let found = hooked(&[("k/rope.rs", text)]);
        assert_eq!(found.keys().copied().collect::<Vec<_>>(), [1, 2]);
    }

    #[test]
    fn agreement() {
        let (rows, _) = parse(TABLE);
        let both = "if mutant(1) {}\nif mutant(2) {}\n";
        let files = [("k/rope.rs", both), ("k/b.rs", "mutant(2);")];
        assert_eq!(disagreements(&rows, &hooked(&files)), []);
    }

    #[test]
    fn disagreement() {
        let (rows, _) = parse(TABLE);
        let missing = disagreements(&rows, &hooked(&[("k/rope.rs", "mutant(1); mutant(2);")]));
        assert_eq!(missing.len(), 1, "no hook in k/b.rs: {missing:?}");
        let all = "mutant(1); mutant(2); mutant(5);";
        let extra = disagreements(
            &rows,
            &hooked(&[("k/rope.rs", all), ("k/b.rs", "mutant(2);")]),
        );
        assert_eq!(extra.len(), 1, "mutant 5 has no row: {extra:?}");
        let (twice, _) = parse(&format!("{TABLE}| 1 | 2 | x | `k/rope.rs` | `p f` |\n"));
        let files = [
            ("k/rope.rs", "mutant(1); mutant(2);"),
            ("k/b.rs", "mutant(2);"),
        ];
        assert_eq!(disagreements(&twice, &hooked(&files)).len(), 1);
    }
}
