//! `xtask soak`: the tests too long for CI, within a budget of time.
//!
//! A soak test is an ordinary test marked `#[ignore = "soak: REASON"]`. Each runs in a process of
//! its own; lines it prints that start with `soak: ` are its results. With `--record` they go into a
//! dated page under `benches/records/`, together with the machine and the commit.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::ci::counts;
use crate::failure::Failure;
use crate::sh;
use crate::testbins::{self, TestBin};
use crate::workspace::Workspace;

const USAGE: &str = "soak [FILTER] [--budget MINUTES] [--release] [--record] [--list]";
const BUDGET_MINUTES: u64 = 60;
const RESULT: &str = "soak: ";

#[derive(Debug, PartialEq, Eq)]
struct Options {
    /// Part of `package test::name`.
    filter: String,
    budget: Duration,
    release: bool,
    record: bool,
    list: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum End {
    Passed,
    Failed(String),
    /// The budget was used up before it could start.
    NotRun,
}

struct Outcome {
    package: String,
    test: String,
    end: End,
    took: Duration,
    results: Vec<String>,
}

/// Entry of the verb.
///
/// # Errors
/// An option is unknown, the tests do not build, or the record cannot be written.
pub(crate) fn run(args: &[String]) -> Result<bool, Failure> {
    let options = options(args)?;
    let workspace = Workspace::open()?;
    let mut build = vec!["--workspace"];
    if options.release {
        build.push("--release");
    }
    let chosen = choose(&testbins::build(&workspace, &build)?, &options.filter)?;
    if options.list {
        chosen
            .iter()
            .for_each(|(bin, test)| println!("{} {test}", bin.package));
        return Ok(true);
    }
    let deadline = Instant::now() + options.budget;
    let mut outcomes = Vec::new();
    for (bin, test) in &chosen {
        let outcome = perform(&workspace, bin, test, deadline)?;
        print!("{}", line(&outcome));
        outcomes.push(outcome);
    }
    let failed = outcomes
        .iter()
        .filter(|o| matches!(o.end, End::Failed(_)))
        .count();
    let left = outcomes.iter().filter(|o| o.end == End::NotRun).count();
    if options.record {
        record(&workspace, &options, &outcomes)?;
    }
    println!(
        "{} passed, {failed} failed, {left} skipped",
        outcomes.len() - failed - left
    );
    Ok(failed == 0)
}

fn options(args: &[String]) -> Result<Options, Failure> {
    let budget = Duration::from_mins(BUDGET_MINUTES);
    let mut options = Options {
        filter: String::new(),
        budget,
        release: false,
        record: false,
        list: false,
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--release" => options.release = true,
            "--record" => options.record = true,
            "--list" => options.list = true,
            "--budget" => {
                let minutes = args.next().and_then(|m| m.parse().ok());
                let minutes = minutes.ok_or_else(|| Failure::new("--budget wants minutes"))?;
                options.budget = Duration::from_mins(minutes);
            }
            flag if flag.starts_with('-') => return Err(Failure::new(format!("usage: {USAGE}"))),
            filter => options.filter = filter.to_owned(),
        }
    }
    Ok(options)
}

fn choose(bins: &[TestBin], filter: &str) -> Result<Vec<(TestBin, String)>, Failure> {
    let mut chosen = Vec::new();
    for bin in bins {
        for test in bin.ignored()? {
            if format!("{} {test}", bin.package).contains(filter) {
                chosen.push((bin.clone(), test));
            }
        }
    }
    Ok(chosen)
}

fn perform(
    workspace: &Workspace,
    bin: &TestBin,
    test: &str,
    deadline: Instant,
) -> Result<Outcome, Failure> {
    let start = Instant::now();
    let left = deadline.saturating_duration_since(start);
    let (package, name) = (bin.package.clone(), test.to_owned());
    if left.is_zero() {
        let (took, results) = (Duration::ZERO, Vec::new());
        return Ok(Outcome {
            package,
            test: name,
            end: End::NotRun,
            took,
            results,
        });
    }
    let log = workspace.target(&format!("soak/{package}-{}.log", test.replace("::", ".")));
    let mut command = bin.command();
    let ran = sh::run(
        command.args([test, "--exact", "--ignored", "--nocapture"]),
        left,
        &log,
    )?;
    let end = match ran.ok() && counts::read(&ran.output).passed == 1 {
        true => End::Passed,
        false => End::Failed(format!("{}; see {}", ran.ending(), log.display())),
    };
    Ok(Outcome {
        package,
        test: name,
        end,
        took: start.elapsed(),
        results: results(&ran.output),
    })
}

/// The result lines of a test's output.
fn results(output: &str) -> Vec<String> {
    // libtest writes `test NAME ... ` without a line break before the first line of the test.
    let found = output
        .lines()
        .filter_map(|line| line.find(RESULT).map(|at| &line[at + RESULT.len()..]));
    found.map(str::to_owned).collect()
}

fn line(outcome: &Outcome) -> String {
    let Outcome {
        package,
        test,
        took,
        ..
    } = outcome;
    let end = match &outcome.end {
        End::Passed => "ok".to_owned(),
        End::Failed(why) => format!("FAILED: {why}"),
        End::NotRun => "not run: the budget was used up".to_owned(),
    };
    let mut text = format!("{package} {test}: {end} ({:.0} s)\n", took.as_secs_f64());
    for result in &outcome.results {
        let _ = writeln!(text, "    {result}");
    }
    text
}

fn record(workspace: &Workspace, options: &Options, outcomes: &[Outcome]) -> Result<(), Failure> {
    let git =
        |args: &[&str]| sh::capture(Command::new("git").current_dir(&workspace.root).args(args));
    let commit = git(&["rev-parse", "--short=10", "HEAD"]).unwrap_or_else(|| "unknown".to_owned());
    let clean = git(&["status", "--porcelain"]).is_some_and(|s| s.is_empty());
    let date = date(SystemTime::now());
    let mut text = format!("# Soak run, {date}\n\n");
    let dirty = if clean {
        ""
    } else {
        ", with uncommitted changes"
    };
    let _ = writeln!(text, "- commit: {commit}{dirty}");
    let _ = writeln!(text, "- machine: {}", machine());
    let profile = if options.release { "release" } else { "dev" };
    let minutes = options.budget.as_secs() / 60;
    let _ = writeln!(text, "- profile: {profile}; budget: {minutes} minutes\n");
    text += "```text\n";
    outcomes.iter().for_each(|outcome| text += &line(outcome));
    text += "```\n";
    let path = workspace
        .root
        .join(format!("benches/records/{date}-soak-{commit}.md"));
    let io = |e: std::io::Error| Failure::io(&path, &e);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(io)?;
    }
    fs::write(&path, text).map_err(io)?;
    println!("recorded in {}", path.display());
    Ok(())
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

    #[test]
    fn options_are_read() {
        let read = |text: &str| options(&text.split(' ').map(str::to_owned).collect::<Vec<_>>());
        let got = read("gguf --budget 5 --record").expect("valid");
        assert_eq!(
            (got.filter.as_str(), got.budget),
            ("gguf", Duration::from_mins(5))
        );
        assert!(got.record && !got.list && !got.release);
        assert!(read("--budget soon").is_err());
        assert!(read("--rebuild").is_err());
    }

    #[test]
    fn result_lines_are_kept() {
        let output = "running 1 test\ntest a::b ... soak: 3 cases\nnoise\nsoak: 4 more\nok\n";
        assert_eq!(results(output), ["3 cases", "4 more"]);
    }
}
