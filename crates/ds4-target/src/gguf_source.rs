//! A GGUF file as a [`Source`]: whatever dialect its names and keys are in, the loader asks in one.

use std::sync::Arc;

use gguf::names::{self, derive, keys};
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

    /// A key that the file lacks but its tensors or its vocabulary tell.
    fn derived(&self, key: &str) -> Option<MetaValue> {
        let f = &self.file;
        let found = match key {
            _ if key == keys::VOCAB_SIZE.canonical => derive::vocab_size(f),
            _ if key == keys::HASH_LAYER_COUNT.canonical => {
                derive::hash_layer_count(f, derive::layers(f).ok()?.value)
            }
            _ if key == keys::HC_COUNT.canonical => derive::hc_count(f),
            _ if key == keys::Q_LORA_RANK.canonical => derive::q_lora_rank(f),
            _ if key == keys::OUTPUT_GROUP_COUNT.canonical => derive::output_group_count(f),
            _ if key == keys::OUTPUT_LORA_RANK.canonical => derive::output_lora_rank(f),
            _ => return None,
        };
        Some(MetaValue::Int(i64::from(found.ok()?.value)))
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
        let metadata = self.file.metadata();
        let spec = keys::ALL.iter().find(|k| k.canonical == key);
        let name = spec.map_or(key, |k| k.name(metadata));
        metadata.get(name).map_or_else(|| self.derived(key), widen)
    }

    fn tensor(&self, name: &str) -> Option<RawTensor> {
        let info = match names::parse(name) {
            Some((role, layer)) => names::find(&self.file, role, layer),
            None => self.file.find(name),
        }?;
        let bytes = self.file.shared(info);
        let len = bytes.len();
        let mut shape = info.shape.clone();
        if name.ends_with("attn_output_a.weight") && shape.len() == 3 {
            // Some files keep the groups as a dimension of their own; the rows are the same.
            let groups = shape.pop()?;
            shape[1] = shape[1].checked_mul(groups)?;
        }
        let bytes = Bytes::new(Arc::new(Shared(bytes)), 0, len)?;
        Some(RawTensor {
            shape,
            format: info.format,
            bytes,
        })
    }

    fn tensor_names(&self) -> Vec<String> {
        let bound = names::Structure::of(&self.file)
            .and_then(|structure| Ok((names::resolve(&self.file, &structure)?, structure)));
        let Ok((binding, structure)) = bound else {
            return self.file.tensors().iter().map(|t| t.name.clone()).collect();
        };
        let canonical = |(role, layer)| {
            binding.index(role, layer)?;
            Some(names::tensor_name(names::Dialect::Antirez, role, layer))
        };
        structure
            .expected()
            .filter_map(canonical)
            .chain(binding.unknown.clone())
            .collect()
    }
}
