//! What to draw from a row of logits. Data only: the chain itself lives in `sampling` and, on
//! devices, in a kernel; both give the same token for the same plan.

use std::sync::Arc;

use crate::ids::TokenId;

/// Penalties over the tokens already in the text. All neutral by default.
#[derive(Clone, Debug, PartialEq)]
pub struct Penalties {
    /// Divides positive and multiplies negative logits of tokens seen in the window; 1 = off.
    pub repeat: f32,
    /// Subtracted once for a token seen in the window; 0 = off.
    pub presence: f32,
    /// Subtracted per occurrence in the window; 0 = off.
    pub frequency: f32,
    /// How many last tokens count; 0 = none.
    pub window: u32,
}

impl Default for Penalties {
    fn default() -> Self {
        Self {
            repeat: 1.0,
            presence: 0.0,
            frequency: 0.0,
            window: 0,
        }
    }
}

impl Penalties {
    /// Whether the chain may skip penalties.
    #[must_use]
    pub fn is_neutral(&self) -> bool {
        self.window == 0 || (self.repeat == 1.0 && self.presence == 0.0 && self.frequency == 0.0)
    }
}

/// How one sequence's next tokens are chosen. Noise is keyed by (seed, choice, position, token),
/// so the choice does not depend on batching or drafting (design bet 6).
#[derive(Clone, Debug, PartialEq)]
pub struct SamplePlan {
    /// 0 means greedy: the largest logit, lowest id on ties.
    pub temperature: f32,
    /// Keep the k largest; 0 = off.
    pub top_k: u32,
    /// Keep the smallest set whose probability reaches this; 1 = off.
    pub top_p: f32,
    /// Keep tokens with at least this share of the largest probability; 0 = off.
    pub min_p: f32,
    /// Noise key: the request's seed.
    pub seed: u64,
    /// Noise key: which of the request's parallel answers.
    pub choice: u32,
    /// Penalties over earlier tokens.
    pub penalties: Penalties,
    /// Added to single logits before anything else.
    pub bias: Arc<[(TokenId, f32)]>,
}

impl SamplePlan {
    /// Plain argmax.
    #[must_use]
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: 0,
            choice: 0,
            penalties: Penalties::default(),
            bias: Arc::from([]),
        }
    }

    /// Whether the plan is argmax on unmodified logits, which a device can do without history.
    #[must_use]
    pub fn is_plain_greedy(&self) -> bool {
        self.temperature == 0.0 && self.penalties.is_neutral() && self.bias.is_empty()
    }
}
