//! `xtask ci`: walks the stage table, goes on after a failure, and closes with one line of counts.
//!
//! The output of each stage is kept in `target/ci/`; only a failing stage's is shown. Counting
//! rules: a test that declared a skip counts as skipped, not passed; an ignored (soak) test and a
//! stage that cannot run here count as skipped; a stage that fails without a failed test counts as
//! one failure.

pub(crate) mod counts;
mod features;
mod report;
mod stages;

use std::time::{Duration, Instant};

use self::counts::Counts;
use self::report::{End, Row};
use self::stages::{Report, STAGES, Stage, TESTS_LOG, Work};
use crate::failure::Failure;
use crate::workspace::Workspace;
use crate::{sh, skips};

/// A hung build or test must not eat the whole time CI allows.
const STAGE_LIMIT: Duration = Duration::from_mins(40);
const LINES_SHOWN: usize = 120;
/// Tests slower than this are named, so that the time of CI has someone to answer for it.
const SLOW_SECONDS: f64 = 10.0;

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
    // Rows that look at what ran must not find what ran another time.
    let _ = std::fs::remove_file(workspace.target(TESTS_LOG));
    let rows = chosen.into_iter().map(|stage| perform(&workspace, stage));
    let rows = rows.collect::<Result<Vec<_>, _>>()?;
    report::print(&rows, &skips::read(&workspace));
    Ok(rows.iter().all(|row| row.end != End::Failed))
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
    if let Err(why) = (stage.available)(workspace) {
        println!("{:<16} skipped: {why}", stage.name);
        return Ok(row(
            stage,
            End::Skipped,
            start,
            Report {
                note: why,
                ..Report::default()
            },
        ));
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
    Ok(row(stage, end, start, report))
}

fn row(stage: &Stage, end: End, start: Instant, report: Report) -> Row {
    let Report {
        counts, note, slow, ..
    } = report;
    Row {
        name: stage.name,
        end,
        took: start.elapsed(),
        counts,
        note,
        slow,
    }
}

fn commanded(
    workspace: &Workspace,
    stage: &Stage,
    commands: fn(&Workspace) -> Vec<std::process::Command>,
) -> Result<Report, Failure> {
    let mut counts = Counts::default();
    let mut text = String::new();
    let mut slow = Vec::new();
    for (n, mut command) in commands(workspace).into_iter().enumerate() {
        let log = workspace.target(&format!("ci/{}-{n}.log", stage.name));
        let ran = sh::run(command.current_dir(&workspace.root), STAGE_LIMIT, &log)?;
        counts += counts::read(&ran.output);
        slow.extend(counts::slow(&ran.output, SLOW_SECONDS));
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
        slow,
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

#[cfg(test)]
mod tests {
    use super::*;

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
