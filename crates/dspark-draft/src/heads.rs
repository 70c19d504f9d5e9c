//! The heads beside the target: the tied output matrix, the Markov chain and the confidences
//! (spec/dspark.md 2 and 3).
//!
//! Separate from the backbone, which may run elsewhere. The chain draws as the target will: argmax, or
//! the request's temperature and filters with the noise of the candidate's own position. Must not
//! know: context rows, acceptance.

mod there;

use std::sync::Arc;

use ds4_target::blocks::BlockRunner;
use ds4_target::pool::Pool;
use engine_core::mutant::mutant;
use engine_core::seams::{Candidates, Proposal};
use engine_core::{Fault, Pos, SamplePlan, Target, TokenId};
use sampling::{SampleError, Sampler};

use crate::config::ConfidenceInput;
use crate::weights::DraftModel;

/// A chain to be drawn.
#[derive(Clone, Copy, Debug)]
pub struct Chain<'a> {
    /// Hidden rows it has: its candidates.
    pub rows: usize,
    /// Position of the seed; candidate i stands at `pos + 1 + i`.
    pub pos: Pos,
    /// The last emitted token.
    pub seed: TokenId,
    /// How the request draws.
    pub plan: &'a SamplePlan,
    /// Earlier tokens that penalties count, the seed last; unused without penalties.
    pub history: &'a [TokenId],
}

/// The heads of a draft model.
#[derive(Debug)]
pub struct Heads {
    model: Arc<DraftModel>,
    /// Products over the pool.
    runner: BlockRunner,
    sampler: Sampler,
    buffers: Buffers,
}

#[derive(Debug, Default)]
struct Buffers {
    /// `[all rows, n_vocab]`: base logits.
    base: Vec<f32>,
    /// `[chains, rank]`: Markov rows of the previous tokens.
    w1: Vec<f32>,
    /// `[chains, n_vocab]`: Markov logits, then their sum with the base.
    logits: Vec<f32>,
    /// `[chains, confidence width]`, `[chains]`.
    confidence_in: Vec<f32>,
    confidence: Vec<f32>,
    history: Vec<TokenId>,
}

/// A chain as it grows.
struct Live {
    chain: usize,
    /// Its first row among all.
    first: usize,
    previous: TokenId,
}

impl Heads {
    /// Heads of a loaded model, on the threads of `pool`.
    #[must_use]
    pub fn new(model: Arc<DraftModel>, pool: Arc<Pool>) -> Self {
        Self {
            runner: BlockRunner::new(model.meta.stage.clone(), pool, false),
            sampler: Sampler::new(model.meta.stage.n_vocab),
            buffers: Buffers::default(),
            model,
        }
    }

