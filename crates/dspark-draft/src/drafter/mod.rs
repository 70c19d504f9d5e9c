//! DSpark behind the seam `Drafter`: a backbone, wherever it runs, with the heads beside the target.
//!
//! Must not know: how a backbone keeps its rows, acceptance, widths.

mod ahead;
mod gather;
mod waiting;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ds4_target::pool::Pool;
use engine_core::mutant::mutant;
use engine_core::seams::{
    AheadCounts, Ask, Backbone, DraftRows, Drafter, Proposal, Resident, TargetInfo, Verifying,
};
use engine_core::{Fault, Pos, SamplePlan, SeqId, Tap, Target, TokenId};

use crate::config::TargetMatch;
use crate::error::DraftError;
use crate::heads::{Chain, Heads};
use crate::weights::DraftModel;
use ahead::Ahead;
use waiting::Waiting;

/// What happened so far. Counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DrafterStats {
    /// Asks answered.
    pub asks: u64,
    /// Asks for more candidates than the block was trained with: they got a whole block. More rows
    /// would spoil all of them.
    pub clamped: u64,
    /// Asks of sequences without context rows: they got nothing.
    pub blind: u64,
    /// Asks whose answer did not arrive in time.
    pub late: u64,
    /// Candidates drawn.
    pub candidates: u64,
    /// Chains cut at a row that holds no number.
    pub cut: u64,
}

/// A DSpark drafter over a backbone.
#[derive(Debug)]
pub struct DsparkDrafter<B> {
    backbone: B,
    heads: Heads,
    model: Arc<DraftModel>,
    pairing: TargetMatch,
    tap: Tap,
    patience: Option<Duration>,
    /// The mask token's embedding, and whose it is.
    mask: Option<([u8; 32], Vec<f32>)>,
    texts: HashMap<SeqId, Text>,
    waiting: Waiting,
    ahead: Ahead,
    stats: DrafterStats,
}

/// The tokens of a sequence as far as they were observed, for penalties.
#[derive(Debug, Default)]
struct Text {
    start: Pos,
    tokens: Vec<TokenId>,
}

impl Text {
    /// Takes `tokens` at `pos`; older ones are forgotten where they do not meet.
    fn take(&mut self, pos: Pos, tokens: &[TokenId]) {
        self.truncate(pos);
        if self.start as usize + self.tokens.len() != pos as usize {
            self.tokens.clear();
        }
        if self.tokens.is_empty() {
            self.start = pos;
        }
        self.tokens.extend_from_slice(tokens);
    }

    /// Whether it reads `tokens` at `pos`.
    fn holds(&self, pos: Pos, tokens: &[TokenId]) -> bool {
        let from = pos.checked_sub(self.start).map(|from| from as usize);
        let read = from.and_then(|from| self.tokens.get(from..)?.get(..tokens.len()));
        read == Some(tokens)
    }

    fn truncate(&mut self, pos: Pos) {
        self.tokens
            .truncate(pos.saturating_sub(self.start) as usize);
    }
}

impl<B: Backbone> DsparkDrafter<B> {
    /// A drafter for a target; `model` is what the backbone runs.
    ///
    /// # Errors
    /// `Target` if the model does not fit.
    pub fn new(
        model: Arc<DraftModel>,
        backbone: B,
        target: &TargetInfo,
        pool: Arc<Pool>,
    ) -> Result<Self, DraftError> {
        let pairing = model.meta.check_target(&model.file, target)?;
        let mut layers = model.meta.capture.clone();
        if mutant(205) {
            layers.reverse();
        }
        let tap = Tap {
            layers: layers.into(),
        };
        let waiting = Waiting::new(model.meta.feature_width(), model.meta.stage.window);
        Ok(Self {
            waiting,
            ahead: Ahead::default(),
            backbone,
            heads: Heads::new(Arc::clone(&model), pool),
            model,
            pairing,
            tap,
            patience: None,
            mask: None,
            texts: HashMap::new(),
            stats: DrafterStats::default(),
        })
    }

    /// How long to wait for the backbone; `None` waits for it. An answer that is late is an empty
    /// proposal.
    #[must_use]
    pub fn with_patience(mut self, patience: Option<Duration>) -> Self {
        self.patience = patience;
        self
    }

    /// Whether the file says that it was made for this target.
    #[must_use]
    pub fn pairing(&self) -> TargetMatch {
        self.pairing
    }

