//! Typed access to a draft file's metadata in either form.

use std::ops::RangeInclusive;

use ds4_target::LoadError;
use ds4_target::source::{MetaValue, Source};

use crate::names::{Form, Key};

/// Typed access to the metadata in either form, with errors that name the file's own key.
pub(super) struct Keys<'a> {
    pub(super) source: &'a dyn Source,
    pub(super) form: Form,
}

impl Keys<'_> {
    pub(super) fn bad(&self, key: &str, expected: impl ToString, got: impl ToString) -> LoadError {
        LoadError::BadKey {
            file: self.source.name().to_owned(),
            key: key.to_owned(),
            expected: expected.to_string(),
            got: got.to_string(),
        }
    }

    pub(super) fn missing(&self, key: String, expected: &'static str) -> LoadError {
        LoadError::MissingKey {
            file: self.source.name().to_owned(),
            key,
            expected,
        }
    }

    /// The key in this form and its value, if the file has it.
    pub(super) fn find(&self, key: Key) -> Option<(String, MetaValue)> {
        let name = self.form.key(key)?;
        let value = self.source.meta(&name)?;
        Some((name, value))
    }

    pub(super) fn need(
        &self,
        key: Key,
        expected: &'static str,
    ) -> Result<(String, MetaValue), LoadError> {
        let name = || self.form.key(key).unwrap_or_default();
        self.find(key).ok_or_else(|| self.missing(name(), expected))
    }

    pub(super) fn in_range(
        &self,
        (name, value): (String, MetaValue),
        range: RangeInclusive<i64>,
    ) -> Result<usize, LoadError> {
        match value {
            MetaValue::Int(v) if range.contains(&v) => Ok(v as usize),
            other => {
                let expected = format!("an integer in {}..={}", range.start(), range.end());
                Err(self.bad(&name, expected, other))
            }
        }
    }

    pub(super) fn size(&self, key: Key, range: RangeInclusive<i64>) -> Result<usize, LoadError> {
        self.in_range(self.need(key, "an integer")?, range)
    }

    /// As `size`, for a key that may be absent.
    pub(super) fn size_or(
        &self,
        key: Key,
        range: RangeInclusive<i64>,
        absent: usize,
    ) -> Result<usize, LoadError> {
        self.find(key)
            .map_or(Ok(absent), |found| self.in_range(found, range))
    }

    pub(super) fn positive(&self, (name, value): (String, MetaValue)) -> Result<f32, LoadError> {
        match value {
            MetaValue::Float(v) if v.is_finite() && v > 0.0 => Ok(v as f32),
            other => Err(self.bad(&name, "a finite float above 0", other)),
        }
    }

    pub(super) fn float(&self, key: Key) -> Result<f32, LoadError> {
        self.positive(self.need(key, "a float")?)
    }

    pub(super) fn float_or(&self, key: Key, absent: f32) -> Result<f32, LoadError> {
        self.find(key)
            .map_or(Ok(absent), |found| self.positive(found))
    }

    /// One value for all stages, or one each.
    pub(super) fn per_stage(
        &self,
        found: (String, MetaValue),
        n: usize,
    ) -> Result<Vec<f32>, LoadError> {
        match found {
            (name, MetaValue::Floats(v)) if v.len() >= n => v[..n]
                .iter()
                .map(|v| self.positive((name.clone(), MetaValue::Float(*v))))
                .collect(),
            (name, MetaValue::Floats(v)) => {
                Err(self.bad(&name, format!("one or at least {n} floats"), v.len()))
            }
            scalar => Ok(vec![self.positive(scalar)?; n]),
        }
    }

    /// A value that must have this size where the file has it.
    pub(super) fn fixed(&self, key: Key, want: usize) -> Result<(), LoadError> {
        match self.find(key) {
            None | Some((_, MetaValue::Bool(true))) if want == 1 => Ok(()),
            None => Ok(()),
            Some((_, MetaValue::Int(v))) if v == want as i64 => Ok(()),
            Some((name, other)) => Err(self.bad(&name, want, other)),
        }
    }
}
