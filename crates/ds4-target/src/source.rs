//! Where a model's metadata and tensors come from: a GGUF file, a generator, a test. The loader
//! sees this trait only, so that it cannot depend on a file being mapped.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use ds4_kernels::cpu::synth::Made;
use fpx_quant::Format;

/// Bytes of a tensor: given, and shared with whatever keeps them alive (a mapping, a buffer), or made up when they are
/// asked for. A device makes its own.
#[derive(Clone)]
pub struct Bytes(Kind);

#[derive(Clone)]
enum Kind {
    Given {
        owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
        start: usize,
        len: usize,
    },
    Made(Arc<Making>),
}

/// Bytes that are made at most once.
struct Making {
    made: Made,
    len: usize,
    whole: OnceLock<Vec<u8>>,
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
        let inside = end <= (*owner).as_ref().len();
        inside.then_some(Self(Kind::Given { owner, start, len }))
    }

    /// Owned bytes.
    #[must_use]
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        let len = bytes.len();
        Self(Kind::Given {
            owner: Arc::new(bytes),
            start: 0,
            len,
        })
    }

    /// The first `len` bytes of a made-up tensor, none of which is made yet.
    #[must_use]
    pub fn of_made(made: Made, len: usize) -> Self {
        Self(Kind::Made(Arc::new(Making {
            made,
            len,
            whole: OnceLock::new(),
        })))
    }

    /// How many.
    #[must_use]
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        match &self.0 {
            Kind::Given { len, .. } => *len,
            Kind::Made(making) => making.len,
        }
    }

    /// What they are made by, if they are made up.
    #[must_use]
    pub fn made(&self) -> Option<&Made> {
        match &self.0 {
            Kind::Given { .. } => None,
            Kind::Made(making) => Some(&making.made),
        }
    }

    /// The bytes. Made-up ones are made, on threads, when this is first called, and then stay as long as any clone does.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        match &self.0 {
            Kind::Given { owner, start, len } => &(**owner).as_ref()[*start..*start + *len],
            Kind::Made(making) => making.whole.get_or_init(|| make(&making.made, making.len)),
        }
    }

    /// A part of the bytes; of made-up ones that are not there only the part is made.
    ///
    /// # Panics
    /// If it reaches outside.
    #[must_use]
    pub fn part(&self, range: Range<usize>) -> Cow<'_, [u8]> {
        match &self.0 {
            Kind::Made(making) if making.whole.get().is_none() => {
                assert!(range.end <= making.len, "{range:?} of {}", making.len);
                let mut part = vec![0; range.len()];
                making.made.fill(range.start as u64, &mut part);
                Cow::Owned(part)
            }
            _ => Cow::Borrowed(&self.as_slice()[range]),
        }
    }
}

/// Bytes of which a thread makes its share.
const SHARE: usize = 4 << 20;

/// The whole of a made-up tensor.
fn make(made: &Made, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let each = len.div_ceil(threads).max(SHARE);
    std::thread::scope(|scope| {
        for (i, part) in out.chunks_mut(each).enumerate() {
            scope.spawn(move || made.fill((i * each) as u64, part));
        }
    });
    out
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({})", self.len())
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

#[cfg(test)]
mod tests {
    use ds4_kernels::cpu::synth::{Field, key};

    use super::*;

    #[test]
    fn made_bytes_are_the_same_in_parts_on_threads_and_as_a_whole() {
        let made = Made::new(key(0, "t"), Field::of(Format::Fp4Fast).unwrap());
        // More than one thread's share, and no multiple of anything.
        let len = 2 * SHARE + 17 * 3 + 5;
        let bytes = Bytes::of_made(made, len);
        let range = SHARE - 9..SHARE + 2000;
        let early = bytes.part(range.clone()).into_owned();
        let mut want = vec![0; len];
        made.fill(0, &mut want);
        assert!(bytes.as_slice() == want);
        assert_eq!(early, want[range.clone()]);
        let late = bytes.part(range);
        assert!(matches!(late, Cow::Borrowed(_)));
        assert_eq!(late, early);
        assert_eq!((bytes.len(), bytes.made()), (len, Some(&made)));
        // A clone has what was made.
        assert!(std::ptr::eq(bytes.clone().as_slice(), bytes.as_slice()));
    }

    #[test]
    fn given_bytes_are_not_made() {
        let bytes = Bytes::from_vec(vec![1, 2, 3]);
        assert_eq!((bytes.made(), bytes.len()), (None, 3));
        assert_eq!(*bytes.part(1..3), [2, 3]);
    }

    #[test]
    #[should_panic(expected = "2..4 of 3")]
    fn a_part_outside_is_none() {
        let _ = Bytes::of_made(Made::new(0, Field::SMALL), 3).part(2..4);
    }
}
