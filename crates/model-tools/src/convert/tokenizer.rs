//! Tokenizer keys from `tokenizer.json` and `tokenizer_config.json`.
//!
//! Must not know: how text is tokenised. The pre-tokenizer is recognised by its patterns, because
//! its name is written into the file and a wrong one changes every number's tokens.

use std::path::Path;

use serde_json::Value;

use super::json::Object;
use super::keys::Keys;
use crate::error::ToolError;

/// Token types of GGUF.
mod kind {
    pub(super) const NORMAL: i32 = 1;
    pub(super) const CONTROL: i32 = 3;
    pub(super) const USER_DEFINED: i32 = 4;
    pub(super) const UNUSED: i32 = 5;
}

/// The name of the pre-tokenizer whose patterns these are (spec/ds4-architecture.md 8.1).
const PRE: &str = "joyai-llm";
const PATTERNS: [&str; 3] = [
    r"\p{N}{1,3}",
    "[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+",
    concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
];

/// Where the two files are.
pub(crate) struct Files<'a> {
    pub(crate) folder: &'a Path,
    /// Name of a pre-tokenizer to write without looking at the patterns.
    pub(crate) pre: Option<&'a str>,
}

/// The tokenizer keys of a model with `n_vocab` rows of embedding.
pub(crate) fn keys(files: &Files<'_>, n_vocab: u32) -> Result<Keys, ToolError> {
    let t = Object::read(&files.folder.join("tokenizer.json"))?;
    let c = Object::read(&files.folder.join("tokenizer_config.json"))?;
    let pre = match files.pre {
        Some(name) => name,
        None => {
            check_pre_tokenizer(&t)?;
            PRE
        }
    };
    let (tokens, types) = vocabulary(&t, n_vocab as usize)?;
    let id_of = |key: &str| special(&c, key, &tokens);
    let (bos, eos, pad) = (
        id_of("bos_token")?,
        id_of("eos_token")?,
        id_of("pad_token")?,
    );
    // Where the model's configuration names ids too, they must be the same.
    let config = Object::read(&files.folder.join("config.json"))?;
    for (key, id) in [("bos_token_id", bos), ("eos_token_id", eos)] {
        if let Some(id) = id {
            config.must(key, &id.into())?;
        }
    }
    let merges = merges(&t)?;
    let mut keys = Keys::new();
    let mut put = |name: &str, value: gguf::Value| {
        keys.push((format!("tokenizer.ggml.{name}"), value));
    };
    put("model", "gpt2".into());
    put("pre", pre.into());
    put("tokens", tokens.into());
    put("token_type", types.into());
    put("merges", merges.into());
    for (name, id) in [("bos", bos), ("eos", eos), ("padding", pad)] {
        if let Some(id) = id {
            put(&format!("{name}_token_id"), id.into());
        }
    }
    if let Some(add) = c.one_of(&["add_bos_token"], "true or false", Value::as_bool)? {
        put("add_bos_token", add.into());
    }
    let template = c.one_of(&["chat_template"], "a string", |v| {
        v.as_str().map(str::to_owned)
    })?;
    if let Some(template) = template {
        keys.push(("tokenizer.chat_template".to_owned(), template.into()));
    }
    Ok(keys)
}

fn check_pre_tokenizer(t: &Object) -> Result<(), ToolError> {
    let key = "pre_tokenizer.pretokenizers";
    let parts = t
        .find(key)
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice);
    let split = |v: &Value| {
        let regex = v.get("pattern")?.get("Regex")?.as_str()?.to_owned();
        (v.get("type")? == "Split" && v.get("behavior")? == "Isolated").then_some(regex)
    };
    let found: Vec<String> = parts.iter().map_while(split).collect();
    let bytes = parts.get(found.len()).and_then(|v| v.get("type"));
    if found == PATTERNS && parts.len() == 4 && bytes.is_some_and(|t| t == "ByteLevel") {
        return Ok(());
    }
    let expected = format!("the three splits of {PRE} and ByteLevel (or a name given by hand)");
    Err(t.bad(key, expected, format!("{found:?} of {} steps", parts.len())))
}

