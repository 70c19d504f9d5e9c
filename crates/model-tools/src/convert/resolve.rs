//! Finds the source of every slot and checks its shape; notices tensors no slot uses.
//!
//! Must not know: formats written.

use std::collections::BTreeSet;

use safetensors::Dtype;

use super::folder::{Raw, Shards};
use super::slots::{Experts, From, Need, Slot};
use super::storage::Stored;
use crate::error::ToolError;
use crate::stream::RowSource;

/// Where a slot's values come from.
#[derive(Debug)]
pub(crate) enum Source<'a> {
    /// Matrices of equal shape, in order.
    Rows(Rows<'a>),
    /// Integers.
    Table(Raw<'a>),
    /// An absent bias.
    Zeros,
}

/// A slot with its source.
#[derive(Debug)]
pub(crate) struct Bound<'a> {
    pub(crate) slot: Slot,
    pub(crate) source: Source<'a>,
}

/// Row ranges of stored tensors, one a matrix.
#[derive(Debug)]
pub(crate) struct Rows<'a> {
    name: String,
    parts: Vec<(Stored<'a>, u64)>,
    rows: usize,
    k: usize,
}

impl RowSource for Rows<'_> {
    fn name(&self) -> &str {
        &self.name
    }

    fn matrices(&self) -> usize {
        self.parts.len()
    }

    fn rows(&self) -> usize {
        self.rows
    }

    fn k(&self) -> usize {
        self.k
    }

    fn read(&self, matrix: usize, first: usize, out: &mut [f32]) -> Result<(), ToolError> {
        let (stored, at) = &self.parts[matrix];
        stored.read(at + first as u64, out)
    }
}

/// Sources of all slots.
pub(crate) struct Resolved<'a> {
    pub(crate) bound: Vec<Bound<'a>>,
    /// Names of tensors nobody used but which may stand there.
    pub(crate) ignored: Vec<String>,
}

/// Binds every slot. `may_ignore` says which other tensors may stand in the files.
pub(crate) fn resolve<'a>(
    shards: &'a Shards,
    slots: Vec<Slot>,
    may_ignore: impl Fn(&str) -> bool,
) -> Result<Resolved<'a>, ToolError> {
    let mut r = Resolver {
        shards,
        used: BTreeSet::new(),
    };
    let mut bound = Vec::new();
    for slot in slots {
        if let Some(source) = r.source(&slot)? {
            bound.push(Bound { slot, source });
        }
    }
    let strays = shards.names().filter(|n| !r.used.contains(*n));
    let (ignored, extra): (Vec<&str>, Vec<&str>) = strays.partition(|n| may_ignore(n));
    if let Some(raw) = extra.first().and_then(|n| shards.get(n)) {
        return Err(ToolError::ExtraTensor {
            path: raw.path.to_path_buf(),
            tensor: raw.name.to_owned(),
            count: extra.len(),
        });
    }
    let ignored = ignored.into_iter().map(str::to_owned).collect();
    Ok(Resolved { bound, ignored })
}

struct Resolver<'a> {
    shards: &'a Shards,
    used: BTreeSet<String>,
}

