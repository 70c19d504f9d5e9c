//! The real Flash model as a table, for tests: 1,328 tensors with their shapes and types, without
//! its 87 GB. Must not be used outside tests.
//!
//! Numbers: spec/ds4-architecture.md 1.1 and 1.4.

use fpx_quant::Format;

use crate::error::Error;
use crate::names::{Dialect, Role, Structure, keys, tensor_name};
use crate::writer::GgufBuilder;

/// Tensors of Flash.
pub const FLASH_TENSORS: usize = 1328;
/// Bytes of tensor data of antirez's q2 mix (IQ2_XXS gate and up, Q2_K down), without padding.
pub const FLASH_BYTES: u64 = 86_714_775_900;

const LAYERS: u32 = 43;
const EMBD: u64 = 4096;
const VOCAB: u64 = 129_280;
const HEADS: u64 = 64;
const HEAD: u64 = 512;
const Q_RANK: u64 = 1024;
const O_GROUPS: u64 = 8;
const O_RANK: u64 = 1024;
const STREAMS: u64 = 4;
const EXPERTS: u64 = 256;
const USED: u64 = 6;
const FF: u64 = 2048;
const INDEX_HEADS: u64 = 64;
const INDEX_HEAD: u64 = 128;

/// A tensor to be declared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name in the dialect asked for.
    pub name: String,
    /// Shape in file order.
    pub shape: Vec<u64>,
    /// antirez's type.
    pub format: Format,
}

/// Layers of Flash: ratios 0, 0, 4, 128, 4, 128, .., 4; the first three routed by table.
#[must_use]
pub fn flash_structure() -> Structure {
    let ratio = |l| match l {
        0 | 1 => 0,
        l if l % 2 == 0 => 4,
        _ => 128,
    };
    Structure {
        ratios: (0..LAYERS).map(ratio).collect(),
        hash_layers: 3,
    }
}

/// Every tensor of Flash, in the types of antirez's q2 mix.
#[must_use]
pub fn flash_table(dialect: Dialect) -> Vec<TensorSpec> {
    let structure = flash_structure();
    structure
        .expected()
        .map(|(role, layer)| {
            let ratio = layer.map_or(0, |l| u64::from(structure.ratios[l as usize]));
            TensorSpec {
                name: tensor_name(dialect, role, layer),
                shape: shape(role, ratio),
                format: format(role),
            }
        })
        .collect()
}

fn shape(role: Role, ratio: u64) -> Vec<u64> {
    let coff = if ratio == 4 { 2 } else { 1 };
    let mix = STREAMS * (STREAMS + 2);
    match role {
        Role::TokenEmbd | Role::Output => vec![EMBD, VOCAB],
        Role::OutputHcFn => vec![STREAMS * EMBD, STREAMS],
        Role::OutputHcBase => vec![STREAMS],
        Role::OutputHcScale => vec![1],
        Role::HcAttnFn | Role::HcFfnFn => vec![STREAMS * EMBD, mix],
        Role::HcAttnBase | Role::HcFfnBase => vec![mix],
        Role::HcAttnScale | Role::HcFfnScale => vec![3],
        Role::OutputNorm | Role::AttnNorm | Role::FfnNorm => vec![EMBD],
        Role::AttnQA => vec![EMBD, Q_RANK],
        Role::AttnQANorm => vec![Q_RANK],
        Role::AttnQB => vec![Q_RANK, HEADS * HEAD],
        Role::AttnKv => vec![EMBD, HEAD],
        Role::AttnKvNorm | Role::CompressorNorm => vec![HEAD],
        Role::AttnSinks => vec![HEADS],
        Role::AttnOutputA => vec![HEADS / O_GROUPS * HEAD, O_GROUPS * O_RANK],
        Role::AttnOutputB => vec![O_GROUPS * O_RANK, EMBD],
        Role::CompressorKv | Role::CompressorGate => vec![EMBD, coff * HEAD],
        Role::CompressorApe => vec![coff * HEAD, ratio],
        Role::IndexerQB => vec![Q_RANK, INDEX_HEADS * INDEX_HEAD],
        Role::IndexerProj => vec![EMBD, INDEX_HEADS],
        Role::IndexerCompressorKv | Role::IndexerCompressorGate => vec![EMBD, 2 * INDEX_HEAD],
        Role::IndexerCompressorApe => vec![2 * INDEX_HEAD, ratio],
        Role::IndexerCompressorNorm => vec![INDEX_HEAD],
        Role::FfnGateInp => vec![EMBD, EXPERTS],
        Role::ExpProbsB => vec![EXPERTS],
        Role::FfnGateTid2Eid => vec![USED, VOCAB],
        Role::FfnGateExps | Role::FfnUpExps => vec![EMBD, FF, EXPERTS],
        Role::FfnDownExps => vec![FF, EMBD, EXPERTS],
        Role::FfnGateShexp | Role::FfnUpShexp => vec![EMBD, FF],
        Role::FfnDownShexp => vec![FF, EMBD],
    }
}

