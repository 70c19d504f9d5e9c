//! Typed access to JSON files, with errors that name file and key.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::ToolError;

/// Reads and parses a file.
pub(crate) fn read(path: &Path) -> Result<Value, ToolError> {
    let text = std::fs::read(path).map_err(ToolError::io(path, "read"))?;
    serde_json::from_slice(&text).map_err(|source| ToolError::Json {
        path: path.to_path_buf(),
        source,
    })
}

/// An object of a file; keys may be paths (`rope_parameters.main.rope_theta`).
#[derive(Clone, Debug)]
pub(crate) struct Object {
    path: PathBuf,
    value: Value,
}

impl Object {
    pub(crate) fn read(path: &Path) -> Result<Self, ToolError> {
        let value = read(path)?;
        let object = Self {
            path: path.to_path_buf(),
            value,
        };
        if object.value.is_object() {
            Ok(object)
        } else {
            Err(object.bad("(the file)", "an object", "something else"))
        }
    }

    /// An error about a key.
    pub(crate) fn bad(
        &self,
        key: &str,
        expected: impl Into<String>,
        got: impl ToString,
    ) -> ToolError {
        ToolError::key(&self.path, key, expected, got)
    }

    /// A value that is there and not null.
    pub(crate) fn find(&self, key: &str) -> Option<&Value> {
        let mut at = &self.value;
        for part in key.split('.') {
            at = at.get(part)?;
        }
        (!at.is_null()).then_some(at)
    }

    /// The value of the first key that is there; all that are there must agree.
    pub(crate) fn one_of<T: PartialEq + std::fmt::Debug>(
        &self,
        keys: &[&str],
        expected: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<Option<T>, ToolError> {
        let mut found: Option<(&str, T)> = None;
        for key in keys {
            let Some(value) = self.find(key) else {
                continue;
            };
            let value = read(value).ok_or_else(|| self.bad(key, expected, value))?;
            match &found {
                Some((first, v)) if *v != value => {
                    return Err(self.bad(
                        key,
                        format!("{v:?} as in {first}"),
                        format!("{value:?}"),
                    ));
                }
                Some(_) => {}
                None => found = Some((key, value)),
            }
        }
        Ok(found.map(|(_, v)| v))
    }

    /// As [`Self::one_of`], required.
    pub(crate) fn need<T: PartialEq + std::fmt::Debug>(
        &self,
        keys: &[&str],
        expected: &str,
        read: impl Fn(&Value) -> Option<T>,
    ) -> Result<T, ToolError> {
        self.one_of(keys, expected, read)?
            .ok_or_else(|| self.bad(&keys.join(" or "), expected, "nothing"))
    }

    /// A required size of at least `least`.
    pub(crate) fn size(&self, keys: &[&str], least: u32) -> Result<u32, ToolError> {
        let expected = format!("an integer of at least {least}");
        self.need(keys, &expected, |v| {
            u32::try_from(v.as_u64()?).ok().filter(|v| *v >= least)
        })
    }

    /// A required finite number, as f32.
    pub(crate) fn float(&self, keys: &[&str]) -> Result<f32, ToolError> {
        self.need(keys, "a finite number", as_f32)
    }

    /// Refuses a key that is there and differs.
    pub(crate) fn must(&self, key: &str, expected: &Value) -> Result<(), ToolError> {
        match self.find(key) {
            Some(v) if v != expected => Err(self.bad(key, expected.to_string(), v)),
            _ => Ok(()),
        }
    }
}

#[allow(clippy::cast_possible_truncation)]
pub(crate) fn as_f32(v: &Value) -> Option<f32> {
    let v = v.as_f64()? as f32;
    v.is_finite().then_some(v)
}

/// An array of unsigned integers.
pub(crate) fn as_u32s(v: &Value) -> Option<Vec<u32>> {
    v.as_array()?
        .iter()
        .map(|v| u32::try_from(v.as_u64()?).ok())
        .collect()
}

/// An array of strings.
pub(crate) fn as_strings(v: &Value) -> Option<Vec<String>> {
    v.as_array()?
        .iter()
        .map(|v| v.as_str().map(str::to_owned))
        .collect()
}
