//! Typed reading of a JSON object: absent and null are the same, anything else must have the right
//! type and lie in its range, and the error names the field by its path.

use serde_json::{Map, Value};

use super::ApiError;

/// An object within a request.
#[derive(Clone, Debug)]
pub(crate) struct Fields<'a> {
    object: &'a Map<String, Value>,
    path: String,
}

type Result<T> = std::result::Result<T, ApiError>;

/// What a value is, for messages.
pub(crate) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

fn mismatch(path: &str, expected: &str, value: &Value) -> ApiError {
    let got = match value {
        Value::Number(n) => n.to_string(),
        other => type_name(other).to_owned(),
    };
    ApiError::bad_field(path, format!("{path}: expected {expected}, got {got}"))
}

impl<'a> Fields<'a> {
    /// The object at `path`, which is empty for the request itself.
    pub(crate) fn of(value: &'a Value, path: impl Into<String>) -> Result<Self> {
        let path = path.into();
        match value.as_object() {
            Some(object) => Ok(Self { object, path }),
            None if path.is_empty() => Err(mismatch("request", "an object", value)),
            None => Err(mismatch(&path, "an object", value)),
        }
    }

    /// Where a member stands.
    pub(crate) fn path(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }

    /// A member, if it is there and not null.
    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.object.get(name).filter(|v| !v.is_null())
    }

    fn typed<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(name) else {
            return Ok(None);
        };
        match read(value) {
            Some(read) => Ok(Some(read)),
            None => Err(mismatch(&self.path(name), expected, value)),
        }
    }

    pub(crate) fn string(&self, name: &str) -> Result<Option<&'a str>> {
        self.typed(name, "a string", Value::as_str)
    }

    pub(crate) fn need_string(&self, name: &str) -> Result<&'a str> {
        let found = self.string(name)?;
        found.ok_or_else(|| self.missing(name, "a string"))
    }

    pub(crate) fn missing(&self, name: &str, expected: &str) -> ApiError {
        let path = self.path(name);
        let message = format!("{path} is missing: expected {expected}");
        ApiError::bad_field(path, message)
    }

    pub(crate) fn boolean(&self, name: &str) -> Result<Option<bool>> {
        self.typed(name, "a boolean", Value::as_bool)
    }

    pub(crate) fn array(&self, name: &str) -> Result<Option<&'a Vec<Value>>> {
        self.typed(name, "an array", Value::as_array)
    }

    pub(crate) fn object(&self, name: &str) -> Result<Option<Self>> {
        let path = self.path(name);
        self.get(name).map(|v| Self::of(v, path)).transpose()
    }

    /// A number in a closed range.
    pub(crate) fn number(&self, name: &str, low: f64, high: f64) -> Result<Option<f32>> {
        let expected = format!("a number from {low} to {high}");
        self.typed(name, &expected, |v| {
            let number = v.as_f64()?;
            (low..=high).contains(&number).then_some(number as f32)
        })
    }

    /// An integer in a closed range.
    pub(crate) fn integer(&self, name: &str, low: i64, high: i64) -> Result<Option<i64>> {
        let expected = if high == i64::MAX {
            format!("an integer of at least {low}")
        } else {
            format!("an integer from {low} to {high}")
        };
        self.typed(name, &expected, |v| {
            // An integer too large for an i64 still exceeds no open upper bound.
            let number = v.as_i64().or_else(|| v.as_u64().map(|_| i64::MAX))?;
            (low..=high).contains(&number).then_some(number)
        })
    }

    /// Members, with their names.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.object.iter().filter(|(_, v)| !v.is_null())
    }
}
