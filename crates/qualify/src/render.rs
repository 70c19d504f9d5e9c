//! Reports for people, as text. A headline needs a [`Qualified`]; everything else says on the same line
//! why it may not be claimed.

use std::fmt::Write;

use crate::report::{Cell, Headline, Observations, Report};
use crate::verdict::{Evidence, Qualified, decide, observe};
use crate::{claims, counted};

/// Parts per million as a factor with three digits.
#[must_use]
pub fn factor(ppm: u64) -> String {
    let mills = (ppm + 500) / 1000;
    format!("{}.{:03}", mills / 1000, mills % 1000)
}

/// Thousandths of a token per second with one digit.
#[must_use]
pub fn rate(mtok_s: u64) -> String {
    let tenths = (mtok_s + 50) / 100;
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// A claim in one line. `Qualified` cannot be made outside the verdict.
#[must_use]
pub fn headline(report: &Report, claim: &Qualified<Headline>) -> String {
    let h = claim.get();
    format!(
        "{} ({}..{}, 95 %)  A {} B {} tok/s  A/A {}  {} pairs  {}  QUALIFIED [{} {}]",
        factor(h.median_ratio_ppm),
        factor(h.ci95_ppm.0),
        factor(h.ci95_ppm.1),
        rate(h.a_median_mtok_s),
        rate(h.b_median_mtok_s),
        factor(h.aa_spread_ppm),
        h.pairs,
        if h.identical_output {
            "identical output"
        } else {
            "quality-gated"
        },
        label(report),
        short(&report.report_id),
    )
}

/// The first digits of an id.
#[must_use]
pub fn short(id: &str) -> &str {
    id.get(..12).unwrap_or(id)
}

/// The label's word.
#[must_use]
pub fn label(report: &Report) -> String {
    format!("{:?}", report.label).to_lowercase()
}

/// Figures that may not be claimed, their reasons first.
fn unqualified(reasons: &[String], seen: &Observations) -> String {
    format!(
        "UNQUALIFIED({})  observed: B/A {} ({}..{}), A {} B {} tok/s, A/A {}, {} pairs",
        reasons.join(","),
        factor(seen.b_over_a_median_ppm),
        factor(seen.b_over_a_low_ppm),
        factor(seen.b_over_a_high_ppm),
        rate(seen.a_median_mtok_s),
        rate(seen.b_median_mtok_s),
        factor(seen.aa_spread_ppm),
        seen.pairs_count
    )
}

/// One context in one line, decided anew.
#[must_use]
pub fn cell(report: &Report, cell: &Cell) -> String {
    match decide(Evidence { report, cell }) {
        Ok(claim) => headline(report, &claim),
        Err(reasons) => {
            let mut codes: Vec<String> = reasons.all().map(|d| d.code.to_string()).collect();
            codes.dedup();
            let metric = report.profile.comparison.as_ref().map(|c| c.metric);
            let metric = metric.unwrap_or(crate::profile::Metric::Decode);
            unqualified(&codes, &observe(cell, metric))
        }
    }
}

/// The whole report.
#[must_use]
pub fn text(report: &Report) -> String {
    let mut out = String::new();
    let p = &report.profile;
    let _ = writeln!(
        out,
        "report {}  profile {} [{}]  commit {}{}\n{}",
        short(&report.report_id),
        p.name,
        label(report),
        short(&report.build.commit),
        if report.build.dirty { " + changes" } else { "" },
        p.question
    );
    if let Some(c) = &p.comparison {
        let _ = writeln!(
            out,
            "A = {}, B = {} ({}), {:?}",
            c.a.name, c.b.name, c.compares, c.metric
        );
    }
    let m = &report.machine;
    let _ = writeln!(out, "{}, {} threads, {}", m.cpu, m.threads, m.kernel);
    for each in &report.cells {
        let _ = writeln!(out, "{:<8} {}", each.context, cell(report, each));
        if !each.runs.is_empty() {
            let _ = writeln!(out, "         {}", counted::line(each));
        }
    }
    reasons(report, &mut out);
    let qualified = report
        .cells
        .iter()
        .filter(|c| decide(Evidence { report, cell: c }).is_ok());
    let _ = writeln!(
        out,
        "report status: {} ({} of {} cells)",
        report.status.to_uppercase(),
        qualified.count(),
        report.cells.len()
    );
    let open: Vec<String> = report
        .open_defects
        .iter()
        .filter(|d| d.state == "open")
        .map(|d| d.id.to_string())
        .collect();
    let _ = writeln!(out, "open defects: {}", open.join(", "));
    for claim in &report.external_claims {
        let _ = writeln!(out, "{}", claims::line(claim));
    }
    out
}

/// Each reason once, with what was found first.
fn reasons(report: &Report, out: &mut String) {
    for each in &report.cells {
        if let Err(reasons) = decide(Evidence { report, cell: each }) {
            let mut last = None;
            for d in reasons
                .all()
                .filter(|d| last.replace(d.code) != Some(d.code))
            {
                let _ = writeln!(out, "  {}: {d}", each.context);
            }
        }
    }
}
