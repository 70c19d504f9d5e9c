//! The shape of a model: every number of spec/ds4-architecture.md 1.1 that the forward pass reads.
//!
//! Field names follow that table. Nothing has a default: a test states its model whole.

use crate::Error;

/// Frequency scaling of the layers with compressed rows (spec 2.5).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// Divisor of the low frequencies.
    pub factor: f32,
    /// Context the model was first trained on.
    pub orig_ctx: u32,
    /// Rotations over `orig_ctx` above which a pair is left alone.
    pub beta_fast: f32,
    /// Rotations below which a pair is divided by `factor`.
    pub beta_slow: f32,
}

/// Hyper-parameters of a model. The number of layers is `ratios.len()`.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct OracleConfig {
    pub n_embd: usize,
    pub n_vocab: usize,
    pub n_head: usize,
    /// Channels of a head; the last `n_rot` rotate.
    pub head_dim: usize,
    pub n_rot: usize,
    pub q_lora_rank: usize,
    pub o_groups: usize,
    /// Rank of one output group.
    pub o_lora_rank: usize,
    /// Raw rows a query sees, itself included.
    pub n_swa: usize,
    /// Compression ratio of each layer: 0 none, 4 overlapping with an indexer, else plain.
    pub ratios: Vec<usize>,
    pub index_heads: usize,
    pub index_dim: usize,
    pub index_top_k: usize,
    pub n_expert: usize,
    pub n_expert_used: usize,
    pub n_ff: usize,
    pub route_scale: f32,
    /// Leading layers routed by table.
    pub n_hash: usize,
    /// Clamp of the routed experts, one a layer.
    pub clamp_exp: Vec<f32>,
    /// Clamp of the shared expert, one a layer.
    pub clamp_shexp: Vec<f32>,
    /// Residual streams.
    pub n_hc: usize,
    pub sinkhorn_iters: usize,
    pub hc_eps: f32,
    pub rms_eps: f32,
    /// Base of the layers without compression.
    pub rope_theta: f32,
    /// Base of the layers with compression.
    pub compress_rope_theta: f32,
    pub yarn: Yarn,
    pub context_length: u32,
}

impl OracleConfig {
    /// Number of layers.
    #[must_use]
    pub fn n_layer(&self) -> usize {
        self.ratios.len()
    }

    /// Whether a layer has a lightning indexer.
    #[must_use]
    pub fn has_indexer(&self, layer: usize) -> bool {
        self.ratios[layer] == 4
    }

    /// Columns of a hyper-connection projection: pre, post and the square mixing matrix.
    #[must_use]
    pub fn n_mix(&self) -> usize {
        self.n_hc * (2 + self.n_hc)
    }

