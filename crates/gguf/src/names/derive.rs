//! Values that some dialects leave out of the metadata, from what else the file says.
//!
//! Each function takes the key if it is there and otherwise derives, and tells which: a loader
//! prints it. What cannot be derived is an error that names the key. Must not know: what the
//! model does with a value.

use super::keys;
use super::resolve::{block_of, find};
use super::roles::Role;
use crate::error::Error;
use crate::extents::TensorInfo;
use crate::file::Gguf;

/// A value and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found<T> {
    /// The value.
    pub value: T,
    /// `deepseek4.vocab_size`, `length of tokenizer.ggml.tokens`, ...
    pub origin: String,
}

fn found<T>(value: T, origin: impl Into<String>) -> Found<T> {
    Found {
        value,
        origin: origin.into(),
    }
}

/// A key's value, if the file has it.
fn from_key(file: &Gguf, key: keys::KeySpec) -> Result<Option<Found<u32>>, Error> {
    let name = key.name(file.metadata());
    Ok(file.metadata().find_u32(name)?.map(|v| found(v, name)))
}

/// The error for a key that nothing stands for.
fn underivable(file: &Gguf, key: keys::KeySpec) -> Error {
    let how = "u32, and the tensors do not tell it either";
    file.metadata().missing(key.canonical, how)
}

/// Dimension `dim` of a tensor as a `u32`.
fn dim(t: &TensorInfo, dim: usize) -> Option<Found<u32>> {
    let value = u32::try_from(*t.shape.get(dim)?).ok()?;
    Some(found(value, format!("dimension {dim} of {}", t.name)))
}

/// The key, else what `derive` finds, else the error.
fn key_or(
    file: &Gguf,
    key: keys::KeySpec,
    derive: impl FnOnce() -> Option<Found<u32>>,
) -> Result<Found<u32>, Error> {
    from_key(file, key)?
        .or_else(derive)
        .ok_or_else(|| underivable(file, key))
}

/// Layers of the trunk: `block_count` without trailing blocks that hold an MTP head (a block
/// with a `nextn.` tensor). `nextn_predict_layers` is not asked: it is wrong in some files.
///
/// # Errors
/// `MissingKey`, `KeyType`.
pub fn layers(file: &Gguf) -> Result<Found<u32>, Error> {
    let count = file.metadata().get_u32(keys::BLOCK_COUNT.canonical)?;
    let has_nextn = |block: u32| {
        file.tensors()
            .iter()
            .any(|t| block_of(&t.name) == Some(u64::from(block)) && t.name.contains(".nextn."))
    };
    let mut trunk = count;
    while trunk > 0 && has_nextn(trunk - 1) {
        trunk -= 1;
    }
    let origin = match count - trunk {
        0 => keys::BLOCK_COUNT.canonical.to_owned(),
        n => format!("{} without {n} MTP blocks", keys::BLOCK_COUNT.canonical),
    };
    Ok(found(trunk, origin))
}

/// Compressor ratio of each of `layers` layers.
///
/// # Errors
/// `KeyType`; `KeyValue` if the key is shorter than `layers`.
pub fn compress_ratios(file: &Gguf, layers: u32) -> Result<Found<Vec<u32>>, Error> {
    let key = keys::COMPRESS_RATIOS.name(file.metadata());
    let n = checked_layers(file, layers)?;
    if let Some(v) = file.metadata().find_u32_per_layer(key, n)? {
        return Ok(found(v, key));
    }
    let ratio = |layer| match find(file, Role::CompressorApe, Some(layer)) {
        Some(t) => t
            .shape
            .get(1)
            .and_then(|&r| u32::try_from(r).ok())
            .unwrap_or(0),
        None => 0,
    };
    Ok(found(
        (0..layers).map(ratio).collect(),
        "shapes of attn_compressor_ape",
    ))
}

