//! `cargo xtask`: the developer front door. One verb a task, nothing to install beyond the
//! toolchain.
//!
//! A separate crate because it must work when the product does not compile: it depends on no
//! product crate, and on no crate at all, so that it builds in seconds on a fresh machine.

#![forbid(unsafe_code)]
#![allow(
    clippy::print_stdout,
    reason = "a command-line tool speaks on standard output"
)]

mod ci;
mod failure;
mod kernels;
mod manifest;
mod mutants;
mod parallel;
mod qualify;
mod sh;
mod sha256;
mod skips;
mod soak;
mod testbins;
mod tidy;
mod vectors;
mod workspace;

use std::process::ExitCode;

use failure::Failure;

/// Runs a verb with its options. `Ok(false)`: it has printed why it failed.
type Run = fn(&[String]) -> Result<bool, Failure>;

/// The verbs: name, what it does, function.
const VERBS: &[(&str, &str, Run)] = &[
    (
        "ci",
        "everything CI checks; --list shows the stages, --only A,B runs some",
        ci::run,
    ),
    ("tidy", "the rules that no compiler checks", tidy::run),
    (
        "mutants",
        "plants the faults of docs/traps.md; a test must notice each",
        mutants::run,
    ),
    (
        "soak",
        "the long tests: [FILTER] [--budget MINUTES] [--record] [--list]",
        soak::run,
    ),
    (
        "qualify",
        "what may be claimed: plan, run --profile P, verify, render, diff, selftest",
        qualify::run,
    ),
    (
        "kernels",
        "GPU images with clang; --bless: write their figures anew",
        kernels::run,
    ),
    (
        "vectors",
        "check: golden data is unchanged; bless FOLDER: list it anew",
        vectors::run,
    ),
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let given = args.first().map(String::as_str);
    let Some((name, _, run)) = VERBS.iter().find(|(name, ..)| Some(*name) == given) else {
        return usage(given);
    };
    match run(&args[1..]) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("xtask {name}: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn usage(given: Option<&str>) -> ExitCode {
    println!("cargo xtask <verb> [options]\n");
    for (name, what, _) in VERBS {
        println!("  {name:<10} {what}");
    }
    match given {
        None | Some("help" | "--help" | "-h") => ExitCode::SUCCESS,
        Some(other) => {
            eprintln!("\nxtask: no verb `{other}`");
            ExitCode::from(2)
        }
    }
}
