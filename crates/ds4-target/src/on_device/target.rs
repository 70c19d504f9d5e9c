//! The target: sequences, and the seam over its stages.
//!
//! Must not know: layers, how it was loaded.

use std::io::{Read, Write};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use device::cache::Cache;
use device::driver::Driver;
use device::{Device, DeviceId};
use ds4_kernels::KernelError;
use engine_core::mutant::mutant;
use engine_core::seams::{Candidates, Counters, Resident, TargetInfo};
use engine_core::{Fault, Pos, Rows, SeqId, Span, Target, Ticket, TokenId};
use sampling::Sampler;

use super::chain::Chain;
use super::clock::{Clocked, together};
use super::counts::clear;
use super::draws::{Answers, put};
use super::edge::{Crossing, Edge};
use super::gpu::Gpu;
use super::graphs::Graphs;
use super::products::Input;
use super::retire::TARGET;
use super::scratch::{Scratch, TAPS};
use super::stage::Stage;
use super::state::State;
use super::upload;
use super::weights::{Plan, Tail};
use crate::batch::Batch;
use crate::error::LoadError;
use crate::layers::Ropes;
use crate::state::{self, Marks, SeqState, StateShape};
use crate::target::rows::{check_chains, check_head, deliver, embed, lay_out, refuse};
use crate::target::{Model, Options};

/// How to use a device.
pub struct Settings<'a> {
    /// Compiled images on disk; without it every start compiles.
    pub cache: Option<Cache>,
    /// Hears of bytes uploaded and bytes in all.
    pub progress: &'a mut dyn FnMut(u64, u64),
    /// Whether all bytes are read back after they were sent, and compared.
    pub check: bool,
    /// Passes of up to so many tokens are captured as graphs and replayed; 0: none are.
    pub graph_tokens: usize,
}

impl std::fmt::Debug for Settings<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Settings(cache: {})", self.cache.is_some())
    }
}

/// The target on a device, or on several of one runtime that share its layers.
#[derive(Debug)]
pub struct DeviceTarget<R: Driver> {
    pub(super) model: Arc<Model>,
    pub(super) options: Options,
    pub(super) info: TargetInfo,
    pub(super) shape: StateShape,
    pub(super) ropes: Ropes,
    /// In the order of the layers; at least one.
    pub(super) stages: Vec<Stage<R>>,
    /// On the last stage's device.
    pub(super) chain: Option<Chain<R>>,
    pub(super) seqs: Vec<Option<Marks>>,
    pub(super) batch: Batch,
    pub(super) rows: Rows,
    pub(super) answers: Answers,
    /// What is sent for a part, before it is sent.
    pub(super) inputs: Vec<u8>,
    pub(super) in_flight: Option<Ticket>,
    pub(super) passes: u64,
    pub(super) sampler: Sampler,
}

impl<R: Driver> DeviceTarget<R> {
    /// The model.
    #[must_use]
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// How it runs.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// From here on passes are launched one by one and each launch is timed, until [`Self::clocked`].
    ///
    /// # Errors
    /// `Lost`.
    pub fn clock(&mut self) -> Result<(), Fault> {
        let mut stages = self.stages.iter_mut();
        stages.try_for_each(|s| s.gpu.start_clock().map_err(|e| lost(&s.gpu, &e)))
    }

    /// Ends the timing: what launches took since [`Self::clock`], by kernel and grid, the longest first; nothing if
    /// it was not begun.
    ///
    /// # Errors
    /// `Lost`.
    pub fn clocked(&mut self) -> Result<Vec<Clocked>, Fault> {
        let mut all = Vec::new();
        for stage in &mut self.stages {
            let read = stage.gpu.read_clock().map_err(|e| lost(&stage.gpu, &e))?;
            all.extend(read);
        }
        Ok(together(all))
    }

    /// Fills everything that is not state of an open sequence with NaN patterns; for tests. Open sequences lose
    /// their rows.
    ///
    /// # Errors
    /// `Lost`.
    pub fn poison(&mut self) -> Result<(), Fault> {
        let poison = |s: &Stage<R>| {
            s.gpu.poison()?;
            clear(&s.gpu, &s.scratch)
        };
        self.each(poison)
    }

