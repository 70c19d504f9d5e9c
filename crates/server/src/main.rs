//! The `fourspark` program. Everything is in the library beside it.

use std::process::ExitCode;

fn main() -> ExitCode {
    server::cli::main()
}