/// A layer count that the file's tensors can fill, so that a damaged key allocates nothing.
fn checked_layers(file: &Gguf, layers: u32) -> Result<usize, Error> {
    let n = layers as usize;
    if n > file.tensors().len() {
        let expected = format!("at most one layer a tensor ({})", file.tensors().len());
        return Err(file
            .metadata()
            .bad_value(keys::BLOCK_COUNT.canonical, expected, layers));
    }
    Ok(n)
}

/// Layers, from the front, routed by table.
///
/// # Errors
/// `KeyType`.
pub fn hash_layer_count(file: &Gguf, layers: u32) -> Result<Found<u32>, Error> {
    if let Some(v) = from_key(file, keys::HASH_LAYER_COUNT)? {
        return Ok(v);
    }
    let hashed = |l: &u32| find(file, Role::FfnGateTid2Eid, Some(*l)).is_some();
    let n = (0..layers).take_while(hashed).count();
    // At most `layers`.
    #[allow(clippy::cast_possible_truncation)]
    Ok(found(n as u32, "layers with ffn_gate_tid2eid"))
}

/// Tokens of the vocabulary.
///
/// # Errors
/// `MissingKey`, `KeyType`.
pub fn vocab_size(file: &Gguf) -> Result<Found<u32>, Error> {
    if let Some(v) = from_key(file, keys::VOCAB_SIZE)? {
        return Ok(v);
    }
    let tokens = file.metadata().find_str_array(keys::TOKENS.canonical)?;
    let by_tokens = tokens
        .and_then(|t| u32::try_from(t.len()).ok())
        .map(|n| found(n, "length of tokenizer.ggml.tokens"));
    by_tokens
        .or_else(|| dim(find(file, Role::TokenEmbd, None)?, 1))
        .ok_or_else(|| underivable(file, keys::VOCAB_SIZE))
}

/// Streams of the hyper-connections.
///
/// # Errors
/// `MissingKey`, `KeyType`.
pub fn hc_count(file: &Gguf) -> Result<Found<u32>, Error> {
    key_or(file, keys::HC_COUNT, || {
        dim(find(file, Role::OutputHcBase, None)?, 0)
    })
}

/// Rank of the query projection.
///
/// # Errors
/// `MissingKey`, `KeyType`.
pub fn q_lora_rank(file: &Gguf) -> Result<Found<u32>, Error> {
    key_or(file, keys::Q_LORA_RANK, || {
        dim(find(file, Role::AttnQA, Some(0))?, 1)
    })
}

/// Groups of the output projection: query channels over the width of a group.
///
/// # Errors
/// `MissingKey`, `KeyType`.
pub fn output_group_count(file: &Gguf) -> Result<Found<u32>, Error> {
    key_or(file, keys::OUTPUT_GROUP_COUNT, || {
        let a = find(file, Role::AttnOutputA, Some(0))?;
        if a.shape.len() == 3 {
            return dim(a, 2);
        }
        let channels = find(file, Role::AttnQB, Some(0))?.shape.get(1).copied()?;
        let width = a.shape.first().copied()?;
        let groups = channels.is_multiple_of(width).then(|| channels / width)?;
        let value = u32::try_from(groups).ok()?;
        Some(found(value, "shapes of attn_q_b and attn_output_a"))
    })
}

/// Rank of the output projection.
///
/// # Errors
/// `MissingKey`, `KeyType`.
pub fn output_lora_rank(file: &Gguf) -> Result<Found<u32>, Error> {
    key_or(file, keys::OUTPUT_LORA_RANK, || {
        let a = find(file, Role::AttnOutputA, Some(0))?;
        let rows = dim(a, 1)?;
        if a.shape.len() == 3 {
            return Some(rows);
        }
        let groups = output_group_count(file).ok()?.value;
        let whole = groups > 0 && rows.value.is_multiple_of(groups);
        whole.then(|| found(rows.value / groups, "shape of attn_output_a"))
    })
}