impl<'a> Resolver<'a> {
    fn source(&mut self, slot: &Slot) -> Result<Option<Source<'a>>, ToolError> {
        match &slot.from {
            From::Experts(experts) => self.experts(slot, experts).map(Some),
            From::One(names) => match self.first(names) {
                Some(raw) if matches!(raw.dtype, Dtype::I32 | Dtype::I64) => {
                    check_shape(&raw, raw.shape, &reversed(&slot.shape))?;
                    Ok(Some(Source::Table(raw)))
                }
                Some(raw) => {
                    let stored = self.stored(raw)?;
                    check_shape(&raw, &stored.shape(), &reversed(&slot.shape))?;
                    let k = slot.shape[0];
                    let rows = slot.shape[1..].iter().product();
                    Ok(Some(rows_of(
                        slot,
                        vec![(flat(stored, k, rows), 0)],
                        rows,
                        k,
                    )))
                }
                None => match slot.need {
                    Need::Required => Err(self.missing(slot, names)),
                    Need::Optional => Ok(None),
                    Need::OrZero => Ok(Some(Source::Zeros)),
                },
            },
        }
    }

    fn experts(&mut self, slot: &Slot, from: &Experts) -> Result<Source<'a>, ToolError> {
        let [k, rows, n] = slot.shape[..] else {
            unreachable!("expert slots have three dimensions");
        };
        if let Some(raw) = self.first(&from.stacks) {
            let stored = self.stored(raw)?;
            check_shape(&raw, &stored.shape(), &[n, rows, k])?;
            let parts = (0..n).map(|e| (stored, e * rows)).collect();
            return Ok(rows_of(slot, parts, rows, k));
        }
        if let Some((name, half)) = &from.fused
            && let Some(raw) = self.first(std::slice::from_ref(name))
        {
            let stored = self.stored(raw)?;
            check_shape(&raw, &stored.shape(), &[n, 2 * rows, k])?;
            let parts = (0..n).map(|e| (stored, (2 * e + half) * rows)).collect();
            return Ok(rows_of(slot, parts, rows, k));
        }
        let mut parts = Vec::new();
        for e in 0..n {
            let spell = |name: &String| name.replace("{}", &e.to_string());
            let names: Vec<String> = from.each.iter().map(spell).collect();
            let raw = self
                .first(&names)
                .ok_or_else(|| self.missing(slot, &names))?;
            let stored = self.stored(raw)?;
            check_shape(&raw, &stored.shape(), &[rows, k])?;
            parts.push((stored, 0));
        }
        Ok(rows_of(slot, parts, rows, k))
    }

    /// The first of these tensors that exists, marked as used.
    fn first(&mut self, names: &[String]) -> Option<Raw<'a>> {
        let name = names.iter().find(|n| self.shards.get(n).is_some())?;
        self.used.insert(name.clone());
        self.shards.get(name)
    }

    /// The tensor with its scales, if it has some.
    fn stored(&mut self, raw: Raw<'a>) -> Result<Stored<'a>, ToolError> {
        let base = raw.name.strip_prefix("model.").unwrap_or(raw.name);
        let stem = base.strip_suffix(".weight").unwrap_or(base);
        let names = [
            format!("{stem}.scale"),
            format!("{stem}.weight_scale_inv"),
            format!("{base}_scale_inv"),
        ];
        // A norm's or a site's own `.scale` belongs to no matrix.
        let wants = !matches!(raw.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16);
        let scale = if wants || base.ends_with(".weight") {
            self.first(&names)
        } else {
            None
        };
        Stored::new(raw, scale)
    }

    fn missing(&self, slot: &Slot, names: &[String]) -> ToolError {
        ToolError::MissingTensor {
            path: self.shards.path().to_path_buf(),
            slot: slot.name.clone(),
            names: names.to_vec(),
        }
    }
}

/// The same values seen as `rows` rows of `k`: shapes that differ in ones only.
fn flat(mut stored: Stored<'_>, k: u64, rows: u64) -> Stored<'_> {
    (stored.rows, stored.k) = (rows, k);
    stored
}

fn rows_of<'a>(slot: &Slot, parts: Vec<(Stored<'a>, u64)>, rows: u64, k: u64) -> Source<'a> {
    // Sizes fit: the bytes are in memory.
    Source::Rows(Rows {
        name: slot.name.clone(),
        parts,
        rows: rows as usize,
        k: k as usize,
    })
}

fn reversed(shape: &[u64]) -> Vec<u64> {
    shape.iter().rev().copied().collect()
}

/// Equal shapes, dimensions of one apart.
fn check_shape(raw: &Raw<'_>, got: &[u64], expected: &[u64]) -> Result<(), ToolError> {
    let trim = |s: &[u64]| s.iter().copied().filter(|d| *d != 1).collect::<Vec<_>>();
    if trim(got) == trim(expected) {
        return Ok(());
    }
    Err(ToolError::Shape {
        path: raw.path.to_path_buf(),
        tensor: raw.name.to_owned(),
        expected: expected.to_vec(),
        got: got.to_vec(),
    })
}

/// An expert table as little-endian i32, each below `n_expert`.
pub(crate) fn table(raw: &Raw<'_>, n_expert: u32) -> Result<Vec<u8>, ToolError> {
    let bad = |index: usize, got: i64| ToolError::Value {
        path: raw.path.to_path_buf(),
        tensor: raw.name.to_owned(),
        index: index as u64,
        expected: format!("an expert below {n_expert}"),
        got: got.to_string(),
    };
    let ids: Vec<i64> = if raw.dtype == Dtype::I64 {
        let (words, _) = raw.bytes.as_chunks::<8>();
        words.iter().map(|w| i64::from_le_bytes(*w)).collect()
    } else {
        let (words, _) = raw.bytes.as_chunks::<4>();
        words
            .iter()
            .map(|w| i64::from(i32::from_le_bytes(*w)))
            .collect()
    };
    let mut out = Vec::with_capacity(4 * ids.len());
    for (i, id) in ids.into_iter().enumerate() {
        let id = u32::try_from(id)
            .ok()
            .filter(|e| *e < n_expert)
            .ok_or_else(|| bad(i, id))?;
        out.extend_from_slice(&id.to_le_bytes());
    }
    Ok(out)
}
