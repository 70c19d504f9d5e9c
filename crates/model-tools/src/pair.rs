//! The mark that ties a drafter to the target it was made for.
//!
//! A wrong pair drafts badly, never wrongly; with the mark the engine can say so. Must not know:
//! drafters.

use std::path::Path;

use ds4_target::{GgufSource, Model};
use gguf::{Gguf, OpenOptions, Value};

use crate::error::ToolError;

/// Key in which a drafter's file records its target's fingerprint.
pub const KEY: &str = "fourspark.target_fingerprint";

/// The key and value that mark a drafter as made for the target at `path`: among the extra keys of a
/// conversion or quantisation.
///
/// # Errors
/// `Gguf` or `Load` if the file is no target.
pub fn mark(path: &Path) -> Result<(String, Value), ToolError> {
    let file = Gguf::open(path, &OpenOptions::default())?;
    let model = Model::load(&GgufSource::new(file))?;
    let hex: String = model
        .fingerprint
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    Ok((KEY.to_owned(), hex.into()))
}
