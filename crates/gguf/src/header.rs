//! The header: magic, version, metadata, tensor table. Bytes in, checked values out.
//!
//! Reads no tensor data and knows neither type ids' meaning nor the file's length beyond its
//! header: those checks are `types` and `extents`. Layout: GGUF specification, versions 2 and 3
//! (they differ only in allowing big-endian files, which are refused).

use std::collections::HashSet;
use std::io::Read;
use std::path::Path;

use crate::error::{Error, ErrorKind};
use crate::limits::Limits;
use crate::metadata::Metadata;
use crate::source::Source;
use crate::value::{Array, Value, id};

/// First bytes of a file.
pub(crate) const MAGIC: [u8; 4] = *b"GGUF";
/// The version written.
pub(crate) const VERSION: u32 = 3;
/// Alignment of the data section where the file does not say.
pub(crate) const DEFAULT_ALIGNMENT: u64 = 32;
/// The key that says.
pub(crate) const ALIGNMENT_KEY: &str = "general.alignment";
/// What bytes without a file are called in errors.
pub(crate) const MEMORY: &str = "<memory>";
/// Dimensions a tensor may have (ggml's limit).
pub(crate) const MAX_DIMS: u32 = 4;

/// A parsed header. Tensor types are still ids.
#[derive(Clone, Debug)]
pub struct Header {
    /// 2 or 3.
    pub version: u32,
    /// Keys and values.
    pub metadata: Metadata,
    /// The tensor table, in file order.
    pub tensors: Vec<RawTensor>,
    /// Alignment of tensor offsets.
    pub alignment: u64,
    /// Bytes of the header, without the padding before the data section.
    pub bytes: u64,
}

/// A row of the tensor table as it stands in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawTensor {
    /// Name.
    pub name: String,
    /// Shape in file order: `ne`, the contiguous dimension first.
    pub shape: Vec<u64>,
    /// ggml type id.
    pub type_id: u32,
    /// Offset in the data section.
    pub offset: u64,
}

impl Header {
    /// Parses a header that begins `bytes` (which may go on after it).
    ///
    /// # Errors
    /// Every fault of a header; the file is called `<memory>`.
    pub fn parse(bytes: &[u8], limits: &Limits) -> Result<Self, Error> {
        let file = Path::new(MEMORY);
        let len = Some(bytes.len() as u64);
        Self::from_source(Source::new(bytes, len, limits), file).map_err(|e| e.in_file(file))
    }

    /// Parses a header from a stream of unknown length, up to `limits.header_bytes`.
    ///
    /// # Errors
    /// Every fault of a header, and `Io`; the file is called `<memory>`.
    pub fn read(stream: impl Read, limits: &Limits) -> Result<Self, Error> {
        let file = Path::new(MEMORY);
        Self::from_source(Source::new(stream, None, limits), file).map_err(|e| e.in_file(file))
    }

    /// Start of the data section in the file.
    #[must_use]
    pub fn data_start(&self) -> u64 {
        self.bytes.next_multiple_of(self.alignment)
    }

    pub(crate) fn from_source<R: Read>(mut s: Source<R>, file: &Path) -> Result<Self, ErrorKind> {
        let limits = *s.limits();
        let version = preamble(&mut s)?;
        let n_tensors = s.count("tensor count", limits.tensors)?;
        let n_keys = s.count("key count", limits.keys)?;
        let metadata = metadata(&mut s, n_keys, file)?;
        let alignment = alignment(&metadata, limits.alignment)?;
        let tensors = tensor_table(&mut s, n_tensors)?;
        Ok(Self {
            version,
            metadata,
            tensors,
            alignment,
            bytes: s.at(),
        })
    }
}

/// Magic and version.
fn preamble<R: Read>(s: &mut Source<R>) -> Result<u32, ErrorKind> {
    let magic = s.bytes::<4>("magic")?;
    if magic != MAGIC {
        return Err(ErrorKind::NotGguf { got: magic });
    }
    let version = s.u32("version")?;
    match version {
        2 | 3 => Ok(version),
        // A small number with its bytes swapped has nothing in its low half.
        v if v != 0 && v & 0xffff == 0 => Err(ErrorKind::BigEndian {
            version: v.swap_bytes(),
        }),
        got => Err(ErrorKind::Version { got }),
    }
}

fn metadata<R: Read>(s: &mut Source<R>, n: u64, file: &Path) -> Result<Metadata, ErrorKind> {
    let limit = s.limits().key_bytes;
    let mut out = Metadata::new(file);
    for _ in 0..n {
        let key = s.string("metadata key", limit)?;
        let value = value(s, &key)?;
        out.push(key, value)?;
    }
    Ok(out)
}

fn value<R: Read>(s: &mut Source<R>, key: &str) -> Result<Value, ErrorKind> {
    const WHAT: &str = "metadata value";
    let limit = s.limits().string_bytes;
    Ok(match s.u32("value type")? {
        id::U8 => Value::U8(u8::from_le_bytes(s.bytes(WHAT)?)),
        id::I8 => Value::I8(i8::from_le_bytes(s.bytes(WHAT)?)),
        id::U16 => Value::U16(u16::from_le_bytes(s.bytes(WHAT)?)),
        id::I16 => Value::I16(i16::from_le_bytes(s.bytes(WHAT)?)),
        id::U32 => Value::U32(s.u32(WHAT)?),
        id::I32 => Value::I32(i32::from_le_bytes(s.bytes(WHAT)?)),
        id::F32 => Value::F32(f32::from_le_bytes(s.bytes(WHAT)?)),
        id::BOOL => Value::Bool(bool_of(s.bytes::<1>(WHAT)?[0], key)?),
        id::STR => Value::Str(s.string("string value", limit)?),
        id::ARRAY => Value::Array(array(s, key, 0)?),
        id::U64 => Value::U64(s.u64(WHAT)?),
        id::I64 => Value::I64(i64::from_le_bytes(s.bytes(WHAT)?)),
        id::F64 => Value::F64(f64::from_le_bytes(s.bytes(WHAT)?)),
        got => {
            return Err(ErrorKind::ValueType {
                key: key.to_owned(),
                got,
            });
        }
    })
}

