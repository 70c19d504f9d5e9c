//! Rows of any format to f32: ours by `fpx-quant`, ggml's other types by ggml where it is built
//! in. Chooses who decodes and names the tensor in errors; knows no block layout.

use std::ops::Range;

use fpx_quant::Format;

use crate::error::{Error, ErrorKind};
use crate::extents::TensorInfo;
use crate::file::Gguf;

/// Decodes whole rows of `tensor` (its name, for errors): `out.len()` values.
///
/// # Errors
/// `Decode` for sizes that do not match, damaged blocks and formats without a decoder; `NeedsGgml`
/// for a type that only ggml decodes, without the feature `ggml`; `Ggml`.
pub fn decode_row(
    tensor: &str,
    format: Format,
    bytes: &[u8],
    out: &mut [f32],
) -> Result<(), ErrorKind> {
    match format {
        Format::Ggml { id, .. } => by_ggml(tensor, id, bytes, out),
        _ => fpx_quant::decode_row(format, bytes, out).map_err(|source| ErrorKind::Decode {
            tensor: tensor.to_owned(),
            source,
        }),
    }
}

#[cfg(feature = "ggml")]
fn by_ggml(tensor: &str, id: u32, bytes: &[u8], out: &mut [f32]) -> Result<(), ErrorKind> {
    ggml_sys::dequantize_row(id, bytes, out).map_err(|e| ErrorKind::Ggml {
        tensor: tensor.to_owned(),
        why: e.to_string(),
    })
}

#[cfg(not(feature = "ggml"))]
fn by_ggml(tensor: &str, id: u32, _bytes: &[u8], _out: &mut [f32]) -> Result<(), ErrorKind> {
    Err(ErrorKind::NeedsGgml {
        tensor: tensor.to_owned(),
        name: crate::types::ggml_name(id).unwrap_or("unknown"),
    })
}

impl Gguf {
    /// Decodes rows of a tensor of this file. `out`: f32, `[rows, row_elems]`.
    ///
    /// # Errors
    /// `Rows` for rows outside the tensor or an `out` of another size; those of [`decode_row`].
    pub fn decode_rows(
        &self,
        info: &TensorInfo,
        rows: Range<usize>,
        out: &mut [f32],
    ) -> Result<(), Error> {
        let count = rows.end.saturating_sub(rows.start);
        let inside = rows.start <= rows.end && rows.end <= info.rows();
        if !inside || out.len() != count.saturating_mul(info.row_elems()) {
            return Err(ErrorKind::Rows {
                tensor: info.name.clone(),
                rows,
                have: info.rows(),
                out: out.len(),
                need: count.saturating_mul(info.row_elems()),
            }
            .in_file(self.path()));
        }
        let row = info.bytes() / info.rows();
        let bytes = &self.bytes(info)[rows.start * row..rows.end * row];
        decode_row(&info.name, info.format, bytes, out).map_err(|e| e.in_file(self.path()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::ggml_format;
    use crate::{GgufBuilder, OpenOptions};

    /// Two rows of two Q8_0 blocks with scales 1, 2, 3, 4, and a Q6_K row.
    fn file() -> Gguf {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        let mut b = GgufBuilder::new();
        b.tensor("q8", &[64, 2], Format::Q8_0).unwrap();
        b.tensor("q6", &[256], ggml_format(14).unwrap()).unwrap();
        let block = |scale: u16| {
            // f16 bits of 1, 2, 3, 4; codes 0..32.
            let bits = [0x3c00u16, 0x4000, 0x4200, 0x4400][scale as usize - 1];
            [bits.to_le_bytes().to_vec(), (0..32).collect()].concat()
        };
        let q8: Vec<u8> = (1..=4).flat_map(block).collect();
        let mut w = b.create(&path).unwrap();
        w.write("q8", &q8).unwrap();
        w.write("q6", &[0; 210]).unwrap();
        w.finish().unwrap();
        Gguf::open(&path, &OpenOptions::default()).unwrap()
    }

    #[test]
    fn rows_are_the_rows_asked_for() {
        let file = file();
        let t = file.tensor("q8").unwrap();
        let mut out = [f32::NAN; 64];
        file.decode_rows(t, 1..2, &mut out).unwrap();
        assert_eq!((out[1], out[31], out[33]), (3.0, 93.0, 4.0));
        let mut all = [f32::NAN; 128];
        file.decode_rows(t, 0..2, &mut all).unwrap();
        assert_eq!((all[1], all[33], all[64..] == out[..]), (1.0, 2.0, true));
        file.decode_rows(t, 2..2, &mut []).unwrap();
    }

    #[test]
    #[allow(clippy::reversed_empty_ranges)]
    fn rows_outside_the_tensor_are_refused() {
        let file = file();
        let t = file.tensor("q8").unwrap();
        let mut out = [f32::NAN; 64];
        for rows in [2..3, 1..3, 0..2, 1..1, 2..1, 0..usize::MAX] {
            let e = file.decode_rows(t, rows.clone(), &mut out).unwrap_err();
            assert!(
                matches!(e.kind(), ErrorKind::Rows { have: 2, .. }),
                "{rows:?}: {e}"
            );
        }
        assert!(out.iter().all(|x| x.is_nan()));
    }

    #[test]
    #[cfg(not(feature = "ggml"))]
    fn a_type_of_ggml_names_the_feature_it_needs() {
        let file = file();
        let mut out = [0.0; 256];
        let e = file
            .decode_rows(file.tensor("q6").unwrap(), 0..1, &mut out)
            .unwrap_err();
        let text = e.to_string();
        assert!(matches!(
            e.kind(),
            ErrorKind::NeedsGgml { name: "Q6_K", .. }
        ));
        assert!(text.contains("Q6_K needs the feature `ggml`"), "{text}");
    }
}
