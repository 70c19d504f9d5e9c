//! Checking a report from its bytes: the id, the schema, and every figure and verdict anew from the
//! runs. What a report concludes is never believed.

use serde_json::Value;

use crate::canonical::canonical;
use crate::code::{Code, Disqualifier};
use crate::profile::Profile;
use crate::report::Report;
use crate::{schema, verdict};

/// A report that is what its id says and concludes what its runs say. Not a claim by itself.
#[derive(Clone, Debug)]
pub struct Verified {
    report: Report,
}

impl Verified {
    /// The report.
    #[must_use]
    pub const fn report(&self) -> &Report {
        &self.report
    }
}

/// Verifies the text of a report.
///
/// # Errors
/// Everything that does not hold.
pub fn verify(text: &str) -> Result<Verified, Vec<Disqualifier>> {
    let fail = |code, found: String| vec![Disqualifier::new(code, found)];
    let value: Value = serde_json::from_str(text)
        .map_err(|e| fail(Code::ReportEdited, format!("not JSON: {e}")))?;
    let mut found = bytes(text, &value);
    if let Err(why) = schema::check(&value) {
        found.push(Disqualifier::new(Code::SchemaViolated, why));
    }
    let report: Report = match serde_json::from_value(value) {
        Ok(report) => report,
        Err(why) => {
            found.push(Disqualifier::new(Code::SchemaViolated, why.to_string()));
            return Err(found);
        }
    };
    derived(&report, &mut found);
    if found.is_empty() {
        Ok(Verified { report })
    } else {
        Err(found)
    }
}

fn bytes(text: &str, value: &Value) -> Vec<Disqualifier> {
    let mut found = Vec::new();
    let stored = value["report_id"].as_str().unwrap_or_default();
    let id = Report::id_of(value);
    if stored != id {
        let what = format!("the id is {stored:?}, the content's is {id:?}");
        found.push(Disqualifier::new(Code::ReportEdited, what));
    }
    if canonical(value) != text {
        let what = "the text is not the canonical one";
        found.push(Disqualifier::new(Code::ReportEdited, what));
    }
    found
}

fn derived(report: &Report, found: &mut Vec<Disqualifier>) {
    let mut add = |what: String| found.push(Disqualifier::new(Code::VerdictNotDerived, what));
    if report.profile_blake3 != report.profile.digest() {
        add("the profile is not the one its digest names".to_owned());
    }
    match Profile::named(&report.profile.name) {
        Ok(known) if known == report.profile => {}
        Ok(_) => add(format!(
            "profile {} is not the one in this tree",
            report.profile.name
        )),
        Err(why) => add(why.to_string()),
    }
    if report.label != report.profile.label {
        add(format!(
            "label {:?}, the profile's is {:?}",
            report.label, report.profile.label
        ));
    }
    for cell in &report.cells {
        let status = verdict::status(report, cell);
        if status != cell.status {
            add(format!(
                "context {}: it says {:?}, the runs say {status:?}",
                cell.context, cell.status
            ));
        }
    }
    let word = if verdict::overall(report) {
        "qualified"
    } else {
        "unqualified"
    };
    if report.status != word {
        add(format!("it says {}, the cells say {word}", report.status));
    }
    let planned = report.profile.comparison.as_ref().map(|c| &c.contexts);
    for context in planned.into_iter().flatten() {
        if !report.cells.iter().any(|c| c.context == context.name) {
            add(format!("context {} is planned and not there", context.name));
        }
    }
}
