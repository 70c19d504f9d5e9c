//! The one error of this crate: which file, and what was expected and found in it.
//!
//! Separate because every other module makes these. [`ErrorKind`] is made where the fault is
//! seen, often by code that parses bytes and knows no path; [`Error`] adds the file at the
//! boundary. Must not know: how anything is parsed.

use std::io;
use std::path::{Path, PathBuf};

use fpx_quant::{Format, FormatError};

/// A refusal or failure, with the file it is about.
#[derive(Debug, thiserror::Error)]
#[error("{}: {kind}", file.display())]
pub struct Error {
    file: PathBuf,
    #[source]
    kind: Box<ErrorKind>,
}

impl Error {
    /// The file the error is about (of a split model: the part). Bytes without a file are
    /// called `<memory>`.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// What is wrong.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }
}

impl ErrorKind {
    /// Names the file.
    pub(crate) fn in_file(self, file: &Path) -> Error {
        Error {
            file: file.to_path_buf(),
            kind: Box::new(self),
        }
    }
}

/// What is wrong with a file, or with what a caller asked of it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The operating system refused.
    #[error("{what}: {source}")]
    Io {
        /// What was attempted.
        what: &'static str,
        /// Its answer.
        source: io::Error,
    },

    // --- header ---
    /// The file does not begin with `GGUF`.
    #[error("not a GGUF file: expected magic \"GGUF\", got {got:02x?}")]
    NotGguf {
        /// First four bytes.
        got: [u8; 4],
    },
    /// A big-endian file.
    #[error(
        "big-endian GGUF (version {version} with its bytes swapped); only little endian is read"
    )]
    BigEndian {
        /// The version, in the file's byte order.
        version: u32,
    },
    /// A version this build cannot read.
    #[error("GGUF version {got}; this build reads 2 and 3")]
    Version {
        /// The file's version.
        got: u32,
    },
    /// The header ends early.
    #[error("truncated at byte {at}: {what} needs {need} bytes, {have} are left")]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Where it starts.
        at: u64,
        /// Bytes it needs.
        need: u64,
        /// Bytes left in the file.
        have: u64,
    },
    /// A count, length or depth is over the limit of [`crate::Limits`].
    #[error("{what}: {got} is over the limit of {limit}")]
    Limit {
        /// What is limited.
        what: &'static str,
        /// The limit.
        limit: u64,
        /// The file's value.
        got: u64,
    },
    /// A string is not UTF-8.
    #[error("{what} at byte {at} is not UTF-8")]
    Utf8 {
        /// Which string.
        what: &'static str,
        /// Where it starts.
        at: u64,
    },

    // --- metadata ---
    /// A key stands twice.
    #[error("metadata key {key:?} stands twice")]
    DuplicateKey {
        /// The key.
        key: String,
    },
    /// A value type id that GGUF does not define.
    #[error("metadata key {key:?}: value type {got}; GGUF defines 0 to 12")]
    ValueType {
        /// The key.
        key: String,
        /// The id.
        got: u32,
    },
    /// A bool that is neither 0 nor 1.
    #[error("metadata key {key:?}: bool byte {got:#04x}; expected 0 or 1")]
    BadBool {
        /// The key.
        key: String,
        /// The byte.
        got: u8,
    },
    /// A key the caller needs is absent.
    #[error("metadata key {key:?} is missing (expected {expected})")]
    MissingKey {
        /// The key.
        key: String,
        /// The type or form it should have.
        expected: &'static str,
    },
    /// A key has a type the caller cannot use.
    #[error("metadata key {key:?}: expected {expected}, got {got}")]
    KeyType {
        /// The key.
        key: String,
        /// The form expected.
        expected: &'static str,
        /// The form found.
        got: String,
    },
    /// A key has a value outside its range.
    #[error("metadata key {key:?}: expected {expected}, got {got}")]
    KeyValue {
        /// The key.
        key: String,
        /// The range.
        expected: String,
        /// The value.
        got: String,
    },
    /// `general.alignment` is not a power of two within the limit.
    #[error("general.alignment: expected a power of two up to {limit}, got {got}")]
    Alignment {
        /// Largest accepted.
        limit: u64,
        /// The value.
        got: u64,
    },

    // --- tensors ---
    /// A tensor name stands twice (in one file, or in two parts).
    #[error("tensor {tensor:?} stands twice")]
    DuplicateTensor {
        /// The name.
        tensor: String,
    },
    /// Number of dimensions outside 1 to 4.
    #[error("tensor {tensor:?}: {got} dimensions; expected 1 to 4")]
    Dims {
        /// The name.
        tensor: String,
        /// The file's count.
        got: u32,
    },
    /// A dimension of size zero.
    #[error("tensor {tensor:?}: dimension {dim} of {shape:?} is zero")]
    ZeroDim {
        /// The name.
        tensor: String,
        /// Index into the shape.
        dim: usize,
        /// The shape, fastest first.
        shape: Vec<u64>,
    },
    /// Elements or bytes overflow.
    #[error("tensor {tensor:?}: shape {shape:?} overflows")]
    ShapeOverflow {
        /// The name.
        tensor: String,
        /// The shape, fastest first.
        shape: Vec<u64>,
    },
    /// The rows do not fit the format.
    #[error("tensor {tensor:?}: {source}")]
    Row {
        /// The name.
        tensor: String,
        /// What does not fit.
        source: FormatError,
    },
    /// A type id nobody told this build about. No size is guessed.
    #[error("tensor {tensor:?}: type id {id} is unknown; this build knows {known}")]
    UnknownType {
        /// The tensor.
        tensor: String,
        /// The id.
        id: u32,
        /// Ids and names this build knows.
        known: String,
    },
    /// A type id with a name, which this build refuses to read.
    #[error("tensor {tensor:?}: type id {id}: {why}")]
    RefusedType {
        /// The tensor.
        tensor: String,
        /// The id.
        id: u32,
        /// What it may be, and why it is refused.
        why: &'static str,
    },
    /// A type id with several meanings, and none was chosen.
    #[error(
        "tensor {tensor:?}: type id {id} has several meanings with the same size and the file does \
         not say which ({key} is absent): name one of {choices}"
    )]
    NoDialect {
        /// The tensor.
        tensor: String,
        /// The id.
        id: u32,
        /// The key that would have told.
        key: &'static str,
        /// The meanings.
        choices: &'static str,
    },
    /// The caller's dialect and the file's own mark disagree.
    #[error("{key} of the file says {got:?}, the caller asked for {expected:?}")]
    DialectConflict {
        /// The key.
        key: &'static str,
        /// What the caller asked for.
        expected: &'static str,
        /// What the file says.
        got: &'static str,
    },
    /// An offset is not a multiple of the alignment.
    #[error("tensor {tensor:?}: offset {offset} is not a multiple of the alignment {alignment}")]
    Misaligned {
        /// The name.
        tensor: String,
        /// Offset in the data section.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// Two tensors share bytes.
    #[error("tensor {tensor:?} starts at {offset}, inside {previous:?} which ends at {end}")]
    Overlap {
        /// The name.
        tensor: String,
        /// Its offset in the data section.
        offset: u64,
        /// The tensor before it.
        previous: String,
        /// Where that one ends.
        end: u64,
    },
    /// Bytes that belong to no tensor: the size of the tensor before is wrong, or a tensor is
    /// missing.
    #[error(
        "tensor {tensor:?} starts at {got}, expected {expected}: the bytes between are nobody's"
    )]
    Gap {
        /// The name.
        tensor: String,
        /// Where it should start (end of the one before, rounded up to the alignment).
        expected: u64,
        /// Where it starts.
        got: u64,
    },
    /// A tensor reaches past the end of the file.
    #[error("tensor {tensor:?} ends at byte {end}, the file has {len}")]
    PastEnd {
        /// The name.
        tensor: String,
        /// End of its bytes in the file.
        end: u64,
        /// Length of the file.
        len: u64,
    },
    /// The file goes on after the last tensor.
    #[error("the last tensor ends at byte {end} ({padded} with padding), the file has {len}")]
    Trailing {
        /// End of the last tensor in the file.
        end: u64,
        /// The same, rounded up to the alignment.
        padded: u64,
        /// Length of the file.
        len: u64,
    },
    /// The caller asks for a tensor the file does not have.
    #[error("tensor {tensor:?} is missing")]
    NoSuchTensor {
        /// The name.
        tensor: String,
    },

    /// One role is there under two names.
    #[error("tensors {first:?} and {second:?} are two names of one tensor")]
    Ambiguous {
        /// The canonical name.
        first: String,
        /// The other.
        second: String,
    },
    /// Tensors are missing, or left over.
    #[error(
        "{bound} of {expected} tensors bound; missing: {}; unknown: {}",
        list(missing),
        list(unknown)
    )]
    Unbound {
        /// Tensors found.
        bound: usize,
        /// Tensors the model has.
        expected: usize,
        /// Canonical names of those not found.
        missing: Vec<String>,
        /// Names nobody asked for.
        unknown: Vec<String>,
    },

    // --- decoding ---
    /// Rows a tensor does not have, or an output that does not hold them.
    #[error("tensor {tensor:?}: rows {rows:?} of {have} into {out} of {need} values")]
    Rows {
        /// The tensor.
        tensor: String,
        /// The rows asked for.
        rows: std::ops::Range<usize>,
        /// Rows it has.
        have: usize,
        /// Values the output holds.
        out: usize,
        /// Values the rows have.
        need: usize,
    },
    /// Rows that cannot be decoded.
    #[error("tensor {tensor:?}: {source}")]
    Decode {
        /// The tensor.
        tensor: String,
        /// Why.
        source: FormatError,
    },
    /// A type that only ggml decodes, in a build without it.
    #[error(
        "tensor {tensor:?}: type {name} needs the feature `ggml`, which this build does not have"
    )]
    NeedsGgml {
        /// The tensor.
        tensor: String,
        /// The type.
        name: &'static str,
    },
    /// ggml does not decode it either.
    #[error("tensor {tensor:?}: {why}")]
    Ggml {
        /// The tensor.
        tensor: String,
        /// ggml-sys's own words.
        why: String,
    },

    // --- split files ---
    /// A part was opened that is not the first.
    #[error("this is part {got} of {count}; open the first, {}", first.display())]
    SplitNotFirst {
        /// The part, from 1.
        got: u64,
        /// Parts.
        count: u64,
        /// The file to open instead.
        first: PathBuf,
    },
    /// A split file does not have the name its keys call for.
    #[error("part {part} of {count} should be named *{expected}")]
    SplitName {
        /// The part, from 1.
        part: u64,
        /// Parts.
        count: u64,
        /// The suffix expected.
        expected: String,
    },
    /// A number of a part is not that of the set.
    #[error("{what}: expected {expected}, got {got}")]
    Split {
        /// Which number.
        what: &'static str,
        /// What the first part says.
        expected: u64,
        /// What this part says.
        got: u64,
    },

    // --- writing ---
    /// A name or key ggml could not read back.
    #[error("name {name:?} has {got} bytes; expected 1 to {limit}")]
    NameLength {
        /// The name.
        name: String,
        /// Its length in bytes.
        got: usize,
        /// The limit.
        limit: usize,
    },
    /// A key that only the writer sets.
    #[error("metadata key {key:?} is written by the writer itself")]
    ReservedKey {
        /// The key.
        key: String,
    },
    /// Two dialects of one id in one file.
    #[error("tensor {tensor:?}: {got} cannot stand in one file with {expected} (same type id)")]
    MixedDialects {
        /// The tensor.
        tensor: String,
        /// The dialect of the tensors before.
        expected: &'static str,
        /// Its dialect.
        got: &'static str,
    },
    /// Tensors are written in the order declared.
    #[error("tensor {got:?} is written where {expected:?} is due")]
    WriteOrder {
        /// The tensor due (empty: all are written).
        expected: String,
        /// The tensor given.
        got: String,
    },
    /// A producer gave too few or too many bytes.
    #[error("tensor {tensor:?}: expected {expected} bytes, got {got}")]
    WriteSize {
        /// The tensor.
        tensor: String,
        /// Bytes its shape and format need.
        expected: u64,
        /// Bytes given (at least this many, when too many).
        got: u64,
    },
    /// What would be written does not read back as declared (a MIX tensor without codebooks, a
    /// ggml type with the wrong block size).
    #[error("tensor {tensor:?}: {expected} would be read back as {got}")]
    NotReadable {
        /// The tensor.
        tensor: String,
        /// The format declared.
        expected: Format,
        /// The format its id stands for.
        got: Format,
    },
    /// `finish` before the last tensor.
    #[error("cannot finish: tensor {tensor:?} is not written")]
    Unwritten {
        /// The first tensor not written.
        tensor: String,
    },
    /// Use of a writer after one of its calls failed.
    #[error("a write of this file failed before; nothing of it is kept")]
    Failed,
}

/// Names for a message: the first few, then a count.
fn list(names: &[String]) -> String {
    const SHOWN: usize = 8;
    match names.len() {
        0 => "none".to_owned(),
        n if n <= SHOWN => names.join(", "),
        n => format!("{} and {} more", names[..SHOWN].join(", "), n - SHOWN),
    }
}
