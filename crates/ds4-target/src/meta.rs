//! Every shape and constant of the model, from metadata, checked once (spec/ds4-architecture.md
//! 1.1 to 1.3). Nothing here has a default that bears a shape: a missing key is an error.

use engine_core::math::Yarn;
use engine_core::mutant::mutant;

use crate::error::LoadError;
use crate::source::{MetaValue, Source};

/// How a layer compresses its history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ratio {
    /// Sliding window only.
    None,
    /// One row per 4 tokens, overlapping windows, selected by the indexer.
    Sparse,
    /// One row per r tokens, all attended (r = 128 in released models).
    Heavy(u32),
}

impl Ratio {
    /// Tokens per compressed row; `None` without compressor.
    #[must_use]
    pub const fn tokens(self) -> Option<u32> {
        match self {
            Self::None => None,
            Self::Sparse => Some(4),
            Self::Heavy(r) => Some(r),
        }
    }
}

/// The model's hyper-parameters.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Ds4Meta {
    pub n_layer: usize,
    pub n_embd: usize,
    pub n_vocab: usize,
    /// Positions the model was trained for.
    pub n_ctx_train: u64,
    pub n_head: usize,
    pub head_dim: usize,
    pub n_rot: usize,
    pub q_lora: usize,
    pub o_lora: usize,
    pub o_groups: usize,
    /// Raw rows a query sees, itself included.
    pub window: usize,
    pub index_heads: usize,
    pub index_dim: usize,
    pub index_top_k: usize,
    /// Per layer.
    pub ratios: Vec<Ratio>,
    pub rope_theta: f32,
    pub compress_theta: f32,
    pub yarn: Yarn,
    pub n_expert: usize,
    pub n_used: usize,
    pub n_ff: usize,
    pub route_scale: f32,
    /// Clamp of routed experts, per layer.
    pub clamp_routed: Vec<f32>,
    /// Clamp of the shared expert, per layer.
    pub clamp_shared: Vec<f32>,
    /// Leading layers that route by table.
    pub n_hash: usize,
    pub hc_iterations: u32,
    pub hc_eps: f32,
    pub rms_eps: f32,
}

/// Typed access to a source's metadata, with errors that name the key.
struct Keys<'a> {
    source: &'a dyn Source,
}

impl Keys<'_> {
    fn bad(&self, key: &str, expected: impl Into<String>, got: impl ToString) -> LoadError {
        LoadError::BadKey {
            file: self.source.name().to_owned(),
            key: key.to_owned(),
            expected: expected.into(),
            got: got.to_string(),
        }
    }

    fn value(&self, key: &str, expected: &'static str) -> Result<MetaValue, LoadError> {
        self.source.meta(key).ok_or_else(|| LoadError::MissingKey {
            file: self.source.name().to_owned(),
            key: key.to_owned(),
            expected,
        })
    }

    /// An integer in `1..=max` (or from 0 with `zero`).
    fn size(&self, key: &str, zero: bool, max: i64) -> Result<usize, LoadError> {
        let low = i64::from(!zero);
        match self.value(key, "an integer") {
            Ok(MetaValue::Int(v)) if (low..=max).contains(&v) => Ok(v as usize),
            Ok(other) => Err(self.bad(key, format!("an integer in {low}..={max}"), other)),
            Err(_) if mutant(48) => Ok(4),
            Err(e) => Err(e),
        }
    }

    fn float(&self, key: &str) -> Result<f32, LoadError> {
        match self.value(key, "a float")? {
            MetaValue::Float(v) if v.is_finite() => Ok(v as f32),
            other => Err(self.bad(key, "a finite float", other)),
        }
    }

    /// A scalar, or an array with one value per layer.
    fn per_layer(&self, key: &str, n_layer: usize) -> Result<Vec<f32>, LoadError> {
        match self.value(key, "a float or one per layer")? {
            MetaValue::Float(v) => Ok(vec![v as f32; n_layer]),
            MetaValue::Floats(v) if v.len() >= n_layer => {
                Ok(v[..n_layer].iter().map(|v| *v as f32).collect())
            }
            other => Err(self.bad(key, format!("a float or at least {n_layer} floats"), other)),
        }
    }
}

