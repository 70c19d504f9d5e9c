//! A drafter that copies from the text itself: where the last tokens stood before, what followed then
//! is proposed. Costs no pass of anything and wins on edits, quotations and tables (spec/dspark.md 16.12).
//!
//! Its confidences are predictions too: the log-odds that a copied token is right, by the length of the
//! match it continues, learned from what the texts did. Must not know: targets, widths.

mod chooser;
mod index;

use std::collections::HashMap;

use engine_core::mutant::mutant;
use engine_core::seams::{Ask, Proposal};
use engine_core::{Drafter, Fault, Pos, SamplePlan, SeqId, Tap, Target, TokenId};

pub use chooser::Chooser;
use index::{Found, MATCH_MAX, Text};

use crate::width::{Judge, Outcome};

/// Settings of the drafter.
#[derive(Clone, Copy, Debug)]
pub struct SuffixOptions {
    /// Tokens of a text that are remembered, about 100 bytes each; the older half goes when there are
    /// more.
    pub text_max: usize,
    /// Texts that are remembered; the one not shown anything for longest goes first.
    pub texts_max: usize,
    /// Nothing is proposed below this probability of the first candidate.
    pub floor: f64,
}

impl Default for SuffixOptions {
    fn default() -> Self {
        Self {
            text_max: 1 << 16,
            texts_max: 64,
            floor: 0.15,
        }
    }
}

/// Copies after a match of so many tokens: how many were right.
#[derive(Clone, Copy, Debug)]
struct Record {
    right: f64,
    all: f64,
    /// Of them, those that were proposed.
    proposed: f64,
}

/// Copies counted in a record before old ones fade.
const MEMORY: f64 = 64.0;

/// The same while the record knows prompts only. They tell how much a text repeats itself, but an answer is
/// another text: a few of its own copies weigh more.
const PROMPT_MEMORY: f64 = 16.0;

/// Copies proposed after which prompts are not asked any more.
const TOLD: f64 = 16.0;

/// What a match of `len` tokens promises before anything was seen, as (right, all).
fn prior(len: usize) -> Record {
    // One token in 1.5 goes wrong after a short match, one in 20 after a long one.
    let all = 4.0;
    let right = all * (1.0 - 1.0 / (1.0 + 0.6 * len as f64)).min(0.95);
    let proposed = 0.0;
    Record {
        right,
        all,
        proposed,
    }
}

impl Record {
    fn observe(&mut self, right: bool, memory: f64) {
        if self.all >= memory {
            let keep = 1.0 - 1.0 / memory;
            (self.right, self.all) = (self.right * keep, self.all * keep);
        }
        self.all += 1.0;
        self.right += f64::from(u8::from(right));
        // Never quite sure: log-odds stay finite.
        self.right = self.right.clamp(0.01 * self.all, 0.995 * self.all);
    }
}

#[derive(Clone, Debug, Default)]
struct Known {
    text: Text,
    judge: Judge,
    /// Position of the text's first token: not 0 if earlier ones were never shown.
    from: Pos,
    /// When it was last shown something.
    used: u64,
}

/// The drafter.
#[derive(Clone, Debug)]
pub struct Suffix {
    options: SuffixOptions,
    known: HashMap<SeqId, Known>,
    records: Vec<Record>,
    clock: u64,
}

impl Default for Suffix {
    fn default() -> Self {
        Self::new(SuffixOptions::default())
    }
}

impl Suffix {
    /// A drafter that knows no text.
    #[must_use]
    pub fn new(options: SuffixOptions) -> Self {
        Self {
            options,
            known: HashMap::new(),
            records: (0..=MATCH_MAX).map(prior).collect(),
            clock: 0,
        }
    }

    /// Tokens remembered of a sequence.
    #[must_use]
    pub fn remembered(&self, seq: SeqId) -> usize {
        self.known.get(&seq).map_or(0, |k| k.text.len())
    }

    /// The log-odds that the token after a match of `len` is copied rightly.
    fn log_odds(&self, len: usize) -> f32 {
        let r = self.records[len.min(MATCH_MAX)];
        (r.right / (r.all - r.right)).ln() as f32
    }

