//! Parts of the command line: what it says, its options, the tree or the pack it speaks for, the identity gate.

pub(crate) mod gate;
pub(crate) mod options;
pub(crate) mod place;

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// What went wrong, and the exit code.
pub(crate) struct Stop(pub(crate) u8, pub(crate) String);

impl From<String> for Stop {
    fn from(why: String) -> Self {
        Self(1, why)
    }
}

pub(crate) fn refuse(why: impl Into<String>) -> Stop {
    Stop(2, why.into())
}

/// Writes to standard output. A reader that has gone (`plan | head -1`) ends nothing: reports are
/// written and exit codes stand whether somebody reads or not.
pub(crate) fn say(text: &str) -> Result<(), Stop> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(Stop(1, format!("output: {e}"))),
        _ => Ok(()),
    }
}

/// Writes a line to standard error; a closed one is nobody's loss.
pub(crate) fn note(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Writes a file of a report; its path.
pub(crate) fn write(out: &Path, id: &str, end: &str, text: &str) -> Result<PathBuf, Stop> {
    let path = out.join(format!("{id}.{end}"));
    fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(path)
}

/// A line of what `say` writes.
macro_rules! line {
    ($($part:tt)*) => {
        $crate::cli::say(&format!("{}\n", format_args!($($part)*)))
    };
}
pub(crate) use line;