    /// Draws all chains: beside the output matrix where the target can, else here, one position of all of them at a
    /// time. The candidates are the same. `normed`, `pre_norm`: `[sum of rows, n_embd]` f32, in chain order. A chain
    /// ends early where its row has no number in it.
    ///
    /// # Errors
    /// `BadState` if the rows do not fit the chains, `BadToken` for a seed outside the vocabulary,
    /// and what the target's head answers.
    pub fn draw(
        &mut self,
        target: &mut dyn Target,
        chains: &[Chain<'_>],
        normed: &[f32],
        pre_norm: &[f32],
    ) -> Result<Vec<Proposal>, Fault> {
        let (d, n_vocab) = (self.model.meta.stage.n_embd, self.model.meta.stage.n_vocab);
        let rows = chains.iter().map(|c| c.rows).sum();
        check_rows(d, rows, [normed.len(), pre_norm.len()])?;
        check_tokens(chains.iter().map(|c| c.seed), n_vocab)?;
        let there: Vec<Candidates<'_>> = chains.iter().map(Chain::candidates).collect();
        let there = target.chains(normed, &there)?;
        if there.iter().all(Option::is_none) {
            return self.draw_here(target, chains, normed, pre_norm);
        }
        let left: Vec<usize> = (0..chains.len()).filter(|i| there[*i].is_none()).collect();
        let mut here = self.draw_some(target, chains, &left, [normed, pre_norm])?;
        let joined = there.into_iter().map(|drawn| match drawn {
            None => here.next().unwrap_or_default(),
            Some(tokens) => Proposal {
                tokens,
                ..Proposal::default()
            },
        });
        let mut proposals: Vec<Proposal> = joined.collect();
        self.trust_drawn(chains, pre_norm, &mut proposals);
        Ok(proposals)
    }

    fn draw_here(
        &mut self,
        target: &mut dyn Target,
        chains: &[Chain<'_>],
        normed: &[f32],
        pre_norm: &[f32],
    ) -> Result<Vec<Proposal>, Fault> {
        let n_vocab = self.model.meta.stage.n_vocab;
        let rows: usize = chains.iter().map(|c| c.rows).sum();
        let mut live = start(chains);
        self.buffers.base.resize(rows * n_vocab, 0.0);
        if rows > 0 {
            target.head(normed, &mut self.buffers.base)?;
        }
        let mut proposals = vec![Proposal::default(); chains.len()];
        for step in 0.. {
            live.retain(|l| {
                let p: &Proposal = &proposals[l.chain];
                chains[l.chain].rows > step && p.tokens.len() == step
            });
            if live.is_empty() {
                break;
            }
            self.score(&live, step);
            let logits = std::mem::take(&mut self.buffers.logits);
            for (l, row) in live.iter_mut().zip(logits.chunks_exact(n_vocab)) {
                let chain = &chains[l.chain];
                let drawn = self.select(chain, &proposals[l.chain].tokens, row)?;
                if let Some(token) = drawn {
                    proposals[l.chain].tokens.push(token);
                    l.previous = if mutant(221) { chain.seed } else { token };
                }
            }
            self.buffers.logits = logits;
            self.trust(&live, step, normed, pre_norm, &mut proposals);
        }
        Ok(proposals)
    }

    /// Logits of rows whose previous tokens are known: tied head plus Markov bias, as the chain sees
    /// them. `normed` `[n, n_embd]` f32, `previous` `[n]`; answers `[n, n_vocab]` f32. For measuring
    /// a drafter on given text.
    ///
    /// # Errors
    /// As [`Heads::draw`].
    pub fn logits(
        &mut self,
        target: &mut dyn Target,
        normed: &[f32],
        previous: &[TokenId],
    ) -> Result<Vec<f32>, Fault> {
        let (d, n_vocab) = (self.model.meta.stage.n_embd, self.model.meta.stage.n_vocab);
        check_rows(d, previous.len(), [normed.len(), normed.len()])?;
        check_tokens(previous.iter().copied(), n_vocab)?;
        let mut base = vec![0.0; previous.len() * n_vocab];
        target.head(normed, &mut base)?;
        self.markov(previous.iter().copied());
        let both = self.buffers.logits.iter().zip(&base);
        Ok(both.map(|(markov, base)| markov + base).collect())
    }

    /// Markov rows of the previous tokens and their logits.
    fn markov(&mut self, previous: impl ExactSizeIterator<Item = TokenId>) {
        let (w, b) = (&self.model.heads, &mut self.buffers);
        let (rank, n_vocab) = (w.w1.k, self.model.meta.stage.n_vocab);
        b.w1.resize(previous.len() * rank, 0.0);
        b.logits.resize(previous.len() * n_vocab, 0.0);
        for (token, row) in previous.zip(b.w1.chunks_exact_mut(rank)) {
            w.w1.decode(token as usize, row);
        }
        self.runner.product(&w.w2, &b.w1, &mut b.logits);
    }

    /// Base plus Markov logits of row `step` of every live chain, and the Markov rows they used.
    fn score(&mut self, live: &[Live], step: usize) {
        self.markov(live.iter().map(|l| l.previous));
        let b = &mut self.buffers;
        let n_vocab = self.model.meta.stage.n_vocab;
        for (l, row) in live.iter().zip(b.logits.chunks_exact_mut(n_vocab)) {
            let mut at = l.first + step;
            if mutant(201) {
                // Row 0 taken for no prediction row, as in other block drafters.
                at = (at + 1).min(b.base.len() / n_vocab - 1);
            }
            for (v, u) in row.iter_mut().zip(&b.base[at * n_vocab..]) {
                *v += u;
            }
        }
    }

    /// The candidate of a row; `None` if the row holds no number.
    fn select(
        &mut self,
        chain: &Chain<'_>,
        drawn: &[TokenId],
        row: &[f32],
    ) -> Result<Option<TokenId>, Fault> {
        let history = &mut self.buffers.history;
        history.clear();
        if !chain.plan.penalties.is_neutral() {
            history.extend_from_slice(chain.history);
            history.extend_from_slice(drawn);
        }
        let ahead = drawn.len() as Pos + if mutant(220) { 0 } else { 1 };
        // Where a sequence ends at the last position, no noise matters.
        let pos = chain.pos.saturating_add(ahead);
        match self.sampler.draw(chain.plan, row, pos, history) {
            Ok(token) => Ok(Some(token)),
            Err(SampleError::Nothing) => Ok(None),
            Err(e) => Err(Fault::BadState {
                field: "logits",
                expected: "a row of the vocabulary".to_owned(),
                got: e.to_string(),
            }),
        }
    }

    /// Confidences of the candidates just drawn, from the state before the norm and the token before
    /// the candidate.
    fn trust(
        &mut self,
        live: &[Live],
        step: usize,
        normed: &[f32],
        pre_norm: &[f32],
        proposals: &mut [Proposal],
    ) {
        let (d, b) = (self.model.meta.stage.n_embd, &mut self.buffers);
        let (Some(head), Some(input)) = (&self.model.heads.confidence, self.model.meta.confidence)
        else {
            return;
        };
        let rank = self.model.heads.w1.k;
        b.confidence_in.clear();
        for (l, w1) in live.iter().zip(b.w1.chunks_exact_mut(rank)) {
            let state = if mutant(208) { normed } else { pre_norm };
            let at = (l.first + step) * d;
            b.confidence_in.extend_from_slice(&state[at..at + d]);
            if mutant(209) {
                self.model.heads.w1.decode(l.previous as usize, w1);
            }
            if input == ConfidenceInput::StateAndMarkov {
                b.confidence_in.extend_from_slice(w1);
            }
        }
        b.confidence.resize(live.len(), 0.0);
        self.runner
            .product(&head.weight, &b.confidence_in, &mut b.confidence);
        for (l, logit) in live.iter().zip(&b.confidence) {
            let p = &mut proposals[l.chain];
            if p.tokens.len() > step {
                p.confidence_logits.push(logit + head.bias);
            }
        }
    }
}

/// All chains before their first candidate.
fn start(chains: &[Chain<'_>]) -> Vec<Live> {
    let mut first = 0;
    let mut live = Vec::with_capacity(chains.len());
    for (chain, c) in chains.iter().enumerate() {
        let previous = c.seed;
        live.push(Live {
            chain,
            first,
            previous,
        });
        first += c.rows;
    }
    live
}

fn check_tokens(tokens: impl Iterator<Item = TokenId>, n_vocab: usize) -> Result<(), Fault> {
    for (index, token) in tokens.enumerate() {
        if token as usize >= n_vocab {
            return Err(Fault::BadToken {
                token,
                index,
                n_vocab,
            });
        }
    }
    Ok(())
}

fn check_rows(d: usize, rows: usize, got: [usize; 2]) -> Result<(), Fault> {
    if got == [rows * d; 2] {
        return Ok(());
    }
    Err(Fault::BadState {
        field: "hidden rows",
        expected: format!("{rows} rows of {d}"),
        got: format!("{} and {} values", got[0], got[1]),
    })
}
