//! Reads little-endian fields of untrusted bytes, with the place of the first wrong one.
//!
//! Must not know: what the fields mean.

use crate::format::FormatError;

/// A position in the bytes of a sidecar of one kind.
pub(super) struct Cursor<'a> {
    kind: &'static str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(kind: &'static str, bytes: &'a [u8]) -> Self {
        Self { kind, bytes, at: 0 }
    }

    /// An error about the field that was read last or is read next.
    pub(super) fn error(
        &self,
        what: &'static str,
        expected: impl ToString,
        got: impl ToString,
    ) -> FormatError {
        FormatError::Sidecar {
            kind: self.kind,
            at: self.at,
            what,
            expected: expected.to_string(),
            got: got.to_string(),
        }
    }

    pub(super) fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next `count` bytes.
    pub(super) fn take(
        &mut self,
        what: &'static str,
        count: usize,
    ) -> Result<&'a [u8], FormatError> {
        if count > self.remaining() {
            let expected = format!("{count} bytes");
            return Err(self.error(what, expected, self.remaining()));
        }
        let slice = &self.bytes[self.at..self.at + count];
        self.at += count;
        Ok(slice)
    }

    pub(super) fn u8(&mut self, what: &'static str) -> Result<u8, FormatError> {
        Ok(self.take(what, 1)?[0])
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Result<u32, FormatError> {
        let b = self.take(what, 4)?;
        Ok(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    /// A u32 used as a size.
    pub(super) fn size(&mut self, what: &'static str) -> Result<usize, FormatError> {
        let value = self.u32(what)?;
        usize::try_from(value).map_err(|_| self.error(what, "a size", value))
    }

    /// A u32 that must have one value.
    pub(super) fn expect(&mut self, what: &'static str, value: u32) -> Result<(), FormatError> {
        let got = self.u32(what)?;
        if got != value {
            return Err(self.error(what, value, got));
        }
        Ok(())
    }

    /// `count` 16-bit words.
    pub(super) fn words(
        &mut self,
        what: &'static str,
        count: usize,
    ) -> Result<Vec<u16>, FormatError> {
        let bytes = count
            .checked_mul(2)
            .ok_or_else(|| self.error(what, "a size", count))?;
        let pairs = self.take(what, bytes)?.chunks_exact(2);
        Ok(pairs.map(|p| u16::from_le_bytes([p[0], p[1]])).collect())
    }

    /// The eight bytes that name a kind, and the counted header that follows all of them: entries,
    /// then a zero.
    pub(super) fn header(&mut self, magic: &'static [u8; 8]) -> Result<usize, FormatError> {
        let got = self.take("magic", 8)?;
        if got != magic {
            return Err(self.error("magic", magic.escape_ascii(), got.escape_ascii()));
        }
        let count = self.size("entry count")?;
        self.expect("reserved field", 0)?;
        Ok(count)
    }

    /// Nothing may follow the last entry.
    pub(super) fn finish(self) -> Result<(), FormatError> {
        match self.remaining() {
            0 => Ok(()),
            extra => Err(self.error("trailing bytes", 0, extra)),
        }
    }
}
