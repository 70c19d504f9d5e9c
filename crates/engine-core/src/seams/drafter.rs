//! Drafting, split in two so that the backbone may live in another process while the tied head,
//! the Markov chain and the confidences stay beside the target.

use std::io::{Read, Write};
use std::time::Instant;

use super::resident::Resident;
use super::target::Target;
use crate::fault::Fault;
use crate::ids::{Epoch, Pos, SeqId, TokenId};
use crate::plan::SamplePlan;
use crate::span::{Tap, Ticket};

/// A request to draft for one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The sequence.
    pub seq: SeqId,
    /// Recognises late answers.
    pub epoch: Epoch,
    /// Position of the seed: one past the committed state, unless it is drafted ahead.
    pub pos: Pos,
    /// Tokens before the seed whose context rows are missing because they are still being verified; 0 for
    /// a draft that nothing precedes. The context ends at `pos - ahead`.
    pub ahead: u32,
    /// The last emitted token, whose row is not in the state yet.
    pub seed: TokenId,
    /// How many candidates are wanted.
    pub depth: u32,
}

/// A backbone's answer: hidden rows of the block positions, in ask order.
#[derive(Clone, Debug, Default)]
pub struct DraftRows {
    /// For each ask: how many rows it got (may be fewer than asked).
    pub rows: Vec<usize>,
    /// `[sum rows, n_embd]` f32: normed, input of the tied head.
    pub normed: Vec<f32>,
    /// `[sum rows, n_embd]` f32: before the output norm, input of the confidence head.
    pub pre_norm: Vec<f32>,
}

/// The part of a drafter that keeps context rows and runs the draft layers.
pub trait Backbone {
    /// Takes the features of newly committed positions. `features` `[n, tap layers, n_embd]` f32
    /// for positions `pos..pos + n` of `seq`.
    ///
    /// # Errors
    /// `WrongPosition` if rows would be skipped; `Lost`.
    fn observe(&mut self, seq: SeqId, pos: Pos, features: &[f32]) -> Result<(), Fault>;

    /// Starts drafting for many sequences. `block` `[asks, block_size, n_embd]` f32: embedded
    /// input rows (seed, then mask tokens).
    ///
    /// # Errors
    /// `Lost`, `Unsupported`.
    fn submit(&mut self, asks: &[Ask], block: &[f32]) -> Result<Ticket, Fault>;

    /// Takes the answer if it has arrived by the deadline.
    ///
    /// # Errors
    /// `Deadline`, `NoSuchTicket`, `Lost`.
    fn poll(&mut self, ticket: Ticket, deadline: Option<Instant>) -> Result<DraftRows, Fault>;

    /// Forgets context rows at and above `pos`.
    fn truncate(&mut self, seq: SeqId, pos: Pos);

    /// Forgets a sequence.
    fn close(&mut self, seq: SeqId);

    /// Writes the live context rows of a sequence.
    ///
    /// # Errors
    /// `NoSuchSequence`, `Io`.
    fn save(&self, seq: SeqId, to: &mut dyn Write) -> Result<(), Fault>;

    /// Reads context rows for an open sequence.
    ///
    /// # Errors
    /// `BadState`, `Io`.
    fn load(&mut self, seq: SeqId, from: &mut dyn Read) -> Result<(), Fault>;

    /// `Ok` while the backbone can draft; the reason otherwise.
    ///
    /// # Errors
    /// `Lost` with the reason.
    fn health(&self) -> Result<(), Fault>;

    /// Whether `submit` returns while the rows are still being computed, by somebody else: only then is a
    /// draft ahead time that was not waited for.
    fn is_apart(&self) -> bool {
        false
    }

    /// What takes memory because the backbone is there.
    fn residents(&self) -> Vec<Resident> {
        Vec::new()
    }

    /// As [`Target::retire`].
    fn retire(self: Box<Self>) -> Vec<Resident> {
        drop(self);
        Vec::new()
    }
}

/// A backbone chosen at run time: here, in a worker, or one after the other.
impl<B: Backbone + ?Sized> Backbone for Box<B> {
    fn observe(&mut self, seq: SeqId, pos: Pos, features: &[f32]) -> Result<(), Fault> {
        (**self).observe(seq, pos, features)
    }

    fn submit(&mut self, asks: &[Ask], block: &[f32]) -> Result<Ticket, Fault> {
        (**self).submit(asks, block)
    }

    fn poll(&mut self, ticket: Ticket, deadline: Option<Instant>) -> Result<DraftRows, Fault> {
        (**self).poll(ticket, deadline)
    }

    fn truncate(&mut self, seq: SeqId, pos: Pos) {
        (**self).truncate(seq, pos);
    }

    fn close(&mut self, seq: SeqId) {
        (**self).close(seq);
    }

    fn save(&self, seq: SeqId, to: &mut dyn Write) -> Result<(), Fault> {
        (**self).save(seq, to)
    }

    fn load(&mut self, seq: SeqId, from: &mut dyn Read) -> Result<(), Fault> {
        (**self).load(seq, from)
    }

    fn health(&self) -> Result<(), Fault> {
        (**self).health()
    }

    fn is_apart(&self) -> bool {
        (**self).is_apart()
    }

    fn residents(&self) -> Vec<Resident> {
        (**self).residents()
    }

    fn retire(self: Box<Self>) -> Vec<Resident> {
        (*self).retire()
    }
}

