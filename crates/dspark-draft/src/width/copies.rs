//! What candidates that cost no draft have been worth: a ledger, so that a run of bad copies is a small loss.
//!
//! A drafter's probabilities are right on average at best, and a short answer is no average. So copies are
//! taken on credit only as far as copies before them earned it; sure ones always.

use engine_core::mutant::mutant;

/// Tokens that copies may have lost before only sure ones are taken: at the start, and for each plain pass
/// since.
const CREDIT: f64 = 0.1;
const CREDIT_SHARE: f64 = 0.003;

/// Copies that earned more than so many tokens are not trusted any longer for it: texts differ.
const MOST: f64 = 4.0;

/// Survival from which on a candidate is sure.
const SURE: f64 = 0.9;

/// Tokens that copies were worth more than the time of their rows.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Copies {
    worth: f64,
}

impl Copies {
    /// Takes candidates that were verified: `matched` were right, and their rows took as long as `price`
    /// tokens made plainly.
    pub(crate) fn observe(&mut self, matched: usize, price: f64) {
        self.worth = (self.worth + matched as f64 - price).min(MOST);
    }

    /// Cuts the candidates that are neither earned nor to be had on credit off `survivals`. `passes`: how many
    /// plain passes the time so far would have been; `prices[n]`: how many the rows of n candidates take.
    pub(crate) fn allow(&self, passes: f64, prices: &[f64], survivals: &mut Vec<f64>) {
        let funds = self.worth + CREDIT + CREDIT_SHARE * passes;
        let paid = |price: &&f64| **price <= funds || mutant(270);
        let paid = prices.iter().skip(1).take_while(paid).count();
        let sure = survivals.iter().take_while(|a| **a >= SURE).count();
        survivals.truncate(sure.max(paid));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_taken_as_far_as_copies_earned_it() {
        let mut copies = Copies::default();
        let allowed = |copies: Copies, passes: f64, survivals: &[f64]| {
            let mut left = survivals.to_vec();
            copies.allow(passes, &[0.0, 0.4, 0.8, 1.2], &mut left);
            left.len()
        };
        let (good, sure) = ([0.7, 0.6, 0.5], [0.95, 0.92, 0.7]);
        // Sure ones are taken, a first other one when it is a small part of the time.
        assert_eq!(allowed(copies, 0.0, &good), 0);
        assert_eq!(allowed(copies, 0.0, &sure), 2);
        assert_eq!(allowed(copies, 99.0, &good), 0);
        assert_eq!(allowed(copies, 101.0, &good), 1);
        // It was wrong: the next one when both are.
        copies.observe(0, 0.4);
        assert_eq!(allowed(copies, 101.0, &good), 0);
        assert_eq!(allowed(copies, 101.0, &sure), 2);
        assert_eq!(allowed(copies, 235.0, &good), 1);
        // What was right pays for others.
        copies.observe(1, 0.4);
        assert_eq!(allowed(copies, 235.0, &good), 2);
        copies.observe(7, 2.0);
        copies.observe(7, 2.0);
        assert_eq!(allowed(copies, 0.0, &good), 3);
        // However much was earned, a few bad ones use it up.
        for _ in 0..4 {
            copies.observe(0, 1.1);
        }
        assert_eq!(allowed(copies, 0.0, &good), 0);
    }
}
