//! The stage table of `xtask ci`: what is checked, in which order, and when it can be checked.
//!
//! A stage that cannot run here says why; it is then counted and listed as skipped.

use std::path::Path;
use std::process::Command;

use super::counts::Counts;
use crate::failure::Failure;
use crate::sh;
use crate::workspace::Workspace;

/// The feature of `ggml-sys` that compiles ggml; crates above it call theirs `ggml`.
const GGML_BUILD: &str = "build";

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
        what: "the same with the features mutants and host-exec",
        available: |w| some_crate_has(w, &["mutants", "host-exec"]),
        work: Work::Commands(|w| {
            vec![clippy(&[
                "--features",
                &features(w, &["mutants", "host-exec"]),
            ])]
        }),
    },
    Stage {
        name: "tests",
        what: "unit and integration tests of every crate",
        available: always,
        work: Work::Commands(|_| vec![tests(&["--workspace"])]),
    },
    Stage {
        name: "doctests",
        what: "examples in the documentation run",
        available: always,
        work: Work::Commands(|_| {
            vec![cargo(&[
                "test",
                "--color=never",
                "--workspace",
                "--doc",
                "--no-fail-fast",
            ])]
        }),
    },
    Stage {
        name: "claims",
        what: "figures in documents are those of their reports; the rules of reports hold",
        available: always,
        work: Work::Commands(|_| {
            let tool = |args: &[&str]| {
                let mut run = cargo(&[
                    "run",
                    "--quiet",
                    "--color=never",
                    "--package",
                    "qualify",
                    "--",
                ]);
                run.args(args);
                run
            };
            vec![tool(&["render", "--check"]), tool(&["selftest"])]
        }),
    },
    Stage {
        name: "host-exec",
        what: "the kernel sources on the host executor equal the Rust bits",
        available: |w| {
            some_crate_has(w, &["host-exec"])?;
            if sh::has("c++") {
                Ok(())
            } else {
                Err("no C++ compiler (c++)".to_owned())
            }
        },
        work: Work::Commands(|w| vec![feature_tests(w, &["host-exec"])]),
    },
    Stage {
        name: "kernels",
        what: "every kernel source compiles for every GPU, with the figures on file",
        available: crate::kernels::available,
        work: Work::Check(kernels),
    },
    Stage {
        name: "ggml",
        what: "other GGUF types and the ggml oracle",
        available: |w| {
            some_crate_has(w, &["ggml", GGML_BUILD])?;
            if libclang() {
                Ok(())
            } else {
                Err("no libclang for bindgen".to_owned())
            }
        },
        work: Work::Commands(|w| vec![feature_tests(w, &["ggml", GGML_BUILD])]),
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

fn some_crate_has(workspace: &Workspace, any: &[&str]) -> Result<(), String> {
    if any.iter().any(|f| !workspace.with_feature(f).is_empty()) {
        return Ok(());
    }
    Err(format!("no crate has the feature {} yet", any.join(" or ")))
}

/// `a/x,b/x`: the features of the crates that have them.
fn features(workspace: &Workspace, names: &[&str]) -> String {
    let of = |name| {
        workspace
            .with_feature(name)
            .into_iter()
            .map(move |c| format!("{c}/{name}"))
    };
    names
        .iter()
        .copied()
        .flat_map(of)
        .collect::<Vec<_>>()
        .join(",")
}

/// Tests of the crates that have one of the features, with these features.
fn feature_tests(workspace: &Workspace, names: &[&str]) -> Command {
    let list = features(workspace, names);
    let mut args = vec!["--features", list.as_str()];
    let mut packages: Vec<&str> = names
        .iter()
        .flat_map(|f| workspace.with_feature(f))
        .collect();
    packages.sort_unstable();
    packages.dedup();
    packages
        .iter()
        .for_each(|name| args.extend(["--package", name]));
    tests(&args)
}

fn tests(args: &[&str]) -> Command {
    if sh::has("cargo-nextest") {
        let mut run = cargo(&["nextest", "run", "--profile", "ci", "--color=never"]);
        run.arg("--no-tests=pass").args(args);
        return run;
    }
    let mut run = cargo(&[
        "test",
        "--color=never",
        "--no-fail-fast",
        "--lib",
        "--bins",
        "--tests",
    ]);
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

fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new("cargo");
    command.args(args);
    command
}

/// Whether bindgen will find a libclang where it looks by itself on Debian and Ubuntu.
fn libclang() -> bool {
    let in_folder = |folder: &Path| {
        let names = crate::workspace::entries(folder).unwrap_or_default();
        names
            .iter()
            .any(|n| n.starts_with("libclang") && n.contains(".so") && !n.contains("cpp"))
    };
    let llvm = crate::workspace::entries(Path::new("/usr/lib")).unwrap_or_default();
    let versions = llvm.iter().filter(|n| n.starts_with("llvm-"));
    versions
        .map(|n| Path::new("/usr/lib").join(n).join("lib"))
        .any(|f| in_folder(&f))
        || in_folder(Path::new("/usr/lib/x86_64-linux-gnu"))
        || in_folder(Path::new("/usr/lib/aarch64-linux-gnu"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest;
    use crate::workspace::Member;

    fn workspace() -> Workspace {
        let member = |name: &str, features: &str| Member {
            folder: format!("crates/{name}"),
            manifest: manifest::parse(&format!(
                "[package]\nname = \"{name}\"\n[features]\n{features}\n"
            )),
        };
        let crates = vec![
            member("a", "mutants = []\nggml = []"),
            member("b", "mutants = []"),
        ];
        Workspace {
            root: "/nowhere".into(),
            crates,
        }
    }

    #[test]
    fn features_name_only_crates_that_have_them() {
        let w = workspace();
        assert_eq!(
            features(&w, &["mutants", "ggml"]),
            "a/mutants,b/mutants,a/ggml"
        );
        assert!(some_crate_has(&w, &["ggml"]).is_ok());
        let reason = some_crate_has(&w, &["host-exec"]).unwrap_err();
        assert!(reason.contains("host-exec"), "{reason}");
    }

    #[test]
    fn feature_tests_select_their_packages() {
        let command = feature_tests(&workspace(), &["ggml"]);
        let args: Vec<_> = command.get_args().map(|a| a.to_string_lossy()).collect();
        let tail = &args[args.len() - 4..];
        assert_eq!(tail, ["--features", "a/ggml", "--package", "a"]);
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
