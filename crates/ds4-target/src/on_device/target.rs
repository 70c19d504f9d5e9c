//! The target: loading, sequences, the pass.

use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Instant;

use device::Device;
use device::cache::Cache;
use device::driver::Driver;
use ds4_kernels::KernelError;
use ds4_kernels::run::Kernels;
use engine_core::mutant::mutant;
use engine_core::seams::{Candidates, Counters, Resident, TargetInfo};
use engine_core::{Fault, Pos, Rows, SeqId, Span, Target, Ticket, TokenId};
use sampling::Sampler;

use super::chain::{Chain, Markov};
use super::clock::Clocked;
use super::counts::clear;
use super::draws::{Answers, Way, put};
use super::gpu::Gpu;
use super::graphs::{Graphs, Shape};
use super::inputs::{Inputs, Part, Sources, Writer};
use super::layers::{KeysFrom, Pass, Streams, Tapped};
use super::products::Input;
use super::retire::TARGET;
use super::scratch::{Scratch, TAPS};
use super::state::State;
use super::upload;
use super::weights::{Plan, Weights};
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

/// The target on a device.
#[derive(Debug)]
pub struct DeviceTarget<R: Driver> {
    pub(super) model: Arc<Model>,
    options: Options,
    info: TargetInfo,
    shape: StateShape,
    ropes: Ropes,
    pub(super) gpu: Gpu<R>,
    pub(super) weights: Weights,
    state: State,
    pub(super) scratch: Scratch,
    pub(super) graphs: Graphs<R>,
    pub(super) chain: Option<Chain<R>>,
    seqs: Vec<Option<Marks>>,
    batch: Batch,
    rows: Rows,
    pub(super) answers: Answers,
    inputs: Vec<u8>,
    in_flight: Option<Ticket>,
    pub(super) passes: u64,
    sampler: Sampler,
}

impl<R: Driver> DeviceTarget<R> {
    /// Plans, allocates and uploads a model. `options.threads` is not used: the host only prepares passes.
    ///
    /// # Errors
    /// `Option`; `NoKernel` and `BadBlocks` with the tensor; `Kernel` for a shape no kernel takes or a device that
    /// fails; `DeviceMemory` with both numbers. Nothing is allocated before the plan is known to fit.
    pub fn new(
        model: Arc<Model>,
        options: Options,
        device: &Device<R>,
        settings: Settings<'_>,
    ) -> Result<Self, LoadError> {
        Self::with_chains(model, options, None, device, settings)
    }

