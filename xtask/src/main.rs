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
mod manifest;
mod sh;
mod skips;
mod tidy;
mod workspace;

use std::process::ExitCode;

use failure::Failure;

/// One verb of the command line.
struct Verb {
    name: &'static str,
    what: &'static str,
    /// `false`: it has printed why it failed.
    run: fn(&[String]) -> Result<bool, Failure>,
}

const VERBS: &[Verb] = &[
    Verb {
        name: "ci",
        what: "everything CI checks; --list shows the stages, --only a,b runs some of them",
        run: ci::run,
    },
    Verb {
        name: "tidy",
        what: "the rules no compiler checks",
        run: tidy::run,
    },
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some(verb) = args
        .first()
        .and_then(|name| VERBS.iter().find(|v| v.name == name))
    else {
        return usage(args.first().map(String::as_str));
    };
    match (verb.run)(&args[1..]) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("xtask {}: {failure}", verb.name);
            ExitCode::FAILURE
        }
    }
}

fn usage(given: Option<&str>) -> ExitCode {
    println!("cargo xtask <verb> [options]\n");
    for verb in VERBS {
        println!("  {:<10} {}", verb.name, verb.what);
    }
    match given {
        None | Some("help" | "--help" | "-h") => ExitCode::SUCCESS,
        Some(other) => {
            eprintln!("\nxtask: no verb `{other}`");
            ExitCode::from(2)
        }
    }
}
