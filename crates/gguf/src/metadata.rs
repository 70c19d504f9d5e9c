//! Metadata: keys in file order, and getters that say what was expected.
//!
//! Writers disagree on widths (u32, i32, u64 for the same key) and on scalar or array; the
//! getters take every form that carries the value without loss. Must not know: which keys a model
//! needs (that is [`crate::names::keys`] and its callers).

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind};
use crate::value::{Array, Value};

/// The keys and values of a file, in file order.
#[derive(Clone, Debug)]
pub struct Metadata {
    file: PathBuf,
    entries: Vec<(String, Value)>,
    index: HashMap<String, usize>,
}

impl Metadata {
    /// No keys yet.
    pub(crate) fn new(file: &Path) -> Self {
        Self {
            file: file.to_path_buf(),
            entries: Vec::new(),
            index: HashMap::new(),
        }
    }

    /// Appends a key.
    pub(crate) fn push(&mut self, key: String, value: Value) -> Result<(), ErrorKind> {
        if self.index.contains_key(&key) {
            return Err(ErrorKind::DuplicateKey { key });
        }
        self.index.insert(key.clone(), self.entries.len());
        self.entries.push((key, value));
        Ok(())
    }

    /// Appends a key, or replaces its value where it stands.
    pub(crate) fn set(&mut self, key: &str, value: Value) {
        if let Some(&i) = self.index.get(key) {
            self.entries[i].1 = value;
            return;
        }
        self.index.insert(key.to_owned(), self.entries.len());
        self.entries.push((key.to_owned(), value));
    }

    /// The file the keys come from.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Number of keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keys and values, in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.entries.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// The value of a key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&i| &self.entries[i].1)
    }

    /// Whether the key is there.
    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        self.index.contains_key(key)
    }

    /// An error about a key of this file, for checks made by callers.
    #[must_use]
    pub fn bad_value(&self, key: &str, expected: impl Into<String>, got: impl ToString) -> Error {
        ErrorKind::KeyValue {
            key: key.to_owned(),
            expected: expected.into(),
            got: got.to_string(),
        }
        .in_file(&self.file)
    }

    /// An error about an absent key of this file.
    #[must_use]
    pub fn missing(&self, key: &str, expected: &'static str) -> Error {
        ErrorKind::MissingKey {
            key: key.to_owned(),
            expected,
        }
        .in_file(&self.file)
    }

    fn wrong(&self, key: &str, expected: &'static str, got: &Value) -> Error {
        ErrorKind::KeyType {
            key: key.to_owned(),
            expected,
            got: got.describe(),
        }
        .in_file(&self.file)
    }

    /// The value through `convert`; `None` if the key is absent, an error if it does not convert.
    fn find<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        convert: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        match convert(value) {
            Some(x) => Ok(Some(x)),
            None => Err(self.wrong(key, expected, value)),
        }
    }
}

