//! The tool as a process: exit codes, and readers that leave.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

fn tool(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_qualify"));
    command.args(args).stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Output {
    tool(args).output().unwrap()
}

fn said(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// `plan | head -1`: the reader takes a line and goes.
#[test]
fn a_reader_that_leaves_ends_nothing() {
    for args in [&["plan"][..], &["selftest"]] {
        let mut child = tool(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        if args == ["plan"] {
            let mut first = String::new();
            lines.read_line(&mut first).unwrap();
            assert!(first.starts_with("one-result [Tiny]: "), "{first}");
        }
        drop(lines);
        let output = child.wait_with_output().unwrap();
        assert_eq!(said(&output.stderr), "", "{args:?}");
        assert_eq!(output.status.code(), Some(0), "{args:?}");
    }
}

/// C-40: without the hardware, `plan` says what is missing, `selftest` holds, and `run` gives a report that is
/// unqualified, with the exit code that says so.
#[test]
fn c_40_without_a_gpu_the_tool_plans_and_refuses_with_its_code() {
    let plan = run(&["plan", "--profile", "mixed"]);
    assert_eq!(plan.status.code(), Some(0));
    assert!(said(&plan.stdout).contains("missing: NoGpu: "));
    let selftest = run(&["selftest"]);
    assert_eq!(selftest.status.code(), Some(0));
    let out = tempfile::tempdir().unwrap();
    let out = out.path().to_str().unwrap();
    // Any file will do: nothing is run.
    let own = env!("CARGO_BIN_EXE_qualify");
    let run_it = ["run", "--profile", "mixed", "--binary", own, "--out", out];
    let report = run(&run_it);
    assert_eq!(report.status.code(), Some(3), "{}", said(&report.stderr));
    let text = said(&report.stdout);
    assert!(
        text.contains("UNQUALIFIED(") && text.contains("NoGpu"),
        "{text}"
    );
    let path = text.lines().last().unwrap();
    let verified = run(&["verify", path]);
    assert_eq!(
        verified.status.code(),
        Some(0),
        "{}",
        said(&verified.stderr)
    );
    assert!(said(&verified.stdout).ends_with("verified, unqualified\n"));
}

/// C-28: variables that could have been meant for this engine or the one it replaces are recorded by name, and
/// disqualify; others do not.
#[test]
fn c_28_the_callers_variables_are_recorded_and_disqualify() {
    let out = tempfile::tempdir().unwrap();
    let own = env!("CARGO_BIN_EXE_qualify");
    let mut command = tool(&["run", "--profile", "mixed", "--binary", own, "--out"]);
    let names = ["FPX_A", "DFLASH_B", "LUCE_C", "GGML_D", "FOURSPARK_E"];
    let output = command
        .arg(out.path())
        .envs(names.map(|n| (n, "1")))
        .env("EDITOR", "ed")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3));
    let text = said(&output.stdout);
    assert!(
        text.contains("UNQUALIFIED(") && text.contains("EnvNotClean"),
        "{text}"
    );
    let path = text.lines().last().unwrap();
    let report = std::fs::read_to_string(path).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let mut recorded: Vec<&str> = report["caller_env"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pair| pair[0].as_str().unwrap())
        .collect();
    recorded.sort_unstable();
    let mut expected = names.to_vec();
    expected.sort_unstable();
    assert_eq!(recorded, expected);
}

#[test]
fn what_is_not_understood_is_refused() {
    for args in [
        &[][..],
        &["fly"],
        &["run"],
        &["run", "--profile", "fast"],
        &["plan", "--profile", "fast"],
        &["run", "--profile", "one-result", "--smal"],
        &["run", "--profile", "one-result", "--device", "gpu"],
        &["run", "--profile", "one-result", "--device"],
        &[
            "run",
            "--profile",
            "one-result",
            "--device",
            "hip:0",
            "--hip",
            "/nowhere/lib.so",
        ],
        &["run", "--profile", "one-result", "--packed", "/nowhere"],
        &["verify"],
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(output.stdout.is_empty() && !output.stderr.is_empty());
    }
}
