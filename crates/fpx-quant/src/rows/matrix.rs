//! A weight matrix: checked bytes with their format.

use std::ops::Range;

use crate::a8::BLOCK;
use crate::format::{Format, FormatError};
use crate::rows::term::Term;

/// A weight matrix of `rows` rows of `k` elements, rows contiguous, no alignment.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    format: Format,
    rows: usize,
    k: usize,
    row_bytes: usize,
    data: &'a [u8],
}

impl<'a> Matrix<'a> {
    /// Checks that `data` is exactly `rows` rows of `k` elements of a format with row kernels.
    ///
    /// # Errors
    /// `PartialBlock`, `Overflow`, `Bytes`, `Unsupported`.
    pub fn new(format: Format, rows: usize, k: usize, data: &'a [u8]) -> Result<Self, FormatError> {
        let row_bytes = Self::check(format, rows, k, data.len())?;
        Ok(Self {
            format,
            rows,
            k,
            row_bytes,
            data,
        })
    }

    /// What [`Self::new`] checks, of so many bytes that need not be there yet; bytes of a row.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn check(format: Format, rows: usize, k: usize, got: usize) -> Result<usize, FormatError> {
        if !format.is_float() && Term::of(format).is_none() {
            let what = "a matrix product";
            return Err(FormatError::Unsupported { format, what });
        }
        let expected = format.matrix_bytes(rows, k)?;
        if got != expected {
            return Err(FormatError::Bytes {
                format,
                expected,
                got,
            });
        }
        format.row_bytes(k)
    }

    /// The format of its rows.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Number of rows: outputs of a product.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of a row: inputs of a product.
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// All bytes.
    #[must_use]
    pub fn data(&self) -> &'a [u8] {
        self.data
    }

    /// The bytes of one row.
    ///
    /// # Panics
    /// If there is no such row.
    #[must_use]
    #[inline]
    pub fn row(&self, row: usize) -> &'a [u8] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        &self.data[row * self.row_bytes..][..self.row_bytes]
    }

    /// Bytes from a segment of a row (blocks of 32) to what a kernel that takes `abreast` rows,
    /// segment by segment, reads next: the segment after, or the first one `abreast` rows on.
    #[inline]
    pub(super) fn ahead(&self, abreast: usize, segment: Range<usize>) -> usize {
        let bytes =
            |blocks: usize| blocks * BLOCK / self.format.block_elems() * self.format.block_bytes();
        if segment.end * BLOCK < self.k {
            bytes(segment.len())
        } else {
            abreast * self.row_bytes - bytes(segment.start)
        }
    }

    /// Some of its rows as a matrix (an expert of a stack, a slice of a thread).
    ///
    /// # Panics
    /// If the range leaves the matrix.
    #[must_use]
    pub fn slice(&self, rows: Range<usize>) -> Self {
        assert!(
            rows.start <= rows.end && rows.end <= self.rows,
            "{rows:?} of {}",
            self.rows
        );
        Self {
            rows: rows.len(),
            data: &self.data[rows.start * self.row_bytes..rows.end * self.row_bytes],
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_checked() {
        let bytes = [0u8; 34 * 6];
        let m = Matrix::new(Format::Q8_0, 3, 64, &bytes).unwrap();
        assert_eq!((m.row(2).len(), m.slice(1..3).rows()), (68, 2));
        assert_eq!(m.slice(1..3).row(1).as_ptr(), m.row(2).as_ptr());
        assert!(matches!(
            Matrix::new(Format::Q8_0, 3, 64, &bytes[1..]),
            Err(FormatError::Bytes {
                expected: 204,
                got: 203,
                ..
            })
        ));
        assert!(matches!(
            Matrix::new(Format::Q8_0, 3, 65, &bytes),
            Err(FormatError::PartialBlock { .. })
        ));
        assert!(matches!(
            Matrix::new(Format::Q8_0, usize::MAX, 64, &bytes),
            Err(FormatError::Overflow { .. })
        ));
        for format in [Format::I32, Format::Mix2, Format::Mix3] {
            assert!(matches!(
                Matrix::new(format, 0, 32, &[]),
                Err(FormatError::Unsupported { .. })
            ));
        }
    }

    #[test]
    #[should_panic(expected = "row 3 of 3")]
    fn a_row_outside_panics() {
        let _ = Matrix::new(Format::F32, 3, 1, &[0; 12]).unwrap().row(3);
    }
}
