//! A tag's inside, from after the marker to before `>`.

/// Longest tag read; longer ones are malformed.
pub(super) const MAX_LEN: usize = 4096;

/// A tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Tag {
    OpenBlock,
    CloseBlock,
    OpenInvoke(Result<String, Malformed>),
    CloseInvoke,
    OpenParameter(Result<Parameter, Malformed>),
    CloseParameter,
    Unknown,
}

/// Attributes are missing, repeated, or not `key="value"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parameter {
    pub(super) name: String,
    /// Whether the value is text rather than JSON. Text when the tag does not say.
    pub(super) is_text: bool,
    /// Whether the tag closes itself.
    pub(super) is_empty: bool,
}

/// Reads a tag.
pub(super) fn read(inside: &str, closing: bool) -> Tag {
    let inside = inside.trim_start_matches(super::lead::is_bar).trim();
    let end = inside
        .find(|c: char| !(c.is_ascii_alphabetic() || c == '_'))
        .unwrap_or(inside.len());
    let (name, rest) = inside.split_at(end);
    match (name, closing) {
        // `function_calls` is the block's name in the format before this one.
        ("tool_calls" | "function_calls", false) => Tag::OpenBlock,
        ("tool_calls" | "function_calls", true) => Tag::CloseBlock,
        ("invoke", false) => Tag::OpenInvoke(invoke(rest)),
        ("invoke", true) => Tag::CloseInvoke,
        ("parameter", false) => Tag::OpenParameter(parameter(rest)),
        ("parameter", true) => Tag::CloseParameter,
        _ => Tag::Unknown,
    }
}

/// Whether a tag cut off here may have been one of the format's.
pub(super) fn may_become_known(inside: &str) -> bool {
    let name = inside.trim_start_matches(super::lead::is_bar).trim_start();
    let name = name
        .split(|c: char| !(c.is_ascii_alphabetic() || c == '_'))
        .next();
    ["tool_calls", "function_calls", "invoke", "parameter"]
        .iter()
        .any(|known| known.starts_with(name.unwrap_or_default()))
}

fn invoke(rest: &str) -> Result<String, Malformed> {
    let (attributes, _) = attributes(rest)?;
    match attributes.iter().find(|(key, _)| *key == "name") {
        Some((_, name)) if !name.is_empty() => Ok((*name).to_owned()),
        _ => Err(Malformed),
    }
}

fn parameter(rest: &str) -> Result<Parameter, Malformed> {
    let (attributes, is_empty) = attributes(rest)?;
    let find = |wanted| {
        attributes
            .iter()
            .find(|(key, _)| *key == wanted)
            .map(|(_, v)| *v)
    };
    let is_text = match find("string") {
        Some("true") | None => true,
        Some("false") => false,
        Some(_) => return Err(Malformed),
    };
    match find("name") {
        Some(name) if !name.is_empty() => Ok(Parameter {
            name: name.to_owned(),
            is_text,
            is_empty,
        }),
        _ => Err(Malformed),
    }
}

type Attributes<'a> = Vec<(&'a str, &'a str)>;

/// `key="value"` pairs, each after white space, and whether a `/` ends the tag.
fn attributes(mut rest: &str) -> Result<(Attributes<'_>, bool), Malformed> {
    let mut found = Attributes::new();
    loop {
        let trimmed = rest.trim_start();
        if trimmed.is_empty() || trimmed == "/" {
            return Ok((found, !trimmed.is_empty()));
        }
        if trimmed.len() == rest.len() {
            return Err(Malformed);
        }
        let (key, after) = trimmed.split_once("=\"").ok_or(Malformed)?;
        let (value, after) = after.split_once('"').ok_or(Malformed)?;
        let is_word = |c: char| c.is_ascii_alphanumeric() || "_-:.".contains(c);
        if key.is_empty() || !key.chars().all(is_word) || found.iter().any(|(k, _)| *k == key) {
            return Err(Malformed);
        }
        found.push((key, value));
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn param(name: &str, is_text: bool, is_empty: bool) -> Tag {
        let name = name.to_owned();
        Tag::OpenParameter(Ok(Parameter {
            name,
            is_text,
            is_empty,
        }))
    }

    #[test]
    fn tags_are_read_exactly() {
        let bad_invoke = || Tag::OpenInvoke(Err(Malformed));
        let bad_parameter = || Tag::OpenParameter(Err(Malformed));
        let cases = [
            ("tool_calls", Tag::OpenBlock),
            ("function_calls ", Tag::OpenBlock),
            ("｜tool_calls", Tag::OpenBlock),
            ("invoke name=\"f\"", Tag::OpenInvoke(Ok("f".into()))),
            (
                "invoke  name=\"a>b c\" x=\"1\"",
                Tag::OpenInvoke(Ok("a>b c".into())),
            ),
            ("invoke xname=\"f\"", bad_invoke()),
            ("invoke name=f", bad_invoke()),
            ("invoke name=\"f", bad_invoke()),
            ("invoke name=\"\"", bad_invoke()),
            ("invoke", bad_invoke()),
            ("invoke name=\"f\" name=\"g\"", bad_invoke()),
            ("invoke name=\"f\"x=\"g\"", bad_invoke()),
            ("invokename=\"f\"", Tag::Unknown),
            (
                "parameter name=\"k\" string=\"true\"",
                param("k", true, false),
            ),
            (
                "parameter string=\"false\" name=\"k\"",
                param("k", false, false),
            ),
            ("parameter name=\"k\"", param("k", true, false)),
            (
                "parameter name=\"k\" string=\"true\"/",
                param("k", true, true),
            ),
            (
                "parameter name=\"k\" string=\"false\" /",
                param("k", false, true),
            ),
            ("parameter name=\"k\" string=\"maybe\"", bad_parameter()),
            ("parameter xname=\"k\" string=\"true\"", bad_parameter()),
            (
                "parameter name=\"k\" xstring=\"false\"",
                param("k", true, false),
            ),
            ("", Tag::Unknown),
            ("think", Tag::Unknown),
        ];
        for (inside, want) in cases {
            assert_eq!(read(inside, false), want, "{inside}");
        }
        assert_eq!(read("invoke", true), Tag::CloseInvoke);
        assert_eq!(read("parameter ", true), Tag::CloseParameter);
        assert_eq!(read("function_calls", true), Tag::CloseBlock);
        assert_eq!(read("thing", true), Tag::Unknown);
    }

    #[test]
    fn cut_off_tags_may_be_known_ones() {
        for inside in ["", "tool", "｜inv", "invoke name=\"x", " parameter"] {
            assert!(may_become_known(inside), "{inside}");
        }
        for inside in ["x", "toolbox", "invoker"] {
            assert!(!may_become_known(inside), "{inside}");
        }
    }
}
