//! The mark that ties a drafter to the target it was made for.
//!
//! A wrong pair drafts badly, never wrongly; with the mark the engine can say so. Must not know:
//! drafters.

use std::path::Path;

use ds4_target::fingerprint::to_mark;
use ds4_target::{GgufSource, Model};
use gguf::{Gguf, GgufBuilder, OpenOptions, Value, Written};

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
    Ok((KEY.to_owned(), to_mark(&model.fingerprint).into()))
}

/// Writes the drafter at `drafter` to `output`, marked as made for the target at `target`. Everything
/// else stays byte for byte.
///
/// # Errors
/// As [`mark`]; `Key` if the first file is no drafter; `Gguf` if the output cannot be written. Nothing is
/// left at `output` then.
pub fn remark(drafter: &Path, target: &Path, output: &Path) -> Result<Written, ToolError> {
    let file = Gguf::open(drafter, &OpenOptions::default())?;
    let key = "general.architecture";
    let arch = file.metadata().find_str(key)?.unwrap_or("nothing");
    if !ARCHITECTURES.contains(&arch) {
        return Err(ToolError::Key {
            path: drafter.to_path_buf(),
            key: key.to_owned(),
            expected: format!("a drafter ({})", ARCHITECTURES.join(" or ")),
            got: arch.to_owned(),
        });
    }
    let (key, value) = mark(target)?;
    let mut builder = GgufBuilder::new();
    builder.set_all(file.metadata())?.set(&key, value)?;
    for t in file.tensors() {
        builder.tensor(&t.name, &t.shape, t.format)?;
    }
    let mut writer = builder.create(output)?;
    for t in file.tensors() {
        writer.write(&t.name, file.bytes(t))?;
    }
    Ok(writer.finish()?)
}

/// Architectures of the two forms of a drafter.
const ARCHITECTURES: [&str; 2] = ["deepseek4-dflash-draft", "dflash"];
