//! The target model as seen from above.

use std::io::{Read, Write};
use std::time::Instant;

use super::resident::Resident;
use crate::class::NumericClass;
use crate::fault::Fault;
use crate::ids::{Pos, SeqId, TokenId};
use crate::plan::SamplePlan;
use crate::span::{Rows, Span, Ticket};

/// What callers may know about a target.
#[derive(Clone, Debug)]
pub struct TargetInfo {
    /// Vocabulary size.
    pub n_vocab: usize,
    /// Width of a residual stream.
    pub n_embd: usize,
    /// Layers.
    pub n_layer: usize,
    /// Positions a sequence may reach.
    pub n_ctx: u64,
    /// Sequences that may be open at once.
    pub n_seq_max: usize,
    /// Longest span whose every prefix may be committed: the widest verify.
    pub verify_max: usize,
    /// Longest span of a pass.
    pub span_max: usize,
    /// The promise about output bits.
    pub class: NumericClass,
    /// Digest of shapes and weights: what a drafter or saved state must match.
    pub fingerprint: [u8; 32],
}

/// What a target has done since its start, in words that fit any device. Whoever measures compares
/// them, to know which path was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes of weights that products read, each matrix once a pass, in the bytes of its format; `None` where that is
    /// not counted.
    pub weight_bytes: Option<u64>,
    /// Groups of work that ran: products of one region on a CPU, kernels on a device. The same for the
    /// same passes, however many threads there are.
    pub launches: u64,
    /// Work that was done in another way than the one chosen for it; 0 where there is one way only.
    pub fallbacks: u64,
    /// Times a part of the machine was waited for too long, and work went on without it for a while.
    /// Depends on what else runs.
    pub stalls: u64,
}

/// The launches of one kernel with one grid, timed.
#[derive(Clone, Debug, PartialEq)]
pub struct Clocked {
    /// What the kernel belongs to: the name of its source.
    pub source: &'static str,
    /// Name of the kernel.
    pub kernel: &'static str,
    /// Blocks along x, y, z.
    pub grid: [u32; 3],
    /// Launches.
    pub launches: u64,
    /// Milliseconds of all of them, gaps included.
    pub millis: f64,
}

/// A chain of candidates to be drawn: each from its row's logits and from the token before it.
#[derive(Clone, Copy, Debug)]
pub struct Candidates<'a> {
    /// Hidden rows it has: its candidates.
    pub rows: usize,
    /// Position of the seed; candidate i stands at `pos + 1 + i`.
    pub pos: Pos,
    /// The token before the first candidate.
    pub seed: TokenId,
    /// How the request draws.
    pub plan: &'a SamplePlan,
}

/// A model that turns tokens into rows and keeps the state of many sequences.
///
/// `submit` writes rows beyond the committed position; they become state when `commit` moves the
/// position past them. Rolling back is committing less: nothing is saved or restored.
pub trait Target {
    /// Shapes and limits.
    fn info(&self) -> &TargetInfo;

    /// What it has done since its start; `None` if it does not count, which is not the same as 0.
    fn counters(&self) -> Option<Counters> {
        None
    }

    /// From here on every launch is timed, one by one, until [`Self::clocked`]. `false`: this target times none.
    ///
    /// # Errors
    /// `Lost`.
    fn clock(&mut self) -> Result<bool, Fault> {
        Ok(false)
    }

    /// Ends the timing: launches since [`Self::clock`], by kernel and grid, the longest first.
    ///
    /// # Errors
    /// `Lost`.
    fn clocked(&mut self) -> Result<Vec<Clocked>, Fault> {
        Ok(Vec::new())
    }

    /// What takes memory because the target is there.
    fn residents(&self) -> Vec<Resident> {
        Vec::new()
    }

    /// Frees all of it, in the order that its memory asks for: nothing uses what is freed. The answer: what could not
    /// be freed, and why.
    fn retire(self: Box<Self>) -> Vec<Resident> {
        drop(self);
        Vec::new()
    }

    /// Opens an empty sequence.
    ///
    /// # Errors
    /// `Exhausted` when no slot is free.
    fn open(&mut self) -> Result<SeqId, Fault>;

    /// Opens a copy of a sequence at its committed position.
    ///
    /// # Errors
    /// `NoSuchSequence`, `Exhausted`.
    fn fork(&mut self, seq: SeqId) -> Result<SeqId, Fault>;

    /// Closes a sequence; unknown ids are ignored.
    fn close(&mut self, seq: SeqId);

    /// The committed position of an open sequence.
    fn pos(&self, seq: SeqId) -> Option<Pos>;

    /// Runs one pass over spans of distinct sequences. A refused pass changes nothing.
    ///
    /// # Errors
    /// Any fault that names a span; `Lost` if a device failed.
    fn submit(&mut self, tokens: &[TokenId], spans: &[Span]) -> Result<Ticket, Fault>;

    /// Waits for a pass. `None` waits without limit.
    ///
    /// # Errors
    /// `NoSuchTicket`, `Deadline`, `Lost`.
    fn wait(&mut self, ticket: Ticket, deadline: Option<Instant>) -> Result<&Rows, Fault>;

    /// Makes positions below `pos` the sequence's state. Infallible: `pos` lies between the
    /// committed position and the end of the last span, and for a span longer than `verify_max`
    /// not more than `verify_max` before its end (asserted in debug builds, clamped otherwise).
    fn commit(&mut self, seq: SeqId, pos: Pos);

    /// Logits of final hidden states, through the output matrix: the tied part a drafter uses.
    /// `rows` `[n, n_embd]` f32 already normed; `out` `[n, n_vocab]` f32.
    ///
    /// # Errors
    /// `BadState` if the lengths disagree.
    fn head(&mut self, rows: &[f32], out: &mut [f32]) -> Result<(), Fault>;

    /// Draws chains of candidates where the output matrix is, from `rows` `[sum of rows, n_embd]` f32, already normed,
    /// in the order of the chains. `None` for a chain that is not drawn here, and an empty list where none is: whoever has a
    /// drafter's heads draws those, and gets the same tokens. A chain ends early where its row holds no number.
    ///
    /// # Errors
    /// `BadState` if the lengths disagree, `BadToken` for a seed, `Lost`.
    fn chains(
        &mut self,
        _rows: &[f32],
        _chains: &[Candidates<'_>],
    ) -> Result<Vec<Option<Vec<TokenId>>>, Fault> {
        Ok(Vec::new())
    }

    /// Embedding rows: `out` `[tokens.len(), n_embd]` f32.
    ///
    /// # Errors
    /// `BadToken`, or `BadState` if the lengths disagree.
    fn embed(&mut self, tokens: &[TokenId], out: &mut [f32]) -> Result<(), Fault>;

    /// Writes the live rows of a sequence (`docs/adr/0002-state.md`). The digest of what is
    /// written is the sequence's state hash: stale rows never reach it.
    ///
    /// # Errors
    /// `NoSuchSequence`, `Io`.
    fn save(&self, seq: SeqId, to: &mut dyn Write) -> Result<(), Fault>;

    /// Opens a sequence from saved rows. A refused load opens nothing.
    ///
    /// # Errors
    /// `BadState`, `Io`, `Exhausted`.
    fn load(&mut self, from: &mut dyn Read) -> Result<SeqId, Fault>;
}
