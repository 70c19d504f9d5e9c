//! The bytes of a file: a read-only mapping, or memory. The only unsafe code of this crate.
//!
//! Must not know: what the bytes mean.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

/// Bytes that live as long as somebody holds them.
pub(crate) enum Bytes {
    Mapped(Mmap),
    Owned(Vec<u8>),
}

impl Bytes {
    /// Maps a regular file. Nothing is read: pages come in as they are used.
    pub(crate) fn map(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a regular file",
            ));
        }
        // SAFETY: the mapping is private to this value and read-only, and outlives every slice
        // lent from it (`TensorBytes` holds the Arc). What cannot be enforced is that no other
        // process changes or truncates the file meanwhile; the crate documentation makes that
        // the caller's duty, as every engine that maps its weights does. Consumers decode bytes
        // without trusting them, so changed bytes give wrong numbers, a truncated file SIGBUS.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Self::Mapped(map))
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(m) => m,
            Self::Owned(v) => v,
        }
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Mapped(_) => "Mapped",
            Self::Owned(_) => "Owned",
        };
        write!(f, "{kind}({} bytes)", self.len())
    }
}

/// The bytes of one tensor. Cheap to clone; keeps the file mapped after the [`crate::Gguf`] is
/// gone.
#[derive(Clone, Debug)]
pub struct TensorBytes {
    pub(crate) bytes: Arc<Bytes>,
    pub(crate) range: Range<usize>,
}

impl Deref for TensorBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.range.clone()]
    }
}

impl AsRef<[u8]> for TensorBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}
