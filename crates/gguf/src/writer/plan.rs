//! What will be written, decided before a byte is: keys, tensors, parts, offsets.
//!
//! The plan is a function of what was declared, so the same declarations give the same bytes.
//! Every planned header is parsed back with the reader before it is used. Must not know: files.

use std::path::Path;

use fpx_quant::{Format, Fp2Dialect};

use super::encode;
use crate::error::ErrorKind;
use crate::extents::{TensorInfo, check_tiling};
use crate::header::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, Header};
use crate::limits::Limits;
use crate::metadata::Metadata;
use crate::source::Source;
use crate::split;
use crate::types::{Dialects, FP2_KEY, FP6_KEY, Resolver, fp2_name, fp6_name};
use crate::value::Value;

/// Longest tensor name ggml reads (its buffer of 64 holds a terminating zero).
const NAME_BYTES: usize = 63;
/// Longest key of the GGUF specification.
const KEY_BYTES: usize = 65_535;

/// One file to be written.
#[derive(Clone, Debug)]
pub(super) struct PartPlan {
    /// Header with the padding after it.
    pub(super) header: Vec<u8>,
    /// Its tensors, with their offsets.
    pub(super) tensors: Vec<TensorInfo>,
    /// Bytes of the file.
    pub(super) len: u64,
}

/// Keys that only the plan sets.
pub(super) fn is_reserved(key: &str) -> bool {
    [
        ALIGNMENT_KEY,
        split::NO_KEY,
        split::COUNT_KEY,
        split::TENSORS_KEY,
        FP2_KEY,
        FP6_KEY,
    ]
    .contains(&key)
}

/// Refuses a name that other readers could not take.
pub(super) fn check_name(name: &str, is_key: bool) -> Result<(), ErrorKind> {
    let limit = if is_key { KEY_BYTES } else { NAME_BYTES };
    if name.is_empty() || name.len() > limit {
        return Err(ErrorKind::NameLength {
            name: name.to_owned(),
            got: name.len(),
            limit,
        });
    }
    Ok(())
}

/// Plans every part.
pub(super) fn plan(
    metadata: &Metadata,
    tensors: &[TensorInfo],
    alignment: u64,
    max_part: Option<u64>,
) -> Result<Vec<PartPlan>, ErrorKind> {
    let mut keys = metadata.clone();
    if alignment != DEFAULT_ALIGNMENT {
        // Held to the reader's limit, which fits 32 bits.
        let value = u32::try_from(alignment).unwrap_or(u32::MAX);
        keys.set(ALIGNMENT_KEY, Value::U32(value));
    }
    mark_dialects(&mut keys, tensors)?;
    let parts = partition(tensors, alignment, max_part)?;
    let count = parts.len();
    if count == 1 {
        return Ok(vec![part(&keys, &keys, parts.concat(), alignment)?]);
    }
    let mut out = Vec::with_capacity(count);
    for (no, of_part) in parts.into_iter().enumerate() {
        let mut own = if no == 0 {
            keys.clone()
        } else {
            later_keys(&keys)
        };
        split_keys(&mut own, no, count, tensors.len())?;
        out.push(part(&own, &keys, of_part, alignment)?);
    }
    Ok(out)
}

/// Keys of a part after the first: none but those its own bytes need.
fn later_keys(first: &Metadata) -> Metadata {
    let mut own = Metadata::new(first.file());
    if let Some(v) = first.get(ALIGNMENT_KEY) {
        own.set(ALIGNMENT_KEY, v.clone());
    }
    own
}

