//! A GGUF file as a [`Source`].

use std::sync::Arc;

use gguf::{Array, Gguf, TensorBytes, Value};

use crate::source::{Bytes, MetaValue, RawTensor, Source};

/// A mapped GGUF file under canonical names.
#[derive(Debug)]
pub struct GgufSource {
    file: Gguf,
    name: String,
}

impl GgufSource {
    /// Wraps an opened file.
    #[must_use]
    pub fn new(file: Gguf) -> Self {
        let name = file.path().display().to_string();
        Self { file, name }
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> &Gguf {
        &self.file
    }
}

struct Shared(TensorBytes);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

fn widen(value: &Value) -> Option<MetaValue> {
    Some(match value {
        Value::Bool(b) => MetaValue::Bool(*b),
        Value::Str(s) => MetaValue::Str(s.clone()),
        Value::F32(v) => MetaValue::Float(f64::from(*v)),
        Value::F64(v) => MetaValue::Float(*v),
        Value::Array(a) => match a {
            Array::F32(v) => MetaValue::Floats(v.iter().map(|v| f64::from(*v)).collect()),
            Array::F64(v) => MetaValue::Floats(v.clone()),
            Array::Str(v) => MetaValue::Strs(v.len()),
            Array::U8(v) => MetaValue::Ints(v.iter().map(|v| i64::from(*v)).collect()),
            Array::I8(v) => MetaValue::Ints(v.iter().map(|v| i64::from(*v)).collect()),
            Array::U16(v) => MetaValue::Ints(v.iter().map(|v| i64::from(*v)).collect()),
            Array::I16(v) => MetaValue::Ints(v.iter().map(|v| i64::from(*v)).collect()),
            Array::U32(v) => MetaValue::Ints(v.iter().map(|v| i64::from(*v)).collect()),
            Array::I32(v) => MetaValue::Ints(v.iter().map(|v| i64::from(*v)).collect()),
            Array::I64(v) => MetaValue::Ints(v.clone()),
            _ => return None,
        },
        other => MetaValue::Int(i64::try_from(other.as_u64()?).ok()?),
    })
}

impl Source for GgufSource {
    fn name(&self) -> &str {
        &self.name
    }

    fn meta(&self, key: &str) -> Option<MetaValue> {
        widen(self.file.metadata().get(key)?)
    }

    fn tensor(&self, name: &str) -> Option<RawTensor> {
        let info = self.file.find(name)?;
        let bytes = self.file.shared(info);
        let len = bytes.len();
        Some(RawTensor {
            shape: info.shape.clone(),
            format: info.format,
            bytes: Bytes::new(Arc::new(Shared(bytes)), 0, len)?,
        })
    }

    fn tensor_names(&self) -> Vec<String> {
        self.file.tensors().iter().map(|t| t.name.clone()).collect()
    }
}
