//! The command line: what can be asked for, and how failures are shown.
//!
//! Exit codes: 0 done, 1 failed (one line `error: ...` on standard error), 2 not understood (arguments
//! or switches), 78 a draft worker was required and could not be had.
//! Standard output carries the result alone; everything about it goes to standard error.

mod args;
mod bar;
mod bench;
mod chat;
mod doctor;
mod eval;
mod files;
mod interrupt;
mod loading;
mod make;
mod model;
mod out;
mod run;
mod selftest;
mod serve;
mod switching;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};

/// Runs the program.
#[must_use]
pub fn main() -> ExitCode {
    let args = Args::parse();
    start_log(&args);
    if let Command::Switches(args) = &args.command {
        return switching::list(args);
    }
    if let Err(code) = switching::start() {
        return code;
    }
    let result = match args.command {
        Command::Run(run) => run::run(&run),
        Command::Chat(chat) => chat::chat(&chat),
        Command::Serve(args) => serve::serve(&args),
        Command::Inspect(args) => files::inspect(&args),
        Command::Plan(args) => files::plan(&args),
        Command::Convert(args) => make::convert(&args),
        Command::Quantize(args) => make::quantize(&args),
        Command::Mark(args) => make::mark(&args),
        Command::Eval(command) => eval::eval(&command),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Selftest(args) => selftest::run(&args),
        Command::Switches(_) => Ok(()),
        Command::DraftWorker(args) => {
            fourspark::drafting::worker::run_worker(args.parent).map_err(anyhow::Error::msg)
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if out::is_closed(&error) => ExitCode::SUCCESS,
        Err(error) => {
            out::note(&format!("error: {error:#}"));
            match error.downcast_ref() {
                Some(fourspark::Error::Worker(_)) => ExitCode::from(NO_WORKER),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

/// A configuration that cannot be, as `sysexits.h` numbers it.
const NO_WORKER: u8 = 78;

fn start_log(args: &Args) {
    let filter = tracing_subscriber::EnvFilter::builder().parse_lossy(&args.log);
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
}
