//! One spelling of a JSON value: keys sorted, two spaces, whole numbers only. A report's id is the
//! digest of this text, so that every edited byte is an edited report.

use std::fmt::Write;

use serde_json::Value;

/// The value's text, with a line break at its end.
#[must_use]
pub fn canonical(value: &Value) -> String {
    let mut out = String::new();
    write(value, 0, &mut out);
    out.push('\n');
    out
}

fn write(value: &Value, depth: usize, out: &mut String) {
    let pad = |depth: usize| "  ".repeat(depth);
    match value {
        Value::Array(items) if !items.is_empty() => {
            out.push_str("[\n");
            for (at, item) in items.iter().enumerate() {
                let _ = write!(out, "{}{}", if at > 0 { ",\n" } else { "" }, pad(depth + 1));
                write(item, depth + 1, out);
            }
            let _ = write!(out, "\n{}]", pad(depth));
        }
        Value::Object(map) if !map.is_empty() => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort();
            out.push_str("{\n");
            for (at, key) in keys.into_iter().enumerate() {
                let name = Value::String(key.clone());
                let sep = if at > 0 { ",\n" } else { "" };
                let _ = write!(out, "{sep}{}{name}: ", pad(depth + 1));
                write(&map[key], depth + 1, out);
            }
            let _ = write!(out, "\n{}}}", pad(depth));
        }
        other => {
            let _ = write!(out, "{other}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::canonical;
    use serde_json::{Value, json};

    #[test]
    fn keys_are_sorted_and_the_text_reads_back() {
        let value = json!({"b": [1, {"z": null, "a": "x\"y"}], "a": {}, "c": []});
        let text = canonical(&value);
        assert_eq!(
            text,
            "{\n  \"a\": {},\n  \"b\": [\n    1,\n    {\n      \"a\": \"x\\\"y\",\n      \"z\": null\n    }\n  ],\n  \"c\": []\n}\n"
        );
        let back: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(canonical(&back), text);
    }
}
