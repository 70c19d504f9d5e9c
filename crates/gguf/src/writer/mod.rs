//! Writing: declare everything, then stream tensor bytes in order; the file appears whole or not
//! at all.
//!
//! The same declarations and bytes give the same file. Memory is bounded by what the caller holds
//! of one tensor. Must not know: how bytes of a format are made.

mod encode;
mod part;
mod plan;

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use fpx_quant::Format;

use self::part::PartFile;
use self::plan::PartPlan;
use crate::error::{Error, ErrorKind};
use crate::extents::TensorInfo;
use crate::header::{DEFAULT_ALIGNMENT, MAX_DIMS};
use crate::limits::Limits;
use crate::metadata::Metadata;
use crate::split;
use crate::value::Value;

/// What a file will hold.
#[derive(Clone, Debug)]
pub struct GgufBuilder {
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    names: HashSet<String>,
    alignment: u64,
    max_part_bytes: Option<u64>,
}

impl Default for GgufBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl GgufBuilder {
    /// No keys, no tensors, alignment 32, one part.
    #[must_use]
    pub fn new() -> Self {
        Self {
            metadata: Metadata::new(Path::new("<new file>")),
            tensors: Vec::new(),
            names: HashSet::new(),
            alignment: DEFAULT_ALIGNMENT,
            max_part_bytes: None,
        }
    }

    /// Sets a key; a key set before keeps its place and gets the new value.
    ///
    /// # Errors
    /// `ReservedKey` for `general.alignment`, `split.*` and the dialect marks, which the writer
    /// derives; `NameLength`.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) -> Result<&mut Self, Error> {
        if plan::is_reserved(key) {
            let key = key.to_owned();
            return Err(self.error(ErrorKind::ReservedKey { key }));
        }
        plan::check_name(key, true).map_err(|e| self.error(e))?;
        self.metadata.set(key, value.into());
        Ok(self)
    }

    /// Sets every key of another file, in its order, except those the writer derives.
    ///
    /// # Errors
    /// `NameLength`.
    pub fn set_all(&mut self, other: &Metadata) -> Result<&mut Self, Error> {
        for (key, value) in other.iter().filter(|(k, _)| !plan::is_reserved(k)) {
            self.set(key, value.clone())?;
        }
        Ok(self)
    }

    /// Declares the next tensor. `shape` is in file order (`ne`): the contiguous dimension first.
    ///
    /// # Errors
    /// `DuplicateTensor`, `NameLength`, `Dims`, `ZeroDim`, `ShapeOverflow`, `Row`.
    pub fn tensor(
        &mut self,
        name: &str,
        shape: &[u64],
        format: Format,
    ) -> Result<&mut Self, Error> {
        let tensor = name.to_owned();
        plan::check_name(name, false).map_err(|e| self.error(e))?;
        if shape.is_empty() || shape.len() > MAX_DIMS as usize {
            let got = u32::try_from(shape.len()).unwrap_or(u32::MAX);
            return Err(self.error(ErrorKind::Dims { tensor, got }));
        }
        if let Some(dim) = shape.iter().position(|&d| d == 0) {
            let shape = shape.to_vec();
            return Err(self.error(ErrorKind::ZeroDim { tensor, dim, shape }));
        }
        if !self.names.insert(tensor.clone()) {
            return Err(self.error(ErrorKind::DuplicateTensor { tensor }));
        }
        let info = TensorInfo::new(tensor, shape.to_vec(), format).map_err(|e| self.error(e))?;
        self.tensors.push(info);
        Ok(self)
    }

    /// Alignment of tensor offsets: a power of two, 32 unless set.
    ///
    /// # Errors
    /// `Alignment`.
    pub fn alignment(&mut self, bytes: u64) -> Result<&mut Self, Error> {
        let limit = Limits::default().alignment;
        if !bytes.is_power_of_two() || bytes > limit {
            return Err(self.error(ErrorKind::Alignment { limit, got: bytes }));
        }
        self.alignment = bytes;
        Ok(self)
    }

    /// Splits the output so that no part holds more than `bytes` of tensor data (a larger tensor
    /// has a part of its own). What fits one part is written as one ordinary file.
    pub fn max_part_bytes(&mut self, bytes: u64) -> &mut Self {
        self.max_part_bytes = Some(bytes);
        self
    }

    /// The tensors declared, in order. Offsets are not set yet.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Plans the file, opens a temporary one beside `path` and writes the header. A split output
    /// turns `dir/model.gguf` into `dir/model-00001-of-0000N.gguf`.
    ///
    /// # Errors
    /// `MixedDialects`, `NotReadable`, `Limit`, `Io`.
    pub fn create(&self, path: impl AsRef<Path>) -> Result<Writer, Error> {
        let path = path.as_ref();
        let parts = self.plan().map_err(|e| e.in_file(path))?;
        let targets = targets(path, parts.len() as u64);
        let mut writer = Writer {
            path: path.to_path_buf(),
            parts,
            targets,
            open: None,
            complete: Vec::new(),
            next: (0, 0),
            failed: false,
        };
        writer.open_part()?;
        Ok(writer)
    }

    /// Writes the headers only; the data is a hole that reads as zeros.
    ///
    /// # Errors
    /// As [`Self::create`].
    #[cfg(any(test, feature = "fixtures"))]
    pub fn write_sparse(&self, path: impl AsRef<Path>) -> Result<(), Error> {
        let path = path.as_ref();
        let parts = self.plan().map_err(|e| e.in_file(path))?;
        let io = |source| {
            ErrorKind::Io {
                what: "write",
                source,
            }
            .in_file(path)
        };
        let mut complete = Vec::new();
        for (plan, target) in parts.iter().zip(targets(path, parts.len() as u64)) {
            let mut file = PartFile::create(&target).map_err(io)?;
            file.write_all(&plan.header).map_err(io)?;
            file.extend(plan.len).map_err(io)?;
            complete.push(file.complete().map_err(io)?);
        }
        part::commit(complete).map_err(io)
    }

    fn plan(&self) -> Result<Vec<PartPlan>, ErrorKind> {
        plan::plan(
            &self.metadata,
            &self.tensors,
            self.alignment,
            self.max_part_bytes,
        )
    }

    fn error(&self, kind: ErrorKind) -> Error {
        kind.in_file(self.metadata.file())
    }
}

