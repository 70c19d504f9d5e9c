//! What was written, tensor by tensor, and the keys that say so in the file.

use fpx_quant::Format;
use gguf::Written;

use crate::role::Role;

/// One tensor written.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorReport {
    /// Its name.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// Input dimension first.
    pub shape: Vec<u64>,
    /// Its format.
    pub format: Format,
    /// The format the recipe wanted, where its rows did not fit and the named fallback was taken.
    pub instead_of: Option<Format>,
    /// Bytes of its rows.
    pub bytes: u64,
    /// Squared error of the encoding over the source's squares; 0 where nothing was lost.
    pub nmse: f64,
}

/// A file written.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// In file order.
    pub tensors: Vec<TensorReport>,
    /// Source tensors that have no place in the output and may be absent from it (MTP blocks).
    pub ignored: Vec<String>,
    /// The files, with lengths and digests.
    pub written: Written,
}

impl Report {
    /// Tensors whose format is a fallback.
    pub fn fallbacks(&self) -> impl Iterator<Item = &TensorReport> {
        self.tensors.iter().filter(|t| t.instead_of.is_some())
    }
}

/// The version of quantised layouts that ggml's files name.
pub(crate) const QUANTIZATION_VERSION: u32 = 2;

/// `general.file_type` of files whose matrices are mostly of this format. ggml's numbers where they
/// are unambiguous; ROCmFPX numbers differ between forks (spec/fpx-formats.md 8), so such files say
/// 1024, "see the tensors".
pub(crate) fn file_type(format: Format) -> u32 {
    match format {
        Format::F32 => 0,
        Format::F16 => 1,
        Format::Q8_0 => 7,
        Format::BF16 => 32,
        Format::Mxfp4 => 38,
        _ => 1024,
    }
}

/// The format that most elements have.
pub(crate) fn dominant(tensors: impl Iterator<Item = (Format, u64)>) -> Format {
    let mut totals: Vec<(Format, u64)> = Vec::new();
    for (format, elems) in tensors {
        match totals.iter_mut().find(|(f, _)| *f == format) {
            Some((_, n)) => *n += elems,
            None => totals.push((format, elems)),
        }
    }
    let largest = totals.into_iter().max_by_key(|(_, n)| *n);
    largest.map_or(Format::F32, |(f, _)| f)
}
