//! The report of the identity gate: the arms, the files they ran on, and pass or fail.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::canonical::canonical;
use crate::code::{Code, Disqualifier};
use crate::counted;
use crate::identity::{Outcome, Status};
use crate::profile::{Label, Profile};
use crate::report::{Build, FoundArtefact, Machine, Report};

/// A report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GateReport {
    /// Version of the layout.
    pub schema: u32,
    /// Digest of the canonical text without this field.
    pub report_id: String,
    /// When, seconds since 1970.
    pub created_utc_s: u64,
    /// What it is about.
    pub label: Label,
    /// `pass` or `fail`.
    pub result: String,
    /// The profile, whole.
    pub profile: Profile,
    /// The machine.
    pub machine: Machine,
    /// The tree. A gate passes on a tree with changes too: it claims no figure.
    pub build: Build,
    /// Switches in force that are not at their default.
    pub switches: Vec<(String, String)>,
    /// Files.
    pub artefacts: Vec<FoundArtefact>,
    /// Digest of the prompt's ids.
    pub prompt_blake3: String,
    /// The arms.
    pub outcome: Outcome,
}

impl GateReport {
    /// Writes result and id.
    #[must_use]
    pub fn sealed(mut self) -> Self {
        self.result = if self.objections().is_empty() {
            "pass"
        } else {
            "fail"
        }
        .to_owned();
        self.report_id = Report::id_of(&self.value());
        self
    }

    fn value(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// The canonical text.
    #[must_use]
    pub fn text(&self) -> String {
        canonical(&self.value())
    }

    /// Why it does not pass.
    #[must_use]
    pub fn objections(&self) -> Vec<Disqualifier> {
        let mut found = Vec::new();
        for wanted in &self.profile.artefacts {
            let got = self.artefacts.iter().find(|a| a.role == wanted.role);
            match got.map(|a| a.blake3.as_str()).unwrap_or_default() {
                "" => found.push(Disqualifier::new(Code::ArtefactHashMissing, &*wanted.role)),
                got if got != wanted.blake3 => {
                    let what = format!("{}: {} expected, got {got}", wanted.role, wanted.blake3);
                    found.push(Disqualifier::new(Code::ArtefactMismatch, what));
                }
                _ => {}
            }
        }
        found.extend(counted::pinned(&self.profile.artefacts, &self.artefacts));
        let rules = self.profile.identity.as_ref();
        if rules.is_none_or(|r| r.prompt_blake3 != self.prompt_blake3) {
            found.push(Disqualifier::new(
                Code::PromptMismatch,
                &*self.prompt_blake3,
            ));
        }
        if rules.is_none_or(|r| r.base != self.outcome.base) {
            found.push(Disqualifier::new(
                Code::OutputHashDiffers,
                "the base is not the pinned one",
            ));
        }
        for (arm, first) in self.outcome.different() {
            let code = match first.what {
                crate::identity::What::Path => Code::PathNotTaken,
                crate::identity::What::Fault => Code::RunFailed,
                _ => Code::OutputHashDiffers,
            };
            found.push(Disqualifier::new(code, format!("{arm}: {first}")));
        }
        if !self.outcome.passed() && found.is_empty() {
            found.push(Disqualifier::new(Code::TooFewPairs, "nothing was compared"));
        }
        found
    }

    /// The report for people.
    #[must_use]
    pub fn render(&self) -> String {
        let count =
            |f: fn(&Status) -> bool| self.outcome.rows.iter().filter(|r| f(&r.status)).count();
        let mut out = String::new();
        for row in &self.outcome.rows {
            out += &line(row);
            out.push('\n');
        }
        for objection in self.objections() {
            out += &format!("{objection}\n");
        }
        out += &format!(
            "one-result [tiny]: {}: {} arms equal, {} differ, {} absent; report {}\n",
            self.result.to_uppercase(),
            count(|s| *s == Status::Equal),
            count(|s| matches!(s, Status::Differs { .. })),
            count(|s| matches!(s, Status::Absent { .. })),
            self.report_id.get(..12).unwrap_or_default(),
        );
        out
    }
}

/// An arm in one line.
#[must_use]
pub fn line(row: &crate::identity::Row) -> String {
    match &row.status {
        Status::Equal => format!("equal    {:<32} {}", row.arm, row.evidence),
        Status::Differs { first } => format!("DIFFERS  {:<32} {first}; {}", row.arm, row.evidence),
        Status::Absent { reason } => format!("absent   {:<32} {reason}", row.arm),
    }
}

/// Verifies the text of a gate's report.
///
/// # Errors
/// Everything that does not hold.
pub fn verify(text: &str) -> Result<GateReport, Vec<Disqualifier>> {
    let edited = |what: String| vec![Disqualifier::new(Code::ReportEdited, what)];
    let value: Value = serde_json::from_str(text).map_err(|e| edited(e.to_string()))?;
    let (stored, id) = (
        value["report_id"].as_str().unwrap_or_default(),
        Report::id_of(&value),
    );
    if stored != id || canonical(&value) != text {
        return Err(edited(format!(
            "the id is {stored:?}, the content's is {id:?}"
        )));
    }
    let report: GateReport = serde_json::from_value(value)
        .map_err(|e| vec![Disqualifier::new(Code::SchemaViolated, e.to_string())])?;
    if report.clone().sealed() != report {
        let what = format!("it says {}", report.result);
        return Err(vec![Disqualifier::new(Code::VerdictNotDerived, what)]);
    }
    Ok(report)
}
