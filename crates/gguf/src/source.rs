//! Bounded reads of little-endian primitives: the only place that touches header bytes.
//!
//! Works on any `Read`, so that a mapped file, a slice and a stream are parsed by the same code.
//! Every length is compared with what is left before anything is allocated.

use std::io::{ErrorKind as IoKind, Read};

use crate::error::ErrorKind;
use crate::limits::Limits;

/// A header being read.
pub(crate) struct Source<R> {
    inner: R,
    at: u64,
    /// Bytes the file has; of a stream, the header limit.
    len: u64,
    limits: Limits,
}

impl<R: Read> Source<R> {
    /// `len` is the length of the file; a stream of unknown length passes `None`.
    pub(crate) fn new(inner: R, len: Option<u64>, limits: &Limits) -> Self {
        Self {
            inner,
            at: 0,
            len: len.unwrap_or(u64::MAX),
            limits: *limits,
        }
    }

    /// The limits this header is held to.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Bytes read so far.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// Refuses a claim of `need` bytes that the file or the header limit cannot hold.
    pub(crate) fn require(&self, need: u64, what: &'static str) -> Result<(), ErrorKind> {
        let have = self.len.saturating_sub(self.at);
        if need > have {
            return Err(ErrorKind::Truncated {
                what,
                at: self.at,
                need,
                have,
            });
        }
        let end = self.at.saturating_add(need);
        if end > self.limits.header_bytes {
            return Err(ErrorKind::Limit {
                what: "header bytes",
                limit: self.limits.header_bytes,
                got: end,
            });
        }
        Ok(())
    }

    fn ended(&self, what: &'static str, need: u64, have: u64) -> ErrorKind {
        ErrorKind::Truncated {
            what,
            at: self.at,
            need,
            have,
        }
    }

    /// `N` bytes.
    pub(crate) fn bytes<const N: usize>(
        &mut self,
        what: &'static str,
    ) -> Result<[u8; N], ErrorKind> {
        self.require(N as u64, what)?;
        let mut out = [0; N];
        match self.inner.read_exact(&mut out) {
            Ok(()) => {}
            Err(e) if e.kind() == IoKind::UnexpectedEof => {
                return Err(self.ended(what, N as u64, 0));
            }
            Err(source) => return Err(ErrorKind::Io { what, source }),
        }
        self.at += N as u64;
        Ok(out)
    }

    /// A `u32`.
    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, ErrorKind> {
        self.bytes(what).map(u32::from_le_bytes)
    }

    /// A `u64`.
    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, ErrorKind> {
        self.bytes(what).map(u64::from_le_bytes)
    }

    /// `n` bytes. Grows as bytes arrive, so that a stream cannot make it allocate its claim.
    pub(crate) fn vec(&mut self, n: u64, what: &'static str) -> Result<Vec<u8>, ErrorKind> {
        self.require(n, what)?;
        let known = if self.len == u64::MAX { 0 } else { n };
        let mut out = Vec::with_capacity(usize::try_from(known).unwrap_or(0));
        let got = (&mut self.inner)
            .take(n)
            .read_to_end(&mut out)
            .map_err(|source| ErrorKind::Io { what, source })?;
        if (got as u64) < n {
            return Err(self.ended(what, n, got as u64));
        }
        self.at += n;
        Ok(out)
    }

    /// A count or length, held to `limit`.
    pub(crate) fn count(&mut self, what: &'static str, limit: u64) -> Result<u64, ErrorKind> {
        let got = self.u64(what)?;
        if got > limit {
            return Err(ErrorKind::Limit { what, limit, got });
        }
        Ok(got)
    }

    /// A length-prefixed UTF-8 string.
    pub(crate) fn string(&mut self, what: &'static str, limit: u64) -> Result<String, ErrorKind> {
        let n = self.count(what, limit)?;
        let at = self.at;
        String::from_utf8(self.vec(n, what)?).map_err(|_| ErrorKind::Utf8 { what, at })
    }
}
