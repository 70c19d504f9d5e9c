//! How a model is run, and whether it can be.
//!
//! Must not know: where it runs.

use engine_core::NumericClass;
use engine_core::seams::TargetInfo;

use super::Model;
use crate::error::LoadError;
use crate::meta::{Ds4Meta, Ratio};

/// How to run a model.
#[derive(Clone, Debug)]
pub struct Options {
    /// Positions a sequence may reach; at most what the model was trained for.
    pub n_ctx: usize,
    /// Sequences that may be open at once.
    pub n_seq_max: usize,
    /// Widest verify: the longest span whose every prefix may be committed.
    pub verify_max: usize,
    /// Longest span of a pass (a prefill chunk).
    pub span_max: usize,
    /// Whether the model's own fp8/fp4 roundings are applied (and rows packed).
    pub kv_sim: bool,
    /// Threads, the caller included.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            n_ctx: 4096,
            n_seq_max: 4,
            verify_max: 8,
            span_max: 512,
            kv_sim: true,
            threads: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

impl Options {
    /// What callers may know of a target with these options.
    pub(crate) fn info(&self, model: &Model) -> TargetInfo {
        let m = &model.meta;
        TargetInfo {
            n_vocab: m.n_vocab,
            n_embd: m.n_embd,
            n_layer: m.n_layer,
            n_ctx: self.n_ctx as u64,
            n_seq_max: self.n_seq_max,
            verify_max: self.verify_max,
            span_max: self.span_max,
            class: NumericClass::Equal,
            fingerprint: model.fingerprint,
        }
    }

    /// Refuses options that do not fit the model.
    pub(crate) fn check(&self, m: &Ds4Meta) -> Result<(), LoadError> {
        let o = self;
        let bad = |option, expected: String, got: String| {
            Err(LoadError::Option {
                option,
                expected,
                got,
            })
        };
        if o.n_ctx == 0 || o.n_ctx as u64 > m.n_ctx_train {
            return bad(
                "n_ctx",
                format!("1..={}", m.n_ctx_train),
                o.n_ctx.to_string(),
            );
        }
        if o.n_seq_max == 0 || o.verify_max == 0 || o.span_max < o.verify_max || o.threads == 0 {
            let got = format!(
                "n_seq_max {}, verify_max {}, span_max {}, threads {}",
                o.n_seq_max, o.verify_max, o.span_max, o.threads
            );
            return bad(
                "options",
                "all at least 1, span_max >= verify_max".to_owned(),
                got,
            );
        }
        let nope = m.head_dim - m.n_rot;
        if o.kv_sim && !nope.is_multiple_of(ds4_kernels::cpu::KV_BLOCK) {
            let got = format!("head_dim {} - rotary {} = {nope}", m.head_dim, m.n_rot);
            return bad(
                "kv_sim",
                "unrotated channels a multiple of 64".to_owned(),
                got,
            );
        }
        let sparse = m.ratios.contains(&Ratio::Sparse);
        if o.kv_sim && sparse && (!m.index_dim.is_power_of_two() || !m.index_dim.is_multiple_of(32))
        {
            let expected = "indexer dimension a power of two of at least 32".to_owned();
            return bad("kv_sim", expected, m.index_dim.to_string());
        }
        Ok(())
    }
}
