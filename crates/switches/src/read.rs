//! The environment, read here and nowhere else (`cargo xtask tidy`, rule `environment`).

#![allow(
    clippy::disallowed_methods,
    reason = "this module is the one reader of the environment"
)]

use crate::parse::{AMBIENT, Effective, Refusal};

/// Variables of a process, names and values as text. A name that is no text is none of ours; a value
/// that is no text is shown with its replacement characters, which no switch admits.
pub fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok()?;
        Some((name, value.to_string_lossy().into_owned()))
    })
}

/// The effective set of this process.
///
/// # Errors
/// Every variable that is refused. `test_build`: whether this build has planted faults and may be
/// told which to show.
pub fn start(test_build: bool) -> Result<Effective, Vec<Refusal>> {
    Effective::of(environment().filter(|(name, _)| !(test_build && name == MUTANT)))
}

/// Read by `engine-core` in builds with the feature `mutants`; refused by every other build.
const MUTANT: &str = "FOURSPARK_MUTANT";

/// What else of the environment can change a measurement without being a switch: loader and
/// allocator settings, visibility of devices, and settings of runtimes and of other engines. For
/// records, which name them; nothing acts on them.
pub fn host_variables() -> impl Iterator<Item = (String, String)> {
    environment().filter(|(name, _)| AMBIENT.iter().any(|p| name.starts_with(p)))
}
