//! The one error of this tool. A developer reads it on a terminal and nothing matches on it, so a
//! sentence that names the thing and the reason is all it carries.

use std::fmt;
use std::path::Path;

/// Why a verb did not succeed.
#[derive(Debug)]
pub(crate) struct Failure(String);

impl Failure {
    /// A failure with this sentence.
    pub(crate) fn new(sentence: impl Into<String>) -> Self {
        Self(sentence.into())
    }

    /// A file operation that the system refused.
    pub(crate) fn io(path: &Path, error: &std::io::Error) -> Self {
        Self(format!("{}: {error}", path.display()))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Failure {}
