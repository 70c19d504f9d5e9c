//! JSON as the prompt format needs it: strict on the way in, in the exact spelling of Python's
//! `json.dumps(value, ensure_ascii=False)` on the way out, key order and number digits kept.
//!
//! Separate from the JSON of requests: there a value is data, here its spelling is part of the
//! prompt and decides tokens.

mod number;
mod parse;

pub use parse::{JsonError, parse};

/// A value; objects keep the order of their keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Json {
    /// `null`
    Null,
    /// `true`, `false`
    Bool(bool),
    /// In Python's spelling.
    Number(String),
    /// Unescaped.
    String(String),
    /// In order.
    Array(Vec<Json>),
    /// In order of first appearance; of a repeated key the last value counts, as in Python.
    Object(Vec<(String, Json)>),
}

impl Json {
    /// Appends the value: `, ` and `: ` between, nothing but quotes, backslashes and controls
    /// escaped.
    pub fn write(&self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(true) => out.push_str("true"),
            Self::Bool(false) => out.push_str("false"),
            Self::Number(text) => out.push_str(text),
            Self::String(text) => write_string(text, out),
            Self::Array(items) => {
                out.push('[');
                for (index, item) in items.iter().enumerate() {
                    out.push_str(if index == 0 { "" } else { ", " });
                    item.write(out);
                }
                out.push(']');
            }
            Self::Object(members) => {
                out.push('{');
                for (index, (key, value)) in members.iter().enumerate() {
                    out.push_str(if index == 0 { "" } else { ", " });
                    write_string(key, out);
                    out.push_str(": ");
                    value.write(out);
                }
                out.push('}');
            }
        }
    }

    /// The member of an object.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Object(members) => members.iter().find(|(k, _)| k == key).map(|(_, v)| v),
            _ => None,
        }
    }
}

impl std::fmt::Display for Json {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = String::new();
        self.write(&mut out);
        f.write_str(&out)
    }
}

/// Appends a quoted string.
pub fn write_string(text: &str, out: &mut String) {
    out.push('"');
    write_string_body(text, out);
    out.push('"');
}

/// Appends the inside of a quoted string: what lets a long string be written in fragments.
pub fn write_string_body(text: &str, out: &mut String) {
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\0'..='\x1f' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            _ => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_python_writes_them() {
        // Right column: json.dumps(json.loads(left), ensure_ascii=False) of Python 3.11.
        let cases = [
            (
                r#"{"b":1,"a":[1,2,{"x":null}]}"#,
                r#"{"b": 1, "a": [1, 2, {"x": null}]}"#,
            ),
            (r#"{"k":1,"j":2,"k":3}"#, r#"{"k": 3, "j": 2}"#),
            ("[ ]", "[]"),
            ("{ }", "{}"),
            (r#""é你🙂\u4f60\ud83d\ude42""#, r#""é你🙂你🙂""#),
            (
                r#""\/\b\f\n\r\t\u0001\u007f\"\\""#,
                "\"/\\b\\f\\n\\r\\t\\u0001\u{7f}\\\"\\\\\"",
            ),
            (" \n\t\rtrue ", "true"),
            ("false", "false"),
        ];
        for (text, want) in cases {
            assert_eq!(parse(text).unwrap().to_string(), want, "{text}");
        }
    }

    #[test]
    fn members_are_found_by_key() {
        let value = parse(r#"{"a":{"b":"c"}}"#).unwrap();
        let inner = value.get("a").and_then(|a| a.get("b"));
        assert_eq!(inner, Some(&Json::String("c".into())));
        assert_eq!(value.get("b"), None);
        assert_eq!(Json::Null.get("a"), None);
    }
}