fn bool_of(byte: u8, key: &str) -> Result<bool, ErrorKind> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        got => Err(ErrorKind::BadBool {
            key: key.to_owned(),
            got,
        }),
    }
}

/// `depth` counts the arrays around this one.
fn array<R: Read>(s: &mut Source<R>, key: &str, depth: u32) -> Result<Array, ErrorKind> {
    if depth > s.limits().nesting {
        return Err(ErrorKind::Limit {
            what: "nested arrays",
            limit: u64::from(s.limits().nesting),
            got: u64::from(depth),
        });
    }
    let element = s.u32("array element type")?;
    let n = s.count("array length", s.limits().array_len)?;
    Ok(match element {
        id::U8 => Array::U8(s.vec(n, "array")?),
        id::I8 => Array::I8(numbers(s, n, i8::from_le_bytes)?),
        id::U16 => Array::U16(numbers(s, n, u16::from_le_bytes)?),
        id::I16 => Array::I16(numbers(s, n, i16::from_le_bytes)?),
        id::U32 => Array::U32(numbers(s, n, u32::from_le_bytes)?),
        id::I32 => Array::I32(numbers(s, n, i32::from_le_bytes)?),
        id::F32 => Array::F32(numbers(s, n, f32::from_le_bytes)?),
        id::BOOL => {
            let bytes = s.vec(n, "array")?;
            Array::Bool(
                bytes
                    .into_iter()
                    .map(|b| bool_of(b, key))
                    .collect::<Result<_, _>>()?,
            )
        }
        id::STR => Array::Str(strings(s, n)?),
        id::ARRAY => Array::Array(arrays(s, n, key, depth)?),
        id::U64 => Array::U64(numbers(s, n, u64::from_le_bytes)?),
        id::I64 => Array::I64(numbers(s, n, i64::from_le_bytes)?),
        id::F64 => Array::F64(numbers(s, n, f64::from_le_bytes)?),
        got => {
            return Err(ErrorKind::ValueType {
                key: key.to_owned(),
                got,
            });
        }
    })
}

/// `n` numbers of `N` bytes.
fn numbers<const N: usize, T, R: Read>(
    s: &mut Source<R>,
    n: u64,
    from: fn([u8; N]) -> T,
) -> Result<Vec<T>, ErrorKind> {
    // n is within limits.array_len and N at most 8; saturation is refused by `vec`.
    let bytes = s.vec(n.saturating_mul(N as u64), "array")?;
    Ok(bytes.as_chunks::<N>().0.iter().map(|&c| from(c)).collect())
}

fn strings<R: Read>(s: &mut Source<R>, n: u64) -> Result<Vec<String>, ErrorKind> {
    // Each string has at least its length: a count the file cannot hold allocates nothing.
    s.require(n.saturating_mul(8), "array of strings")?;
    let limit = s.limits().string_bytes;
    (0..n).map(|_| s.string("array string", limit)).collect()
}

fn arrays<R: Read>(
    s: &mut Source<R>,
    n: u64,
    key: &str,
    depth: u32,
) -> Result<Vec<Array>, ErrorKind> {
    s.require(n.saturating_mul(12), "array of arrays")?;
    (0..n).map(|_| array(s, key, depth + 1)).collect()
}

fn alignment(metadata: &Metadata, limit: u64) -> Result<u64, ErrorKind> {
    let Some(value) = metadata.get(ALIGNMENT_KEY) else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    let Some(got) = value.as_u64() else {
        return Err(ErrorKind::KeyType {
            key: ALIGNMENT_KEY.to_owned(),
            expected: "u32",
            got: value.describe(),
        });
    };
    if !got.is_power_of_two() || got > limit {
        return Err(ErrorKind::Alignment { limit, got });
    }
    Ok(got)
}

fn tensor_table<R: Read>(s: &mut Source<R>, n: u64) -> Result<Vec<RawTensor>, ErrorKind> {
    // Name length, dimension count, one dimension, type, offset.
    const LEAST: u64 = 8 + 4 + 8 + 4 + 8;
    s.require(n.saturating_mul(LEAST), "tensor table")?;
    let mut names = HashSet::new();
    let mut out = Vec::new();
    for _ in 0..n {
        let t = raw_tensor(s)?;
        if !names.insert(t.name.clone()) {
            return Err(ErrorKind::DuplicateTensor { tensor: t.name });
        }
        out.push(t);
    }
    Ok(out)
}

fn raw_tensor<R: Read>(s: &mut Source<R>) -> Result<RawTensor, ErrorKind> {
    let name = s.string("tensor name", s.limits().name_bytes)?;
    let dims = s.u32("tensor dimensions")?;
    if dims == 0 || dims > MAX_DIMS {
        return Err(ErrorKind::Dims {
            tensor: name,
            got: dims,
        });
    }
    let shape = (0..dims)
        .map(|_| s.u64("tensor shape"))
        .collect::<Result<Vec<_>, _>>()?;
    if let Some(dim) = shape.iter().position(|&d| d == 0) {
        return Err(ErrorKind::ZeroDim {
            tensor: name,
            dim,
            shape,
        });
    }
    Ok(RawTensor {
        name,
        shape,
        type_id: s.u32("tensor type")?,
        offset: s.u64("tensor offset")?,
    })
}
