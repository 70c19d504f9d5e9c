//! Sixty short prompts of four kinds, as tokens of the shipped model: what speculation is tested and
//! measured on. Where they come from: `data/prompts/README.md`.

use std::path::PathBuf;

use crate::Error;
use crate::files::read_json;

/// A prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// `question`, `arithmetic`, `prose` or `copying`.
    pub kind: String,
    /// Whether the text is a user's message; if not it is continued as it is.
    pub chat: bool,
    /// The text.
    pub text: String,
    /// Its tokens with everything around it.
    pub ids: Vec<u32>,
}

/// The kinds, in the order of the file.
pub const KINDS: [&str; 4] = ["question", "arithmetic", "prose", "copying"];

/// The file.
#[must_use]
pub fn path() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("data/prompts/prompts.json")
}

/// All prompts, 15 of each kind, kind by kind.
///
/// # Errors
/// `Io`, `Json`; `Config` for an entry that lacks a field.
pub fn prompts() -> Result<Vec<Prompt>, Error> {
    let json = read_json(&path())?;
    let list = json.as_array().map_or(&[][..], Vec::as_slice);
    list.iter().map(entry).collect()
}

fn entry(value: &serde_json::Value) -> Result<Prompt, Error> {
    let bad = |key: &'static str| Error::Config {
        key,
        why: "absent or of another type".to_owned(),
    };
    let text = |key: &'static str| {
        let found = value.get(key).and_then(|v| v.as_str());
        found.map(str::to_owned).ok_or_else(|| bad(key))
    };
    let ids = value.get("ids").and_then(|v| v.as_array());
    let ids = ids.ok_or_else(|| bad("ids"))?.iter();
    let id = |v: &serde_json::Value| v.as_u64().and_then(|v| u32::try_from(v).ok());
    Ok(Prompt {
        kind: text("kind")?,
        chat: value
            .get("chat")
            .and_then(serde_json::Value::as_bool)
            .ok_or_else(|| bad("chat"))?,
        text: text("text")?,
        ids: ids
            .map(|v| id(v).ok_or_else(|| bad("ids")))
            .collect::<Result<_, _>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_fifteen_of_each_kind_all_different() {
        let all = prompts().unwrap();
        assert_eq!(all.len(), 60);
        for (chunk, kind) in all.chunks(15).zip(KINDS) {
            assert!(chunk.iter().all(|p| p.kind == kind));
        }
        let mut texts: Vec<_> = all.iter().map(|p| &p.text).collect();
        texts.sort();
        texts.dedup();
        assert_eq!(texts.len(), 60);
        assert!(all.iter().all(|p| p.ids.len() > 3), "ids are there");
    }
}
