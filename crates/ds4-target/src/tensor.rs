//! Tensors bound to their place in the model: shape and format checked once.

use std::sync::Arc;

use fpx_quant::{Format, Matrix, decode_row};

use crate::error::LoadError;
use crate::source::{Bytes, RawTensor, Source};

/// A matrix of weights, `[rows, k]` (output dimension first), or a stack of matrices.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// The file.
    pub file: Arc<str>,
    /// Its name in the file.
    pub name: Arc<str>,
    /// Storage format of the rows.
    pub format: Format,
    /// Rows, of all stacked matrices together.
    pub rows: usize,
    /// Elements of a row.
    pub k: usize,
    bytes: Bytes,
}

impl Tensor {
    /// The whole tensor as one matrix.
    #[must_use]
    pub fn matrix(&self) -> Matrix<'_> {
        self.sub(0, self.rows)
    }

    /// `rows` rows from `first`: one matrix of a stack.
    ///
    /// # Panics
    /// If the rows are outside the tensor.
    #[must_use]
    pub fn sub(&self, first: usize, rows: usize) -> Matrix<'_> {
        let row_bytes = self.bytes.len() / self.rows;
        let data = &self.bytes.as_slice()[first * row_bytes..(first + rows) * row_bytes];
        Matrix::new(self.format, rows, self.k, data).expect("the shape was checked when bound")
    }

    /// The rows, as they are stored; made now if they are made up.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.as_slice()
    }

    /// The rows, made or not.
    #[must_use]
    pub fn stored(&self) -> &Bytes {
        &self.bytes
    }

    /// Decodes row `row` into `out`, `[k]`.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn decode(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        let len = self.bytes.len() / self.rows;
        let data = self.bytes.part(row * len..(row + 1) * len);
        decode_row(self.format, &data, out).expect("the shape was checked when bound");
    }
}

/// A source, printed by name.
#[derive(Clone, Copy)]
struct SourceRef<'a>(&'a dyn Source);

impl std::fmt::Debug for SourceRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.name())
    }
}

/// Binds tensors by name, counting what was bound, so that a stray or missing one is noticed.
#[derive(Debug)]
pub struct Binder<'a> {
    source: SourceRef<'a>,
    bound: Vec<String>,
    wanted: usize,
}

impl<'a> Binder<'a> {
    /// Binds from `source`; `wanted` tensors in all, for messages.
    #[must_use]
    pub fn new(source: &'a dyn Source, wanted: usize) -> Self {
        Self {
            source: SourceRef(source),
            bound: Vec::new(),
            wanted,
        }
    }

    /// The source's name.
    #[must_use]
    pub fn file(&self) -> String {
        self.source.0.name().to_owned()
    }

    fn raw(&mut self, name: &str, shape: &[usize]) -> Result<RawTensor, LoadError> {
        let raw = self
            .source
            .0
            .tensor(name)
            .ok_or_else(|| LoadError::MissingTensor {
                file: self.file(),
                tensor: name.to_owned(),
                bound: self.bound.len(),
                wanted: self.wanted,
            })?;
        let expected: Vec<u64> = shape.iter().map(|d| *d as u64).collect();
        let trim = |s: &[u64]| {
            let n = s.iter().rposition(|d| *d != 1).map_or(1, |i| i + 1);
            s[..n.min(s.len())].to_vec()
        };
        if trim(&raw.shape) != trim(&expected) {
            return Err(LoadError::Shape {
                file: self.file(),
                tensor: name.to_owned(),
                expected,
                got: raw.shape,
            });
        }
        self.bound.push(name.to_owned());
        Ok(raw)
    }

    /// A matrix of `shape` (ne order: input dimension first; a third dimension stacks matrices).
    ///
    /// # Errors
    /// `MissingTensor`, `Shape`, `Format`.
    pub fn matrix(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, LoadError> {
        let raw = self.raw(name, shape)?;
        let rows = shape[1..].iter().product();
        if let Err(e) = Matrix::check(raw.format, rows, shape[0], raw.bytes.len()) {
            return Err(self.bad_format(
                name,
                format!(
                    "a computable weight format whose blocks fit rows of {}",
                    shape[0]
                ),
                format!("{} ({e})", raw.format),
            ));
        }
        Ok(Tensor {
            file: Arc::from(self.file()),
            name: Arc::from(name),
            format: raw.format,
            rows,
            k: shape[0],
            bytes: raw.bytes,
        })
    }

    /// A tensor whose format cannot stand in its place.
    #[must_use]
    pub fn bad_format(&self, name: &str, expected: String, got: impl ToString) -> LoadError {
        LoadError::Format {
            file: self.file(),
            tensor: name.to_owned(),
            expected,
            got: got.to_string(),
        }
    }

    /// All elements as f32, whatever the storage format.
    ///
    /// # Errors
    /// As [`Self::matrix`], and `Value` for an element that is not finite.
    pub fn floats(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, LoadError> {
        let tensor = self.matrix(name, &[shape, &[1]].concat()[..shape.len().max(2)])?;
        let mut out = vec![0f32; tensor.rows * tensor.k];
        for (row, out) in out.chunks_exact_mut(tensor.k).enumerate() {
            tensor.decode(row, out);
        }
        if let Some(index) = out.iter().position(|v| !v.is_finite()) {
            return Err(LoadError::Value {
                file: self.file(),
                tensor: name.to_owned(),
                index,
                expected: "a finite number".to_owned(),
                got: out[index].to_string(),
            });
        }
        Ok(out)
    }

    /// Integers in `0..limit`.
    ///
    /// # Errors
    /// `MissingTensor`, `Shape`, `Format`, `Value`.
    pub fn ids(
        &mut self,
        name: &str,
        shape: &[usize],
        limit: usize,
    ) -> Result<Vec<u32>, LoadError> {
        let raw = self.raw(name, shape)?;
        if raw.format != Format::I32 {
            return Err(self.bad_format(name, "I32".to_owned(), raw.format));
        }
        let (words, _) = raw.bytes.as_slice().as_chunks::<4>();
        words
            .iter()
            .enumerate()
            .map(|(index, word)| {
                let id = i32::from_le_bytes(*word);
                u32::try_from(id)
                    .ok()
                    .filter(|id| (*id as usize) < limit)
                    .ok_or_else(|| LoadError::Value {
                        file: self.file(),
                        tensor: name.to_owned(),
                        index,
                        expected: format!("an expert below {limit}"),
                        got: id.to_string(),
                    })
            })
            .collect()
    }

    /// Whether the source has a tensor.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.source.0.tensor(name).is_some()
    }

    /// Fails on tensors nothing asked for, except those `ignored` accepts; answers how many were
    /// bound.
    ///
    /// # Errors
    /// `UnknownTensors`.
    pub fn finish(self, ignored: impl Fn(&str) -> bool) -> Result<usize, LoadError> {
        let unknown: Vec<String> = self
            .source
            .0
            .tensor_names()
            .into_iter()
            .filter(|n| !self.bound.contains(n) && !ignored(n))
            .collect();
        match unknown.first() {
            None => Ok(self.bound.len()),
            Some(first) => Err(LoadError::UnknownTensors {
                file: self.source.0.name().to_owned(),
                tensor: first.clone(),
                count: unknown.len(),
            }),
        }
    }
}
