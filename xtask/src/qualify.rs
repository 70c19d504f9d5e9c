//! `xtask qualify`: builds the crate `qualify`, and for comparisons and packs the binary they run, and hands over.
//!
//! Apart from this tool because it loads the model: this tool must work when the product does not
//! compile.

use std::process::Command;

use crate::failure::Failure;
use crate::workspace::Workspace;

/// What is built for these words, before the tool starts.
fn packages(args: &[String]) -> &'static [&'static str] {
    let runs = args.first().is_some_and(|verb| verb == "run");
    let gate = args.iter().any(|word| word == "one-result");
    let own = args.iter().any(|word| word == "--binary");
    let packs = args.first().is_some_and(|verb| verb == "pack");
    if packs || (runs && !gate && !own) {
        &["--package", "qualify", "--package", "server"]
    } else {
        &["--package", "qualify"]
    }
}

/// Entry of the verb.
///
/// # Errors
/// Cargo cannot be started.
pub(crate) fn run(args: &[String]) -> Result<bool, Failure> {
    let workspace = Workspace::open()?;
    let status = |command: &mut Command| {
        let status = command.current_dir(&workspace.root).status();
        status.map_err(|e| Failure::new(format!("cannot start: {e}")))
    };
    let mut build = Command::new("cargo");
    build.args(["build", "--release", "--quiet"]);
    if !status(build.args(packages(args)))?.success() {
        return Ok(false);
    }
    let mut tool = Command::new(workspace.target("release/qualify"));
    let status = status(tool.args(args))?;
    // The codes mean something: 2 refused, 3 unqualified.
    match status.code() {
        Some(0) => Ok(true),
        Some(code @ 2..) => std::process::exit(code),
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::packages;

    #[test]
    fn the_binary_is_built_for_comparisons_and_packs_only() {
        let of = |words: &str| {
            let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
            packages(&words).contains(&"server")
        };
        assert!(of("run --profile cpu-smoke"));
        assert!(!of("run --profile one-result"));
        assert!(!of("run --profile cpu-smoke --binary x"));
        assert!(!of("verify a.json"));
        assert!(of("pack folder"));
        assert!(!of("plan"));
    }
}
