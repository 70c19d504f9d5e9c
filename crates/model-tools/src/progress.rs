//! How long work tells its caller where it stands, and is told to stop.

use crate::error::ToolError;

/// Receives progress. All methods have empty bodies, so that `&mut ()` is a silent one.
pub trait Progress {
    /// A stage begins: its name, and how many items and bytes it will handle.
    fn begin(&mut self, _stage: &'static str, _items: u64, _bytes: u64) {}

    /// An item is done: its name and bytes. Returning `false` stops the work; nothing is kept.
    fn done(&mut self, _item: &str, _bytes: u64) -> bool {
        true
    }
}

impl Progress for () {}

/// Reports an item, turning a refusal into an error.
pub(crate) fn done(progress: &mut dyn Progress, item: &str, bytes: u64) -> Result<(), ToolError> {
    if progress.done(item, bytes) {
        Ok(())
    } else {
        Err(ToolError::Stopped)
    }
}
