//! What `xtask ci` prints at its end: the table of stages, slow tests, skips with their reasons, and
//! the closing line of counts.

use std::collections::BTreeMap;
use std::time::Duration;

use super::counts::Counts;

/// How a stage ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Passed,
    Failed,
    Skipped,
}

/// A stage that is over.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) end: End,
    pub(crate) took: Duration,
    pub(crate) counts: Counts,
    /// What to say beside it; the reason if it was skipped.
    pub(crate) note: String,
    /// Slow tests: seconds and name.
    pub(crate) slow: Vec<(f64, String)>,
}

/// Prints everything. `declared`: tests that skipped themselves, with their reasons.
pub(crate) fn print(rows: &[Row], declared: &BTreeMap<String, String>) {
    println!();
    rows.iter().for_each(|row| println!("{}", line(row)));
    let seconds: f64 = rows.iter().map(|row| row.took.as_secs_f64()).sum();
    println!("{:<16} {:<8} {seconds:>7.1} s", "total", "");
    list("slow tests:", rows.iter().flat_map(slow_lines));
    let lines = declared.iter().map(|(test, why)| format!("{test}: {why}"));
    list("skipped by tests themselves:", lines);
    list("failed stages:", names(rows, End::Failed));
    let soak: u64 = rows.iter().map(|row| row.counts.ignored).sum();
    let (tests, stages) = (declared.len(), names(rows, End::Skipped).count());
    println!("\nskipped: {tests} by tests themselves, {stages} stages, {soak} soak tests");
    let Counts {
        passed,
        failed,
        ignored,
    } = tally(rows, tests as u64);
    println!("{passed} passed, {failed} failed, {ignored} skipped");
}

fn line(row: &Row) -> String {
    let word = match row.end {
        End::Passed => "ok",
        End::Failed => "FAILED",
        End::Skipped => "skipped",
    };
    let Row {
        name, took, note, ..
    } = row;
    format!("{name:<16} {word:<8} {:>7.1} s  {note}", took.as_secs_f64())
        .trim_end()
        .to_owned()
}

fn slow_lines(row: &Row) -> impl Iterator<Item = String> {
    row.slow
        .iter()
        .map(|(seconds, test)| format!("{seconds:>7.1} s  {test}"))
}

fn names(rows: &[Row], end: End) -> impl Iterator<Item = String> {
    rows.iter()
        .filter(move |row| row.end == end)
        .map(|row| row.name.to_owned())
}

fn list(title: &str, lines: impl Iterator<Item = String>) {
    let mut lines = lines.peekable();
    if lines.peek().is_some() {
        println!("\n{title}");
        lines.for_each(|line| println!("  {line}"));
    }
}

/// Sums up. A test that declared a skip is no pass; a stage that failed without a failed test is a
/// failure of its own; a skipped stage is a skip.
fn tally(rows: &[Row], declared: u64) -> Counts {
    let mut total = Counts::default();
    for row in rows {
        total += row.counts;
        match row.end {
            End::Failed if row.counts.failed == 0 => total.failed += 1,
            End::Skipped => total.ignored += 1,
            _ => {}
        }
    }
    total.passed = total.passed.saturating_sub(declared);
    total.ignored += declared;
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(end: End, passed: u64, failed: u64, ignored: u64) -> Row {
        let counts = Counts {
            passed,
            failed,
            ignored,
        };
        let took = Duration::ZERO;
        Row {
            name: "tests",
            end,
            took,
            counts,
            note: String::new(),
            slow: Vec::new(),
        }
    }

    #[test]
    fn a_failing_stage_without_tests_is_one_failure() {
        let rows = [row(End::Failed, 0, 0, 0), row(End::Failed, 5, 2, 0)];
        assert_eq!(
            tally(&rows, 0),
            Counts {
                passed: 5,
                failed: 3,
                ignored: 0
            }
        );
    }

    #[test]
    fn declared_skips_are_not_passes() {
        let rows = [row(End::Passed, 10, 0, 3), row(End::Skipped, 0, 0, 0)];
        assert_eq!(
            tally(&rows, 2),
            Counts {
                passed: 8,
                failed: 0,
                ignored: 6
            }
        );
    }

    #[test]
    fn a_line_shows_the_end_and_the_note() {
        let mut skipped = row(End::Skipped, 0, 0, 0);
        skipped.note = "no compiler".to_owned();
        assert_eq!(
            line(&skipped),
            "tests            skipped      0.0 s  no compiler"
        );
    }
}
