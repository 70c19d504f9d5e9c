//! Claims: figures of others, which are never comparable, and what this project has not shown yet.
//!
//! They stand in `docs/claims/external.toml`, of which this reads what it needs: tables `[[claim]]` and
//! `[[open]]` with `key = "text"` and `comparable = false`.

use serde::{Deserialize, Serialize};

/// A figure of somebody else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExternalClaim {
    /// Who says so, and where.
    pub source: String,
    /// About what.
    pub about: String,
    /// The figure, as they write it.
    pub figure: String,
    /// Its unit.
    pub unit: String,
    /// Why it cannot be compared.
    pub why: String,
    /// Always false.
    pub comparable: bool,
}

/// Something that is not shown yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenClaim {
    /// What is to be shown.
    pub what: String,
    /// What it takes.
    pub needs: String,
}

/// The file.
pub const FILE: &str = include_str!("../../../docs/claims/external.toml");

/// A line that cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("docs/claims/external.toml:{line}: {why}")]
pub struct ClaimError {
    /// Its number.
    pub line: usize,
    /// What is wrong.
    pub why: String,
}

/// Both lists of a claims file.
///
/// # Errors
/// The first line that is not of the subset, and any claim that is incomplete or comparable.
pub fn parse(text: &str) -> Result<(Vec<ExternalClaim>, Vec<OpenClaim>), ClaimError> {
    let (mut claims, mut open) = (Vec::new(), Vec::new());
    let mut table: Option<Table> = None;
    let mut lines = 0;
    for (at, line) in text.lines().enumerate() {
        let (line, number) = (line.trim(), at + 1);
        lines = number;
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(name) = line.strip_prefix("[[").and_then(|l| l.strip_suffix("]]")) {
            close(table.take(), &mut claims, &mut open)?;
            table = Some(Table {
                line: number,
                name: name.to_owned(),
                keys: Vec::new(),
            });
            continue;
        }
        let fail = |why: &str| ClaimError {
            line: number,
            why: why.to_owned(),
        };
        let (key, value) = line
            .split_once(" = ")
            .ok_or_else(|| fail("expected key = value"))?;
        let text = value.strip_prefix('"').and_then(|v| v.strip_suffix('"'));
        let value = text.or((value == "false").then_some("false"));
        let value = value.ok_or_else(|| fail("expected a text, or false"))?;
        let table = table
            .as_mut()
            .ok_or_else(|| fail("a key outside a table"))?;
        table.keys.push((key.to_owned(), value.to_owned()));
    }
    let _ = lines;
    close(table, &mut claims, &mut open)?;
    Ok((claims, open))
}

struct Table {
    line: usize,
    name: String,
    keys: Vec<(String, String)>,
}

fn close(
    table: Option<Table>,
    claims: &mut Vec<ExternalClaim>,
    open: &mut Vec<OpenClaim>,
) -> Result<(), ClaimError> {
    let Some(table) = table else { return Ok(()) };
    let fail = |why: String| ClaimError {
        line: table.line,
        why,
    };
    let get = |key: &str| {
        let found = table
            .keys
            .iter()
            .find(|(k, _)| k == key)
            .map(|(_, v)| v.clone());
        found.ok_or_else(|| fail(format!("[[{}]] has no {key}", table.name)))
    };
    match table.name.as_str() {
        "claim" => claims.push(ExternalClaim {
            comparable: match get("comparable")?.as_str() {
                "false" => false,
                _ => return Err(fail("a claim of others must say comparable = false".into())),
            },
            source: get("source")?,
            about: get("about")?,
            figure: get("figure")?,
            unit: get("unit")?,
            why: get("why")?,
        }),
        "open" => open.push(OpenClaim {
            what: get("what")?,
            needs: get("needs")?,
        }),
        other => return Err(fail(format!("there is no table [[{other}]]"))),
    }
    Ok(())
}

/// The claims of others.
#[must_use]
pub fn external() -> Vec<ExternalClaim> {
    parse(FILE).map(|(claims, _)| claims).unwrap_or_default()
}

/// A claim in one line. C-34: it says that it is not comparable, always.
#[must_use]
pub fn line(claim: &ExternalClaim) -> String {
    format!(
        "not comparable: {} {} ({}; {}): {}",
        claim.figure, claim.unit, claim.about, claim.source, claim.why
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// C-33, A-34: the cited baselines are there, with their sources, and none is comparable; what has no
    /// source yet, the reference's own figure with a worker among it, is listed as open.
    #[test]
    fn c_33_cited_baselines_are_external_claims() {
        let (claims, open) = parse(FILE).unwrap();
        for figure in ["254.921", "254.07", "142.82", "226.82"] {
            let claim = claims.iter().find(|c| c.figure == figure).expect(figure);
            assert!(!claim.comparable && !claim.source.is_empty());
        }
        for what in ["0.2820", "120-token", "23.6"] {
            assert!(open.iter().any(|o| o.what.contains(what)), "{what}");
        }
    }

    /// C-34.
    #[test]
    fn c_34_every_external_claim_is_rendered_as_not_comparable() {
        for claim in external() {
            assert!(line(&claim).starts_with("not comparable: "));
        }
    }

    #[test]
    fn a_comparable_or_incomplete_claim_is_refused() {
        let good = "[[claim]]\nsource = \"a\"\nabout = \"b\"\nfigure = \"1\"\nunit = \"u\"\nwhy = \"w\"\ncomparable = false\n";
        assert_eq!(parse(good).unwrap().0.len(), 1);
        for (from, to) in [
            ("comparable = false", "comparable = true"),
            ("comparable = false", "comparable = \"yes\""),
            ("source = \"a\"\n", ""),
            ("[[claim]]", "[[fact]]"),
            ("[[claim]]\n", ""),
        ] {
            assert!(parse(&good.replace(from, to)).is_err(), "{from} -> {to}");
        }
    }
}
