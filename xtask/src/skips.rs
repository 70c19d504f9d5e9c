//! The skip log: a test that cannot run here says so in `target/skips.log`, one line
//! `test name<TAB>reason`, and passes. The log makes such passes visible: they are listed by name
//! and counted as skipped, not as passed.

use std::collections::BTreeMap;
use std::fs;

use crate::failure::Failure;
use crate::workspace::Workspace;

const LOG: &str = "skips.log";

/// Removes the log of an earlier run.
///
/// # Errors
/// The file exists and cannot be removed.
pub(crate) fn clear(workspace: &Workspace) -> Result<(), Failure> {
    let path = workspace.target(LOG);
    match fs::remove_file(&path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Failure::io(&path, &e)),
        _ => Ok(()),
    }
}

/// What the tests of this run skipped: reason by test.
pub(crate) fn read(workspace: &Workspace) -> BTreeMap<String, String> {
    parse(&fs::read_to_string(workspace.target(LOG)).unwrap_or_default())
}

/// A test that runs in several stages skips once; the first reason stands.
fn parse(text: &str) -> BTreeMap<String, String> {
    let mut skips = BTreeMap::new();
    for line in text.lines().filter(|l| !l.trim().is_empty()) {
        let (test, reason) = line.split_once('\t').unwrap_or((line, "no reason given"));
        skips
            .entry(test.trim().to_owned())
            .or_insert_with(|| reason.trim().to_owned());
    }
    skips
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_tests_with_reasons() {
        let skips = parse("a::b\tno GPU\n\nc\na::b\tsomething else\n");
        let want = [("a::b", "no GPU"), ("c", "no reason given")];
        assert_eq!(
            skips,
            want.map(|(k, v)| (k.to_owned(), v.to_owned())).into()
        );
    }
}
