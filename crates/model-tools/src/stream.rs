//! Rows of f32 in, rows of a format out, chunk by chunk: the common end of convert and quantise.
//!
//! Must not know: where rows come from or go to.

use std::io::{self, Write};

use fpx_quant::{EncodeMode, Format, decode_row, encode_rows};

use crate::error::ToolError;

/// f32 values held at a time: 4 MiB of them, or one row if that is longer.
const CHUNK: usize = 1 << 20;
/// The smallest magnitude that rounds to infinity in f16.
const F16_OVERFLOW: f32 = 65520.0;

/// A tensor that can be read as rows: `matrices` stacked ones of `rows` rows of `k` elements.
pub(crate) trait RowSource {
    /// What to call it in messages.
    fn name(&self) -> &str;
    fn matrices(&self) -> usize;
    /// Rows of each matrix.
    fn rows(&self) -> usize;
    fn k(&self) -> usize;
    /// Reads whole rows of `matrix` from `first` on.
    fn read(&self, matrix: usize, first: usize, out: &mut [f32]) -> Result<(), ToolError>;
}

/// Squared error of an encoding.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Loss {
    /// Sum of squared differences.
    pub(crate) error: f64,
    /// Sum of squares of the source.
    pub(crate) power: f64,
}

impl Loss {
    /// Error relative to the source's power; 0 for an all-zero source coded exactly.
    pub(crate) fn nmse(&self) -> f64 {
        if self.error == 0.0 {
            0.0
        } else {
            self.error / self.power
        }
    }
}

/// Encodes all rows of `source` into `out`. `importance` gives the columns' weights of a matrix.
pub(crate) fn encode(
    source: &dyn RowSource,
    format: Format,
    importance: &dyn Fn(usize) -> Result<Option<Vec<f32>>, ToolError>,
    out: &mut dyn Write,
) -> Result<Loss, EncodeError> {
    let (k, rows) = (source.k(), source.rows());
    let at_once = (CHUNK / k.max(1)).clamp(1, rows.max(1));
    let row_bytes = format.row_bytes(k).map_err(|e| format_error(source, e))?;
    let mut values = vec![0f32; at_once * k];
    let mut back = vec![0f32; at_once * k];
    let mut bytes = vec![0u8; at_once * row_bytes];
    let mut loss = Loss::default();
    for matrix in 0..source.matrices() {
        let weights = importance(matrix)?;
        for first in (0..rows).step_by(at_once) {
            let n = at_once.min(rows - first);
            let (values, back) = (&mut values[..n * k], &mut back[..n * k]);
            let bytes = &mut bytes[..n * row_bytes];
            source.read(matrix, first, values)?;
            if format == Format::F16 {
                check_f16(source, (matrix * rows + first) * k, values)?;
            }
            encode_rows(
                format,
                values,
                k,
                weights.as_deref(),
                EncodeMode::Better,
                bytes,
            )
            .map_err(|e| format_error(source, e))?;
            decode_row(format, bytes, back).map_err(|e| format_error(source, e))?;
            for (x, y) in values.iter().zip(back.iter()) {
                let (x, y) = (f64::from(*x), f64::from(*y));
                loss.error += (x - y) * (x - y);
                loss.power += x * x;
            }
            out.write_all(bytes)?;
        }
    }
    Ok(loss)
}

fn check_f16(source: &dyn RowSource, at: usize, values: &[f32]) -> Result<(), ToolError> {
    match values.iter().position(|v| v.abs() >= F16_OVERFLOW) {
        None => Ok(()),
        Some(i) => Err(ToolError::Value {
            path: "F16 output".into(),
            tensor: source.name().to_owned(),
            index: (at + i) as u64,
            expected: "a magnitude F16 can hold (use BF16 or F32)".to_owned(),
            got: values[i].to_string(),
        }),
    }
}

fn format_error(source: &dyn RowSource, e: fpx_quant::FormatError) -> EncodeError {
    EncodeError::Tool(ToolError::Format {
        tensor: source.name().to_owned(),
        source: e,
    })
}

/// A refusal, or a failed write (whose file the caller knows).
pub(crate) enum EncodeError {
    Tool(ToolError),
    Write(io::Error),
}

impl From<ToolError> for EncodeError {
    fn from(e: ToolError) -> Self {
        Self::Tool(e)
    }
}

impl From<io::Error> for EncodeError {
    fn from(e: io::Error) -> Self {
        Self::Write(e)
    }
}

/// Writes the tensor due through `produce`, keeping its refusal apart from failed writes.
pub(crate) fn write_tensor<T>(
    writer: &mut gguf::Writer,
    name: &str,
    produce: impl FnOnce(&mut dyn Write) -> Result<T, EncodeError>,
) -> Result<T, ToolError> {
    let mut outcome = None;
    let written = writer.write_with(name, |out| match produce(out) {
        Ok(value) => {
            outcome = Some(Ok(value));
            Ok(())
        }
        Err(EncodeError::Write(e)) => Err(e),
        Err(EncodeError::Tool(e)) => {
            outcome = Some(Err(e));
            Err(io::Error::other("refused"))
        }
    });
    match (outcome, written) {
        (Some(Err(e)), _) => Err(e),
        (Some(Ok(value)), Ok(())) => Ok(value),
        (_, Err(e)) => Err(e.into()),
        (None, Ok(())) => unreachable!("a written tensor has an outcome"),
    }
}
