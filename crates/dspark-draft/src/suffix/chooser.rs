//! Two drafters behind one seam: a model and the text's own past, chosen per step and sequence by how
//! many tokens each is expected to get accepted. Both are judged by what the text became, so that their
//! confidences compare; what goes out are log-odds already corrected.

use std::collections::HashMap;

use engine_core::seams::{AheadCounts, Ask, Proposal, Resident, Verifying};
use engine_core::{Drafter, Fault, Pos, SamplePlan, SeqId, Tap, Target, TokenId};

use super::Suffix;
use crate::width::{Calibration, Judge};

/// The model is not asked where a copy promises this much more than it does of late.
const CLEARLY: f64 = 1.2;

/// So many steps in a row at most: its promise of late must stay true.
const SKIPS_MAX: u32 = 16;

/// Weight of a new step in what the model promises of late.
const WEIGHT: f64 = 0.1;

/// Which of the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Model = 0,
    Copy = 1,
}

#[derive(Clone, Debug, Default)]
struct Seen {
    judges: [Judge; 2],
    /// Tokens the model's drafts are expected to get accepted; `None` before the first.
    promise: Option<f64>,
    skips: u32,
    /// A copy offered without asking the model, and the position of its seed.
    offered: Option<(Pos, Proposal)>,
}

/// A model drafter beside [`Suffix`].
#[derive(Debug)]
pub struct Chooser<D> {
    model: D,
    /// Deepest the model can draft.
    model_depth: u32,
    /// Why the model is not asked any more.
    lost: Option<String>,
    copy: Suffix,
    calibration: [Calibration; 2],
    seen: HashMap<SeqId, Seen>,
    /// Proposals handed out and not overruled, by source.
    chosen: [u64; 2],
    /// Sequences the model was spared.
    spared: u64,
}

impl<D: Drafter> Chooser<D> {
    /// Chooses between `model`, which drafts at most `model_depth` tokens, and copies.
    #[must_use]
    pub fn new(model: D, model_depth: u32, copy: Suffix) -> Self {
        Self {
            model,
            model_depth,
            lost: None,
            copy,
            calibration: [Calibration::default(), Calibration::default()],
            seen: HashMap::new(),
            chosen: [0; 2],
            spared: 0,
        }
    }

    /// The model.
    #[must_use]
    pub const fn model(&self) -> &D {
        &self.model
    }

    /// How many proposals were the model's, how many were copies, and how often the model was spared.
    #[must_use]
    pub const fn counts(&self) -> (u64, u64, u64) {
        (self.chosen[0], self.chosen[1], self.spared)
    }

    fn survival(&self, source: Source, proposal: &Proposal) -> Vec<f64> {
        let mut out = Vec::new();
        let of = &self.calibration[source as usize];
        let depth = proposal.tokens.len();
        of.survival(&proposal.confidence_logits, depth, 0.0, &mut out);
        out
    }

    /// The copy for an ask: the one already offered at this position, or a new one, which from now on is
    /// judged by the text.
    fn copy(&mut self, ask: &Ask) -> Proposal {
        let offered = self.seen.entry(ask.seq).or_default().offered.take();
        if let Some((pos, proposal)) = offered
            && pos == ask.pos
        {
            return proposal;
        }
        let copy = self.copy.propose_one(ask);
        let seen = self.seen.entry(ask.seq).or_default();
        seen.judges[Source::Copy as usize].propose(ask.pos + 1, &copy);
        copy
    }

    /// A proposal with log-odds that are already corrected.
    fn corrected(mut proposal: Proposal, survival: &[f64]) -> Proposal {
        let mut before = 1.0;
        let log_odds = |a: &f64| {
            let p = (a / before).clamp(1e-6, 1.0 - 1e-6);
            before = a.max(f64::MIN_POSITIVE);
            (p / (1.0 - p)).ln() as f32
        };
        proposal.confidence_logits = survival.iter().map(log_odds).collect();
        proposal
    }

    /// Whether the model's draft would be thrown away.
    fn spares(&mut self, ask: &Ask, copied: f64) -> bool {
        let seen = self.seen.entry(ask.seq).or_default();
        let most = f64::from(self.model_depth.min(ask.depth));
        let clear = copied >= most || seen.promise.is_some_and(|p| copied > p * CLEARLY);
        let spares = copied > 0.0 && clear && seen.skips < SKIPS_MAX;
        seen.skips = if spares { seen.skips + 1 } else { 0 };
        spares
    }