    /// Counts since the start.
    #[must_use]
    pub fn stats(&self) -> &DrafterStats {
        &self.stats
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Arc<DraftModel> {
        &self.model
    }

    /// Gives the backbone what a sequence's next draft reads. A draft does so itself.
    ///
    /// # Errors
    /// Those of `Backbone::observe`.
    pub fn settle(&mut self, seq: SeqId) -> Result<(), Fault> {
        let Some(batch) = self.waiting.take(seq) else {
            return Ok(());
        };
        if batch.fresh {
            self.backbone.close(seq);
        }
        self.backbone.observe(seq, batch.pos, &batch.values)
    }

    /// The backbone. Rows that no draft has needed yet are not in it: see [`Self::settle`].
    #[must_use]
    pub fn backbone(&self) -> &B {
        &self.backbone
    }

    /// The backbone, for saving and loading a sequence's context once it is settled.
    pub fn backbone_mut(&mut self) -> &mut B {
        &mut self.backbone
    }

    /// Asks with no more depth than a block has rows.
    fn clamp(&mut self, asks: &[Ask]) -> Vec<Ask> {
        let most = self.model.meta.block as u32;
        let clamp = |ask: &Ask| {
            self.stats.clamped += u64::from(ask.depth > most);
            let depth = if mutant(203) {
                ask.depth
            } else {
                ask.depth.min(most)
            };
            Ask { depth, ..*ask }
        };
        asks.iter().map(clamp).collect()
    }

    /// Rows of a block: seed, then mask tokens.
    fn block_rows(&self, asks: &[Ask]) -> usize {
        let most = asks.iter().map(|a| a.depth as usize).max().unwrap_or(0);
        let trained = self.model.meta.block;
        if mutant(203) {
            most.max(trained)
        } else {
            trained
        }
    }

    /// The embedded input of all blocks, `[asks, block, n_embd]`.
    fn embed(&mut self, target: &mut dyn Target, asks: &[Ask]) -> Result<Vec<f32>, Fault> {
        let (d, b) = (self.model.meta.stage.n_embd, self.block_rows(asks));
        let whose = target.info().fingerprint;
        if self.mask.as_ref().is_none_or(|(of, _)| *of != whose) {
            let mut row = vec![0.0; d];
            target.embed(&[self.model.meta.mask], &mut row)?;
            self.mask = Some((whose, row));
        }
        let seeds: Vec<TokenId> = asks.iter().map(|a| a.seed).collect();
        let mut rows = vec![0.0; asks.len() * d];
        target.embed(&seeds, &mut rows)?;
        let mut block = Vec::with_capacity(asks.len() * b * d);
        for seed in rows.chunks_exact(d) {
            block.extend_from_slice(seed);
            if let Some((_, mask)) = &self.mask {
                (1..b).for_each(|_| block.extend_from_slice(mask));
            }
        }
        Ok(block)
    }

    fn count(&mut self, asks: &[Ask], rows: &DraftRows, proposals: &[Proposal]) {
        for ((ask, n), p) in asks.iter().zip(&rows.rows).zip(proposals) {
            self.stats.blind += u64::from(*n == 0 && ask.depth > 0);
            self.stats.cut += u64::from(p.tokens.len() < *n);
            self.stats.candidates += p.tokens.len() as u64;
        }
    }
}

impl<B: Backbone> Drafter for DsparkDrafter<B> {
    fn propose(
        &mut self,
        target: &mut dyn Target,
        asks: &[Ask],
        plans: &[&SamplePlan],
    ) -> Result<Vec<Proposal>, Fault> {
        if plans.len() != asks.len() {
            return Err(Fault::BadState {
                field: "plans",
                expected: format!("{}, one an ask", asks.len()),
                got: plans.len().to_string(),
            });
        }
        self.stats.asks += asks.len() as u64;
        let asks = self.clamp(asks);
        if asks.iter().all(|ask| ask.depth == 0) {
            return Ok(vec![Proposal::default(); asks.len()]);
        }
        let Some((rows, flown)) = self.gather(target, &asks)? else {
            self.stats.late += asks.len() as u64;
            return Ok(vec![Proposal::default(); asks.len()]);
        };
        let mut histories = Vec::with_capacity(asks.len());
        for (ask, plan) in asks.iter().zip(plans) {
            let text = self
                .texts
                .get(&ask.seq)
                .filter(|_| !plan.penalties.is_neutral());
            let mut history = text.map_or_else(Vec::new, |t| t.tokens.clone());
            history.push(ask.seed);
            histories.push(history);
        }
        let parts = asks.iter().zip(plans).zip(&histories).zip(&rows.rows);
        let chains: Vec<Chain<'_>> = parts
            .map(|(((ask, plan), history), n)| Chain {
                rows: *n,
                pos: ask.pos,
                seed: ask.seed,
                plan,
                history,
            })
            .collect();
        let proposals = self
            .heads
            .draw(target, &chains, &rows.normed, &rows.pre_norm)?;
        self.count(&asks, &rows, &proposals);
        let most = self.model.meta.block.saturating_sub(1);
        for ((ask, proposal), ahead) in asks.iter().zip(&proposals).zip(flown) {
            let at = (ask.seq, ask.pos + 1);
            self.ahead.propose(at, proposal, ahead, most);
        }
        Ok(proposals)
    }

