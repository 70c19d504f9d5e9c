//! Shapes and metadata of the models that can be made up. Flash and Pro: spec/ds4-architecture.md 1.1; tiny: the file in
//! `models/`, with which a test compares.
//!
//! Must not know: formats, bytes.

use gguf::names::{Role, Structure};

use crate::source::MetaValue;

/// What differs between the models; the rest is the same in all of them ([`SAME`]).
#[derive(Debug)]
pub(super) struct Sizes {
    /// Compressor ratios of the layers in front.
    first: &'static [u32],
    layers: u32,
    embd: u64,
    vocab: u64,
    heads: u64,
    head: u64,
    q_rank: u64,
    groups: u64,
    o_rank: u64,
    window: u64,
    index_heads: u64,
    top_k: u64,
    experts: u32,
    used: u32,
    ff: u64,
    scale: f64,
}

pub(super) const FLASH: Sizes = Sizes {
    first: &[0, 0],
    layers: 43,
    embd: 4096,
    vocab: 129_280,
    heads: 64,
    head: 512,
    q_rank: 1024,
    groups: 8,
    o_rank: 1024,
    window: 128,
    index_heads: 64,
    top_k: 512,
    experts: 256,
    used: 6,
    ff: 2048,
    scale: 1.5,
};

pub(super) const PRO: Sizes = Sizes {
    first: &[128, 128],
    layers: 61,
    embd: 7168,
    heads: 128,
    q_rank: 1536,
    groups: 16,
    top_k: 1024,
    experts: 384,
    ff: 3072,
    scale: 2.5,
    ..FLASH
};

pub(super) const TINY: Sizes = Sizes {
    first: &[0, 0],
    layers: 7,
    embd: 256,
    vocab: 4096,
    heads: 8,
    head: 128,
    q_rank: 256,
    groups: 4,
    o_rank: 64,
    window: 64,
    index_heads: 16,
    top_k: 32,
    experts: 16,
    used: 4,
    ff: 128,
    scale: 1.5,
};

/// Layers that route by table.
const HASHED: u32 = 3;
/// Residual streams.
const STREAMS: u64 = 4;
/// Width of an index head.
const INDEX: u64 = 128;

/// Whole numbers that all of them have.
const SAME: [(&str, i64); 10] = [
    ("context_length", 1_048_576),
    ("attention.head_count_kv", 1),
    ("rope.dimension_count", 64),
    ("rope.scaling.original_context_length", 65_536),
    ("expert_shared_count", 1),
    ("expert_gating_func", 4),
    ("hash_layer_count", HASHED as i64),
    ("hyper_connection.count", STREAMS as i64),
    ("hyper_connection.sinkhorn_iterations", 20),
    ("attention.indexer.key_length", INDEX as i64),
];

/// Floats that all of them have.
const FLOATS: [(&str, f64); 8] = [
    ("rope.freq_base", 10_000.0),
    ("attention.compress_rope_freq_base", 160_000.0),
    ("rope.scaling.factor", 16.0),
    ("rope.scaling.yarn_beta_fast", 32.0),
    ("rope.scaling.yarn_beta_slow", 1.0),
    ("swiglu_clamp_exp", 10.0),
    ("hyper_connection.epsilon", 1e-6),
    ("attention.layer_norm_rms_epsilon", 1e-6),
];

impl Sizes {
    /// Which tensors there are: behind the first layers even ones have ratio 4, odd ones 128.
    pub(super) fn structure(&self) -> Structure {
        let ratio = |l: u32| {
            let first = self.first.get(l as usize).copied();
            first.unwrap_or(if l.is_multiple_of(2) { 4 } else { 128 })
        };
        Structure {
            ratios: (0..self.layers).map(ratio).collect(),
            hash_layers: HASHED,
        }
    }

    /// Experts, those of a token, and tokens: the sizes of a routing table.
    pub(super) fn table(&self) -> (u32, u32, usize) {
        (self.experts, self.used, self.vocab as usize)
    }