    /// Fills all rows of a sequence that are not state with NaN patterns; for tests.
    ///
    /// # Errors
    /// `NoSuchSequence`, `Lost`.
    pub fn poison_stale(&mut self, seq: SeqId) -> Result<(), Fault> {
        let mut host = self.pull(seq)?;
        let at = seq.index();
        self.each(|s| {
            s.state.fill(&s.gpu, at, 0xff)?;
            s.state.push(&s.gpu, at, &mut host)
        })
    }

    /// The digest of a sequence's saved rows: its state hash.
    ///
    /// # Errors
    /// `NoSuchSequence`, `Lost`.
    pub fn digest(&self, seq: SeqId) -> Result<[u8; 32], Fault> {
        let mut hash = blake3::Hasher::new();
        self.save(seq, &mut hash)?;
        Ok(*hash.finalize().as_bytes())
    }

    fn marks(&self, seq: SeqId) -> Result<Marks, Fault> {
        let marks = self.seqs.get(seq.index()).copied().flatten();
        marks.ok_or(Fault::NoSuchSequence(seq))
    }

    fn free_slot(&self) -> Result<usize, Fault> {
        let limit = self.options.n_seq_max as u64;
        self.seqs
            .iter()
            .position(Option::is_none)
            .ok_or(Fault::Exhausted {
                what: "sequences",
                wanted: limit + 1,
                limit,
            })
    }

    /// A sequence's live rows on the host.
    fn pull(&self, seq: SeqId) -> Result<SeqState, Fault> {
        let mut host = SeqState::new(&self.shape);
        host.marks = Marks::at(self.marks(seq)?.pos);
        self.each(|s| s.state.pull(&s.gpu, seq.index(), &mut host))?;
        Ok(host)
    }

    /// Does something with every stage, in order.
    fn each(
        &self,
        mut work: impl FnMut(&Stage<R>) -> Result<(), KernelError>,
    ) -> Result<(), Fault> {
        let mut stages = self.stages.iter();
        stages.try_for_each(|s| work(s).map_err(|e| lost(&s.gpu, &e)))
    }

    /// The stage where the model ends.
    pub(super) fn last(&self) -> &Stage<R> {
        &self.stages[self.stages.len() - 1]
    }

    /// The devices, in the order of the layers.
    pub fn devices(&self) -> impl Iterator<Item = (DeviceId, Range<usize>)> {
        let of = |s: &Stage<R>| (s.gpu.device().id(), s.weights.numbers());
        self.stages.iter().map(of)
    }

    /// How a pass gets from each device to the next.
    #[must_use]
    pub fn crossings(&self) -> Vec<Crossing> {
        let name = |s: &Stage<R>| s.gpu.device().id().to_string();
        let both = self.stages.iter().zip(self.stages.iter().skip(1));
        let crossing = |(from, to): (&Stage<R>, &Stage<R>)| Crossing {
            from: name(from),
            to: name(to),
            staged: to.edge.as_ref().and_then(Edge::staged),
        };
        both.map(crossing).collect()
    }
}

/// The device where the model ends, and what stands there.
type End<'a, R> = (&'a mut Gpu<R>, &'a Tail, &'a Scratch);

fn end<R: Driver>(stages: &mut [Stage<R>]) -> Result<End<'_, R>, Fault> {
    let stage = stages.last_mut();
    let end = stage.and_then(|s| Some((&mut s.gpu, s.weights.tail.as_ref()?, &s.scratch)));
    end.ok_or(Fault::Unsupported("a target without an output matrix"))
}

/// A failure of a device: of the one that it names, or of the one that was called.
pub(super) fn lost<R: Driver>(gpu: &Gpu<R>, why: &KernelError) -> Fault {
    let named = match why {
        KernelError::Device(fault) => fault.device(),
        _ => None,
    };
    Fault::Lost {
        what: named.unwrap_or(gpu.device().id()).to_string(),
        why: why.to_string(),
    }
}

