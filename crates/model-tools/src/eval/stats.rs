//! Sums over scored positions, in f64. Must not know: models.

use engine_core::TokenId;

use super::{Divergence, Perplexity};

/// log P(token) of a row of logits.
///
/// # Panics
/// If the token is outside the row.
#[must_use]
pub fn log_softmax(logits: &[f32], token: TokenId) -> f64 {
    Norm::of(logits).log_p(logits[token as usize])
}

/// What turns logits into log probabilities: the largest one, and the logarithm of the sum of
/// exponentials relative to it. Kept apart, because their sum loses digits of large logits.
#[derive(Clone, Copy)]
struct Norm {
    max: f64,
    log_sum: f64,
}

impl Norm {
    fn of(logits: &[f32]) -> Self {
        let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let sum: f64 = logits.iter().map(|l| (f64::from(*l) - max).exp()).sum();
        let log_sum = sum.ln();
        Self { max, log_sum }
    }

    fn log_p(self, logit: f32) -> f64 {
        f64::from(logit) - self.max - self.log_sum
    }
}

/// The index of the largest value, the lowest on ties.
fn argmax(logits: &[f32]) -> usize {
    let mut best = 0;
    for (i, v) in logits.iter().enumerate() {
        if *v > logits[best] {
            best = i;
        }
    }
    best
}

/// KL(P || Q) of two rows of logits.
pub(super) fn kl(p: &[f32], q: &[f32]) -> f64 {
    let (norm_p, norm_q) = (Norm::of(p), Norm::of(q));
    let sum: f64 = p
        .iter()
        .zip(q)
        .map(|(p, q)| {
            let (lp, lq) = (norm_p.log_p(*p), norm_q.log_p(*q));
            let w = lp.exp();
            if w == 0.0 { 0.0 } else { w * (lp - lq) }
        })
        .sum();
    // Rounding may leave a hair below zero; divergences are not negative.
    if sum < 0.0 { 0.0 } else { sum }
}

/// A mean and its error.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    n: usize,
    sum: f64,
    squares: f64,
}

impl Sum {
    pub(super) fn add(&mut self, v: f64) {
        self.n += 1;
        self.sum += v;
        self.squares += v * v;
    }

    fn mean(&self) -> f64 {
        self.sum / self.n as f64
    }

    /// Standard error of the mean; 0 of a single value.
    fn error(&self) -> f64 {
        if self.n < 2 {
            return 0.0;
        }
        let n = self.n as f64;
        let variance = (self.squares / n - self.mean() * self.mean()).max(0.0);
        (variance / (n - 1.0)).sqrt()
    }

    pub(super) fn perplexity(&self) -> Perplexity {
        Perplexity {
            scored: self.n,
            nll: self.mean(),
            nll_error: self.error(),
        }
    }
}

/// Sums over two models.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pair {
    reference: Sum,
    model: Sum,
    kl: Sum,
    each: Vec<f64>,
    agree: usize,
}

impl Pair {
    pub(crate) fn add(&mut self, p: &[f32], q: &[f32], next: TokenId) {
        self.reference.add(-log_softmax(p, next));
        self.model.add(-log_softmax(q, next));
        let kl = kl(p, q);
        self.kl.add(kl);
        self.each.push(kl);
        self.agree += usize::from(argmax(p) == argmax(q));
    }

    pub(crate) fn divergence(mut self) -> Divergence {
        self.each.sort_by(f64::total_cmp);
        // The smallest value that at least this share of the positions does not exceed.
        let quantile = |share: f64| {
            let rank = (share * self.each.len() as f64).ceil() as usize;
            self.each
                .get(rank.saturating_sub(1))
                .copied()
                .unwrap_or(f64::NAN)
        };
        Divergence {
            reference: self.reference.perplexity(),
            model: self.model.perplexity(),
            kl: self.kl.mean(),
            kl_error: self.kl.error(),
            kl_median: quantile(0.5),
            kl_p99: quantile(0.99),
            kl_max: quantile(1.0),
            top1: self.agree as f64 / self.each.len() as f64,
        }
    }
}
