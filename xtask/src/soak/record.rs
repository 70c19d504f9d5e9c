//! The dated page under `benches/records/` that a soak run leaves.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use super::{Options, Outcome, line};
use crate::failure::Failure;
use crate::sh;
use crate::workspace::Workspace;

/// The checkout's commit, and whether anything differs from it.
pub(super) fn commit(workspace: &Workspace) -> String {
    let git =
        |args: &[&str]| sh::capture(Command::new("git").current_dir(&workspace.root).args(args));
    let commit = git(&["rev-parse", "--short=10", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
    match git(&["status", "--porcelain"]) {
        Some(changes) if changes.is_empty() => commit,
        _ => format!("{commit}, with uncommitted changes"),
    }
}

/// Writes the page; its path.
pub(super) fn write(
    workspace: &Workspace,
    options: &Options,
    commit: &str,
    outcomes: &[Outcome],
) -> Result<PathBuf, Failure> {
    let date = date(SystemTime::now());
    let mut text = format!("# Soak run, {date}\n\n");
    let _ = writeln!(text, "- commit: {commit}");
    let _ = writeln!(text, "- machine: {}", machine());
    let profile = if options.release { "release" } else { "dev" };
    let (minutes, jobs) = (options.budget.as_secs() / 60, options.jobs);
    let _ = writeln!(
        text,
        "- profile: {profile}; budget: {minutes} minutes; tests at a time: {jobs}\n"
    );
    text += "```text\n";
    outcomes.iter().for_each(|outcome| text += &line(outcome));
    text += "```\n";
    let name = commit.split(',').next().unwrap_or_default();
    let path = workspace
        .root
        .join(format!("benches/records/{date}-soak-{name}.md"));
    let io = |e: std::io::Error| Failure::io(&path, &e);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(io)?;
    }
    fs::write(&path, text).map_err(io)?;
    Ok(path)
}

fn machine() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    format!(
        "{}, {cores} threads",
        model.map_or("unknown processor", |(_, name)| name)
    )
}

/// `YYYY-MM-DD` in UTC.
fn date(now: SystemTime) -> String {
    let days = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs() / 86_400;
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let (mut year, mut day) = (1970, days);
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if day < length {
            break;
        }
        day -= length;
        month += 1;
    }
    format!("{year}-{month:02}-{:02}", day + 1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates() {
        for (days, want) in [
            (0, "1970-01-01"),
            (58, "1970-02-28"),
            (59, "1970-03-01"),
            (11_016, "2000-02-29"),
            (19_782, "2024-02-29"),
            (19_783, "2024-03-01"),
            (20_088, "2024-12-31"),
            (20_089, "2025-01-01"),
        ] {
            assert_eq!(
                date(UNIX_EPOCH + Duration::from_secs(days * 86_400 + 86_399)),
                want
            );
        }
    }
}