fn format(role: Role) -> Format {
    match role {
        Role::FfnGateExps | Role::FfnUpExps => Format::Iq2Xxs,
        Role::FfnDownExps => Format::Q2K,
        Role::FfnGateTid2Eid => Format::I32,
        Role::TokenEmbd
        | Role::OutputHcFn
        | Role::HcAttnFn
        | Role::HcFfnFn
        | Role::CompressorKv
        | Role::CompressorGate
        | Role::CompressorApe
        | Role::IndexerQB
        | Role::IndexerProj
        | Role::IndexerCompressorKv
        | Role::IndexerCompressorGate
        | Role::IndexerCompressorApe
        | Role::FfnGateInp => Format::F16,
        Role::Output
        | Role::AttnQA
        | Role::AttnQB
        | Role::AttnKv
        | Role::AttnOutputA
        | Role::AttnOutputB
        | Role::FfnGateShexp
        | Role::FfnUpShexp
        | Role::FfnDownShexp => Format::Q8_0,
        _ => Format::F32,
    }
}

/// Keys and tensors of Flash, with a vocabulary and merges of the real size and made-up content.
/// What a dialect leaves out is left out.
///
/// # Errors
/// None that the table can cause.
pub fn flash_builder(dialect: Dialect) -> Result<GgufBuilder, Error> {
    let mut b = GgufBuilder::new();
    scalars(&mut b, dialect)?;
    let structure = flash_structure();
    // One entry more than layers: the MTP block's.
    let ratios: Vec<u32> = structure.ratios.iter().copied().chain([0]).collect();
    b.set(keys::COMPRESS_RATIOS.canonical, ratios)?;
    b.set(
        keys::SWIGLU_CLAMP_EXP.canonical,
        vec![10f32; LAYERS as usize],
    )?;
    let tokens: Vec<String> = (0..VOCAB).map(|i| format!("t{i}")).collect();
    let merges: Vec<String> = (0..127_000).map(|i| format!("t{i} t{}", i + 1)).collect();
    b.set(keys::TOKENS.canonical, tokens)?;
    b.set(keys::MERGES.canonical, merges)?;
    b.set(keys::TOKEN_TYPES.canonical, vec![1i32; VOCAB as usize])?;
    for t in flash_table(dialect) {
        b.tensor(&t.name, &t.shape, t.format)?;
    }
    Ok(b)
}

fn scalars(b: &mut GgufBuilder, dialect: Dialect) -> Result<(), Error> {
    // Every size above fits 32 bits.
    let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    b.set(keys::ARCHITECTURE.canonical, "deepseek4")?;
    for (key, value) in [
        (keys::BLOCK_COUNT, LAYERS),
        (keys::CONTEXT_LENGTH, 1_048_576),
        (keys::EMBEDDING_LENGTH, small(EMBD)),
        (keys::HEAD_COUNT, small(HEADS)),
        (keys::HEAD_COUNT_KV, 1),
        (keys::KEY_LENGTH, small(HEAD)),
        (keys::VALUE_LENGTH, small(HEAD)),
        (keys::ROPE_DIMENSIONS, 64),
        (keys::SLIDING_WINDOW, 128),
        (keys::INDEXER_HEAD_COUNT, small(INDEX_HEADS)),
        (keys::INDEXER_KEY_LENGTH, small(INDEX_HEAD)),
        (keys::INDEXER_TOP_K, 512),
        (keys::ROPE_ORIGINAL_CONTEXT, 65_536),
        (keys::EXPERT_COUNT, small(EXPERTS)),
        (keys::EXPERT_USED_COUNT, small(USED)),
        (keys::EXPERT_SHARED_COUNT, 1),
        (keys::EXPERT_FEED_FORWARD, small(FF)),
        (keys::EXPERT_GATING_FUNC, 4),
        (keys::HC_SINKHORN, 20),
    ] {
        b.set(key.canonical, value)?;
    }
    for (key, value) in [
        (keys::COMPRESS_ROPE_FREQ_BASE, 160_000f32),
        (keys::RMS_EPSILON, 1e-6),
        (keys::ROPE_FREQ_BASE, 10_000.0),
        (keys::ROPE_SCALING_FACTOR, 16.0),
        (keys::ROPE_BETA_FAST, 32.0),
        (keys::ROPE_BETA_SLOW, 1.0),
        (keys::EXPERT_WEIGHTS_SCALE, 1.5),
        (keys::HC_EPSILON, 1e-6),
    ] {
        b.set(key.canonical, value)?;
    }
    b.set(keys::EXPERT_WEIGHTS_NORM.canonical, true)?;
    derivable(b, dialect)
}

/// The keys that some files leave out: llama.cpp the vocabulary, early files all of them.
fn derivable(b: &mut GgufBuilder, dialect: Dialect) -> Result<(), Error> {
    if dialect == Dialect::EarlyPort {
        return Ok(());
    }
    if dialect == Dialect::Antirez {
        b.set(keys::VOCAB_SIZE.canonical, 129_280u32)?;
    }
    for (key, value) in [
        (keys::Q_LORA_RANK, 1024u32),
        (keys::OUTPUT_LORA_RANK, 1024),
        (keys::OUTPUT_GROUP_COUNT, 8),
        (keys::HASH_LAYER_COUNT, 3),
        (keys::HC_COUNT, 4),
    ] {
        b.set(key.canonical, value)?;
    }
    Ok(())
}