/// A span that the target is about to verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verifying<'a> {
    /// The sequence.
    pub seq: SeqId,
    /// Position of the seed: one past the committed state.
    pub pos: Pos,
    /// The seed and its candidates, at `pos..`.
    pub tokens: &'a [TokenId],
}

/// What became of drafts that were begun while the target verified.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AheadCounts {
    /// Sequences drafted for ahead.
    pub begun: u64,
    /// Drafts that the next proposals were made of.
    pub used: u64,
    /// Drafts thrown away: a candidate was rejected, or the text ended.
    pub lapsed: u64,
    /// Drafts not begun because the one before was still being computed.
    pub busy: u64,
    /// Spans without a draft ahead because the backbone is not apart (now).
    pub idle: u64,
    /// Proposals of drafts ahead that the text has judged.
    pub judged: u64,
    /// Their candidates that were right, from the first.
    pub right: u64,
    /// The same of drafts that nothing preceded, at the same depths.
    pub alone_judged: u64,
    /// Their right candidates.
    pub alone_right: u64,
}

impl AheadCounts {
    /// Right candidates of a draft ahead over those of one that nothing preceded; `None` before both are
    /// known from `least` proposals. Drafts ahead are used where the text was easy, so it may exceed 1.
    #[must_use]
    pub fn kappa(&self, least: u64) -> Option<f64> {
        let known = self.judged.min(self.alone_judged) >= least.max(1) && self.alone_right > 0;
        let mean = |right: u64, judged: u64| right as f64 / judged as f64;
        known.then(|| mean(self.right, self.judged) / mean(self.alone_right, self.alone_judged))
    }

    /// The counts with their names.
    #[must_use]
    pub const fn list(&self) -> [(&'static str, u64); 9] {
        [
            ("begun", self.begun),
            ("used", self.used),
            ("lapsed", self.lapsed),
            ("busy", self.busy),
            ("idle", self.idle),
            ("judged", self.judged),
            ("right", self.right),
            ("alone_judged", self.alone_judged),
            ("alone_right", self.alone_right),
        ]
    }

    /// Adds another's.
    pub fn merge(&mut self, other: &Self) {
        self.begun += other.begun;
        self.used += other.used;
        self.lapsed += other.lapsed;
        self.busy += other.busy;
        self.idle += other.idle;
        self.judged += other.judged;
        self.right += other.right;
        self.alone_judged += other.alone_judged;
        self.alone_right += other.alone_right;
    }
}

/// Candidates for one sequence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Proposal {
    /// Candidate tokens for positions `pos + 1 ..`.
    pub tokens: Vec<TokenId>,
    /// Log-odds that candidate i is accepted given the earlier ones were; empty if unknown.
    pub confidence_logits: Vec<f32>,
}

/// Anything that can propose tokens: DSpark in process or remote, suffix match, none.
pub trait Drafter {
    /// Proposes for every ask, in order. `plans`: how each ask's request draws its tokens, so that
    /// candidates are drawn with the same noise. A proposal may be empty: a drafter that has
    /// nothing good to say saves a pass.
    ///
    /// # Errors
    /// `Lost` when the drafter died: the caller goes on without it.
    fn propose(
        &mut self,
        target: &mut dyn Target,
        asks: &[Ask],
        plans: &[&SamplePlan],
    ) -> Result<Vec<Proposal>, Fault>;

    /// Proposals that take no pass of a model, in the order of `asks`; empty ones, or none at all, where
    /// there is nothing to offer. A [`Self::propose`] for the same positions may follow and counts for
    /// its sequences instead.
    fn glance(&mut self, asks: &[Ask]) -> Vec<Proposal> {
        let _ = asks;
        Vec::new()
    }

    /// Which target layers it wants features of, for every committed position; empty for none.
    fn tap(&self) -> Tap;

    /// Takes newly committed tokens and their features. `tokens` `[n]` stand at `pos..pos + n`;
    /// `features` `[n, tap layers, n_embd]` f32, or empty when the drafter taps nothing, or for the
    /// beginning of a prompt: then a drafter that taps has no context rows up to there, and one that
    /// goes by the text misses nothing.
    ///
    /// # Errors
    /// `Lost`.
    fn observe(
        &mut self,
        seq: SeqId,
        pos: Pos,
        tokens: &[TokenId],
        features: &[f32],
    ) -> Result<(), Fault>;

    /// Forgets what it knows at and above `pos`.
    fn truncate(&mut self, seq: SeqId, pos: Pos);

    /// Forgets a sequence.
    fn close(&mut self, seq: SeqId);

    /// Forgets what texts so far taught it: they were not anybody's. Sequences stay as they are.
    fn forget(&mut self) {}

    /// Begins the next drafts while the target verifies `spans`, as if all candidates were accepted. A
    /// later `propose` makes use of those for which that came true. A drafter that cannot does nothing.
    ///
    /// # Errors
    /// As [`Drafter::propose`].
    fn ahead(&mut self, _target: &mut dyn Target, _spans: &[Verifying<'_>]) -> Result<(), Fault> {
        Ok(())
    }

    /// What became of drafts ahead.
    fn ahead_counts(&self) -> AheadCounts {
        AheadCounts::default()
    }

    /// Why a part of it is not used any more, where one failed and the rest goes on.
    fn lost(&self) -> Option<&str> {
        None
    }

    /// What takes memory because the drafter is there.
    fn residents(&self) -> Vec<Resident> {
        Vec::new()
    }

    /// As [`Target::retire`].
    fn retire(self: Box<Self>) -> Vec<Resident> {
        drop(self);
        Vec::new()
    }
}
