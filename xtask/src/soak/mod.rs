//! `xtask soak`: the tests too long for CI, within a budget of time.
//!
//! A soak test is an ordinary test marked `#[ignore = "soak: REASON"]`. Each runs in a process of
//! its own; lines it prints that start with `soak: ` are its results. With `--record` they go into a
//! dated page under `benches/records/`, together with the machine and the commit.
//!
//! `--pack FOLDER` writes the test binaries and this tool into a folder instead, for a machine without a
//! toolchain that has the checkout at the same path; there `FOLDER/xtask soak --packed FOLDER` runs them.

mod pack;
mod record;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::ci::counts;
use crate::failure::Failure;
use crate::parallel;
use crate::sh;
use crate::testbins::{self, TestBin};
use crate::workspace::Workspace;

const USAGE: &str = "soak [FILTER] [--budget MINUTES] [--jobs N] [--release] [--record] [--list] \
                     [--pack FOLDER | --packed FOLDER]";
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
    /// Tests at a time. A test that shares its work out among the processors wants to be alone.
    jobs: usize,
    /// Where to put the binaries instead of running them.
    pack: Option<PathBuf>,
    /// Where packed binaries are.
    packed: Option<PathBuf>,
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
    let (bins, commit) = binaries(&workspace, &options)?;
    let chosen = choose(&bins, &options.filter)?;
    if options.list {
        chosen
            .iter()
            .for_each(|(bin, test)| println!("{} {test}", bin.package));
        return Ok(true);
    }
    if let Some(folder) = &options.pack {
        pack::write(&workspace, folder, &chosen, &commit)?;
        return Ok(true);
    }
    let deadline = Instant::now() + options.budget;
    let outcomes = parallel::map_by(options.jobs, &chosen, |(bin, test)| {
        let outcome = perform(&workspace, bin, test, deadline)?;
        print!("{}", line(&outcome));
        Ok(outcome)
    });
    let outcomes = outcomes.into_iter().collect::<Result<Vec<_>, Failure>>()?;
    if options.record {
        let path = record::write(&workspace, &options, &commit, &outcomes)?;
        println!("recorded in {}", path.display());
    }
    Ok(summary(&outcomes))
}

/// The test binaries, built or packed, and the commit they were built from.
fn binaries(workspace: &Workspace, options: &Options) -> Result<(Vec<TestBin>, String), Failure> {
    if let Some(folder) = &options.packed {
        return pack::read(workspace, folder);
    }
    let mut build = vec!["--workspace"];
    if options.release {
        build.push("--release");
    }
    Ok((
        testbins::build(workspace, &build)?,
        record::commit(workspace),
    ))
}

/// Prints how many ended how; whether none failed.
fn summary(outcomes: &[Outcome]) -> bool {
    let count = |is: fn(&End) -> bool| outcomes.iter().filter(|o| is(&o.end)).count();
    let (failed, left) = (
        count(|e| matches!(e, End::Failed(_))),
        count(|e| *e == End::NotRun),
    );
    println!(
        "{} passed, {failed} failed, {left} skipped",
        outcomes.len() - failed - left
    );
    failed == 0
}

fn options(args: &[String]) -> Result<Options, Failure> {
    let budget = Duration::from_mins(BUDGET_MINUTES);
    let mut options = Options {
        filter: String::new(),
        budget,
        release: false,
        record: false,
        list: false,
        jobs: 1,
        pack: None,
        packed: None,
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--release" => options.release = true,
            "--record" => options.record = true,
            "--list" => options.list = true,
            "--budget" => options.budget = Duration::from_mins(number(arg, args.next())?),
            "--jobs" => options.jobs = number(arg, args.next())?.max(1) as usize,
            "--pack" => options.pack = Some(folder(arg, args.next())?),
            "--packed" => options.packed = Some(folder(arg, args.next())?),
            flag if flag.starts_with('-') => return Err(Failure::new(format!("usage: {USAGE}"))),
            filter => options.filter = filter.to_owned(),
        }
    }
    Ok(options)
}

fn number(option: &str, value: Option<&String>) -> Result<u64, Failure> {
    let value = value.and_then(|v| v.parse().ok());
    value.ok_or_else(|| Failure::new(format!("{option} wants a number")))
}

fn folder(option: &str, value: Option<&String>) -> Result<PathBuf, Failure> {
    let value = value.filter(|v| !v.starts_with('-'));
    let value = value.ok_or_else(|| Failure::new(format!("{option} wants a folder")))?;
    Ok(PathBuf::from(value))
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

#[cfg(test)]
mod tests {
    use super::*;

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
        let got = read("--jobs 3 --packed packed");
        let got = got.expect("valid");
        assert_eq!((got.jobs, got.packed), (3, Some("packed".into())));
        assert!(read("--pack --list").is_err());
        assert!(read("--rebuild").is_err());
    }

    #[test]
    fn result_lines_are_kept() {
        let output = "running 1 test\ntest a::b ... soak: 3 cases\nnoise\nsoak: 4 more\nok\n";
        assert_eq!(results(output), ["3 cases", "4 more"]);
    }
}