    /// Checks what the forward pass relies on.
    ///
    /// # Errors
    /// `Config`.
    pub fn check(&self, kv_sim: bool) -> Result<(), Error> {
        let rule = |ok: bool, key: &'static str, why: String| match ok {
            true => Ok(()),
            false => Err(Error::Config { key, why }),
        };
        let n = self.n_layer();
        rule(
            n > 0 && self.n_embd > 0 && self.n_vocab > 0 && self.n_swa > 0,
            "shape",
            format!(
                "{n} layers, width {}, vocabulary {}, window {}: none may be 0",
                self.n_embd, self.n_vocab, self.n_swa
            ),
        )?;
        rule(
            self.n_rot.is_multiple_of(2) && self.n_rot <= self.head_dim.min(self.index_dim),
            "rope.dimension_count",
            format!(
                "{} must be even and fit {} and {}",
                self.n_rot, self.head_dim, self.index_dim
            ),
        )?;
        rule(
            self.o_groups > 0 && self.n_head.is_multiple_of(self.o_groups),
            "attention.output_group_count",
            format!("{} heads do not divide into {}", self.n_head, self.o_groups),
        )?;
        rule(
            self.n_expert_used > 0 && self.n_expert_used <= self.n_expert,
            "expert_used_count",
            format!("{} of {}", self.n_expert_used, self.n_expert),
        )?;
        rule(
            self.clamp_exp.len() == n && self.clamp_shexp.len() == n,
            "swiglu_clamp",
            format!(
                "{} and {} values for {n} layers",
                self.clamp_exp.len(),
                self.clamp_shexp.len()
            ),
        )?;
        let limits = self.clamp_exp.iter().chain(&self.clamp_shexp);
        rule(
            limits.clone().all(|l| *l > 0.0),
            "swiglu_clamp",
            format!("{:?}: a limit must be above 0", limits.collect::<Vec<_>>()),
        )?;
        let nope = self.head_dim - self.n_rot;
        rule(
            !kv_sim || nope.is_multiple_of(64),
            "attention.key_length",
            format!("{nope} unrotated channels are not whole blocks of 64"),
        )?;
        rule(
            !kv_sim || (self.index_dim.is_power_of_two() && self.index_dim.is_multiple_of(32)),
            "attention.indexer.key_length",
            format!(
                "{} is not a power of two with whole blocks of 32",
                self.index_dim
            ),
        )
    }

    /// Every tensor of the model, by canonical name, with its shape (slowest dimension first).
    #[must_use]
    pub fn tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (d, hc) = (self.n_embd, self.n_hc);
        let mut list = vec![
            ("token_embd.weight".to_owned(), vec![self.n_vocab, d]),
            ("output_norm.weight".to_owned(), vec![d]),
            ("output.weight".to_owned(), vec![self.n_vocab, d]),
            ("output_hc_fn.weight".to_owned(), vec![hc, hc * d]),
            ("output_hc_base.weight".to_owned(), vec![hc]),
            ("output_hc_scale.weight".to_owned(), vec![1]),
        ];
        for layer in 0..self.n_layer() {
            let mut add = |suffix: &str, shape: Vec<usize>| {
                list.push((format!("blk.{layer}.{suffix}"), shape));
            };
            self.attention_tensors(layer, &mut add);
            self.ffn_tensors(layer, &mut add);
        }
        list
    }

    fn attention_tensors(&self, layer: usize, add: &mut impl FnMut(&str, Vec<usize>)) {
        let (d, hd, hc) = (self.n_embd, self.head_dim, self.n_hc);
        for part in ["attn", "ffn"] {
            add(&format!("hc_{part}_fn.weight"), vec![self.n_mix(), hc * d]);
            add(&format!("hc_{part}_base.weight"), vec![self.n_mix()]);
            add(&format!("hc_{part}_scale.weight"), vec![3]);
            add(&format!("{part}_norm.weight"), vec![d]);
        }
        add("attn_q_a.weight", vec![self.q_lora_rank, d]);
        add("attn_q_a_norm.weight", vec![self.q_lora_rank]);
        add("attn_q_b.weight", vec![self.n_head * hd, self.q_lora_rank]);
        add("attn_kv.weight", vec![hd, d]);
        add("attn_kv_a_norm.weight", vec![hd]);
        add("attn_sinks.weight", vec![self.n_head]);
        let group = self.n_head / self.o_groups * hd;
        let low = self.o_groups * self.o_lora_rank;
        add("attn_output_a.weight", vec![low, group]);
        add("attn_output_b.weight", vec![d, low]);
        let ratio = self.ratios[layer];
        if ratio != 0 {
            compressor_tensors("attn_compressor", ratio, hd, d, add);
        }
        if self.has_indexer(layer) {
            let width = self.index_heads * self.index_dim;
            add("indexer.attn_q_b.weight", vec![width, self.q_lora_rank]);
            add("indexer.proj.weight", vec![self.index_heads, d]);
            compressor_tensors("indexer_compressor", ratio, self.index_dim, d, add);
        }
    }

    fn ffn_tensors(&self, layer: usize, add: &mut impl FnMut(&str, Vec<usize>)) {
        let (d, e, ff) = (self.n_embd, self.n_expert, self.n_ff);
        add("ffn_gate_inp.weight", vec![e, d]);
        if layer < self.n_hash {
            let shape = vec![self.n_vocab, self.n_expert_used];
            add("ffn_gate_tid2eid.weight", shape);
        } else {
            add("exp_probs_b.bias", vec![e]);
        }
        add("ffn_gate_exps.weight", vec![e, ff, d]);
        add("ffn_up_exps.weight", vec![e, ff, d]);
        add("ffn_down_exps.weight", vec![e, d, ff]);
        add("ffn_gate_shexp.weight", vec![ff, d]);
        add("ffn_up_shexp.weight", vec![ff, d]);
        add("ffn_down_shexp.weight", vec![d, ff]);
    }
}

/// Halves of a compressor's projections: two when windows overlap.
pub(super) fn halves(ratio: usize) -> usize {
    if ratio == 4 { 2 } else { 1 }
}

fn compressor_tensors(
    stem: &str,
    ratio: usize,
    width: usize,
    d: usize,
    add: &mut impl FnMut(&str, Vec<usize>),
) {
    let wide = halves(ratio) * width;
    add(&format!("{stem}_kv.weight"), vec![wide, d]);
    add(&format!("{stem}_gate.weight"), vec![wide, d]);
    add(&format!("{stem}_ape.weight"), vec![ratio, wide]);
    add(&format!("{stem}_norm.weight"), vec![width]);
}