/// One required and one optional getter of the same type.
macro_rules! getters {
    ($($(#[$doc:meta])* $get:ident, $find:ident -> $t:ty, $expected:literal, $convert:expr;)*) => {
        impl Metadata {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// `KeyType` if the value has another form; `MissingKey`.
            pub fn $get(&self, key: &str) -> Result<$t, Error> {
                self.$find(key)?.ok_or_else(|| self.missing(key, $expected))
            }

            /// The same for a key that may be absent.
            ///
            /// # Errors
            /// `KeyType` if the value has another form.
            pub fn $find(&self, key: &str) -> Result<Option<$t>, Error> {
                self.find(key, $expected, $convert)
            }
        )*}
    };
}

getters! {
    /// An integer of any width that fits 32 bits and is not negative.
    get_u32, find_u32 -> u32, "u32 (or another integer width that fits)",
        |v| v.as_u64().and_then(|x| u32::try_from(x).ok());
    /// An integer of any width that is not negative.
    get_u64, find_u64 -> u64, "u64 (or another integer width, not negative)", Value::as_u64;
    /// A float; f64 is rounded to f32.
    get_f32, find_f32 -> f32, "f32", as_f32;
    /// A bool.
    get_bool, find_bool -> bool, "bool", |v| match v {
        Value::Bool(b) => Some(*b),
        _ => None,
    };
    /// An array of integers of any width that fit 32 bits and are not negative.
    get_u32_array, find_u32_array -> Vec<u32>, "array of u32 (or another integer width that fits)",
        as_u32_array;
    /// An array of floats.
    get_f32_array, find_f32_array -> Vec<f32>, "array of f32", as_f32_array;
    /// An array of signed 32-bit integers (token types).
    get_i32_array, find_i32_array -> Vec<i32>, "array of i32 (or another integer width that fits)",
        as_i32_array;
}

impl Metadata {
    /// A string.
    ///
    /// # Errors
    /// `KeyType` if the value has another form; `MissingKey`.
    pub fn get_str(&self, key: &str) -> Result<&str, Error> {
        self.find_str(key)?.ok_or_else(|| self.missing(key, "str"))
    }

    /// The same for a key that may be absent.
    ///
    /// # Errors
    /// `KeyType` if the value has another form.
    pub fn find_str(&self, key: &str) -> Result<Option<&str>, Error> {
        self.find(key, "str", |v| match v {
            Value::Str(s) => Some(s.as_str()),
            _ => None,
        })
    }

    /// An array of strings.
    ///
    /// # Errors
    /// `KeyType` if the value has another form; `MissingKey`.
    pub fn get_str_array(&self, key: &str) -> Result<&[String], Error> {
        self.find_str_array(key)?
            .ok_or_else(|| self.missing(key, "array of str"))
    }

    /// The same for a key that may be absent.
    ///
    /// # Errors
    /// `KeyType` if the value has another form.
    pub fn find_str_array(&self, key: &str) -> Result<Option<&[String]>, Error> {
        self.find(key, "array of str", |v| match v {
            Value::Array(Array::Str(s)) => Some(s.as_slice()),
            _ => None,
        })
    }

    /// One float per layer: a scalar stands for every layer, an array gives its first `layers`
    /// elements. `None` if the key is absent.
    ///
    /// # Errors
    /// `KeyType` if the value is neither; `KeyValue` if the array is shorter than `layers`.
    pub fn find_f32_per_layer(&self, key: &str, layers: usize) -> Result<Option<Vec<f32>>, Error> {
        let expected = "f32 or array of f32";
        self.find(key, expected, |v| match v {
            Value::Array(_) => as_f32_array(v),
            _ => as_f32(v).map(|x| vec![x; layers]),
        })?
        .map(|v| self.first(key, v, layers))
        .transpose()
    }

    /// One unsigned integer per layer, as [`Self::find_f32_per_layer`].
    ///
    /// # Errors
    /// `KeyType` if the value is neither; `KeyValue` if the array is shorter than `layers`.
    pub fn find_u32_per_layer(&self, key: &str, layers: usize) -> Result<Option<Vec<u32>>, Error> {
        let expected = "u32 or array of u32 (or another integer width that fits)";
        self.find(key, expected, |v| match v {
            Value::Array(_) => as_u32_array(v),
            _ => as_u32(v).map(|x| vec![x; layers]),
        })?
        .map(|v| self.first(key, v, layers))
        .transpose()
    }

    /// The first `n` elements of an array that may be longer.
    fn first<T>(&self, key: &str, mut v: Vec<T>, n: usize) -> Result<Vec<T>, Error> {
        if v.len() < n {
            return Err(self.bad_value(key, format!("at least {n} elements"), v.len()));
        }
        v.truncate(n);
        Ok(v)
    }
}

fn as_u32(v: &Value) -> Option<u32> {
    v.as_u64().and_then(|x| u32::try_from(x).ok())
}

#[allow(clippy::cast_possible_truncation)]
fn as_f32(v: &Value) -> Option<f32> {
    match *v {
        Value::F32(x) => Some(x),
        Value::F64(x) => Some(x as f32),
        _ => None,
    }
}

#[allow(clippy::cast_possible_truncation)]
fn as_f32_array(v: &Value) -> Option<Vec<f32>> {
    match v {
        Value::Array(Array::F32(a)) => Some(a.clone()),
        Value::Array(Array::F64(a)) => Some(a.iter().map(|&x| x as f32).collect()),
        _ => None,
    }
}

fn as_u32_array(v: &Value) -> Option<Vec<u32>> {
    match v {
        Value::Array(a) if a.is_integer() => (0..a.len())
            .map(|i| a.u64_at(i).and_then(|x| u32::try_from(x).ok()))
            .collect(),
        _ => None,
    }
}

fn as_i32_array(v: &Value) -> Option<Vec<i32>> {
    match v {
        Value::Array(Array::I32(a)) => Some(a.clone()),
        Value::Array(Array::I16(a)) => Some(a.iter().map(|&x| i32::from(x)).collect()),
        Value::Array(Array::I8(a)) => Some(a.iter().map(|&x| i32::from(x)).collect()),
        Value::Array(Array::I64(a)) => a.iter().map(|&x| i32::try_from(x).ok()).collect(),
        Value::Array(a) if a.is_integer() => (0..a.len())
            .map(|i| a.u64_at(i).and_then(|x| i32::try_from(x).ok()))
            .collect(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Metadata {
        let mut m = Metadata::new(Path::new("m.gguf"));
        for (k, v) in [
            ("u32", Value::U32(7)),
            ("i32", Value::I32(7)),
            ("u64", Value::U64(7)),
            ("neg", Value::I32(-1)),
            ("big", Value::U64(1 << 40)),
            ("f64", Value::F64(0.5)),
            ("yes", Value::Bool(true)),
            ("str", "text".into()),
            ("ratios", vec![0i32, 4, 128].into()),
            ("clamp", Value::F32(10.0)),
            ("clamps", vec![1.0f32, 2.0].into()),
            ("tokens", vec!["a".to_owned(), "b".to_owned()].into()),
        ] {
            m.push(k.to_owned(), v).unwrap();
        }
        m
    }

    #[test]
    fn integers_of_every_width_are_read() {
        let m = sample();
        for key in ["u32", "i32", "u64"] {
            assert_eq!(m.get_u32(key).unwrap(), 7, "{key}");
            assert_eq!(m.get_u64(key).unwrap(), 7, "{key}");
        }
        assert_eq!(m.get_u64("big").unwrap(), 1 << 40);
        assert_eq!(m.get_u32_array("ratios").unwrap(), [0, 4, 128]);
        assert_eq!(m.get_i32_array("ratios").unwrap(), [0, 4, 128]);
        assert_eq!(m.find_u32("absent").unwrap(), None);
    }

    #[test]
    fn wrong_forms_name_file_key_and_both_types() {
        let m = sample();
        for (error, text) in [
            (
                m.get_u32("neg").unwrap_err(),
                "m.gguf: metadata key \"neg\": expected u32 (or another integer width that fits), got i32 -1",
            ),
            (
                m.get_u32("big").unwrap_err(),
                "m.gguf: metadata key \"big\": expected u32 (or another integer width that fits), got u64 1099511627776",
            ),
            (
                m.get_str("u32").unwrap_err(),
                "m.gguf: metadata key \"u32\": expected str, got u32 7",
            ),
            (
                m.get_f32("str").unwrap_err(),
                "m.gguf: metadata key \"str\": expected f32, got str \"text\"",
            ),
            (
                m.get_bool("absent").unwrap_err(),
                "m.gguf: metadata key \"absent\" is missing (expected bool)",
            ),
            (
                m.get_f32_array("ratios").unwrap_err(),
                "m.gguf: metadata key \"ratios\": expected array of f32, got array of 3 i32",
            ),
        ] {
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn a_scalar_stands_for_every_layer_and_an_array_may_be_longer() {
        let m = sample();
        let clamp = m.find_f32_per_layer("clamp", 3).unwrap().unwrap();
        assert_eq!(clamp, [10.0, 10.0, 10.0]);
        let ratios = m.find_u32_per_layer("ratios", 2).unwrap().unwrap();
        assert_eq!(ratios, [0, 4]);
        let short = m.find_f32_per_layer("clamps", 3).unwrap_err();
        assert!(matches!(short.kind(), ErrorKind::KeyValue { .. }));
        assert_eq!(m.find_f32_per_layer("absent", 3).unwrap(), None);
    }
}
