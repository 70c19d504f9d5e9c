//! Quality of a model on tokens: perplexity, and how far a quantised model's predictions are from
//! its reference's.
//!
//! The windowing rule is llama-perplexity's: consecutive windows of n_ctx tokens, the first half is
//! context, the second half is scored, no BOS is added, a rest shorter than a window is left out.
//! So figures compare with published ones. Sums and logarithms are f64. Must not know: tokenizers,
//! files.

mod pass;
pub(crate) mod stats;

use engine_core::{Fault, Target, TokenId};

use crate::error::ToolError;
use crate::progress::{self, Progress};

pub(crate) use pass::{Scorer, rows_at_once};
pub use stats::log_softmax;

/// Tokens seen from nothing, some of them scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window<'a> {
    /// The tokens.
    pub tokens: &'a [TokenId],
    /// The first position whose prediction of the next token counts.
    pub first: usize,
}

impl Window<'_> {
    /// Predictions that count.
    #[must_use]
    pub fn scored(&self) -> usize {
        self.tokens
            .len()
            .saturating_sub(1)
            .saturating_sub(self.first)
    }
}

/// The windows of a text.
///
/// # Errors
/// `Tokens` if `n_ctx` is below 2 or the text shorter than one window.
pub fn windows(tokens: &[TokenId], n_ctx: usize) -> Result<Vec<Window<'_>>, ToolError> {
    let refuse = |what, expected: String, got: usize| {
        Err(ToolError::Tokens {
            what,
            expected,
            got: got.to_string(),
        })
    };
    if n_ctx < 2 {
        return refuse("window", "at least 2 tokens".to_owned(), n_ctx);
    }
    if tokens.len() < n_ctx {
        return refuse("text", format!("at least {n_ctx} tokens"), tokens.len());
    }
    let window = |tokens| Window {
        tokens,
        first: n_ctx / 2,
    };
    Ok(tokens.chunks_exact(n_ctx).map(window).collect())
}

/// Perplexity of a model on a text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Perplexity {
    /// Predictions scored.
    pub scored: usize,
    /// Mean negative log likelihood, nats a token.
    pub nll: f64,
    /// Standard error of `nll`.
    pub nll_error: f64,
}

impl Perplexity {
    /// exp(nll).
    #[must_use]
    pub fn value(&self) -> f64 {
        self.nll.exp()
    }

    /// Standard error of the perplexity.
    #[must_use]
    pub fn error(&self) -> f64 {
        self.value() * self.nll_error
    }
}

/// How far a model's predictions are from a reference's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Divergence {
    /// The reference on the text.
    pub reference: Perplexity,
    /// The model on the text.
    pub model: Perplexity,
    /// Mean KL(P_reference || P_model), nats.
    pub kl: f64,
    /// Standard error of `kl`.
    pub kl_error: f64,
    /// Median of the positions' divergences.
    pub kl_median: f64,
    /// 99th percentile.
    pub kl_p99: f64,
    /// The largest.
    pub kl_max: f64,
    /// Share of positions where both have the same most probable token (lowest id on ties).
    pub top1: f64,
}

/// Scores a model. Opens and closes one sequence of `target` at a time.
///
/// # Errors
/// `Fault` (a window longer than the context, a token outside the vocabulary), `Tokens` if nothing
/// is scored, `Stopped`.
pub fn perplexity(
    target: &mut dyn Target,
    windows: &[Window<'_>],
    progress: &mut dyn Progress,
) -> Result<Perplexity, ToolError> {
    begin(windows, target.info().n_vocab, progress)?;
    let rows = rows_at_once(&[target]);
    let mut nll = stats::Sum::default();
    for (i, window) in windows.iter().enumerate() {
        let mut scorer = Scorer::new(target, window)?;
        while let Some(got) = scorer.advance(rows)? {
            for (logits, next) in got.iter() {
                nll.add(-log_softmax(logits, next));
            }
        }
        progress::done(progress, &format!("window {i}"), 0)?;
    }
    Ok(nll.perplexity())
}

/// Scores a model against a reference on the same windows.
///
/// # Errors
/// As [`perplexity`]; `Tokens` if the vocabularies differ in size.
pub fn compare(
    reference: &mut dyn Target,
    model: &mut dyn Target,
    windows: &[Window<'_>],
    progress: &mut dyn Progress,
) -> Result<Divergence, ToolError> {
    let (expected, got) = (reference.info().n_vocab, model.info().n_vocab);
    if expected != got {
        return Err(ToolError::Tokens {
            what: "vocabulary of the model",
            expected: format!("{expected} as the reference's"),
            got: got.to_string(),
        });
    }
    begin(windows, expected, progress)?;
    let rows = rows_at_once(&[reference, model]);
    let mut sums = stats::Pair::default();
    for (i, window) in windows.iter().enumerate() {
        let mut theirs = Scorer::new(reference, window)?;
        let mut ours = Scorer::new(model, window)?;
        while let Some(a) = theirs.advance(rows)? {
            let Some(b) = ours.advance(rows)? else { break };
            for ((p, next), (q, _)) in a.iter().zip(b.iter()) {
                sums.add(p, q, next);
            }
        }
        progress::done(progress, &format!("window {i}"), 0)?;
    }
    Ok(sums.divergence())
}

/// Refuses what cannot be scored. The last token of a window is never fed, so that no target checks
/// it: ids are checked here.
pub(crate) fn begin(
    windows: &[Window<'_>],
    n_vocab: usize,
    progress: &mut dyn Progress,
) -> Result<(), ToolError> {
    for window in windows {
        let outside = |t: &TokenId| *t as usize >= n_vocab;
        if let Some(index) = window.tokens.iter().position(outside) {
            let token = window.tokens[index];
            return Err(Fault::BadToken {
                token,
                index,
                n_vocab,
            }
            .into());
        }
    }
    if windows.iter().all(|w| w.scored() == 0) {
        return Err(ToolError::Tokens {
            what: "windows",
            expected: "a prediction to score".to_owned(),
            got: format!("{} windows without one", windows.len()),
        });
    }
    progress.begin("eval", windows.len() as u64, 0);
    Ok(())
}

#[cfg(test)]
mod tests;
