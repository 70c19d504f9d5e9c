//! A drafter that knows the text and is right exactly as far as it is told: forced accept patterns.

use engine_core::seams::{Ask, Proposal};
use engine_core::{Drafter, Fault, Pos, SamplePlan, SeqId, Tap, Target, TokenId};

/// The drafter.
#[derive(Debug)]
pub(crate) struct Script {
    /// Prompt and continuation.
    text: Vec<TokenId>,
    pattern: Vec<usize>,
    turn: usize,
}

impl Script {
    pub(crate) fn new(text: Vec<TokenId>, pattern: &[usize]) -> Self {
        Self {
            text,
            pattern: pattern.to_vec(),
            turn: 0,
        }
    }

    fn one(&mut self, ask: &Ask, n_vocab: usize) -> Proposal {
        let right = self.pattern[self.turn % self.pattern.len()];
        self.turn += 1;
        let token = |k: usize| {
            let known = self.text.get(ask.pos as usize + 1 + k).copied();
            let known = known.unwrap_or_default();
            let n_vocab = TokenId::try_from(n_vocab).unwrap_or(TokenId::MAX);
            if k < right {
                known
            } else {
                (known + 1) % n_vocab
            }
        };
        let tokens: Vec<TokenId> = (0..ask.depth as usize).map(token).collect();
        Proposal {
            confidence_logits: vec![1.0; tokens.len()],
            tokens,
        }
    }
}

impl Drafter for Script {
    fn propose(
        &mut self,
        target: &mut dyn Target,
        asks: &[Ask],
        _: &[&SamplePlan],
    ) -> Result<Vec<Proposal>, Fault> {
        let n_vocab = target.info().n_vocab;
        Ok(asks.iter().map(|ask| self.one(ask, n_vocab)).collect())
    }

    fn tap(&self) -> Tap {
        Tap::default()
    }

    fn observe(&mut self, _: SeqId, _: Pos, _: &[TokenId], _: &[f32]) -> Result<(), Fault> {
        Ok(())
    }

    fn truncate(&mut self, _: SeqId, _: Pos) {}

    fn close(&mut self, _: SeqId) {}
}
