//! The chain: bias, penalties, temperature, top-k, min-p, top-p, draw.

use engine_core::{Pos, SamplePlan, TokenId};

use crate::adjust::{Counts, adjust};
use crate::error::SampleError;
use crate::filter;
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
    kept: Vec<TokenId>,
    counts: Counts,
}

impl Sampler {
    /// Buffers for rows of `n_vocab` logits: 12 bytes each.
    #[must_use]
    pub fn new(n_vocab: usize) -> Self {
        Self {
            row: Vec::with_capacity(n_vocab),
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
            draw_kept(&self.row, &self.kept, key, best)
        } else {
            draw_all(&self.row, key, best)
        })
    }

    /// Fills `kept`; `false` if the plan has no filter.
    fn filter(&mut self, plan: &SamplePlan, best: TokenId) -> bool {
        let (row, kept) = (&self.row, &mut self.kept);
        let largest = row[best as usize];
        let (k, by_min, by_top) = (plan.top_k as usize, plan.min_p > 0.0, plan.top_p < 1.0);
        let by_k = k > 0 && k < row.len();
        if by_k {
            filter::top_k(row, k, kept);
        } else if by_min || by_top {
            filter::candidates(row, largest, plan.min_p, kept);
        }
        if by_min {
            filter::min_p(row, largest, plan.min_p, kept);
        }
        if by_top {
            filter::top_p(row, largest, plan.top_p, kept);
        }
        by_k || by_min || by_top
    }
}

/// The best (value + noise, then lowest id) so far.
struct Best {
    score: f32,
    id: TokenId,
}

impl Best {
    fn offer(&mut self, score: f32, id: TokenId) {
        if score > self.score || (score == self.score && id < self.id) {
            *self = Self { score, id };
        }
    }
}

fn draw_kept(row: &[f32], kept: &[TokenId], key: NoiseKey, first: TokenId) -> TokenId {
    let start = row[first as usize] + key.gumbel(first);
    let mut best = Best {
        score: start,
        id: first,
    };
    for &id in kept {
        best.offer(row[id as usize] + key.gumbel(id), id);
    }
    best.id
}

/// Skips tokens that cannot win: rounding is monotone, so that a sum with an upper bound of the
/// noise bounds the sum with the noise.
fn draw_all(row: &[f32], key: NoiseKey, first: TokenId) -> TokenId {
    let start = row[first as usize] + key.gumbel(first);
    let mut best = Best {
        score: start,
        id: first,
    };
    for (id, value) in (0u32..).zip(row) {
        // NaN fails every comparison.
        if value + GUMBEL_MAX >= best.score {
            let bits = key.bits(id);
            if value + gumbel_bound(bits) >= best.score {
                best.offer(value + gumbel(bits), id);
            }
        }
    }
    best.id
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
