//! Skips that are seen and counted.
//!
//! A test that needs a device or a file asks with [`require!`](crate::require!) or
//! [`require_some!`](crate::require_some!). If it is not there, one line `SKIP <test>: <reason>`
//! goes to standard error past the test harness's capture and to [`skip_log`], which `xtask ci`
//! empties before a run and lists after it. Nothing else may make a test pass without running.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Where skips are recorded, one line each: `target/skips.log` of the workspace.
#[must_use]
pub fn skip_log() -> PathBuf {
    workspace().join("target").join("skips.log")
}

/// The workspace's root.
pub(crate) fn workspace() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here)
}

/// The line for a skip. `test` is the path of an item inside the test function.
#[must_use]
pub fn skip_line(test: &str, reason: &str) -> String {
    let test = test.strip_suffix("::__here").unwrap_or(test);
    // One skip is one line, whatever the reason holds.
    let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("SKIP {test}: {reason}")
}

/// Reports a skip. Called by the macros.
pub fn skip(test: &str, reason: &str) {
    let (log, line) = (skip_log(), skip_line(test, reason));
    // Not eprintln: the harness would swallow it in a test that passes.
    let mut stderr = std::io::stderr().lock();
    let _ = writeln!(stderr, "{line}");
    if let Err(e) = append(&log, &line) {
        // A lost skip would be a lie.
        let _ = writeln!(stderr, "SKIP not recorded in {}: {e}", log.display());
    }
}

/// Appends in one write, so that tests running side by side do not mix their lines.
fn append(log: &Path, line: &str) -> std::io::Result<()> {
    log.parent().map_or(Ok(()), std::fs::create_dir_all)?;
    let mut file = OpenOptions::new().create(true).append(true).open(log)?;
    file.write_all(format!("{line}\n").as_bytes())
}

/// Returns from the test, visibly, unless the condition holds.
///
/// `require!(path.exists(), "no model at {}", path.display());`
#[macro_export]
macro_rules! require {
    ($cond:expr, $($reason:tt)+) => {
        if !$cond {
            fn __here() {}
            let test = ::std::any::type_name_of_val(&__here);
            $crate::require::skip(test, &::std::format!($($reason)+));
            return;
        }
    };
}

/// The value of an `Option`; without one, returns from the test, visibly.
///
/// `let dir = require_some!(tiny_dir(), "no checkpoint of the small model");`
#[macro_export]
macro_rules! require_some {
    ($value:expr, $($reason:tt)+) => {
        match $value {
            ::std::option::Option::Some(value) => value,
            ::std::option::Option::None => {
                $crate::require!(false, $($reason)+);
                // Not reached: `require!` has returned.
                return;
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::{append, skip_line, skip_log};

    #[test]
    fn a_skip_names_its_test_and_stays_on_one_line() {
        let line = skip_line("a::b::test_one::__here", "no GPU:\n driver\tmissing");
        assert_eq!(line, "SKIP a::b::test_one: no GPU: driver missing");
    }

    #[test]
    fn lines_are_appended() {
        let dir = std::env::temp_dir().join(format!("testkit-skips-{}", std::process::id()));
        let log = dir.join("deep").join("skips.log");
        append(&log, "SKIP a: b").unwrap();
        append(&log, "SKIP c: d").unwrap();
        assert_eq!(
            std::fs::read_to_string(&log).unwrap(),
            "SKIP a: b\nSKIP c: d\n"
        );
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn the_log_lies_in_the_target_directory() {
        let log = skip_log();
        assert!(log.ends_with("target/skips.log"));
        let root = log.ancestors().nth(2).unwrap();
        assert!(root.join("Cargo.toml").exists() && root.join("crates/testkit").exists());
    }

    #[test]
    fn what_is_there_does_not_skip() {
        let after = Cell::new(0);
        let body = |value: Option<i32>| {
            require!(value != Some(0), "never in this test");
            let value = require_some!(value, "never in this test");
            after.set(value);
        };
        body(Some(7));
        assert_eq!(after.get(), 7);
    }
}