impl Ds4Meta {
    /// The metadata prefix of the architecture.
    pub const ARCH: &'static str = "deepseek4";

    /// Reads and checks the hyper-parameters.
    ///
    /// # Errors
    /// `Architecture`, `MissingKey` or `BadKey`, naming the key and both values.
    pub fn read(source: &dyn Source) -> Result<Self, LoadError> {
        let k = Keys { source };
        check_architecture(&k)?;
        let key = |name: &str| format!("{}.{name}", Self::ARCH);
        let size = |name: &str, max| k.size(&key(name), false, max);
        let float = |name: &str| k.float(&key(name));
        let n_block = size("block_count", 4096)?;
        let ratios = read_ratios(&k, &key("attention.compress_ratios"))?;
        if ratios.len() < n_block {
            return Err(k.bad(
                &key("attention.compress_ratios"),
                format!("at least {n_block} entries (block_count)"),
                ratios.len(),
            ));
        }
        // Some converters count an appended MTP block; the target ignores it (ruling D22).
        let n_layer = if n_block > 1 && has_nextn(source, n_block - 1) {
            n_block - 1
        } else {
            n_block
        };
        let clamp_routed = k.per_layer(&key("swiglu_clamp_exp"), n_layer)?;
        let shared = key("swiglu_clamp_shexp");
        let clamp_shared = if source.meta(&shared).is_some() {
            k.per_layer(&shared, n_layer)?
        } else {
            clamp_routed.clone()
        };
        let meta = Self {
            n_layer,
            n_embd: size("embedding_length", 1 << 20)?,
            n_vocab: size("vocab_size", 1 << 24)?,
            n_ctx_train: size("context_length", 1 << 32)? as u64,
            n_head: size("attention.head_count", 1 << 16)?,
            head_dim: size("attention.key_length", 1 << 16)?,
            n_rot: size("rope.dimension_count", 1 << 16)?,
            q_lora: size("attention.q_lora_rank", 1 << 20)?,
            o_lora: size("attention.output_lora_rank", 1 << 20)?,
            o_groups: size("attention.output_group_count", 1 << 16)?,
            window: size("attention.sliding_window", 1 << 20)?,
            index_heads: size("attention.indexer.head_count", 1 << 16)?,
            index_dim: size("attention.indexer.key_length", 1 << 16)?,
            index_top_k: size("attention.indexer.top_k", 1 << 24)?,
            ratios: ratios[..n_layer].to_vec(),
            rope_theta: float("rope.freq_base")?,
            compress_theta: float("attention.compress_rope_freq_base")?,
            yarn: Yarn {
                factor: float("rope.scaling.factor")?,
                original_context: size("rope.scaling.original_context_length", 1 << 31)? as u32,
                beta_fast: float("rope.scaling.yarn_beta_fast")?,
                beta_slow: float("rope.scaling.yarn_beta_slow")?,
            },
            n_expert: size("expert_count", 1 << 16)?,
            n_used: size("expert_used_count", 1 << 10)?,
            n_ff: size("expert_feed_forward_length", 1 << 20)?,
            route_scale: float("expert_weights_scale")?,
            clamp_routed,
            clamp_shared,
            n_hash: k.size(&key("hash_layer_count"), true, n_layer as i64)?,
            hc_iterations: size("hyper_connection.sinkhorn_iterations", 1000)? as u32,
            hc_eps: float("hyper_connection.epsilon")?,
            rms_eps: float("attention.layer_norm_rms_epsilon")?,
        };
        meta.check(&k)?;
        Ok(meta)
    }

