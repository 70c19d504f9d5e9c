//! The schema of a report, and a validator for the part of JSON Schema (draft 2020-12) that it uses. A
//! keyword it does not know is an error, so that nothing in the schema is silently not checked.

use serde_json::{Map, Value};

/// The schema.
pub const SCHEMA: &str = include_str!("../schema/report.schema.json");

/// Checks a report against the schema.
///
/// # Errors
/// The first place that does not follow it.
pub fn check(report: &Value) -> Result<(), String> {
    let schema: Value = serde_json::from_str(SCHEMA).map_err(|e| format!("the schema: {e}"))?;
    valid(&schema, report, "")
}

fn valid(schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let Some(map) = schema.as_object() else {
        return match schema.as_bool() {
            Some(true) => Ok(()),
            _ => Err(format!("{at}: nothing is allowed here")),
        };
    };
    for (keyword, rule) in map {
        one(map, keyword, rule, value, at)?;
    }
    Ok(())
}

fn one(
    map: &Map<String, Value>,
    keyword: &str,
    rule: &Value,
    value: &Value,
    at: &str,
) -> Result<(), String> {
    let fail = |what: String| Err(format!("{}: {what}", if at.is_empty() { "/" } else { at }));
    match keyword {
        "$id" | "$schema" | "title" | "description" | "then" => Ok(()),
        "type" => typed(rule, value, at),
        "const" if rule == value => Ok(()),
        "const" => fail(format!("expected {rule}, got {value}")),
        "enum" if rule.as_array().is_some_and(|all| all.contains(value)) => Ok(()),
        "enum" => fail(format!("expected one of {rule}, got {value}")),
        "required" => {
            let names = rule
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str);
            let missing = names.into_iter().find(|name| value.get(name).is_none());
            missing.map_or(Ok(()), |name| fail(format!("{name} is missing")))
        }
        "properties" => {
            for (name, inner) in rule.as_object().into_iter().flatten() {
                if let Some(found) = value.get(name) {
                    valid(inner, found, &format!("{at}/{name}"))?;
                }
            }
            Ok(())
        }
        "items" => {
            for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                valid(rule, item, &format!("{at}/{index}"))?;
            }
            Ok(())
        }
        "minItems" => {
            let (least, got) = (
                rule.as_u64().unwrap_or(0),
                value.as_array().map_or(0, Vec::len),
            );
            if got as u64 >= least {
                Ok(())
            } else {
                fail(format!("{got} items, at least {least}"))
            }
        }
        "pattern" => pattern(rule.as_str().unwrap_or_default(), value, at),
        "not" if valid(rule, value, at).is_err() => Ok(()),
        "not" => fail(format!("must not follow {rule}")),
        "oneOf" => {
            let branches = rule.as_array().into_iter().flatten();
            let errors: Vec<Result<(), String>> = branches.map(|r| valid(r, value, at)).collect();
            match errors.iter().filter(|e| e.is_ok()).count() {
                1 => Ok(()),
                n => fail(format!("follows {n} of the alternatives: {errors:?}")),
            }
        }
        "if" => match map.get("then") {
            Some(then) if valid(rule, value, at).is_ok() => valid(then, value, at),
            _ => Ok(()),
        },
        unknown => Err(format!(
            "the schema uses {unknown}, which is not checked here"
        )),
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_i64() || n.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn typed(rule: &Value, value: &Value, at: &str) -> Result<(), String> {
    let got = type_of(value);
    let fits = |name: &Value| got == name.as_str().unwrap_or_default();
    if rule
        .as_array()
        .map_or_else(|| fits(rule), |all| all.iter().any(fits))
    {
        return Ok(());
    }
    Err(format!("{at}: expected {rule}, got {got}"))
}

/// Two patterns: a digest, and an order of arms.
fn pattern(rule: &str, value: &Value, at: &str) -> Result<(), String> {
    let text = value.as_str().unwrap_or_default();
    let hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    let fine = match rule {
        "^[0-9a-f]{64}$" => text.len() == 64 && text.bytes().all(hex),
        "^[AB]*$" => text.bytes().all(|b| matches!(b, b'A' | b'B')),
        _ => {
            return Err(format!(
                "the schema uses pattern {rule}, which is not checked here"
            ));
        }
    };
    if fine {
        Ok(())
    } else {
        Err(format!("{at}: {text:?} does not match {rule}"))
    }
}
