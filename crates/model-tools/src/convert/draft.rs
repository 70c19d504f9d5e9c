//! Hyper-parameters of a DSpark drafter, from its own `draft_config.json` or from the `dspark_*`
//! keys of an official `config.json` (spec/dspark.md 1.1, 5).
//!
//! Shapes of its layers are the target's. Must not know: tensors, GGUF.

use std::path::Path;

use serde_json::json;

use super::hyper::Hyper;
use super::json::{self, Object};
use crate::error::ToolError;

/// What a drafter has beyond its target's shapes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DraftHyper {
    pub(crate) n_stage: u32,
    pub(crate) block: u32,
    /// Target layers whose outputs are its features.
    pub(crate) capture: Vec<u32>,
    pub(crate) mask: u32,
    pub(crate) rank: u32,
    /// Inputs of the confidence head; 0 without one.
    pub(crate) confidence: u32,
}

impl DraftHyper {
    /// The architecture's name in GGUF.
    pub(crate) const ARCH: &'static str = "deepseek4-dflash-draft";

    /// From a `draft_config.json`.
    pub(crate) fn read(path: &Path, target: &Hyper) -> Result<Self, ToolError> {
        let c = Object::read(path)?;
        c.must("architecture", &json!(Self::ARCH))?;
        c.must("vocab_size", &json!(target.n_vocab))?;
        c.must("embedding_length", &json!(target.n_embd))?;
        c.must("sliding_window", &json!(target.window))?;
        let draft = Self {
            n_stage: c.size(&["block_count"], 1)?,
            block: c.size(&["block_size"], 2)?,
            capture: c.need(&["capture_layer_ids"], "layer numbers", json::as_u32s)?,
            mask: c.size(&["mask_token_id"], 0)?,
            rank: c.size(&["markov_rank"], 1)?,
            confidence: c.size(&["confidence_dim"], 0)?,
        };
        c.must("n_target_layers", &json!(draft.capture.len()))?;
        draft.check(&c, target)?;
        Ok(draft)
    }

    /// From the `config.json` of a checkpoint that carries a drafter as `mtp.*`. `confidence`: the
    /// inputs its head has (no key says).
    pub(crate) fn read_official(
        path: &Path,
        target: &Hyper,
        confidence: u32,
    ) -> Result<Self, ToolError> {
        let c = Object::read(path)?;
        let draft = Self {
            n_stage: c.size(&["n_mtp_layers", "num_nextn_predict_layers"], 1)?,
            block: c.size(&["dspark_block_size"], 2)?,
            capture: c.need(&["dspark_target_layer_ids"], "layer numbers", json::as_u32s)?,
            mask: c.size(&["dspark_noise_token_id"], 0)?,
            rank: c.size(&["dspark_markov_rank"], 1)?,
            confidence,
        };
        c.must("dspark_markov_head_type", &json!("vanilla"))?;
        draft.check(&c, target)?;
        Ok(draft)
    }

    fn check(&self, c: &Object, target: &Hyper) -> Result<(), ToolError> {
        let distinct = self
            .capture
            .iter()
            .enumerate()
            .all(|(i, l)| !self.capture[..i].contains(l));
        let inside = self.capture.iter().all(|l| *l < target.n_layer);
        if self.capture.is_empty() || !distinct || !inside {
            let expected = format!("distinct layers below the target's {}", target.n_layer);
            return Err(c.bad("capture layers", expected, format!("{:?}", self.capture)));
        }
        if self.mask >= target.n_vocab {
            return Err(c.bad("mask token", format!("below {}", target.n_vocab), self.mask));
        }
        let (n, r) = (target.n_embd, self.rank);
        if ![0, n, n + r].contains(&self.confidence) {
            let expected = format!("0, {n} or {} (state and Markov row)", n + r);
            return Err(c.bad("confidence_dim", expected, self.confidence));
        }
        Ok(())
    }
}
