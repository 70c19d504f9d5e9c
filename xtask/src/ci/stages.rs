//! The stage table of `xtask ci`: what is checked, in which order, and when it can be checked.
//!
//! A stage that cannot run here says why; it is then counted and listed as skipped.

use std::process::Command;

use super::counts::Counts;
use super::features::{features, ggml, host_exec, some_crate_has, strings, with_features};
use crate::failure::Failure;
use crate::sh::{self, cargo};
use crate::workspace::Workspace;

/// The log of the stage `tests`, removed when a run begins.
pub(crate) const TESTS_LOG: &str = "ci/tests-0.log";

/// Without examples, which have no tests: clippy compiles them, and nothing need link them.
const ALL_TESTS: &[&str] = &["--workspace", "--lib", "--bins", "--tests"];

/// What a stage does.
pub(crate) enum Work {
    /// Commands, all of which must end with status 0. Test summaries in their output are counted.
    Commands(fn(&Workspace) -> Vec<Command>),
    /// A check of this tool.
    Check(fn(&Workspace) -> Report),
}

/// Outcome of a stage.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) ok: bool,
    pub(crate) counts: Counts,
    /// Printed as it stands when the check fails.
    pub(crate) text: String,
    /// One line for the table.
    pub(crate) note: String,
    /// Slow tests: seconds and name.
    pub(crate) slow: Vec<(f64, String)>,
}

/// A row of the table.
pub(crate) struct Stage {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    /// `Err` holds the reason why the stage cannot run here.
    pub(crate) available: fn(&Workspace) -> Result<(), String>,
    pub(crate) work: Work,
}

/// All stages, cheap ones first.
pub(crate) const STAGES: &[Stage] = &[
    Stage {
        name: "tidy",
        what: "layers, versions, sizes, wording: the rules no compiler checks",
        available: always,
        work: Work::Check(tidy),
    },
    Stage {
        name: "vectors",
        what: "golden data has the listed sums",
        available: always,
        work: Work::Check(vectors),
    },
    Stage {
        name: "fmt",
        what: "rustfmt finds nothing to change",
        available: always,
        work: Work::Commands(|_| vec![cargo(&["fmt", "--all", "--check", "--", "--color=never"])]),
    },
    Stage {
        name: "clippy",
        what: "no warning in any target",
        available: always,
        work: Work::Commands(|_| vec![clippy(&[])]),
    },
    Stage {
        name: "clippy-features",
        what: "the same with the features mutants, host-exec and m0",
        available: |w| some_crate_has(w, &["mutants", "host-exec", "m0"]),
        work: Work::Commands(|w| {
            vec![clippy(&[
                "--features",
                &features(w, &["mutants", "host-exec", "m0"]),
            ])]
        }),
    },
    Stage {
        name: "tests",
        what: "unit and integration tests of every crate, with the features that can be built here",
        available: always,
        work: Work::Commands(|w| vec![tests(&with_features(w, ALL_TESTS))]),
    },
    Stage {
        name: "host-exec",
        what: "in `tests`: the kernel sources on the host executor equal the Rust bits",
        available: host_exec,
        work: Work::Check(|w| part_of_tests(w, "host_exec")),
    },
    Stage {
        name: "ggml",
        what: "in `tests`: other GGUF types and the ggml oracle",
        available: ggml,
        work: Work::Check(|w| part_of_tests(w, "ggml")),
    },
    Stage {
        name: "no-features",
        what: "what is said where a feature is missing",
        available: always,
        work: Work::Commands(|_| vec![tests(&strings(&["--package", "gguf", "--lib"]))]),
    },
    Stage {
        name: "doctests",
        what: "examples in the documentation run",
        available: always,
        work: Work::Commands(|w| {
            let mut run = cargo(&["test", "--color=never", "--doc", "--no-fail-fast"]);
            run.args(with_features(w, &["--workspace"]));
            vec![run]
        }),
    },
    Stage {
        name: "claims",
        what: "figures in documents are those of their reports; the rules of reports hold",
        available: always,
        work: Work::Commands(claims),
    },
    Stage {
        name: "kernels",
        what: "every kernel source compiles for every GPU, with the figures on file",
        available: crate::kernels::available,
        work: Work::Check(kernels),
    },
    Stage {
        name: "docs",
        what: "documentation builds without a warning",
        available: always,
        work: Work::Commands(|_| {
            let mut doc = cargo(&[
                "doc",
                "--color=never",
                "--keep-going",
                "--workspace",
                "--no-deps",
            ]);
            doc.env("RUSTDOCFLAGS", "-D warnings");
            vec![doc]
        }),
    },
];

