//! A model file, or the parts of a split model, opened: metadata, tensors, their bytes.
//!
//! Everything is checked at open; nothing of the data section is touched. Must not know: what the
//! keys and tensors mean to a model.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, ErrorKind};
use crate::extents::{TensorInfo, check_tiling};
use crate::header::{Header, MEMORY};
use crate::limits::Limits;
use crate::map::{Bytes, TensorBytes};
use crate::metadata::Metadata;
use crate::source::Source;
use crate::split::{self, SplitKeys};
use crate::types::{Dialects, Resolver};

/// How to open a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpenOptions {
    /// Meanings of ambiguous type ids.
    pub dialects: Dialects,
    /// Bounds on the header.
    pub limits: Limits,
}

/// An open model. Cheap to clone; every clone and every [`TensorBytes`] keeps the mapping alive.
#[derive(Clone, Debug)]
pub struct Gguf {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    version: u32,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    path: PathBuf,
    bytes: Arc<Bytes>,
    data_start: u64,
}

impl Gguf {
    /// Opens a model, from its only file or from the first part of a split one.
    ///
    /// # Errors
    /// Any fault of any part: see [`ErrorKind`].
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self, Error> {
        let path = path.as_ref();
        let (bytes, header) = load(path, &options.limits)?;
        let keys =
            SplitKeys::of(&header.metadata, options.limits.parts).map_err(|e| e.in_file(path))?;
        let mut builder = Builder::new(&header, options).map_err(|e| e.in_file(path))?;
        builder.add(path, bytes, &header)?;
        if let Some(keys) = keys.filter(|k| k.count > 1) {
            builder.add_others(path, keys, options)?;
        }
        Ok(builder.finish(header))
    }

    /// Opens a whole model held in memory. Errors call it `<memory>`.
    ///
    /// # Errors
    /// Any fault of the bytes, also that they are one part of a split model.
    pub fn from_bytes(bytes: Vec<u8>, options: &OpenOptions) -> Result<Self, Error> {
        let path = Path::new(MEMORY);
        let header = Header::parse(&bytes, &options.limits)?;
        let keys =
            SplitKeys::of(&header.metadata, options.limits.parts).map_err(|e| e.in_file(path))?;
        if let Some(keys) = keys.filter(|k| k.count > 1) {
            let expected = split::suffix(keys.no, keys.count);
            let (part, count) = (keys.no + 1, keys.count);
            return Err(ErrorKind::SplitName {
                part,
                count,
                expected,
            }
            .in_file(path));
        }
        let mut builder = Builder::new(&header, options).map_err(|e| e.in_file(path))?;
        builder.add(path, Bytes::Owned(bytes), &header)?;
        Ok(builder.finish(header))
    }

    /// GGUF version, 2 or 3 (of the first part).
    #[must_use]
    pub fn version(&self) -> u32 {
        self.inner.version
    }

    /// Path of the file, or of the first part.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.inner.metadata.file()
    }

    /// Paths of all parts, in order.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.inner.parts.iter().map(|p| p.path.as_path())
    }

    /// Metadata (of the first part).
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.inner.metadata
    }

    /// Tensors, in file order, part after part.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.inner.tensors
    }

    /// A tensor by name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&TensorInfo> {
        self.inner.index.get(name).map(|&i| &self.inner.tensors[i])
    }

    /// A tensor by name.
    ///
    /// # Errors
    /// `NoSuchTensor`.
    pub fn tensor(&self, name: &str) -> Result<&TensorInfo, Error> {
        self.find(name).ok_or_else(|| {
            let tensor = name.to_owned();
            ErrorKind::NoSuchTensor { tensor }.in_file(self.path())
        })
    }

    /// The bytes of a tensor of this file: rows one after another, each
    /// `format.row_bytes(row_elems())` long.
    ///
    /// # Panics
    /// If `info` comes from another file and does not fit this one.
    #[must_use]
    pub fn bytes(&self, info: &TensorInfo) -> &[u8] {
        let part = &self.inner.parts[info.part];
        &part.bytes[part.range(info)]
    }

    /// The same, owned: keeps the file mapped after this value is gone.
    ///
    /// # Panics
    /// If `info` comes from another file and does not fit this one.
    #[must_use]
    pub fn shared(&self, info: &TensorInfo) -> TensorBytes {
        let part = &self.inner.parts[info.part];
        let range = part.range(info);
        assert!(
            range.end <= part.bytes.len(),
            "{}: not of this file",
            info.name
        );
        TensorBytes {
            bytes: Arc::clone(&part.bytes),
            range,
        }
    }

    /// Bytes of all tensors together, without padding.
    #[must_use]
    pub fn tensor_bytes(&self) -> u64 {
        self.inner.tensors.iter().map(|t| t.bytes() as u64).sum()
    }
}

