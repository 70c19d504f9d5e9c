//! Writing to the terminal. A reader that goes away (`fourspark run ... | head -1`) ends the program
//! quietly; it is neither a fault nor a panic.

use std::io::{ErrorKind, Write};

use anyhow::Result;

/// Writes to standard output and shows it at once.
///
/// # Errors
/// The output is closed, or cannot be written.
pub(crate) fn write(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Writes a line to standard error. A closed one is nobody's loss.
pub(crate) fn note(line: &str) {
    note_part(&format!("{line}\n"));
}

/// Writes to standard error without ending the line.
pub(crate) fn note_part(text: &str) {
    let mut err = std::io::stderr().lock();
    let _ = err.write_all(text.as_bytes());
    let _ = err.flush();
}

/// Whether a failure only says that nobody reads any more.
pub(crate) fn is_closed(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|e| e.kind() == ErrorKind::BrokenPipe)
    })
}