    /// The model's drafts for the asks that need one.
    fn ask_model(
        &mut self,
        target: &mut dyn Target,
        asks: &[Ask],
        plans: &[&SamplePlan],
        copies: &[Proposal],
    ) -> Vec<Proposal> {
        let mut out = vec![Proposal::default(); asks.len()];
        if self.lost.is_some() {
            return out;
        }
        let (mut fewer, mut theirs, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for (at, ask) in asks.iter().enumerate() {
            let copied: f64 = self.survival(Source::Copy, &copies[at]).iter().sum();
            if self.spares(ask, copied) {
                self.spared += 1;
                continue;
            }
            let depth = ask.depth.min(self.model_depth);
            fewer.push(Ask { depth, ..*ask });
            theirs.extend(plans.get(at));
            places.push(at);
        }
        if fewer.is_empty() {
            return out;
        }
        match self.model.propose(target, &fewer, &theirs) {
            Ok(proposals) => {
                for (at, proposal) in places.into_iter().zip(proposals) {
                    out[at] = proposal;
                }
            }
            Err(fault) => self.lost = Some(fault.to_string()),
        }
        out
    }

    /// The better of the two.
    fn choose(&mut self, ask: &Ask, model: Proposal, copy: Proposal) -> Proposal {
        let both = [
            (Source::Model, self.survival(Source::Model, &model), model),
            (Source::Copy, self.survival(Source::Copy, &copy), copy),
        ];
        let sums = [0, 1].map(|i: usize| both[i].1.iter().sum::<f64>());
        let seen = self.seen.entry(ask.seq).or_default();
        let judge = &mut seen.judges[Source::Model as usize];
        judge.propose(ask.pos + 1, &both[0].2);
        if !both[0].2.tokens.is_empty() {
            let promise = seen.promise.get_or_insert(sums[0]);
            *promise += WEIGHT * (sums[0] - *promise);
        }
        let [model, copy] = both;
        let (source, survival, proposal) = if sums[1] > sums[0] { copy } else { model };
        if !proposal.tokens.is_empty() {
            self.chosen[source as usize] += 1;
        }
        Self::corrected(proposal, &survival)
    }
}

impl<D: Drafter> Drafter for Chooser<D> {
    fn propose(
        &mut self,
        target: &mut dyn Target,
        asks: &[Ask],
        plans: &[&SamplePlan],
    ) -> Result<Vec<Proposal>, Fault> {
        let copies: Vec<Proposal> = asks.iter().map(|ask| self.copy(ask)).collect();
        let models = self.ask_model(target, asks, plans, &copies);
        let pairs = asks.iter().zip(models).zip(copies);
        Ok(pairs
            .map(|((ask, model), copy)| self.choose(ask, model, copy))
            .collect())
    }

    /// Copies: they need no model.
    fn glance(&mut self, asks: &[Ask]) -> Vec<Proposal> {
        let mut out = Vec::with_capacity(asks.len());
        for ask in asks {
            let copy = self.copy(ask);
            let survival = self.survival(Source::Copy, &copy);
            if !copy.tokens.is_empty() {
                let seen = self.seen.entry(ask.seq).or_default();
                seen.offered = Some((ask.pos, copy.clone()));
            }
            out.push(Self::corrected(copy, &survival));
        }
        out
    }

    fn tap(&self) -> Tap {
        match self.lost {
            None => self.model.tap(),
            Some(_) => Tap::default(),
        }
    }

    fn observe(
        &mut self,
        seq: SeqId,
        pos: Pos,
        tokens: &[TokenId],
        features: &[f32],
    ) -> Result<(), Fault> {
        let seen = self.seen.entry(seq).or_default();
        self.chosen[Source::Copy as usize] += u64::from(seen.offered.take().is_some());
        let mut settled = Vec::new();
        for (judge, calibration) in seen.judges.iter_mut().zip(&mut self.calibration) {
            for (at, token) in (pos..).zip(tokens) {
                judge.token(at, *token, &mut settled);
            }
            for outcome in settled.drain(..) {
                calibration.observe(&outcome.logits, outcome.matched, outcome.known);
            }
        }
        self.copy.observe(seq, pos, tokens, features)?;
        if self.lost.is_none()
            && let Err(fault) = self.model.observe(seq, pos, tokens, features)
        {
            self.lost = Some(fault.to_string());
        }
        Ok(())
    }

    fn truncate(&mut self, seq: SeqId, pos: Pos) {
        if let Some(seen) = self.seen.get_mut(&seq) {
            seen.judges = Default::default();
            seen.offered = None;
        }
        self.copy.truncate(seq, pos);
        self.model.truncate(seq, pos);
    }

    fn close(&mut self, seq: SeqId) {
        self.seen.remove(&seq);
        self.copy.close(seq);
        self.model.close(seq);
    }

    fn forget(&mut self) {
        self.calibration = Default::default();
        self.chosen = [0; 2];
        self.spared = 0;
        self.copy.forget();
        self.model.forget();
    }

    /// For the model; a copy takes no time. Not where a copy was just taken without asking it.
    fn ahead(&mut self, target: &mut dyn Target, spans: &[Verifying<'_>]) -> Result<(), Fault> {
        let asked = |span: &&Verifying<'_>| self.seen.get(&span.seq).is_none_or(|s| s.skips == 0);
        let spans: Vec<Verifying<'_>> = spans.iter().filter(asked).copied().collect();
        if self.lost.is_none()
            && !spans.is_empty()
            && let Err(fault) = self.model.ahead(target, &spans)
        {
            self.lost = Some(fault.to_string());
        }
        Ok(())
    }

    fn ahead_counts(&self) -> AheadCounts {
        self.model.ahead_counts()
    }

    /// Why the model is not asked any more. Copies go on.
    fn lost(&self) -> Option<&str> {
        self.lost.as_deref().or_else(|| self.model.lost())
    }

    fn residents(&self) -> Vec<Resident> {
        self.model.residents()
    }

    fn retire(self: Box<Self>) -> Vec<Resident> {
        let Self { model, .. } = *self;
        Box::new(model).retire()
    }
}