    /// Relations between keys that the equations rely on.
    fn check(&self, k: &Keys<'_>) -> Result<(), LoadError> {
        let key = |name: &str| format!("{}.{name}", Self::ARCH);
        let exact = |name: &str, want: usize| -> Result<(), LoadError> {
            let got = k.size(&key(name), true, i64::from(u32::MAX))?;
            if got == want {
                Ok(())
            } else {
                Err(k.bad(&key(name), want.to_string(), got))
            }
        };
        exact("attention.head_count_kv", 1)?;
        exact("hyper_connection.count", ds4_kernels::cpu::N_HC)?;
        exact("expert_shared_count", 1)?;
        exact("attention.value_length", self.head_dim)?;
        for (name, want) in [("expert_group_count", 0), ("expert_group_used_count", 0)] {
            if k.source.meta(&key(name)).is_some() {
                exact(name, want)?;
            }
        }
        if let Some(v) = k.source.meta(&key("expert_gating_func"))
            && v != MetaValue::Int(4)
        {
            return Err(k.bad(&key("expert_gating_func"), "4 (sqrtsoftplus)", v));
        }
        if let Some(v) = k.source.meta(&key("expert_weights_norm"))
            && v != MetaValue::Bool(true)
        {
            return Err(k.bad(&key("expert_weights_norm"), "true", v));
        }
        if let Some(v) = k.source.meta(&key("rope.scaling.type"))
            && v != MetaValue::Str("yarn".to_owned())
        {
            return Err(k.bad(&key("rope.scaling.type"), "\"yarn\"", v));
        }
        let must = |name: &str, ok: bool, expected: String, got: usize| {
            if ok {
                Ok(())
            } else {
                Err(k.bad(&key(name), expected, got))
            }
        };
        must(
            "rope.dimension_count",
            self.n_rot.is_multiple_of(2)
                && self.n_rot <= self.head_dim
                && self.n_rot <= self.index_dim,
            format!("even, at most {} and {}", self.head_dim, self.index_dim),
            self.n_rot,
        )?;
        must(
            "attention.output_group_count",
            self.n_head.is_multiple_of(self.o_groups),
            format!("a divisor of head_count {}", self.n_head),
            self.o_groups,
        )?;
        must(
            "expert_used_count",
            self.n_used <= self.n_expert,
            format!("at most expert_count {}", self.n_expert),
            self.n_used,
        )
    }

    /// The frequencies' parameters of a layer: theta, and YaRN on layers with compressed rows only.
    #[must_use]
    pub fn rope_of(&self, ratio: Ratio) -> (f32, Option<Yarn>) {
        if ratio == Ratio::None && !mutant(4) {
            (self.rope_theta, None)
        } else {
            (self.compress_theta, Some(self.yarn))
        }
    }
}

/// Whether block `layer` holds MTP tensors.
pub(crate) fn has_nextn(source: &dyn Source, layer: usize) -> bool {
    let prefix = format!("blk.{layer}.nextn.");
    source.tensor_names().iter().any(|n| n.starts_with(&prefix))
}

fn check_architecture(k: &Keys<'_>) -> Result<(), LoadError> {
    let got = match k.value("general.architecture", "a string")? {
        MetaValue::Str(s) => s,
        other => return Err(k.bad("general.architecture", "a string", other)),
    };
    let why = match got.as_str() {
        Ds4Meta::ARCH => return Ok(()),
        "deepseek41" => " (V4.1 is a different architecture: shared index sources, Engram)",
        "pflash" | "deepseek4-pflash" => " (a PFlash prefill drafter, not a target)",
        "deepseek4-dflash-draft" | "dflash" => " (a DSpark drafter: give it as the drafter)",
        _ => "",
    };
    Err(LoadError::Architecture {
        file: k.source.name().to_owned(),
        expected: Ds4Meta::ARCH,
        got: format!("{got}{why}"),
    })
}

fn read_ratios(k: &Keys<'_>, key: &str) -> Result<Vec<Ratio>, LoadError> {
    let MetaValue::Ints(values) = k.value(key, "one integer per layer")? else {
        return Err(k.bad(key, "an array of integers", "something else"));
    };
    values
        .iter()
        .map(|v| match v {
            0 => Ok(Ratio::None),
            4 => Ok(Ratio::Sparse),
            r @ 5..=65536 => Ok(Ratio::Heavy(*r as u32)),
            other => Err(k.bad(key, "0, 4 or a ratio in 5..=65536", other)),
        })
        .collect()
}