/// Tokens by id, padded with unused ones, and their types.
fn vocabulary(t: &Object, n_vocab: usize) -> Result<(Vec<String>, Vec<i32>), ToolError> {
    if t.find("model.type").is_none_or(|v| v != "BPE") {
        return Err(t.bad(
            "model.type",
            "BPE",
            t.find("model.type").unwrap_or(&Value::Null),
        ));
    }
    let mut slots: Vec<Option<(String, i32)>> = vec![None; n_vocab];
    let mut put = |key: &str, text: &str, id: &Value, kind: i32| {
        let at = id.as_u64().and_then(|id| usize::try_from(id).ok());
        let Some(slot) = at.and_then(|id| slots.get_mut(id)) else {
            return Err(t.bad(
                &format!("{key}.{text}"),
                format!("an id below {n_vocab}"),
                id,
            ));
        };
        match slot {
            Some((other, _)) if other != text => Err(t.bad(
                &format!("{key}.{text}"),
                format!("an id of its own, not {other}'s"),
                id,
            )),
            _ => {
                *slot = Some((text.to_owned(), kind));
                Ok(())
            }
        }
    };
    let vocab = t.find("model.vocab").and_then(Value::as_object);
    for (text, id) in vocab.ok_or_else(|| t.bad("model.vocab", "an object", "something else"))? {
        put("model.vocab", text, id, kind::NORMAL)?;
    }
    for added in t
        .find("added_tokens")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let text = added.get("content").and_then(Value::as_str);
        let text = text.ok_or_else(|| t.bad("added_tokens", "a content each", added))?;
        let special = added
            .get("special")
            .and_then(Value::as_bool)
            .unwrap_or(false);
        let kind = if special {
            kind::CONTROL
        } else {
            kind::USER_DEFINED
        };
        put(
            "added_tokens",
            text,
            added.get("id").unwrap_or(&Value::Null),
            kind,
        )?;
    }
    let pad = |(id, slot): (usize, Option<(String, i32)>)| {
        slot.unwrap_or_else(|| (format!("[PAD{id}]"), kind::UNUSED))
    };
    Ok(slots.into_iter().enumerate().map(pad).unzip())
}

/// Merges as `left right`; files hold pairs or such strings.
fn merges(t: &Object) -> Result<Vec<String>, ToolError> {
    let key = "model.merges";
    let list = t.find(key).and_then(Value::as_array);
    let list = list.ok_or_else(|| t.bad(key, "an array", "something else"))?;
    list.iter()
        .map(|m| {
            let text = match m {
                Value::String(s) => Some(s.clone()),
                Value::Array(pair) => match pair.as_slice() {
                    [Value::String(a), Value::String(b)] => Some(format!("{a} {b}")),
                    _ => None,
                },
                _ => None,
            };
            text.filter(|s| {
                s.split(' ').filter(|p| !p.is_empty()).count() == 2 && s.matches(' ').count() == 1
            })
            .ok_or_else(|| t.bad(key, "pairs without spaces", m))
        })
        .collect()
}

/// The id of a special token named in `tokenizer_config.json`.
fn special(c: &Object, key: &str, tokens: &[String]) -> Result<Option<u32>, ToolError> {
    let text = c.one_of(&[key], "a token", |v| {
        v.as_str()
            .or_else(|| v.get("content")?.as_str())
            .map(str::to_owned)
    })?;
    let Some(text) = text else { return Ok(None) };
    match tokens.iter().position(|t| *t == text) {
        Some(id) => Ok(Some(id as u32)),
        None => Err(c.bad(key, "a token of the vocabulary", text)),
    }
}

/// A vocabulary of numbers, for models that were made without text.
pub(crate) fn numbered(n_vocab: u32) -> Keys {
    let tokens: Vec<String> = (0..n_vocab).map(|i| format!("[{i}]")).collect();
    vec![
        ("tokenizer.ggml.model".into(), "none".into()),
        ("tokenizer.ggml.tokens".into(), tokens.into()),
        (
            "tokenizer.ggml.token_type".into(),
            vec![kind::UNUSED; n_vocab as usize].into(),
        ),
    ]
}
