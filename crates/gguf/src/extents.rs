//! Tensor extents: sizes from shapes, and the rule that they tile the data section exactly.
//!
//! Two formats of one id and different sizes show only here, as an offset that is off by a small
//! fraction (spec/fpx-formats.md 10.14). Must not know: tensor data.

use fpx_quant::{Format, FormatError};

use crate::error::ErrorKind;
use crate::header::Header;

/// A tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorInfo {
    /// Name.
    pub name: String,
    /// Shape in file order (`ne`): the contiguous dimension first, so a matrix of `rows` by
    /// `cols` is `[cols, rows]`. One to four dimensions, none zero.
    pub shape: Vec<u64>,
    /// Format of the rows.
    pub format: Format,
    /// Offset in the data section of its part.
    pub(crate) offset: u64,
    bytes: usize,
    cols: usize,
    rows: usize,
    /// Which part of a split model.
    pub(crate) part: usize,
}

impl TensorInfo {
    /// Checks shape against format.
    pub(crate) fn new(name: String, shape: Vec<u64>, format: Format) -> Result<Self, ErrorKind> {
        let (cols, rows, bytes) = match sizes(&shape, format) {
            Ok(sizes) => sizes,
            Err(Some(source)) => {
                return Err(ErrorKind::Row {
                    tensor: name,
                    source,
                });
            }
            Err(None) => {
                return Err(ErrorKind::ShapeOverflow {
                    tensor: name,
                    shape,
                });
            }
        };
        Ok(Self {
            name,
            shape,
            format,
            offset: 0,
            bytes,
            cols,
            rows,
            part: 0,
        })
    }

    /// Bytes of all rows.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Elements of a row: the first dimension.
    #[must_use]
    pub fn row_elems(&self) -> usize {
        self.cols
    }

    /// Rows: the product of the other dimensions.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements.
    #[must_use]
    pub fn elems(&self) -> usize {
        // Checked in `sizes`.
        self.cols * self.rows
    }

    /// Offset in the data section of the file that holds the tensor.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Which part of a split model holds the tensor, from 0.
    #[must_use]
    pub fn part(&self) -> usize {
        self.part
    }
}

/// Row elements, rows and bytes of a shape; `Err(None)` is an overflow.
fn sizes(shape: &[u64], format: Format) -> Result<(usize, usize, usize), Option<FormatError>> {
    let dims = shape
        .iter()
        .map(|&d| usize::try_from(d).ok())
        .collect::<Option<Vec<_>>>()
        .ok_or(None)?;
    let (&cols, others) = dims.split_first().ok_or(None)?;
    let rows = others
        .iter()
        .try_fold(1usize, |product, &d| product.checked_mul(d))
        .ok_or(None)?;
    // The element count must fit too: consumers multiply it out.
    cols.checked_mul(rows).ok_or(None)?;
    let bytes = format.matrix_bytes(rows, cols).map_err(|e| match e {
        FormatError::Overflow { .. } => None,
        other => Some(other),
    })?;
    Ok((cols, rows, bytes))
}

/// Checks that `tensors`, all of one file, tile its data section: each starts where the one
/// before ends (rounded up to the alignment), and the file ends where the last one does.
pub(crate) fn check_tiling(
    tensors: &[TensorInfo],
    header: &Header,
    len: u64,
) -> Result<(), ErrorKind> {
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|t| t.offset);
    let mut end = 0u64;
    let mut previous: Option<&TensorInfo> = None;
    for &t in &order {
        check_start(t, previous, end, header.alignment)?;
        end = t
            .offset
            .checked_add(t.bytes as u64)
            .ok_or_else(|| past_end(t, u64::MAX, len))?;
        let file_end = header.data_start().saturating_add(end);
        if file_end > len {
            return Err(past_end(t, file_end, len));
        }
        previous = Some(t);
    }
    check_end(header, end, !order.is_empty(), len)
}

fn past_end(t: &TensorInfo, end: u64, len: u64) -> ErrorKind {
    ErrorKind::PastEnd {
        tensor: t.name.clone(),
        end,
        len,
    }
}

fn check_start(
    t: &TensorInfo,
    previous: Option<&TensorInfo>,
    end: u64,
    alignment: u64,
) -> Result<(), ErrorKind> {
    if !t.offset.is_multiple_of(alignment) {
        return Err(ErrorKind::Misaligned {
            tensor: t.name.clone(),
            offset: t.offset,
            alignment,
        });
    }
    if t.offset < end {
        return Err(ErrorKind::Overlap {
            tensor: t.name.clone(),
            offset: t.offset,
            previous: previous.map(|p| p.name.clone()).unwrap_or_default(),
            end,
        });
    }
    let expected = end.next_multiple_of(alignment);
    if t.offset != expected {
        return Err(ErrorKind::Gap {
            tensor: t.name.clone(),
            expected,
            got: t.offset,
        });
    }
    Ok(())
}

/// The file may end with the last tensor or with its padding. Without tensors it may end with
/// the header.
fn check_end(header: &Header, end: u64, any: bool, len: u64) -> Result<(), ErrorKind> {
    let start = if any {
        header.data_start()
    } else {
        header.bytes
    };
    let end = start.saturating_add(end);
    let padded = end
        .checked_next_multiple_of(header.alignment)
        .unwrap_or(u64::MAX);
    if len == end || len == padded {
        return Ok(());
    }
    Err(ErrorKind::Trailing { end, padded, len })
}
