//! Little-endian fields of a body, written and read in order. A reader names the field that is missing.

use crate::error::LinkError;

/// Writes fields.
#[derive(Debug, Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn u32(&mut self, v: u32) -> &mut Self {
        self.0.extend_from_slice(&v.to_le_bytes());
        self
    }

    pub(crate) fn u64(&mut self, v: u64) -> &mut Self {
        self.0.extend_from_slice(&v.to_le_bytes());
        self
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Bytes with their length before them, cut at `most`.
    pub(crate) fn text(&mut self, bytes: &[u8], most: usize) -> &mut Self {
        let bytes = &bytes[..bytes.len().min(most)];
        self.u32(bytes.len() as u32).raw(bytes)
    }
}

/// Reads fields.
#[derive(Debug)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn raw(&mut self, field: &'static str, n: usize) -> Result<&'a [u8], LinkError> {
        let Some((head, rest)) = self.0.split_at_checked(n) else {
            let got = format!("{} bytes", self.0.len());
            return Err(LinkError::corrupt(field, format!("{n} bytes"), got));
        };
        self.0 = rest;
        Ok(head)
    }

    pub(crate) fn array<const N: usize>(
        &mut self,
        field: &'static str,
    ) -> Result<[u8; N], LinkError> {
        let mut out = [0; N];
        out.copy_from_slice(self.raw(field, N)?);
        Ok(out)
    }

    pub(crate) fn u16(&mut self, field: &'static str) -> Result<u16, LinkError> {
        self.array(field).map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self, field: &'static str) -> Result<u32, LinkError> {
        self.array(field).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, field: &'static str) -> Result<u64, LinkError> {
        self.array(field).map(u64::from_le_bytes)
    }

    pub(crate) fn text(&mut self, field: &'static str, most: usize) -> Result<&'a [u8], LinkError> {
        let n = self.u32(field)? as usize;
        if n > most {
            return Err(LinkError::corrupt(
                field,
                format!("at most {most} bytes"),
                n,
            ));
        }
        self.raw(field, n)
    }

    /// Nothing may follow.
    pub(crate) fn end(&self, field: &'static str) -> Result<(), LinkError> {
        if self.0.is_empty() {
            return Ok(());
        }
        let got = format!("{} bytes more", self.0.len());
        Err(LinkError::corrupt(field, "the end of the body", got))
    }
}
