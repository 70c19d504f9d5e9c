//! Metadata values as GGUF types them. Must not know: keys, files.

use std::fmt;

/// Type ids of the format.
pub(crate) mod id {
    pub(crate) const U8: u32 = 0;
    pub(crate) const I8: u32 = 1;
    pub(crate) const U16: u32 = 2;
    pub(crate) const I16: u32 = 3;
    pub(crate) const U32: u32 = 4;
    pub(crate) const I32: u32 = 5;
    pub(crate) const F32: u32 = 6;
    pub(crate) const BOOL: u32 = 7;
    pub(crate) const STR: u32 = 8;
    pub(crate) const ARRAY: u32 = 9;
    pub(crate) const U64: u32 = 10;
    pub(crate) const I64: u32 = 11;
    pub(crate) const F64: u32 = 12;
}

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Str(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array of one element type.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    Str(Vec<String>),
    Array(Vec<Array>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

/// Runs the same expression for every element type.
macro_rules! each_array {
    ($array:expr, $v:ident => $body:expr) => {
        match $array {
            Array::U8($v) => $body,
            Array::I8($v) => $body,
            Array::U16($v) => $body,
            Array::I16($v) => $body,
            Array::U32($v) => $body,
            Array::I32($v) => $body,
            Array::F32($v) => $body,
            Array::Bool($v) => $body,
            Array::Str($v) => $body,
            Array::Array($v) => $body,
            Array::U64($v) => $body,
            Array::I64($v) => $body,
            Array::F64($v) => $body,
        }
    };
}

impl Array {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        each_array!(self, v => v.len())
    }

    /// Whether there is no element.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Type id of the elements.
    pub(crate) fn element_id(&self) -> u32 {
        match self {
            Self::U8(_) => id::U8,
            Self::I8(_) => id::I8,
            Self::U16(_) => id::U16,
            Self::I16(_) => id::I16,
            Self::U32(_) => id::U32,
            Self::I32(_) => id::I32,
            Self::F32(_) => id::F32,
            Self::Bool(_) => id::BOOL,
            Self::Str(_) => id::STR,
            Self::Array(_) => id::ARRAY,
            Self::U64(_) => id::U64,
            Self::I64(_) => id::I64,
            Self::F64(_) => id::F64,
        }
    }

    /// Element `i` as an unsigned integer, if it is one that is not negative.
    pub(crate) fn u64_at(&self, i: usize) -> Option<u64> {
        match self {
            Self::U8(v) => v.get(i).map(|&x| u64::from(x)),
            Self::U16(v) => v.get(i).map(|&x| u64::from(x)),
            Self::U32(v) => v.get(i).map(|&x| u64::from(x)),
            Self::U64(v) => v.get(i).copied(),
            Self::I8(v) => v.get(i).and_then(|&x| u64::try_from(x).ok()),
            Self::I16(v) => v.get(i).and_then(|&x| u64::try_from(x).ok()),
            Self::I32(v) => v.get(i).and_then(|&x| u64::try_from(x).ok()),
            Self::I64(v) => v.get(i).and_then(|&x| u64::try_from(x).ok()),
            _ => None,
        }
    }

    /// Whether the elements are integers.
    pub(crate) fn is_integer(&self) -> bool {
        !matches!(
            self,
            Self::F32(_) | Self::F64(_) | Self::Bool(_) | Self::Str(_) | Self::Array(_)
        )
    }
}

/// Name of a type id, for messages.
fn type_name(id: u32) -> &'static str {
    const NAMES: [&str; 13] = [
        "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "str", "array", "u64", "i64", "f64",
    ];
    NAMES.get(id as usize).copied().unwrap_or("unknown")
}

impl Value {
    /// Type id.
    pub(crate) fn id(&self) -> u32 {
        match self {
            Self::U8(_) => id::U8,
            Self::I8(_) => id::I8,
            Self::U16(_) => id::U16,
            Self::I16(_) => id::I16,
            Self::U32(_) => id::U32,
            Self::I32(_) => id::I32,
            Self::F32(_) => id::F32,
            Self::Bool(_) => id::BOOL,
            Self::Str(_) => id::STR,
            Self::Array(_) => id::ARRAY,
            Self::U64(_) => id::U64,
            Self::I64(_) => id::I64,
            Self::F64(_) => id::F64,
        }
    }

    /// The value as an unsigned integer, if it is one that is not negative.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::U8(x) => Some(u64::from(x)),
            Self::U16(x) => Some(u64::from(x)),
            Self::U32(x) => Some(u64::from(x)),
            Self::U64(x) => Some(x),
            Self::I8(x) => u64::try_from(x).ok(),
            Self::I16(x) => u64::try_from(x).ok(),
            Self::I32(x) => u64::try_from(x).ok(),
            Self::I64(x) => u64::try_from(x).ok(),
            _ => None,
        }
    }

    /// Type and, where short, value: `i32 -1`, `array of 43 f32`.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Array(a) => format!("array of {} {}", a.len(), type_name(a.element_id())),
            _ => format!("{} {self}", type_name(self.id())),
        }
    }
}

/// The value itself; long strings and arrays are cut.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 64;
        match self {
            Self::U8(x) => x.fmt(f),
            Self::I8(x) => x.fmt(f),
            Self::U16(x) => x.fmt(f),
            Self::I16(x) => x.fmt(f),
            Self::U32(x) => x.fmt(f),
            Self::I32(x) => x.fmt(f),
            Self::F32(x) => x.fmt(f),
            Self::Bool(x) => x.fmt(f),
            Self::U64(x) => x.fmt(f),
            Self::I64(x) => x.fmt(f),
            Self::F64(x) => x.fmt(f),
            Self::Array(_) => f.write_str(&self.describe()),
            Self::Str(s) if s.chars().count() <= SHOWN => write!(f, "{s:?}"),
            Self::Str(s) => {
                let head: String = s.chars().take(SHOWN).collect();
                write!(f, "{head:?}... ({} bytes)", s.len())
            }
        }
    }
}

macro_rules! from {
    ($($variant:ident: $scalar:ty),*) => {$(
        impl From<$scalar> for Value {
            fn from(x: $scalar) -> Self {
                Self::$variant(x)
            }
        }
        impl From<Vec<$scalar>> for Value {
            fn from(v: Vec<$scalar>) -> Self {
                Self::Array(Array::$variant(v))
            }
        }
    )*};
}
from!(U8: u8, I8: i8, U16: u16, I16: i16, U32: u32, I32: i32, F32: f32, Bool: bool, Str: String,
      Array: Array, U64: u64, I64: i64, F64: f64);

impl From<&str> for Value {
    fn from(s: &str) -> Self {
        Self::Str(s.to_owned())
    }
}
