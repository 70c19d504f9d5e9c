//! GGUF files: a checked reader, a deterministic atomic writer, type dialects, DS4 tensor names.
//!
//! Separate from the model because everything here treats its input as hostile and nothing here
//! computes (`decode` chooses who decodes a row): a file is either refused with a message that names file, tensor or key, expectation
//! and finding, or every later access is in bounds. Must not know: devices, decoding of blocks,
//! how a model uses its keys. Formats accepted and refused: `docs/formats/gguf.md`.
//!
//! Opening maps the file and reads its header only. The caller must see to it that nobody changes
//! or truncates the file while it is open.

mod decode;
mod error;
mod extents;
mod file;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixture;
mod header;
mod limits;
mod map;
mod metadata;
pub mod names;
mod source;
mod split;
pub mod types;
mod value;
mod writer;

pub use decode::decode_row;
pub use error::{Error, ErrorKind};
pub use extents::TensorInfo;
pub use file::{Gguf, OpenOptions};
pub use header::{Header, RawTensor};
pub use limits::Limits;
pub use map::TensorBytes;
pub use metadata::Metadata;
pub use types::Dialects;
pub use value::{Array, Value};
pub use writer::{GgufBuilder, Writer, Written, WrittenPart};