    /// [`Self::new`] with the matrices of a drafter's chains beside the model's weights, so that they are drawn here.
    ///
    /// # Errors
    /// As [`Self::new`]; also `Option` for matrices of another vocabulary.
    pub fn with_chains(
        model: Arc<Model>,
        options: Options,
        markov: Option<Markov<'_>>,
        device: &Device<R>,
        settings: Settings<'_>,
    ) -> Result<Self, LoadError> {
        options.check(&model.meta)?;
        let m = &model.meta;
        let (mut plan, weights) = Plan::of(m, &model.weights)?;
        let shape = StateShape::new(m, options.n_ctx, options.verify_max, options.kv_sim);
        let state = State::new(&shape, options.n_seq_max, options.span_max)?;
        let mut scratch = Scratch::new(m, &options)?;
        let chain = |markov| Chain::new(m, markov, &mut plan, &mut scratch, settings.graph_tokens);
        let chain = markov.map(chain).transpose()?;
        let mut gpu = Gpu::new(Kernels::new(device, settings.cache))?;
        for n in [1, scratch.sizes.tokens] {
            try_shapes(&mut gpu, m, &options, &weights, &state, &scratch, n)?;
        }
        if let Some(chain) = &chain {
            chain.try_shapes(&mut gpu, &weights.head, &scratch)?;
        }
        fits(device, &plan, &state, &scratch)?;
        gpu.compile()?;
        let layouts = [&plan.layout, &state.layout, &scratch.layout];
        gpu.allocate(layouts, scratch.staging())?;
        upload::run(&mut gpu, &plan, settings.check, settings.progress)?;
        clear(&gpu, &scratch)?;
        drop(plan);
        Ok(Self {
            info: options.info(&model),
            ropes: Ropes::new(m),
            sampler: Sampler::new(m.n_vocab),
            seqs: vec![None; options.n_seq_max],
            graphs: Graphs::new(settings.graph_tokens),
            shape,
            chain,
            gpu,
            weights,
            state,
            scratch,
            batch: Batch::default(),
            rows: Rows::default(),
            answers: Answers::new(model.meta.n_vocab),
            inputs: Vec::new(),
            in_flight: None,
            passes: 0,
            options,
            model,
        })
    }

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
        self.gpu.start_clock().map_err(|e| self.lost(&e))
    }

    /// Ends the timing: what launches took since [`Self::clock`], by kernel and grid, the longest first; nothing if
    /// it was not begun.
    ///
    /// # Errors
    /// `Lost`.
    pub fn clocked(&mut self) -> Result<Vec<Clocked>, Fault> {
        self.gpu.read_clock().map_err(|e| self.lost(&e))
    }

    /// Fills everything that is not state of an open sequence with NaN patterns; for tests. Open sequences lose
    /// their rows.
    ///
    /// # Errors
    /// `Lost`.
    pub fn poison(&mut self) -> Result<(), Fault> {
        let poisoned = self.gpu.poison();
        poisoned
            .and_then(|()| clear(&self.gpu, &self.scratch))
            .map_err(|e| self.lost(&e))
    }

    /// Fills all rows of a sequence that are not state with NaN patterns; for tests.
    ///
    /// # Errors
    /// `NoSuchSequence`, `Lost`.
    pub fn poison_stale(&mut self, seq: SeqId) -> Result<(), Fault> {
        let mut host = self.pull(seq)?;
        let at = seq.index();
        self.state
            .fill(&self.gpu, at, 0xff)
            .and_then(|()| self.state.push(&self.gpu, at, &mut host))
            .map_err(|e| self.lost(&e))
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
        let pulled = self.state.pull(&self.gpu, seq.index(), &mut host);
        pulled.map_err(|e| self.lost(&e))?;
        Ok(host)
    }

    pub(super) fn lost(&self, why: &KernelError) -> Fault {
        Fault::Lost {
            what: self.gpu.device().id().to_string(),
            why: why.to_string(),
        }
    }

    /// Runs the checked batch, part by part; logits of all wanted rows, features of all spans.
    fn run(&mut self, spans: &[Span]) -> Result<(), KernelError> {
        let batch = &self.batch;
        let pos = |row: usize| batch.pos[batch.out[row]];
        self.answers.clear();
        self.answers.draws.look(spans, &self.rows.span_rows, pos);
        for part in Part::of(&self.batch, self.scratch.sizes.tokens) {
            self.run_part(spans, &part)?;
        }
        Ok(())
    }

    fn run_part(&mut self, spans: &[Span], part: &Part) -> Result<(), KernelError> {
        let m = &self.model.meta;
        let inputs = Inputs::new(self.scratch.inputs, m, part.tokens.len());
        let sources = Sources {
            meta: m,
            ropes: &self.ropes,
            state: &self.state,
            batch: &self.batch,
            draws: &self.answers.draws,
        };
        Writer::fill(&inputs, &mut self.inputs, &sources, part);
        self.gpu.write(&self.inputs, inputs.block)?;
        let tapped = self.tapped(spans, part);
        let (n, rows) = (part.tokens.len(), part.out.len());
        let most = self.scratch.sizes.head;
        let short = self.graphs.take(n) && rows <= most;
        let graph = short && self.gpu.clock.is_none();
        let pos = &self.batch.pos[part.tokens.clone()];
        let bound = match short {
            // A captured launch serves every position; a timed one has its grid.
            true => self.options.n_ctx,
            false => pos.iter().max().map_or(1, |p| *p as usize + 1),
        };
        let way = self.answers.draws.way(part.out.clone());
        let stream = Arc::clone(&self.gpu.stream);
        let mut pass = Pass {
            gpu: &mut self.gpu,
            meta: m,
            state: &self.state,
            scratch: &self.scratch,
            inputs: &inputs,
            bound,
            kv_sim: self.options.kv_sim,
            streams: Streams::default(),
            lists: KeysFrom::Positions(Vec::new()),
        };
        if graph {
            let shape = Shape::new(n, rows, way, &tapped);
            let replayed = self.graphs.run(shape, &stream, || {
                let before = pass.gpu.read;
                pass.layers(&self.weights, &tapped)?;
                pass.head(&self.weights, 0, rows, way)?;
                Ok(pass.gpu.read - before)
            })?;
            pass.gpu.read += replayed;
        } else {
            pass.layers(&self.weights, &tapped)?;
        }
        for first in (0..rows).step_by(most) {
            let n = most.min(rows - first);
            if !graph {
                pass.head(&self.weights, first, n, way)?;
            }
            let row = part.out.start + first;
            self.answers.collect(pass.gpu, &self.scratch, row, n, way)?;
        }
        let features = part
            .pieces
            .clone()
            .filter(|i| !spans[*i].tap.layers.is_empty());
        for (i, tap) in features.zip(&tapped) {
            let to = self.rows.span_features[i].clone();
            let (to, mut at) = (&mut self.rows.features[to], 0);
            self.gpu
                .fetch(tap.out, |bytes| at += put(&mut to[at..], bytes))?;
        }
        Ok(())
    }

    /// Where the features of a part's spans go: a part's tokens with all the layers a span may tap have room.
    fn tapped(&self, spans: &[Span], part: &Part) -> Vec<Tapped> {
        let mut tapped = Vec::new();
        let mut at = 0;
        for i in part.pieces.clone() {
            let (piece, layers) = (&self.batch.pieces[i], &spans[i].tap.layers);
            if layers.is_empty() {
                continue;
            }
            let first = piece.at - part.tokens.start;
            let bytes = (piece.len * layers.len() * self.info.n_embd * 4) as u64;
            tapped.push(Tapped {
                tokens: first..first + piece.len,
                out: self.scratch.features.part(at, bytes),
                layers: layers.iter().map(|l| l.index()).collect(),
            });
            at += bytes;
        }
        tapped
    }
}

