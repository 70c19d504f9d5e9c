//! Figures in documents. They stand between two markers, the first of which names report and context:
//!
//! ```text
//! <!-- qualify: 0123456789ab short -->
//! (made from the report)
//! <!-- /qualify -->
//! ```
//!
//! Reports lie in `benches/records/qualify`, each under its id. A snippet is made from a report that
//! verifies, and from nothing else.

use std::fs;
use std::path::{Path, PathBuf};

use crate::render;
use crate::verify::verify;

/// Where reports lie.
pub const REPORTS: &str = "benches/records/qualify";
const BEGIN: &str = "<!-- qualify: ";
const END: &str = "<!-- /qualify -->";

/// A report's line for a context.
///
/// # Errors
/// No such report or context, or the report does not verify.
pub fn snippet(root: &Path, id: &str, context: &str) -> Result<String, String> {
    let entries = fs::read_dir(root.join(REPORTS)).map_err(|e| format!("{REPORTS}: {e}"))?;
    let mut files = entries.flatten().map(|e| e.path());
    let named = |p: &PathBuf| {
        let stem = p.file_stem().unwrap_or_default().to_string_lossy();
        id.len() >= 12 && stem.starts_with(id) && p.extension().is_some_and(|e| e == "json")
    };
    let path = files
        .find(named)
        .ok_or_else(|| format!("no report {id} in {REPORTS}"))?;
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let verified = verify(&text).map_err(|all| {
        let all: Vec<String> = all.iter().map(ToString::to_string).collect();
        format!("{}: {}", path.display(), all.join("; "))
    })?;
    let report = verified.report();
    if !report.report_id.starts_with(id) {
        return Err(format!("{} holds another report", path.display()));
    }
    let cell = report.cells.iter().find(|c| c.context == context);
    let cell = cell.ok_or_else(|| format!("report {id} has no context {context}"))?;
    Ok(format!(
        "{}: {}",
        report.profile.name,
        render::cell(report, cell)
    ))
}

/// A document with its snippets made anew.
///
/// # Errors
/// A marker that is not closed, or what a snippet cannot be made from.
pub fn redrawn(root: &Path, text: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(&format!("\n{BEGIN}")) {
        let after = &rest[at + 1 + BEGIN.len()..];
        let (head, body) = after
            .split_once(" -->\n")
            .ok_or("a marker without its end")?;
        let (_, tail) = body.split_once(END).ok_or("a marker that is not closed")?;
        let (id, context) = head
            .split_once(' ')
            .ok_or("a marker names a report and a context")?;
        let made = snippet(root, id, context)?;
        out += &rest[..=at];
        out += &format!("{BEGIN}{head} -->\n{made}\n{END}");
        rest = tail;
    }
    Ok(out + rest)
}

/// Every document that may hold snippets.
#[must_use]
pub fn documents(root: &Path) -> Vec<PathBuf> {
    fn below(folder: &Path, found: &mut Vec<PathBuf>) {
        for path in fs::read_dir(folder)
            .into_iter()
            .flatten()
            .flatten()
            .map(|e| e.path())
        {
            if path.is_dir() {
                below(&path, found);
            } else if path.extension().is_some_and(|e| e == "md") {
                found.push(path);
            }
        }
    }
    let mut found = vec![root.join("README.md")];
    below(&root.join("docs"), &mut found);
    found
}

/// Documents whose snippets are not those of their reports. `write`: mend them.
#[must_use]
pub fn check(root: &Path, write: bool) -> Vec<String> {
    let mut found = Vec::new();
    for path in documents(root) {
        let Ok(text) = fs::read_to_string(&path) else {
            continue;
        };
        match redrawn(root, &text) {
            Ok(fresh) if fresh == text => {}
            Ok(fresh) if write => {
                if let Err(why) = fs::write(&path, fresh) {
                    found.push(format!("{}: {why}", path.display()));
                }
            }
            Ok(_) => found.push(format!("{}: a figure is not its report's", path.display())),
            Err(why) => found.push(format!("{}: {why}", path.display())),
        }
    }
    found
}