    fn tap(&self) -> Tap {
        self.tap.clone()
    }

    /// Tokens without features (the part of a prompt that no window reaches) break the context: the
    /// next features start a new one. Features that skip positions are refused. They wait for the next
    /// draft; what the backbone answers then is the draft's fault.
    ///
    /// # Errors
    /// `BadState` if tokens and features disagree, `WrongPosition` where rows would be skipped,
    /// `ContextFull`.
    fn observe(
        &mut self,
        seq: SeqId,
        pos: Pos,
        tokens: &[TokenId],
        features: &[f32],
    ) -> Result<(), Fault> {
        if features.is_empty() && !tokens.is_empty() {
            // Text only: the context starts after it.
            self.ahead.forget(seq);
            self.waiting.forget(seq);
            self.backbone.close(seq);
            self.texts.entry(seq).or_default().take(pos, tokens);
            return Ok(());
        }
        let want = tokens.len() * self.model.meta.feature_width();
        if features.is_empty() {
            self.waiting.forget(seq);
            self.backbone.truncate(seq, 0);
        } else if features.len() == want {
            self.waiting.push(seq, pos, features)?;
        } else {
            return Err(Fault::BadState {
                field: "features",
                expected: format!("{want} values for {} tokens", tokens.len()),
                got: features.len().to_string(),
            });
        }
        self.ahead.observe(seq, pos, tokens);
        self.texts.entry(seq).or_default().take(pos, tokens);
        Ok(())
    }

    fn truncate(&mut self, seq: SeqId, pos: Pos) {
        self.ahead.forget(seq);
        if self.waiting.truncate(seq, pos) {
            self.backbone.close(seq);
        } else {
            self.backbone.truncate(seq, pos);
        }
        if let Some(text) = self.texts.get_mut(&seq) {
            text.truncate(pos);
        }
    }

    fn close(&mut self, seq: SeqId) {
        self.ahead.forget(seq);
        self.waiting.forget(seq);
        self.backbone.close(seq);
        self.texts.remove(&seq);
    }

    fn forget(&mut self) {
        self.ahead.counts = AheadCounts::default();
    }

    fn ahead(&mut self, target: &mut dyn Target, spans: &[Verifying<'_>]) -> Result<(), Fault> {
        self.begin_ahead(target, spans)
    }

    fn ahead_counts(&self) -> AheadCounts {
        self.ahead.counts
    }

    fn residents(&self) -> Vec<Resident> {
        self.backbone.residents()
    }

    fn retire(self: Box<Self>) -> Vec<Resident> {
        let Self { backbone, .. } = *self;
        Box::new(backbone).retire()
    }
}

#[cfg(test)]
mod tests {
    use super::Text;

    #[test]
    fn a_text_grows_is_cut_and_starts_anew() {
        let mut t = Text::default();
        t.take(10, &[1, 2, 3]);
        t.take(13, &[4]);
        assert_eq!((t.start, t.tokens.as_slice()), (10, &[1, 2, 3, 4][..]));
        t.truncate(12);
        t.take(12, &[9]);
        assert_eq!((t.start, t.tokens.as_slice()), (10, &[1, 2, 9][..]));
        t.take(20, &[7]);
        assert_eq!((t.start, t.tokens.as_slice()), (20, &[7][..]));
        t.truncate(5);
        t.take(5, &[6]);
        assert_eq!((t.start, t.tokens.as_slice()), (5, &[6][..]));
    }
}