impl Part {
    /// Where a tensor lies. Fits `usize` because the file is in memory.
    fn range(&self, info: &TensorInfo) -> std::ops::Range<usize> {
        #[allow(clippy::cast_possible_truncation)]
        let start = (self.data_start + info.offset) as usize;
        start..start + info.bytes()
    }
}

fn load(path: &Path, limits: &Limits) -> Result<(Bytes, Header), Error> {
    let io = |source| {
        ErrorKind::Io {
            what: "open",
            source,
        }
        .in_file(path)
    };
    let bytes = Bytes::map(path).map_err(io)?;
    let source = Source::new(&bytes[..], Some(bytes.len() as u64), limits);
    let header = Header::from_source(source, path).map_err(|e| e.in_file(path))?;
    Ok((bytes, header))
}

/// Collects the parts of a model.
struct Builder {
    resolver: Resolver,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
    parts: Vec<Part>,
}

impl Builder {
    fn new(first: &Header, options: &OpenOptions) -> Result<Self, ErrorKind> {
        Ok(Self {
            resolver: Resolver::new(options.dialects, &first.metadata)?,
            tensors: Vec::new(),
            index: HashMap::new(),
            parts: Vec::new(),
        })
    }

    /// Types, sizes and extents of one file.
    fn add(&mut self, path: &Path, bytes: Bytes, header: &Header) -> Result<(), Error> {
        let part = self.parts.len();
        let tensors = header
            .tensors
            .iter()
            .map(|raw| {
                let format = self.resolver.format(raw.type_id, &raw.name)?;
                let mut t = TensorInfo::new(raw.name.clone(), raw.shape.clone(), format)?;
                t.offset = raw.offset;
                t.part = part;
                Ok(t)
            })
            .collect::<Result<Vec<_>, ErrorKind>>()
            .and_then(|t| check_tiling(&t, header, bytes.len() as u64).map(|()| t))
            .map_err(|e| e.in_file(path))?;
        for t in tensors {
            if self
                .index
                .insert(t.name.clone(), self.tensors.len())
                .is_some()
            {
                return Err(ErrorKind::DuplicateTensor { tensor: t.name }.in_file(path));
            }
            self.tensors.push(t);
        }
        self.parts.push(Part {
            path: path.to_path_buf(),
            bytes: Arc::new(bytes),
            data_start: header.data_start(),
        });
        Ok(())
    }

    /// The parts after the first.
    fn add_others(
        &mut self,
        first: &Path,
        keys: SplitKeys,
        options: &OpenOptions,
    ) -> Result<(), Error> {
        let stem = split::stem(first, keys.no, keys.count).map_err(|e| e.in_file(first))?;
        if keys.no != 0 {
            let error = ErrorKind::SplitNotFirst {
                got: keys.no + 1,
                count: keys.count,
                first: split::part_path(&stem, 0, keys.count),
            };
            return Err(error.in_file(first));
        }
        for no in 1..keys.count {
            let path = split::part_path(&stem, no, keys.count);
            let (bytes, header) = load(&path, &options.limits)?;
            check_part(&header.metadata, keys, no, options).map_err(|e| e.in_file(&path))?;
            self.add(&path, bytes, &header)?;
        }
        match keys.tensors {
            Some(expected) if expected != self.tensors.len() as u64 => Err(ErrorKind::Split {
                what: split::TENSORS_KEY,
                expected,
                got: self.tensors.len() as u64,
            }
            .in_file(first)),
            _ => Ok(()),
        }
    }

    fn finish(self, first: Header) -> Gguf {
        let inner = Inner {
            version: first.version,
            metadata: first.metadata,
            tensors: self.tensors,
            index: self.index,
            parts: self.parts,
        };
        Gguf {
            inner: Arc::new(inner),
        }
    }
}

/// A later part must be the one its name says, of the same set.
fn check_part(
    metadata: &Metadata,
    first: SplitKeys,
    no: u64,
    options: &OpenOptions,
) -> Result<(), ErrorKind> {
    let keys =
        SplitKeys::of(metadata, options.limits.parts)?.ok_or_else(|| ErrorKind::MissingKey {
            key: split::NO_KEY.to_owned(),
            expected: "u16",
        })?;
    let tensors = keys.tensors.or(first.tensors);
    for (what, expected, got) in [
        (split::COUNT_KEY, first.count, keys.count),
        (split::NO_KEY, no, keys.no),
        (
            split::TENSORS_KEY,
            first.tensors.unwrap_or(0),
            tensors.unwrap_or(0),
        ),
    ] {
        if expected != got {
            return Err(ErrorKind::Split {
                what,
                expected,
                got,
            });
        }
    }
    Ok(())
}
