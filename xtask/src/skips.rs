//! The skip log: a test that cannot run here says so in `target/skips.log`, one line
//! `SKIP test: reason`, and passes. The log makes such passes visible: they are listed by name
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
        let line = line.strip_prefix("SKIP ").unwrap_or(line);
        let (test, reason) = line.split_once(": ").unwrap_or((line, "no reason given"));
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
        let skips = parse("SKIP a::b: no GPU: driver missing\n\nc\nSKIP a::b: something else\n");
        let want = [("a::b", "no GPU: driver missing"), ("c", "no reason given")];
        assert_eq!(
            skips,
            want.map(|(k, v)| (k.to_owned(), v.to_owned())).into()
        );
    }
}
