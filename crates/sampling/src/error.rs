//! Why no token can be drawn.

/// A refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SampleError {
    /// The row has another width than the sampler was made for.
    #[error("a row of {got} logits, expected {expected}")]
    Width {
        /// Width of the vocabulary.
        expected: usize,
        /// Width of the row.
        got: usize,
    },
    /// Every logit is NaN or minus infinity: a fault below, or a bias that bans everything.
    #[error("no token can be drawn: every logit is NaN or minus infinity")]
    Nothing,
}
