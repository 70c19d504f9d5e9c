//! Writes `docs/switches.md` to standard output.
#![allow(clippy::print_stdout, reason = "that is what it is for")]

fn main() {
    print!("{}", switches::page());
}
