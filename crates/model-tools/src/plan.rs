//! What a target will take of memory, before it is loaded.
//!
//! Weights and sequence states are exact; the buffers of a pass are an estimate of the CPU target's
//! (its largest layer, f32 values by the longest span). Must not know: devices.

use ds4_target::state::StateShape;
use ds4_target::{Ds4Meta, GgufSource, Options, Ratio};
use gguf::Gguf;

use crate::error::ToolError;
use crate::inspect::{Inspection, RoleLine};

/// Bytes of a model at work.
#[derive(Clone, Debug, PartialEq)]
pub struct MemoryPlan {
    /// Weights by role.
    pub weights: Vec<RoleLine>,
    /// Bytes of all weights.
    pub weight_bytes: u64,
    /// State of one sequence at full context.
    pub state: StateBytes,
    /// Sequences planned for.
    pub sequences: u64,
    /// Buffers of the longest pass, estimated.
    pub scratch: u64,
    /// Weights, all states and buffers.
    pub total: u64,
}

/// Bytes of one sequence's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateBytes {
    /// Raw rows of the window.
    pub raw: u64,
    /// Compressed rows.
    pub compressed: u64,
    /// Indexer rows.
    pub index: u64,
    /// Open compressor rows.
    pub open: u64,
}

impl StateBytes {
    /// All of it.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.raw + self.compressed + self.index + self.open
    }
}

/// Plans a target's memory for these options. `options.n_ctx` is each sequence's context.
///
/// # Errors
/// `Load` if the file is no target.
pub fn plan(file: &Gguf, options: &Options) -> Result<MemoryPlan, ToolError> {
    let meta = Ds4Meta::read(&GgufSource::new(file.clone()))?;
    let inspection = Inspection::of(file);
    let shape = StateShape::new(&meta, options.n_ctx, options.verify_max, options.kv_sim);
    let [raw, compressed, index, open] = shape.bytes();
    let state = StateBytes {
        raw,
        compressed,
        index,
        open,
    };
    let sequences = options.n_seq_max as u64;
    let scratch = scratch(&meta, options);
    let states = state.total().saturating_mul(sequences);
    Ok(MemoryPlan {
        weights: inspection.roles,
        weight_bytes: inspection.bytes,
        state,
        sequences,
        scratch,
        total: inspection
            .bytes
            .saturating_add(states)
            .saturating_add(scratch),
    })
}

/// Buffers of a pass of `span_max` tokens whose last `verify_max` give logits.
fn scratch(m: &Ds4Meta, o: &Options) -> u64 {
    let d = m.n_embd;
    // Streams, collapsed input, normed input, block output, mixing.
    let streams = 4 * d + 3 * d + 2 * 24;
    let heads = m.n_head * m.head_dim;
    let compressors = 4 * m.head_dim + 4 * m.index_dim;
    let indexer = m.index_heads * (m.index_dim + 1) + m.index_top_k;
    let attention =
        2 * (m.q_lora + heads + m.head_dim) + compressors + indexer + m.o_groups * m.o_lora;
    let experts = m.n_used * (3 * d + 3 * m.n_ff) + 3 * m.n_ff + d + 2 * m.n_expert;
    // Every product's input once more as 32 codes and a scale.
    let codes = (d.max(heads) * 36 / 32 + m.n_used * d * 36 / 32) / 4;
    // Keys of the widest layer as f32 rows, and each token's list of them.
    let sparse = m.ratios.contains(&Ratio::Sparse);
    let heaviest = m.ratios.iter().filter_map(|r| r.tokens()).min();
    let rows = heaviest.map_or(0, |r| o.n_ctx / r as usize);
    let list = m.window + if sparse { m.index_top_k } else { rows };
    let slab = (m.window + o.span_max + rows) * m.head_dim;
    let logits = o.verify_max * (5 * d + m.n_vocab);
    let per_token = streams + attention + experts + codes + list;
    4 * (o.span_max as u64 * per_token as u64 + slab as u64 + logits as u64)
}