    pub(super) fn propose_one(&mut self, ask: &Ask) -> Proposal {
        let Some(known) = self.known.get(&ask.seq) else {
            return Proposal::default();
        };
        // Whoever skipped positions must not be continued from the wrong place.
        let stands = known.from as usize + known.text.len();
        let Some(Found { next, len }) = known
            .text
            .find(ask.seed)
            .filter(|_| stands == ask.pos as usize)
        else {
            return Proposal::default();
        };
        let tokens = known.text.copy(next, ask.seed, ask.depth as usize);
        let confidence_logits: Vec<f32> =
            (0..tokens.len()).map(|k| self.log_odds(len + k)).collect();
        let floor = (self.options.floor / (1.0 - self.options.floor)).ln() as f32;
        if confidence_logits.first().is_none_or(|l| *l < floor) {
            return Proposal::default();
        }
        let proposal = Proposal {
            tokens,
            confidence_logits,
        };
        // The judge hands back what it is given beside the tokens: here the length of the match.
        let remembered = Proposal {
            tokens: proposal.tokens.clone(),
            confidence_logits: vec![len as f32],
        };
        if let Some(known) = self.known.get_mut(&ask.seq) {
            known.judge.propose(ask.pos + 1, &remembered);
        }
        proposal
    }

    fn learn(&mut self, outcome: &Outcome) {
        let len = outcome.logits.first().map_or(0, |l| *l as usize);
        for k in 0..outcome.known {
            let record = &mut self.records[(len + k).min(MATCH_MAX)];
            record.observe(k < outcome.matched, MEMORY);
            record.proposed += 1.0;
        }
    }

    /// Forgets the text that was used longest ago, if there are too many.
    fn make_room(&mut self) {
        if self.known.len() >= self.options.texts_max.max(1) {
            let oldest = self
                .known
                .iter()
                .min_by_key(|(seq, k)| (k.used, **seq))
                .map(|(seq, _)| *seq);
            oldest.and_then(|seq| self.known.remove(&seq));
        }
    }
}

impl Drafter for Suffix {
    fn propose(
        &mut self,
        _target: &mut dyn Target,
        asks: &[Ask],
        _plans: &[&SamplePlan],
    ) -> Result<Vec<Proposal>, Fault> {
        Ok(asks.iter().map(|ask| self.propose_one(ask)).collect())
    }

    fn tap(&self) -> Tap {
        Tap::default()
    }

    fn observe(
        &mut self,
        seq: SeqId,
        pos: Pos,
        tokens: &[TokenId],
        _features: &[f32],
    ) -> Result<(), Fault> {
        self.clock += 1;
        if !self.known.contains_key(&seq) {
            self.make_room();
        }
        let known = self.known.entry(seq).or_default();
        known.used = self.clock;
        let stands = known.from as usize + known.text.len();
        if stands != pos as usize {
            // Positions were skipped or taken back: what was known stands elsewhere now.
            *known = Known {
                used: self.clock,
                ..Known::default()
            };
        }
        let mut settled = Vec::new();
        // A text that nobody proposed anything for is a prompt.
        let prompt = known.judge.is_empty() && !mutant(268);
        let mut seed = None;
        for (at, token) in (pos..).zip(tokens) {
            known.judge.token(at, *token, &mut settled);
            if let Some(seed) = seed.filter(|_| prompt) {
                learn_from_prompt(&mut self.records, &known.text, seed, *token);
            }
            if let Some(seed) = seed.replace(*token) {
                known.text.push(seed, self.options.text_max);
            }
        }
        if let Some(last) = seed {
            known.text.push(last, self.options.text_max);
        }
        // The text forgets its front: the position of what is left follows.
        known.from = pos + tokens.len() as Pos - known.text.len() as Pos;
        settled.iter().for_each(|outcome| self.learn(outcome));
        Ok(())
    }

    fn forget(&mut self) {
        self.records = (0..=MATCH_MAX).map(prior).collect();
    }

    fn truncate(&mut self, seq: SeqId, pos: Pos) {
        if let Some(known) = self.known.get_mut(&seq) {
            known.judge = Judge::default();
            known.text.truncate(pos.saturating_sub(known.from) as usize);
        }
    }

    fn close(&mut self, seq: SeqId) {
        self.known.remove(&seq);
    }
}

/// What a copy behind `seed`, the last of a text's tokens, would have been worth: the text goes on with
/// `token`.
fn learn_from_prompt(records: &mut [Record], text: &Text, seed: TokenId, token: TokenId) {
    let Some(found) = text.find(seed) else {
        return;
    };
    let record = &mut records[found.len.min(MATCH_MAX)];
    if record.proposed < TOLD {
        let copied = text.copy(found.next, seed, 1);
        record.observe(copied.first() == Some(&token), PROMPT_MEMORY);
    }
}

#[cfg(test)]
mod tests;
