//! Bytes of a header. The counterpart of `header`; the two share constants and nothing else.

use crate::extents::TensorInfo;
use crate::header::{MAGIC, VERSION};
use crate::metadata::Metadata;
use crate::value::{Array, Value};

/// A whole header, without the padding after it.
pub(super) fn header(metadata: &Metadata, tensors: &[TensorInfo]) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend(MAGIC);
    out.extend(VERSION.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((metadata.len() as u64).to_le_bytes());
    for (key, value) in metadata.iter() {
        string(&mut out, key);
        out.extend(value.id().to_le_bytes());
        scalar_or_array(&mut out, value);
    }
    for t in tensors {
        string(&mut out, &t.name);
        // At most MAX_DIMS.
        #[allow(clippy::cast_possible_truncation)]
        out.extend((t.shape.len() as u32).to_le_bytes());
        t.shape.iter().for_each(|d| out.extend(d.to_le_bytes()));
        out.extend(t.format.ggml_id().to_le_bytes());
        out.extend(t.offset().to_le_bytes());
    }
    out
}

fn string(out: &mut Vec<u8>, s: &str) {
    out.extend((s.len() as u64).to_le_bytes());
    out.extend(s.as_bytes());
}

fn scalar_or_array(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(x) => out.push(*x),
        Value::I8(x) => out.extend(x.to_le_bytes()),
        Value::U16(x) => out.extend(x.to_le_bytes()),
        Value::I16(x) => out.extend(x.to_le_bytes()),
        Value::U32(x) => out.extend(x.to_le_bytes()),
        Value::I32(x) => out.extend(x.to_le_bytes()),
        Value::F32(x) => out.extend(x.to_le_bytes()),
        Value::Bool(x) => out.push(u8::from(*x)),
        Value::Str(x) => string(out, x),
        Value::Array(x) => array(out, x),
        Value::U64(x) => out.extend(x.to_le_bytes()),
        Value::I64(x) => out.extend(x.to_le_bytes()),
        Value::F64(x) => out.extend(x.to_le_bytes()),
    }
}

fn array(out: &mut Vec<u8>, array_: &Array) {
    out.extend(array_.element_id().to_le_bytes());
    out.extend((array_.len() as u64).to_le_bytes());
    match array_ {
        Array::U8(v) => out.extend(v),
        Array::I8(v) => v.iter().for_each(|x| out.extend(x.to_le_bytes())),
        Array::U16(v) => v.iter().for_each(|x| out.extend(x.to_le_bytes())),
        Array::I16(v) => v.iter().for_each(|x| out.extend(x.to_le_bytes())),
        Array::U32(v) => v.iter().for_each(|x| out.extend(x.to_le_bytes())),
        Array::I32(v) => v.iter().for_each(|x| out.extend(x.to_le_bytes())),
        Array::F32(v) => v.iter().for_each(|x| out.extend(x.to_le_bytes())),
        Array::Bool(v) => out.extend(v.iter().map(|&b| u8::from(b))),
        Array::Str(v) => v.iter().for_each(|s| string(out, s)),
        Array::Array(v) => v.iter().for_each(|a| array(out, a)),
        Array::U64(v) => v.iter().for_each(|x| out.extend(x.to_le_bytes())),
        Array::I64(v) => v.iter().for_each(|x| out.extend(x.to_le_bytes())),
        Array::F64(v) => v.iter().for_each(|x| out.extend(x.to_le_bytes())),
    }
}
