//! Two reports side by side: refused unless they answer the same question on the same machine with the
//! same files. Percentages are never combined.

use std::fmt::Write;

use crate::code::{Code, Disqualifier};
use crate::counted;
use crate::render;
use crate::report::Report;

/// Why two reports cannot be put side by side.
#[must_use]
pub fn mismatch(a: &Report, b: &Report) -> Vec<Disqualifier> {
    let mut found = Vec::new();
    let mut check = |code, same: bool, what: String| {
        if !same {
            found.push(Disqualifier::new(code, what));
        }
    };
    check(
        Code::ForeignBaseline,
        a.profile == b.profile && a.label == b.label,
        format!("profiles {} and {}", a.profile.name, b.profile.name),
    );
    let machine = |r: &Report| {
        (
            r.machine.cpu.clone(),
            r.machine.threads,
            r.machine.kernel.clone(),
        )
    };
    check(
        Code::ForeignBaseline,
        machine(a) == machine(b),
        format!("machines {:?} and {:?}", machine(a), machine(b)),
    );
    check(
        Code::ArtefactMismatch,
        a.artefacts == b.artefacts,
        "files differ".to_owned(),
    );
    let prompts = |r: &Report| {
        let runs = r.cells.iter().flat_map(|c| &c.runs);
        let mut all: Vec<String> = runs.map(|r| r.prompt_blake3.clone()).collect();
        all.sort();
        all.dedup();
        all
    };
    check(
        Code::PromptMismatch,
        prompts(a) == prompts(b),
        "prompts differ".to_owned(),
    );
    found.extend(counted::files(&a.artefacts, &b.artefacts));
    found
}

/// The two reports, cell by cell.
///
/// # Errors
/// What does not match.
pub fn diff(a: &Report, b: &Report) -> Result<String, Vec<Disqualifier>> {
    let found = mismatch(a, b);
    if !found.is_empty() {
        return Err(found);
    }
    let mut out = String::new();
    for (one, other) in a.cells.iter().zip(&b.cells) {
        let _ = writeln!(out, "{}", one.context);
        let _ = writeln!(
            out,
            "  {}  {}",
            render::short(&a.report_id),
            render::cell(a, one)
        );
        let _ = writeln!(
            out,
            "  {}  {}",
            render::short(&b.report_id),
            render::cell(b, other)
        );
    }
    Ok(out)
}

/// C-18: adding up or multiplying the effects of several reports. Switches interact, and each effect was
/// measured without the others: a profile that switches them together is the only answer.
///
/// # Errors
/// Always.
pub fn combine(reports: &[&Report]) -> Result<std::convert::Infallible, Disqualifier> {
    let names: Vec<&str> = reports.iter().map(|r| r.profile.name.as_str()).collect();
    let found = format!(
        "effects of {} are not combined: measure a profile that has them all",
        names.join(" and ")
    );
    Err(Disqualifier::new(Code::StackingRefused, found))
}