/// Refuses a plan that the device has no room for.
pub(super) fn fits<R: Driver>(
    device: &Device<R>,
    plan: &Plan<'_>,
    state: &State,
    scratch: &Scratch,
) -> Result<(), LoadError> {
    let memory = device.memory().map_err(KernelError::from)?;
    let parts = [
        ("weights", plan.layout.bytes()),
        ("state", state.layout.bytes()),
        ("scratch", scratch.layout.bytes()),
        ("while loading", upload::extra(plan)),
    ];
    let needed = parts.iter().map(|(_, bytes)| bytes).sum();
    if needed <= memory.free {
        return Ok(());
    }
    let words = parts.map(|(what, bytes)| format!("{what} {bytes}"));
    Err(LoadError::DeviceMemory {
        device: device.id().to_string(),
        needed,
        plan: words.join(", "),
        free: memory.free,
        total: memory.total,
    })
}

impl<R: Driver> Target for DeviceTarget<R> {
    fn info(&self) -> &TargetInfo {
        &self.info
    }

    /// Waits for the device: which experts passes visited is counted there.
    fn counters(&self) -> Option<Counters> {
        let counts = self.counts();
        Some(Counters {
            weight_bytes: self.weight_bytes().ok(),
            launches: counts.launches + counts.graphs.operations,
            fallbacks: counts.host_draws + counts.host_chains + counts.staged,
            stalls: 0,
        })
    }

    fn clock(&mut self) -> Result<bool, Fault> {
        Self::clock(self).map(|()| true)
    }

    fn clocked(&mut self) -> Result<Vec<Clocked>, Fault> {
        Self::clocked(self)
    }

    fn residents(&self) -> Vec<Resident> {
        let mut drafts = self.chain.as_ref().map_or(0, |c| c.graphs.built());
        let of = |s: &Stage<R>| {
            let drafts = if s.weights.tail.is_some() {
                std::mem::take(&mut drafts)
            } else {
                0
            };
            s.gpu.residents(&TARGET, s.graphs.built() + drafts)
        };
        self.stages.iter().flat_map(of).collect()
    }

    fn retire(self: Box<Self>) -> Vec<Resident> {
        let Self { stages, chain, .. } = *self;
        let mut drafts = chain.map(|c| c.graphs);
        let mut left = Vec::new();
        // In the order of the layers: what a device copies into the next one's memory is waited for before that is freed.
        for stage in stages {
            let ends = stage.weights.tail.is_some();
            let drafts = drafts.take_if(|_| ends);
            let drafts = drafts.into_iter().flat_map(Graphs::into_graphs);
            let graphs = stage.graphs.into_graphs().chain(drafts).collect();
            drop(stage.edge);
            left.extend(stage.gpu.retire(&TARGET, graphs));
        }
        left
    }

    fn open(&mut self) -> Result<SeqId, Fault> {
        let slot = self.free_slot()?;
        self.seqs[slot] = Some(Marks::default());
        Ok(SeqId(slot as u32))
    }

    fn fork(&mut self, seq: SeqId) -> Result<SeqId, Fault> {
        let pos = self.marks(seq)?.pos;
        let slot = self.free_slot()?;
        let from = seq.index();
        self.each(|s| s.state.fork(&s.gpu, from, slot, pos as usize))?;
        self.seqs[slot] = Some(Marks::at(pos));
        Ok(SeqId(slot as u32))
    }

    fn close(&mut self, seq: SeqId) {
        if let Some(marks) = self.seqs.get_mut(seq.index()) {
            *marks = None;
        }
    }

    fn pos(&self, seq: SeqId) -> Option<Pos> {
        self.marks(seq).ok().map(|m| m.pos)
    }