/// Checks every launch of a pass of `n` tokens at the end of the context, without making any.
fn try_shapes<R: Driver>(
    gpu: &mut Gpu<R>,
    m: &crate::meta::Ds4Meta,
    options: &Options,
    weights: &Weights,
    state: &State,
    scratch: &Scratch,
    n: usize,
) -> Result<(), KernelError> {
    let inputs = Inputs::new(scratch.inputs, m, n);
    let mut pass = Pass {
        gpu,
        meta: m,
        state,
        scratch,
        inputs: &inputs,
        bound: options.n_ctx,
        kv_sim: options.kv_sim,
        streams: Streams::default(),
        lists: KeysFrom::Positions(Vec::new()),
    };
    pass.layers(weights, &[])?;
    let rows = n.min(scratch.sizes.head);
    pass.head(weights, 0, rows, Way::Plain)?;
    pass.head(weights, 0, rows, Way::Filtered)
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
            fallbacks: counts.host_draws + counts.host_chains,
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
        let drafts = self.chain.as_ref().map_or(0, |c| c.graphs.built());
        self.gpu.residents(&TARGET, self.graphs.built() + drafts)
    }

    fn retire(self: Box<Self>) -> Vec<Resident> {
        let Self {
            gpu, graphs, chain, ..
        } = *self;
        let drafts = chain.into_iter().flat_map(|c| c.graphs.into_graphs());
        let graphs = graphs.into_graphs().chain(drafts).collect();
        gpu.retire(&TARGET, graphs)
    }

    fn open(&mut self) -> Result<SeqId, Fault> {
        let slot = self.free_slot()?;
        self.seqs[slot] = Some(Marks::default());
        Ok(SeqId(slot as u32))
    }

    fn fork(&mut self, seq: SeqId) -> Result<SeqId, Fault> {
        let pos = self.marks(seq)?.pos;
        let slot = self.free_slot()?;
        let forked = self.state.fork(&self.gpu, seq.index(), slot, pos as usize);
        forked.map_err(|e| self.lost(&e))?;
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
        self.run(spans).map_err(|e| self.lost(&e))?;
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
        let (d, v, s) = (self.info.n_embd, self.info.n_vocab, &self.scratch);
        let mut at = 0;
        let mut run = || {
            for part in rows.chunks(s.sizes.head * d) {
                let mut hidden = Input::new(s.hidden, part.len() / d);
                self.gpu.write(bytemuck::cast_slice(part), hidden.rows.x)?;
                let logits = s.out.rows(0, hidden.n, 4 * v);
                self.gpu.product(&self.weights.head, &mut hidden, s.out)?;
                self.gpu
                    .fetch(logits, |bytes| at += put(&mut out[at..], bytes))?;
            }
            Ok(())
        };
        let ran: Result<(), KernelError> = run();
        ran.map_err(|e| self.lost(&e))
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
        let (head, scratch) = (&self.weights.head, &self.scratch);
        let drawn = chain.draw(&mut self.gpu, head, scratch, rows, chains);
        drawn.map_err(|e| self.lost(&e))
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
            let pushed = self.state.push(&self.gpu, slot, &mut host);
            pushed.map_err(|e| self.lost(&e))?;
        }
        self.seqs[slot] = Some(host.marks);
        Ok(SeqId(slot as u32))
    }
}
