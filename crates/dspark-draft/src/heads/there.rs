//! What is left to do for chains that the target drew: the chains it did not draw, and confidences.

use engine_core::seams::{Candidates, Proposal};
use engine_core::{Fault, Target};

use super::{Chain, Heads};
use crate::config::ConfidenceInput;

impl Chain<'_> {
    /// What a target that draws it needs.
    pub(super) fn candidates(&self) -> Candidates<'_> {
        Candidates {
            rows: self.rows,
            pos: self.pos,
            seed: self.seed,
            plan: self.plan,
        }
    }
}

impl Heads {
    /// Draws the chains `left` here, from all chains' rows, before and after the norm.
    pub(super) fn draw_some(
        &mut self,
        target: &mut dyn Target,
        chains: &[Chain<'_>],
        left: &[usize],
        rows: [&[f32]; 2],
    ) -> Result<std::vec::IntoIter<Proposal>, Fault> {
        if left.is_empty() {
            return Ok(Vec::new().into_iter());
        }
        let d = self.model.meta.stage.n_embd;
        let first = |i: usize| chains[..i].iter().map(|c| c.rows).sum::<usize>();
        let of = |i: usize| first(i) * d..(first(i) + chains[i].rows) * d;
        let gathered = |rows: &[f32]| -> Vec<f32> {
            let own = left.iter().flat_map(|i| &rows[of(*i)]);
            own.copied().collect()
        };
        let [normed, pre_norm] = rows.map(gathered);
        let left: Vec<Chain<'_>> = left.iter().map(|i| chains[*i]).collect();
        let drawn = self.draw_here(target, &left, &normed, &pre_norm)?;
        Ok(drawn.into_iter())
    }

    /// Confidences of chains that have candidates and none yet.
    pub(super) fn trust_drawn(
        &mut self,
        chains: &[Chain<'_>],
        pre_norm: &[f32],
        proposals: &mut [Proposal],
    ) {
        let (d, b) = (self.model.meta.stage.n_embd, &mut self.buffers);
        let (Some(head), Some(input)) = (&self.model.heads.confidence, self.model.meta.confidence)
        else {
            return;
        };
        b.confidence_in.clear();
        b.w1.resize(self.model.heads.w1.k, 0.0);
        let mut owners = Vec::new();
        let mut first = 0;
        for (i, (chain, p)) in chains.iter().zip(proposals.iter()).enumerate() {
            if p.confidence_logits.is_empty() {
                let before = std::iter::once(&chain.seed).chain(&p.tokens);
                for (step, token) in before.take(p.tokens.len()).enumerate() {
                    let at = (first + step) * d;
                    b.confidence_in.extend_from_slice(&pre_norm[at..at + d]);
                    if input == ConfidenceInput::StateAndMarkov {
                        self.model.heads.w1.decode(*token as usize, &mut b.w1);
                        b.confidence_in.extend_from_slice(&b.w1);
                    }
                    owners.push(i);
                }
            }
            first += chain.rows;
        }
        if owners.is_empty() {
            return;
        }
        b.confidence.resize(owners.len(), 0.0);
        self.runner
            .product(&head.weight, &b.confidence_in, &mut b.confidence);
        for (owner, logit) in owners.iter().zip(&b.confidence) {
            proposals[*owner].confidence_logits.push(logit + head.bias);
        }
    }
}