fn always(_: &Workspace) -> Result<(), String> {
    Ok(())
}

fn tidy(workspace: &Workspace) -> Report {
    checked(crate::tidy::examine(workspace).map(|o| {
        let count: usize = o.unsafety.values().sum();
        let note = format!("{}, {count} unsafe, {} findings", o.note, o.findings.len());
        (o.findings, note)
    }))
}

fn vectors(workspace: &Workspace) -> Report {
    checked(crate::vectors::examine(workspace))
}

fn kernels(workspace: &Workspace) -> Report {
    let built = crate::kernels::build(workspace);
    checked(built.map(|b| ([b.errors, b.differences].concat(), b.note)))
}

/// A check of this tool as a report: what it objects to, and its note.
fn checked(outcome: Result<(Vec<String>, String), Failure>) -> Report {
    let (said, note) = outcome.unwrap_or_else(|e| (vec![e.to_string()], String::new()));
    let text = said.join("\n");
    Report {
        ok: said.is_empty(),
        text,
        note,
        ..Report::default()
    }
}

/// The row of a feature whose tests are part of the stage `tests`: whether the test file `file` ran there, by
/// the log of this run.
fn part_of_tests(workspace: &Workspace, file: &str) -> Report {
    let log = std::fs::read_to_string(workspace.target(TESTS_LOG)).unwrap_or_default();
    ran_in(&log, file)
}

fn ran_in(log: &str, file: &str) -> Report {
    // nextest: `crate::file test`; cargo: `Running tests/file.rs`.
    let names = [format!("::{file} "), format!("tests/{file}.rs")];
    let ok = names.iter().any(|name| log.contains(name));
    Report {
        ok,
        note: if ok {
            "ran in `tests`".to_owned()
        } else {
            String::new()
        },
        text: format!("no test of {file} ran in the stage `tests` of this run"),
        ..Report::default()
    }
}

/// The tool is the binary that the tests have built: built alone, without what tests depend on, it and most of
/// the workspace would be compiled with other features once more.
fn claims(workspace: &Workspace) -> Vec<Command> {
    let mut build = cargo(&["test", "--no-run", "--quiet", "--color=never"]);
    build.args(with_features(workspace, ALL_TESTS));
    let tool = |args: &[&str]| {
        let mut run = Command::new(workspace.target("debug/qualify"));
        run.args(args);
        run
    };
    vec![build, tool(&["render", "--check"]), tool(&["selftest"])]
}

fn tests(args: &[String]) -> Command {
    if sh::has("cargo-nextest") {
        let mut run = cargo(&["nextest", "run", "--profile", "ci", "--color=never"]);
        run.arg("--no-tests=pass").args(args);
        return run;
    }
    let mut run = cargo(&["test", "--color=never", "--no-fail-fast"]);
    run.args(args);
    run
}

fn clippy(args: &[&str]) -> Command {
    let mut run = cargo(&[
        "clippy",
        "--color=never",
        "--keep-going",
        "--workspace",
        "--all-targets",
    ]);
    run.args(args).args(["--", "-D", "warnings"]);
    run
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feature_s_row_needs_its_tests_in_the_log() {
        let nextest = "PASS [ 0.9s] (3/9) ds4-kernels::host_exec norms_equal_the_reference";
        let cargo = "     Running tests/host_exec.rs (target/debug/deps/host_exec-12ab)";
        assert!(ran_in(nextest, "host_exec").ok && ran_in(cargo, "host_exec").ok);
        let other = "PASS [ 0.9s] (3/9) ds4-kernels::executor host_exec_is_fair";
        assert!(!ran_in(other, "host_exec").ok && !ran_in("", "ggml").ok);
    }

    #[test]
    fn names_are_unique() {
        for (i, stage) in STAGES.iter().enumerate() {
            assert!(
                STAGES[..i].iter().all(|s| s.name != stage.name),
                "{}",
                stage.name
            );
        }
    }
}
