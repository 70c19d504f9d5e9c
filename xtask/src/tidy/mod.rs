//! `xtask tidy`: rules of the code base that no compiler or linter checks.
//!
//! Each rule is a pure function from the tree's texts to findings, in its own module, tested on
//! good and bad samples. Exceptions stand in `allow`, each with its reason.

mod allow;
mod docs;
mod layers;
mod ratchet;
mod rows;
mod rust;
mod size;
pub(crate) mod source;
mod tree;
mod versions;
mod wording;

use std::collections::BTreeMap;
use std::fs;

use crate::failure::Failure;
use crate::workspace::Workspace;
pub(crate) use tree::Tree;

/// Something a rule objects to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) path: String,
    /// Line from 1; 0 for the whole file.
    pub(crate) line: usize,
    pub(crate) what: String,
}

impl Finding {
    pub(crate) fn new(path: &str, line: usize, what: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line,
            what: what.into(),
        }
    }
}

/// A rule: its name and its check.
type Rule = (&'static str, fn(&Tree) -> Vec<Finding>);

const RULES: &[Rule] = &[
    ("layers", layers::check),
    ("versions", versions::check),
    ("size", size::check),
    ("header", rust::headers),
    ("length", rust::length),
    ("unsafe", rust::unsafety),
    ("ignore", rust::ignores),
    ("environment", rust::environment),
    ("left-over", rust::left_overs),
    ("mutants", crate::mutants::agreement),
    ("wording", wording::check),
    ("link", docs::links),
    ("decision", docs::decisions),
    ("figure", docs::figures),
    ("row", rows::check),
    ("ratchet", ratchet::check),
];

/// All findings, ready to print, and a one-line summary.
pub(crate) struct Outcome {
    pub(crate) findings: Vec<String>,
    /// Unsafe blocks, functions and impls by crate.
    pub(crate) unsafety: BTreeMap<String, usize>,
    pub(crate) note: String,
}

/// Applies every rule to the checkout.
///
/// # Errors
/// The tracked files cannot be listed or read.
pub(crate) fn examine(workspace: &Workspace) -> Result<Outcome, Failure> {
    let tree = Tree::read(workspace)?;
    let mut findings = Vec::new();
    for (rule, check) in RULES {
        for found in check(&tree) {
            let Finding { path, line, what } = found;
            findings.push(format!("{path}:{line}: [{rule}] {what}"));
        }
    }
    let size = size::summary(&tree);
    let (rules, files) = (RULES.len(), tree.files.len());
    let note = format!(
        "{rules} rules, {files} files, {size}; {}",
        rows::summary(&tree)
    );
    Ok(Outcome {
        findings,
        unsafety: rust::unsafe_counts(&tree),
        note,
    })
}

/// Entry of the verb.
///
/// # Errors
/// The tree cannot be read, or a file not be written.
pub(crate) fn run(args: &[String]) -> Result<bool, Failure> {
    let workspace = Workspace::open()?;
    match args {
        [] => {}
        [flag] if flag == "--fix" => redraw(&workspace)?,
        _ => return Err(Failure::new("the option is --fix: redraw generated tables")),
    }
    let outcome = examine(&workspace)?;
    outcome.findings.iter().for_each(|f| println!("{f}"));
    for (name, count) in &outcome.unsafety {
        println!("unsafe: {count:>4} in {name}");
    }
    println!(
        "tidy: {}, {} findings",
        outcome.note,
        outcome.findings.len()
    );
    Ok(outcome.findings.is_empty())
}

fn redraw(workspace: &Workspace) -> Result<(), Failure> {
    let tree = Tree::read(workspace)?;
    let counts = (ratchet::FILE, ratchet::redrawn(&tree));
    for (file, text) in layers::redrawn(&tree).into_iter().chain([counts]) {
        let path = workspace.root.join(file);
        fs::write(&path, text).map_err(|e| Failure::io(&path, &e))?;
    }
    Ok(())
}