fn split_keys(keys: &mut Metadata, no: usize, count: usize, all: usize) -> Result<(), ErrorKind> {
    let over = |what, limit: u64, got: usize| ErrorKind::Limit {
        what,
        limit,
        got: got as u64,
    };
    let limit = Limits::default().parts;
    let small = |n: usize| {
        u16::try_from(n)
            .ok()
            .filter(|&n| u64::from(n) <= limit)
            .ok_or_else(|| over("parts", limit, count))
    };
    keys.set(split::NO_KEY, Value::U16(small(no)?));
    keys.set(split::COUNT_KEY, Value::U16(small(count)?));
    let all = i32::try_from(all).map_err(|_| over("tensors", i32::MAX as u64, all))?;
    keys.set(split::TENSORS_KEY, Value::I32(all));
    Ok(())
}

/// Records what the ambiguous ids of this file mean.
fn mark_dialects(keys: &mut Metadata, tensors: &[TensorInfo]) -> Result<(), ErrorKind> {
    for t in tensors {
        let (key, name) = match t.format {
            // S40 has an id of its own.
            Format::Fp2(d) if d != Fp2Dialect::S40 => (FP2_KEY, fp2_name(d)),
            Format::Fp6(e) => (FP6_KEY, fp6_name(e)),
            _ => continue,
        };
        match keys.get(key) {
            Some(Value::Str(expected)) if expected != name => {
                let expected = if key == FP2_KEY {
                    crate::types::fp2_from_name(expected).map_or("", fp2_name)
                } else {
                    crate::types::fp6_from_name(expected).map_or("", fp6_name)
                };
                return Err(ErrorKind::MixedDialects {
                    tensor: t.name.clone(),
                    expected,
                    got: name,
                });
            }
            _ => keys.set(key, name.into()),
        }
    }
    Ok(())
}

/// Tensors of each part, offsets set. A part takes tensors while its data stays within
/// `max_part`; one tensor always fits.
fn partition(
    tensors: &[TensorInfo],
    alignment: u64,
    max_part: Option<u64>,
) -> Result<Vec<Vec<TensorInfo>>, ErrorKind> {
    let mut parts = vec![Vec::new()];
    let mut end = 0u64;
    for t in tensors {
        let overflow = || ErrorKind::ShapeOverflow {
            tensor: t.name.clone(),
            shape: t.shape.clone(),
        };
        let size = (t.bytes() as u64)
            .checked_next_multiple_of(alignment)
            .ok_or_else(overflow)?;
        let mut next = end.checked_add(size).ok_or_else(overflow)?;
        if max_part.is_some_and(|max| next > max) && end > 0 {
            parts.push(Vec::new());
            (end, next) = (0, size);
        }
        let mut placed = t.clone();
        placed.offset = end;
        placed.part = parts.len() - 1;
        if let Some(last) = parts.last_mut() {
            last.push(placed);
        }
        end = next;
    }
    Ok(parts)
}

/// Encodes one part and checks that the reader agrees with it.
fn part(
    own: &Metadata,
    first: &Metadata,
    tensors: Vec<TensorInfo>,
    alignment: u64,
) -> Result<PartPlan, ErrorKind> {
    let mut header = encode::header(own, &tensors);
    let read = Header::from_source(
        Source::new(&header[..], None, &Limits::default()),
        Path::new(""),
    )?;
    let data: u64 = tensors
        .last()
        .map_or(0, |t| t.offset + t.bytes() as u64)
        .next_multiple_of(alignment);
    let len = read.data_start().saturating_add(data);
    check_tiling(&tensors, &read, len)?;
    let resolver = Resolver::new(Dialects::default(), first)?;
    for t in &tensors {
        let got = resolver.format(t.format.ggml_id(), &t.name)?;
        if got != t.format {
            return Err(ErrorKind::NotReadable {
                tensor: t.name.clone(),
                expected: t.format,
                got,
            });
        }
    }
    header.resize(header.len().next_multiple_of(padding(alignment)), 0);
    Ok(PartPlan {
        header,
        tensors,
        len,
    })
}

/// The alignment as a memory size: it is held to a limit far below.
#[allow(clippy::cast_possible_truncation)]
fn padding(alignment: u64) -> usize {
    alignment as usize
}