    pub(super) fn meta(&self, key: &str) -> Option<MetaValue> {
        if key == "general.architecture" {
            return Some(MetaValue::Str(crate::Ds4Meta::ARCH.to_owned()));
        }
        let key = key.strip_prefix(crate::Ds4Meta::ARCH)?.strip_prefix('.')?;
        let size = match key {
            "block_count" => u64::from(self.layers),
            "embedding_length" => self.embd,
            "vocab_size" => self.vocab,
            "attention.head_count" => self.heads,
            "attention.key_length" | "attention.value_length" => self.head,
            "attention.q_lora_rank" => self.q_rank,
            "attention.output_group_count" => self.groups,
            "attention.output_lora_rank" => self.o_rank,
            "attention.sliding_window" => self.window,
            "attention.indexer.head_count" => self.index_heads,
            "attention.indexer.top_k" => self.top_k,
            "expert_count" => u64::from(self.experts),
            "expert_used_count" => u64::from(self.used),
            "expert_feed_forward_length" => self.ff,
            _ => return self.other(key),
        };
        Some(MetaValue::Int(size as i64))
    }

    fn other(&self, key: &str) -> Option<MetaValue> {
        match key {
            "attention.compress_ratios" => {
                let ratios = self.structure().ratios;
                return Some(MetaValue::Ints(ratios.into_iter().map(i64::from).collect()));
            }
            "expert_weights_norm" => return Some(MetaValue::Bool(true)),
            "expert_weights_scale" => return Some(MetaValue::Float(self.scale)),
            "rope.scaling.type" => return Some(MetaValue::Str("yarn".to_owned())),
            _ => {}
        }
        let same = SAME.iter().find(|(name, _)| *name == key);
        let float = FLOATS.iter().find(|(name, _)| *name == key);
        let same = same.map(|(_, v)| MetaValue::Int(*v));
        same.or_else(|| float.map(|(_, v)| MetaValue::Float(*v)))
    }

    /// The shape of a tensor, input dimension first (`gguf::names::Role` says it in words).
    pub(super) fn shape(&self, role: Role, layer: Option<u32>) -> Vec<u64> {
        let ratios = self.structure().ratios;
        let ratio = layer.and_then(|l| ratios.get(l as usize).copied());
        let ratio = u64::from(ratio.unwrap_or(0));
        let (d, c) = (self.embd, if ratio == 4 { 2 } else { 1 });
        let mix = STREAMS * (STREAMS + 2);
        let low = self.groups * self.o_rank;
        match role {
            Role::TokenEmbd | Role::Output => vec![d, self.vocab],
            Role::OutputHcFn => vec![STREAMS * d, STREAMS],
            Role::OutputHcBase => vec![STREAMS],
            Role::OutputHcScale => vec![1],
            Role::HcAttnFn | Role::HcFfnFn => vec![STREAMS * d, mix],
            Role::HcAttnBase | Role::HcFfnBase => vec![mix],
            Role::HcAttnScale | Role::HcFfnScale => vec![3],
            Role::OutputNorm | Role::AttnNorm | Role::FfnNorm => vec![d],
            Role::AttnQA => vec![d, self.q_rank],
            Role::AttnQANorm => vec![self.q_rank],
            Role::AttnQB => vec![self.q_rank, self.heads * self.head],
            Role::AttnKv => vec![d, self.head],
            Role::AttnKvNorm | Role::CompressorNorm => vec![self.head],
            Role::AttnSinks => vec![self.heads],
            Role::AttnOutputA => vec![self.heads / self.groups * self.head, low],
            Role::AttnOutputB => vec![low, d],
            Role::CompressorKv | Role::CompressorGate => vec![d, c * self.head],
            Role::CompressorApe => vec![c * self.head, ratio],
            Role::IndexerQB => vec![self.q_rank, self.index_heads * INDEX],
            Role::IndexerProj => vec![d, self.index_heads],
            Role::IndexerCompressorKv | Role::IndexerCompressorGate => vec![d, c * INDEX],
            Role::IndexerCompressorApe => vec![c * INDEX, ratio],
            Role::IndexerCompressorNorm => vec![INDEX],
            Role::FfnGateInp => vec![d, u64::from(self.experts)],
            Role::ExpProbsB => vec![u64::from(self.experts)],
            Role::FfnGateTid2Eid => vec![u64::from(self.used), self.vocab],
            Role::FfnGateExps | Role::FfnUpExps => vec![d, self.ff, u64::from(self.experts)],
            Role::FfnDownExps => vec![self.ff, d, u64::from(self.experts)],
            Role::FfnGateShexp | Role::FfnUpShexp => vec![d, self.ff],
            Role::FfnDownShexp => vec![self.ff, d],
        }
    }
}