    fn submit(&mut self, tokens: &[TokenId], spans: &[Span]) -> Result<Ticket, Fault> {
        let seqs = &self.seqs;
        let stands = |seq: SeqId| {
            let marks = seqs.get(seq.index()).copied().flatten()?;
            Some((seq.index(), marks.pos))
        };
        self.batch.build(tokens, spans, &self.info, stands)?;
        refuse(spans, self.info.n_layer)?;
        let taps = spans.iter().map(|s| s.tap.layers.len()).max().unwrap_or(0);
        if taps > TAPS {
            return Err(Fault::Exhausted {
                what: "tapped layers of a span",
                wanted: taps as u64,
                limit: TAPS as u64,
            });
        }
        lay_out(&mut self.rows, spans, self.info.n_vocab, self.info.n_embd);
        self.run(spans)?;
        let pos = |row: usize| self.batch.pos[self.batch.out[row]];
        let given = |row: usize| self.answers.given(row);
        deliver(spans, pos, given, &mut self.sampler, &mut self.rows);
        for piece in &self.batch.pieces {
            if let Some(marks) = self.seqs[piece.slot].as_mut() {
                marks.ran(piece.pos + piece.len, self.options.verify_max);
            }
        }
        self.passes += 1;
        let ticket = Ticket(self.passes);
        self.in_flight = Some(ticket);
        Ok(ticket)
    }

    fn wait(&mut self, ticket: Ticket, _deadline: Option<Instant>) -> Result<&Rows, Fault> {
        if self.in_flight.take() != Some(ticket) {
            return Err(Fault::NoSuchTicket(ticket.0));
        }
        Ok(&self.rows)
    }

    fn commit(&mut self, seq: SeqId, pos: Pos) {
        if let Some(marks) = self.seqs.get_mut(seq.index()).and_then(Option::as_mut) {
            marks.commit(pos);
        }
    }

    fn head(&mut self, rows: &[f32], out: &mut [f32]) -> Result<(), Fault> {
        check_head(&self.info, rows, out)?;
        let (d, v) = (self.info.n_embd, self.info.n_vocab);
        let (gpu, tail, s) = end(&mut self.stages)?;
        let mut at = 0;
        let mut run = || {
            for part in rows.chunks(s.sizes.head * d) {
                let mut hidden = Input::new(s.hidden, part.len() / d);
                gpu.write(bytemuck::cast_slice(part), hidden.rows.x)?;
                let logits = s.out.rows(0, hidden.n, 4 * v);
                gpu.product(&tail.head, &mut hidden, s.out)?;
                gpu.fetch(logits, |bytes| at += put(&mut out[at..], bytes))?;
            }
            Ok(())
        };
        let ran: Result<(), KernelError> = run();
        ran.map_err(|e| lost(gpu, &e))
    }

    fn chains(
        &mut self,
        rows: &[f32],
        chains: &[Candidates<'_>],
    ) -> Result<Vec<Option<Vec<TokenId>>>, Fault> {
        check_chains(&self.info, rows, chains)?;
        let Some(chain) = &mut self.chain else {
            return Ok(Vec::new());
        };
        let (gpu, tail, scratch) = end(&mut self.stages)?;
        let drawn = chain.draw(gpu, &tail.head, scratch, rows, chains);
        drawn.map_err(|e| lost(gpu, &e))
    }

    fn embed(&mut self, tokens: &[TokenId], out: &mut [f32]) -> Result<(), Fault> {
        embed(&self.model.weights, &self.info, tokens, out)
    }

    fn save(&self, seq: SeqId, to: &mut dyn Write) -> Result<(), Fault> {
        let host = self.pull(seq)?;
        state::save(&host, &self.shape, &self.model.fingerprint, to)
    }

    fn load(&mut self, from: &mut dyn Read) -> Result<SeqId, Fault> {
        let slot = self.free_slot()?;
        let mut host = SeqState::new(&self.shape);
        state::load(&mut host, &self.shape, &self.model.fingerprint, from)?;
        if !mutant(331) {
            self.each(|s| s.state.push(&s.gpu, slot, &mut host))?;
        }
        self.seqs[slot] = Some(host.marks);
        Ok(SeqId(slot as u32))
    }
}
