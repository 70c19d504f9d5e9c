//! Acceptance of candidates against the target's rows (spec/dspark.md 7).
//!
//! [`exact`] is what the loop uses, for greedy and for sampled text alike: a candidate is accepted where
//! it equals the target's own draw, and the first difference *is* the draw. With keyed noise
//! (`docs/adr/0007-keyed-noise.md`) the draw is a function of the row and the position, so the text does
//! not depend on candidates, widths or policies at all.
//!
//! [`point_mass`] and [`rejection`] keep the distribution, not the text. No request uses them: they are
//! the yardsticks of the literature, and what a caller with another plan would need. Under
//! [`rejection`] the choice of width must not look at what it decides about (`width::left_to_right`).
//!
//! Separate because it is the part that must be right whatever the drafter does. Must not know:
//! targets, drafters, sequences.

use engine_core::TokenId;
use engine_core::mutant::mutant;
use sampling::NoiseKey;

/// What a row gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next<E> {
    /// A token; the text goes on.
    Go(TokenId),
    /// A token that ends the text.
    Last(TokenId, E),
    /// No token: the row is unusable.
    None(E),
}

/// How far a walk came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk<E> {
    /// Tokens emitted: accepted candidates, and at most one of the target's own.
    pub emitted: usize,
    /// Candidates among them.
    pub matched: usize,
    /// Why the text ends here, if it does.
    pub end: Option<E>,
}

/// Walks the rows of a verified span. `next(row)` draws the token that follows the span's token `row`,
/// given that all earlier candidates were accepted, and emits it. It is called for rows in order,
/// never past the first difference nor past an end.
pub fn exact<E>(candidates: &[TokenId], mut next: impl FnMut(usize) -> Next<E>) -> Walk<E> {
    let mut walk = Walk {
        emitted: 0,
        matched: 0,
        end: None,
    };
    for row in 0..=candidates.len() {
        let shifted = mutant(233) && row < candidates.len();
        let (token, end) = match next(if shifted { row + 1 } else { row }) {
            Next::Go(token) => (token, None),
            Next::Last(token, end) => (token, Some(end)),
            Next::None(end) => {
                walk.end = Some(end);
                return walk;
            }
        };
        walk.emitted += 1;
        let against = if mutant(234) { row + 1 } else { row };
        let same = candidates.get(against) == Some(&token);
        walk.matched += usize::from(same);
        walk.end = end;
        let over = walk.end.is_some() && !mutant(232);
        if !same || over {
            return walk;
        }
    }
    walk
}

/// A verdict on one candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The candidate is emitted.
    Accept,
    /// This token is emitted instead, and the step is over.
    Instead(TokenId),
}

/// The two uniform numbers in [0, 1) that a verdict uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Uniforms {
    /// Decides acceptance.
    pub accept: f64,
    /// Picks the token otherwise, or the one after the last candidate.
    pub pick: f64,
}

impl Uniforms {
    /// The numbers of a position: a counter, so there is no state to roll back. They stand beside the
    /// noise of the position's tokens, at ids no vocabulary reaches.
    #[must_use]
    pub fn of(key: NoiseKey) -> Self {
        let unit = |id| (2.0 * key.bits(id) as f64 + 1.0) / 2f64.powi(41);
        Self {
            accept: unit(TokenId::MAX),
            pick: unit(TokenId::MAX - 1),
        }
    }
}

/// Draws from weights that need not sum to 1, by inversion. `None` if all are 0.
#[must_use]
pub fn pick(weights: impl Iterator<Item = f64> + Clone, uniform: f64) -> Option<TokenId> {
    let total: f64 = weights.clone().sum();
    let mut sum = 0.0;
    let mut last = None;
    for (id, weight) in (0u32..).zip(weights) {
        if weight > 0.0 {
            sum += weight;
            last = Some(id);
            if uniform * total < sum {
                return last;
            }
        }
    }
    last
}

/// A candidate that is a function of the text before it (a greedy draft): accepted with the
/// probability the target gives it, otherwise the draw is from the rest. `p` `[n_vocab]`: the target's
/// distribution after the request's whole chain.
#[must_use]
pub fn point_mass(p: &[f64], candidate: TokenId, u: Uniforms) -> Verdict {
    if p.get(candidate as usize).is_some_and(|p| u.accept < *p) {
        return Verdict::Accept;
    }
    let spared = |id: usize| id == candidate as usize && !mutant(249);
    let rest = p
        .iter()
        .enumerate()
        .map(|(id, p)| if spared(id) { 0.0 } else { *p });
    Verdict::Instead(pick(rest, u.pick).unwrap_or(candidate))
}

/// A candidate drawn from `q` `[n_vocab]`: accepted with probability min(1, p / q), otherwise the draw
/// is from max(0, p - q). `q` must be the very distribution the candidate was drawn from, on the full
/// vocabulary; for a candidate that was not drawn (an argmax) this rule is biased.
#[must_use]
pub fn rejection(p: &[f64], q: &[f64], candidate: TokenId, u: Uniforms) -> Verdict {
    let at = candidate as usize;
    if let (Some(p), Some(q)) = (p.get(at), q.get(at))
        && u.accept * if mutant(250) { 1.0 } else { *q } < *p
        && *q > 0.0
    {
        return Verdict::Accept;
    }
    let residual = p.iter().zip(q).map(|(p, q)| (p - q).max(0.0));
    let found = if mutant(251) {
        None
    } else {
        pick(residual, u.pick)
    };
    // No residual: p is q but for rounding, and any draw from p is one from the other.
    let found = found.or_else(|| pick(p.iter().copied(), u.pick));
    Verdict::Instead(found.unwrap_or(candidate))
}

#[cfg(test)]
mod tests;