fn targets(path: &Path, count: u64) -> Vec<PathBuf> {
    if count == 1 {
        return vec![path.to_path_buf()];
    }
    let stem = match path.extension() {
        Some(e) if e == "gguf" => path.with_extension(""),
        _ => path.to_path_buf(),
    };
    (0..count)
        .map(|no| split::part_path(&stem, no, count))
        .collect()
}

/// A file being written. Dropping it before [`Writer::finish`] leaves nothing behind.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    parts: Vec<PartPlan>,
    targets: Vec<PathBuf>,
    open: Option<PartFile>,
    complete: Vec<part::Complete>,
    /// Part and tensor due.
    next: (usize, usize),
    failed: bool,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// One file, or the parts in order.
    pub parts: Vec<WrittenPart>,
}

/// One file written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenPart {
    /// Where it is.
    pub path: PathBuf,
    /// Its length.
    pub bytes: u64,
    /// BLAKE3 of the whole file, in hexadecimal.
    pub blake3: String,
}

impl Writer {
    /// The tensor due, `None` when all are written.
    #[must_use]
    pub fn due(&self) -> Option<&TensorInfo> {
        self.parts.get(self.next.0)?.tensors.get(self.next.1)
    }

    /// Writes the tensor due from memory.
    ///
    /// # Errors
    /// `WriteOrder`, `WriteSize`, `Io`, `Failed`. After an error nothing of the file is kept.
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        self.write_with(name, |out| out.write_all(bytes))
    }

    /// Writes the tensor due from a reader, which must give exactly its bytes.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub fn write_from(&mut self, name: &str, mut from: impl Read) -> Result<(), Error> {
        self.write_with(name, |mut out| io::copy(&mut from, &mut out).map(drop))
    }

    /// Writes the tensor due through a closure, which must write exactly its bytes.
    ///
    /// # Errors
    /// As [`Self::write`]; an error of the closure is `Io`.
    pub fn write_with(
        &mut self,
        name: &str,
        produce: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), Error> {
        if self.failed {
            return Err(ErrorKind::Failed.in_file(&self.path));
        }
        let result = self.try_write(name, produce);
        if result.is_err() {
            self.failed = true;
            self.open = None;
            self.complete.clear();
        }
        result
    }

    fn try_write(
        &mut self,
        name: &str,
        produce: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), Error> {
        let due = self
            .due()
            .map(|t| (t.name.clone(), t.offset(), t.bytes() as u64));
        let (tensor, offset, expected) = match due {
            Some(due) if due.0 == name => due,
            other => {
                return Err(self.error(ErrorKind::WriteOrder {
                    expected: other.map(|d| d.0).unwrap_or_default(),
                    got: name.to_owned(),
                }));
            }
        };
        let start = self.parts[self.next.0].header.len() as u64 + offset;
        let path = &self.path;
        let io = |source| {
            ErrorKind::Io {
                what: "write",
                source,
            }
            .in_file(path)
        };
        let Some(file) = &mut self.open else {
            return Err(ErrorKind::Failed.in_file(path));
        };
        file.pad_to(start).map_err(io)?;
        let mut sink = Sink {
            file,
            expected,
            got: 0,
        };
        let result = produce(&mut sink);
        let got = sink.got;
        // A sink that refused an excess byte made the closure fail: the size is the cause.
        if got != expected && (got > expected || result.is_ok()) {
            return Err(ErrorKind::WriteSize {
                tensor,
                expected,
                got,
            }
            .in_file(path));
        }
        result.map_err(io)?;
        self.next.1 += 1;
        self.advance()
    }

    /// Goes to the next part when this one has all its tensors.
    fn advance(&mut self) -> Result<(), Error> {
        while self.next.0 + 1 < self.parts.len()
            && self.next.1 == self.parts[self.next.0].tensors.len()
        {
            self.close_part()?;
            self.next = (self.next.0 + 1, 0);
            self.open_part()?;
        }
        Ok(())
    }

    fn open_part(&mut self) -> Result<(), Error> {
        let target = &self.targets[self.next.0];
        let io = |source| {
            ErrorKind::Io {
                what: "create",
                source,
            }
            .in_file(target)
        };
        let mut file = PartFile::create(target).map_err(io)?;
        file.write_all(&self.parts[self.next.0].header)
            .map_err(io)?;
        self.open = Some(file);
        Ok(())
    }

    fn close_part(&mut self) -> Result<(), Error> {
        let Some(mut file) = self.open.take() else {
            return Err(self.error(ErrorKind::Failed));
        };
        let target = &self.targets[self.next.0];
        let io = |source| {
            ErrorKind::Io {
                what: "write",
                source,
            }
            .in_file(target)
        };
        file.pad_to(self.parts[self.next.0].len).map_err(io)?;
        self.complete.push(file.complete().map_err(io)?);
        Ok(())
    }

    /// Syncs and renames.
    ///
    /// # Errors
    /// `Unwritten` if a tensor is missing, `Failed` after a failed write, `Io`. After an error
    /// nothing of the file is kept.
    pub fn finish(mut self) -> Result<Written, Error> {
        if self.failed {
            return Err(self.error(ErrorKind::Failed));
        }
        if let Some(due) = self.due() {
            let tensor = due.name.clone();
            return Err(self.error(ErrorKind::Unwritten { tensor }));
        }
        self.close_part()?;
        let complete = std::mem::take(&mut self.complete);
        let parts = complete
            .iter()
            .map(|c| WrittenPart {
                path: c.target.clone(),
                bytes: c.bytes,
                blake3: c.blake3.clone(),
            })
            .collect();
        part::commit(complete).map_err(|source| {
            self.error(ErrorKind::Io {
                what: "rename",
                source,
            })
        })?;
        Ok(Written { parts })
    }

    fn error(&self, kind: ErrorKind) -> Error {
        kind.in_file(&self.path)
    }
}

/// Takes the bytes of one tensor and refuses one too many.
struct Sink<'a> {
    file: &'a mut PartFile,
    expected: u64,
    got: u64,
}

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let total = self.got.saturating_add(bytes.len() as u64);
        if total > self.expected {
            self.got = total;
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "too many bytes",
            ));
        }
        let n = self.file.write(bytes)?;
        self.got += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
