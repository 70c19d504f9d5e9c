//! The chain: bias, penalties, temperature, top-k, min-p, top-p, draw.

use engine_core::{Pos, SamplePlan, TokenId};

use crate::adjust::{Counts, adjust};
use crate::error::SampleError;
use crate::filter::{self, Weighed};
use crate::noise::{GUMBEL_MAX, NoiseKey, gumbel, gumbel_bound};

/// The largest value's index, the lowest of equal ones; -0 and +0 are equal, NaN is below
/// everything. `None` if every value is NaN or minus infinity.
#[must_use]
pub fn argmax(row: &[f32]) -> Option<TokenId> {
    let mut best = f32::NEG_INFINITY;
    let mut found = None;
    for (id, value) in (0u32..).zip(row) {
        if *value > best {
            best = *value;
            found = Some(id);
        }
    }
    found
}

/// Draws tokens; holds the buffers of a draw, so that none is allocated in one.
#[derive(Clone, Debug)]
pub struct Sampler {
    row: Vec<f32>,
    weights: Vec<f32>,
    kept: Vec<TokenId>,
    counts: Counts,
}

impl Sampler {
    /// Buffers for rows of `n_vocab` logits: 16 bytes each.
    #[must_use]
    pub fn new(n_vocab: usize) -> Self {
        Self {
            row: Vec::with_capacity(n_vocab),
            weights: vec![0.0; n_vocab],
            kept: Vec::with_capacity(n_vocab),
            counts: Counts::new(n_vocab),
        }
    }

    /// The token that `plan` draws at position `pos` (the position the token will have) from
    /// `logits` `[n_vocab]` f32. `history`: the earlier tokens that penalties count, oldest first,
    /// with the candidates before this row when a draft is verified; unused without penalties.
    ///
    /// # Errors
    /// `Width`, `Nothing`.
    pub fn draw(
        &mut self,
        plan: &SamplePlan,
        logits: &[f32],
        pos: Pos,
        history: &[TokenId],
    ) -> Result<TokenId, SampleError> {
        let (expected, got) = (self.counts.len(), logits.len());
        if expected != got {
            return Err(SampleError::Width { expected, got });
        }
        if plan.is_plain_greedy() {
            return argmax(logits).ok_or(SampleError::Nothing);
        }
        self.row.clear();
        self.row.extend_from_slice(logits);
        adjust(plan, history, &mut self.counts, &mut self.row);
        if plan.temperature > 0.0 {
            self.row.iter_mut().for_each(|v| *v /= plan.temperature);
        }
        let best = argmax(&self.row).ok_or(SampleError::Nothing)?;
        if plan.temperature == 0.0 {
            return Ok(best);
        }
        let key = NoiseKey::of(plan, pos);
        Ok(if self.filter(plan, best) {
            draw(&self.row, self.kept.iter().copied(), key, best)
        } else {
            draw(&self.row, 0..self.row.len() as TokenId, key, best)
        })
    }

    /// Fills `kept`; `false` if the plan has no filter.
    fn filter(&mut self, plan: &SamplePlan, best: TokenId) -> bool {
        let kept = &mut self.kept;
        let mut weighed = Weighed {
            row: &self.row,
            largest: self.row[best as usize],
            weights: &mut self.weights,
        };
        let (k, by_min, by_top) = (plan.top_k as usize, plan.min_p > 0.0, plan.top_p < 1.0);
        let by_k = k > 0 && k < self.row.len();
        if by_k {
            filter::top_k(&self.row, k, kept);
            weighed.weigh(kept);
            if by_min {
                weighed.min_p(plan.min_p, kept);
            }
        } else if by_min || by_top {
            weighed.weigh_all(plan.min_p, kept);
        }
        if by_top {
            weighed.top_p(plan.top_p, kept);
        }
        by_k || by_min || by_top
    }
}

/// The token with the largest sum of value and noise, the lowest of equal sums. `first`: one of
/// them, likely to win.
///
/// Skips tokens that cannot win: rounding is monotone, so that a sum with an upper bound of the
/// noise bounds the sum with the noise.
fn draw(
    row: &[f32],
    tokens: impl Iterator<Item = TokenId>,
    key: NoiseKey,
    first: TokenId,
) -> TokenId {
    let (mut best, mut found) = (row[first as usize] + key.gumbel(first), first);
    for id in tokens {
        let value = row[id as usize];
        // NaN fails every comparison.
        if value + GUMBEL_MAX >= best {
            let bits = key.bits(id);
            if value + gumbel_bound(bits) >= best {
                let score = value + gumbel(bits);
                if score > best || (score == best && id < found) {
                    (best, found) = (score, id);
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argmax_takes_the_lowest_of_equals_and_never_nan() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        let cases: [(&[f32], Option<TokenId>); 8] = [
            (&[1.0, 2.0, 2.0], Some(1)),
            (&[nan, 1.0, nan], Some(1)),
            (&[-0.0, 0.0], Some(0)),
            (&[0.0, -0.0], Some(0)),
            (&[-inf, inf, inf], Some(1)),
            (&[nan, nan], None),
            (&[-inf, -inf], None),
            (&[], None),
        ];
        for (row, want) in cases {
            assert_eq!(argmax(row), want, "{row:?}");
        }
    }
}
