//! `xtask ci`: walks the stage table, goes on after a failure, and closes with one line of counts.
//!
//! The output of each stage is kept in `target/ci/`; only a failing stage's is shown. Counting
//! rules: a test that declared a skip counts as skipped, not passed; an ignored (soak) test and a
//! stage that cannot run here count as skipped; a stage that fails without a failed test counts as
//! one failure.

pub(crate) mod counts;
mod stages;

use std::time::{Duration, Instant};

use self::counts::Counts;
use self::stages::{Report, STAGES, Stage, Work};
use crate::failure::Failure;
use crate::workspace::Workspace;
use crate::{sh, skips};

/// A hung build or test must not eat the whole time CI allows.
const STAGE_LIMIT: Duration = Duration::from_mins(20);
const LINES_SHOWN: usize = 120;

enum End {
    Passed,
    Failed,
    Skipped,
}

struct Row {
    stage: &'static Stage,
    end: End,
    took: Duration,
    counts: Counts,
    note: String,
}

/// Entry of the verb.
///
/// # Errors
/// An option is unknown, or the checkout cannot be read.
pub(crate) fn run(args: &[String]) -> Result<bool, Failure> {
    let workspace = Workspace::open()?;
    let chosen = match args {
        [] => STAGES.iter().collect(),
        [flag] if flag == "--list" => return list(&workspace),
        [flag, names] if flag == "--only" => choose(names)?,
        _ => return Err(Failure::new("options are --list and --only NAME[,NAME]")),
    };
    skips::clear(&workspace)?;
    let rows = chosen
        .into_iter()
        .map(|s| perform(&workspace, s))
        .collect::<Result<Vec<_>, _>>()?;
    close(&workspace, &rows);
    Ok(!rows.iter().any(|r| matches!(r.end, End::Failed)))
}

fn list(workspace: &Workspace) -> Result<bool, Failure> {
    for stage in STAGES {
        let state = (stage.available)(workspace)
            .err()
            .map(|why| format!(" [not here: {why}]"));
        println!(
            "{:<16} {}{}",
            stage.name,
            stage.what,
            state.unwrap_or_default()
        );
    }
    Ok(true)
}

fn choose(names: &str) -> Result<Vec<&'static Stage>, Failure> {
    let find = |name: &str| {
        let found = STAGES.iter().find(|s| s.name == name);
        found.ok_or_else(|| Failure::new(format!("no stage `{name}`; --list shows them")))
    };
    names.split(',').map(find).collect()
}

fn perform(workspace: &Workspace, stage: &'static Stage) -> Result<Row, Failure> {
    let start = Instant::now();
    let row = |end, counts, note| Row {
        stage,
        end,
        took: start.elapsed(),
        counts,
        note,
    };
    if let Err(why) = (stage.available)(workspace) {
        println!("{:<16} skipped: {why}", stage.name);
        return Ok(row(End::Skipped, Counts::default(), why));
    }
    let report = match stage.work {
        Work::Commands(commands) => commanded(workspace, stage, commands)?,
        Work::Check(check) => check(workspace),
    };
    let end = if report.ok { End::Passed } else { End::Failed };
    let word = if report.ok { "ok" } else { "FAILED" };
    println!(
        "{:<16} {word} in {:.1} s",
        stage.name,
        start.elapsed().as_secs_f64()
    );
    if !report.ok {
        println!("{}", report.text);
    }
    Ok(row(end, report.counts, report.note))
}

fn commanded(
    workspace: &Workspace,
    stage: &Stage,
    commands: fn(&Workspace) -> Vec<std::process::Command>,
) -> Result<Report, Failure> {
    let mut counts = Counts::default();
    let mut text = String::new();
    for (n, mut command) in commands(workspace).into_iter().enumerate() {
        let log = workspace.target(&format!("ci/{}-{n}.log", stage.name));
        let ran = sh::run(command.current_dir(&workspace.root), STAGE_LIMIT, &log)?;
        counts += counts::read(&ran.output);
        if !ran.ok() {
            let end = ran.ending();
            text += &format!(
                "{}\n[{end}; {command:?}]\n",
                sh::tail(&ran.output, LINES_SHOWN)
            );
        }
    }
    Ok(Report {
        ok: text.is_empty(),
        counts,
        text,
        note: noted(counts),
    })
}

fn noted(counts: Counts) -> String {
    let Counts {
        passed,
        failed,
        ignored,
    } = counts;
    match (passed + failed, ignored) {
        (0, 0) => String::new(),
        (_, 0) => format!("{passed} passed, {failed} failed"),
        _ => format!("{passed} passed, {failed} failed, {ignored} left to soak"),
    }
}

fn close(workspace: &Workspace, rows: &[Row]) {
    let declared = skips::read(workspace);
    let stages_skipped = rows
        .iter()
        .filter(|r| matches!(r.end, End::Skipped))
        .count();
    println!();
    for row in rows {
        let word = match row.end {
            End::Passed => "ok",
            End::Failed => "FAILED",
            End::Skipped => "skipped",
        };
        let seconds = row.took.as_secs_f64();
        println!(
            "{:<16} {word:<8} {seconds:>7.1} s  {}",
            row.stage.name, row.note
        );
    }
    println!(
        "{:<16} {:<8} {:>7.1} s",
        "total",
        "",
        rows.iter().map(|r| r.took.as_secs_f64()).sum::<f64>()
    );
    if !declared.is_empty() {
        println!("\nskipped by tests themselves:");
        declared
            .iter()
            .for_each(|(test, reason)| println!("  {test}: {reason}"));
    }
    let failed = rows
        .iter()
        .filter(|r| matches!(r.end, End::Failed))
        .map(|r| r.stage.name);
    let failed: Vec<_> = failed.collect();
    if !failed.is_empty() {
        println!("\nfailed: {}", failed.join(", "));
    }
    let total = tally(rows, declared.len() as u64);
    let soak: u64 = rows.iter().map(|r| r.counts.ignored).sum();
    println!(
        "\nskipped: {} by tests themselves, {stages_skipped} stages, {soak} soak tests",
        declared.len()
    );
    println!(
        "{} passed, {} failed, {} skipped",
        total.passed, total.failed, total.ignored
    );
}

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
        Row {
            stage: &STAGES[0],
            end,
            took: Duration::ZERO,
            counts,
            note: String::new(),
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
    fn unknown_stages_are_refused() {
        assert!(choose("fmt,clippy").is_ok());
        let error = choose("fmt,nothing")
            .err()
            .map(|e| e.to_string())
            .unwrap_or_default();
        assert!(error.contains("nothing"), "{error}");
    }
}
