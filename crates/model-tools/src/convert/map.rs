//! A mapped file. The only unsafe code of this crate. Must not know: what the bytes mean.

use std::fmt;
use std::fs::File;
use std::io;
use std::path::Path;

use memmap2::Mmap;

/// A read-only mapping of a regular file.
pub(crate) struct Mapped(Mmap);

impl Mapped {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        if !file.metadata()?.is_file() {
            let why = "not a regular file";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        // SAFETY: the mapping is read-only and owned by this value, which outlives every slice lent
        // from it. That no other process changes or truncates the file meanwhile is the caller's
        // duty (stated in the documentation of the conversions); bytes are decoded without trust,
        // so a change gives wrong numbers and a truncation SIGBUS.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Self(map))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Mapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapped({} bytes)", self.0.len())
    }
}
