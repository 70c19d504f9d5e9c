//! Where a model's metadata and tensors come from: a GGUF file, a generator, a test. The loader
//! sees this trait only, so that it cannot depend on a file being mapped.

use std::fmt;
use std::sync::Arc;

use fpx_quant::Format;

/// Bytes of a tensor, shared with whatever keeps them alive (a mapping, a buffer).
#[derive(Clone)]
pub struct Bytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    start: usize,
    len: usize,
}

impl Bytes {
    /// A part of `owner`'s bytes; `None` if it reaches outside.
    #[must_use]
    pub fn new(
        owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
        start: usize,
        len: usize,
    ) -> Option<Self> {
        let end = start.checked_add(len)?;
        (end <= (*owner).as_ref().len()).then_some(Self { owner, start, len })
    }

    /// Owned bytes.
    #[must_use]
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        let len = bytes.len();
        Self {
            owner: Arc::new(bytes),
            start: 0,
            len,
        }
    }

    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.start..self.start + self.len]
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({})", self.len)
    }
}

/// A tensor as stored.
#[derive(Clone, Debug)]
pub struct RawTensor {
    /// Input dimension first, as GGUF stores it.
    pub shape: Vec<u64>,
    /// Storage format of the rows.
    pub format: Format,
    /// The rows.
    pub bytes: Bytes,
}

/// A metadata value, widened.
#[derive(Clone, Debug, PartialEq)]
pub enum MetaValue {
    /// Any integer width; negative values included.
    Int(i64),
    /// f32 or f64.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A string.
    Str(String),
    /// An array of integers.
    Ints(Vec<i64>),
    /// An array of floats.
    Floats(Vec<f64>),
    /// An array of strings: only its length matters to the model.
    Strs(usize),
}

impl fmt::Display for MetaValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(v) => v.fmt(f),
            Self::Float(v) => v.fmt(f),
            Self::Bool(v) => v.fmt(f),
            Self::Str(v) => write!(f, "{v:?}"),
            Self::Ints(v) => write!(f, "{} integers {:?}", v.len(), &v[..v.len().min(8)]),
            Self::Floats(v) => write!(f, "{} floats {:?}", v.len(), &v[..v.len().min(8)]),
            Self::Strs(n) => write!(f, "{n} strings"),
        }
    }
}

/// A model's metadata and tensors under their canonical GGUF names (spec/ds4-architecture.md 1.3,
/// 1.4); a source in another dialect translates.
pub trait Source {
    /// What to call it in messages.
    fn name(&self) -> &str;
    /// A metadata value.
    fn meta(&self, key: &str) -> Option<MetaValue>;
    /// A tensor.
    fn tensor(&self, name: &str) -> Option<RawTensor>;
    /// All canonical tensor names.
    fn tensor_names(&self) -> Vec<String>;
}
