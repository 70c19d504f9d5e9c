//! The target on the CPU: the `Target` seam over layers, pool and state.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use engine_core::seams::{Resident, TargetInfo};
use engine_core::{Fault, Pos, Rows, SeqId, Span, Target, Ticket, TokenId};
use fpx_quant::{A8Rows, Out};
use sampling::Sampler;

use crate::batch::Batch;
use crate::error::LoadError;
use crate::fingerprint;
use crate::layers::{Ctx, Ropes, Scratch, attention, hc, moe};
use crate::linear::{Counters, Input, Job, run};
use crate::made;
use crate::meta::{Ds4Meta, Ratio};
use crate::pool::Pool;
use crate::profile::Family;
use crate::source::Source;
use crate::state::{self, SeqState, StateShape};
use crate::weights::Weights;

mod options;
pub(crate) mod rows;

pub use options::Options;
use rows::{Given, check_head, deliver, embed, embed_streams, lay_out, refuse, tap};

/// A loaded model, shared by targets.
#[derive(Clone)]
pub struct Model {
    /// Hyper-parameters.
    pub meta: Ds4Meta,
    /// Bound weights.
    pub weights: Weights,
    /// Digest of hyper-parameters, tensor table and samples of every tensor.
    pub fingerprint: [u8; 32],
}

/// Names the model instead of printing its vectors.
impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Model({} layers, {} tensors)",
            self.meta.n_layer, self.weights.n_tensors
        )
    }
}

impl Model {
    /// Reads and binds a model. Nothing is computed; mapped tensors are touched at their ends only.
    ///
    /// # Errors
    /// Any [`LoadError`].
    pub fn load(source: &dyn Source) -> Result<Self, LoadError> {
        let meta = Ds4Meta::read(source)?;
        let weights = Weights::bind(source, &meta)?;
        let fingerprint = fingerprint::of_target(source, &meta);
        Ok(Self {
            meta,
            weights,
            fingerprint,
        })
    }
}

/// The CPU target.
pub struct CpuTarget {
    model: Arc<Model>,
    options: Options,
    info: TargetInfo,
    shape: StateShape,
    ropes: Ropes,
    pool: Arc<Pool>,
    counters: Counters,
    seqs: Vec<Option<SeqState>>,
    /// Closed sequences, kept to be reused: a reset is two words.
    spare: Vec<SeqState>,
    batch: Batch,
    scratch: Scratch,
    rows: Rows,
    in_flight: Option<Ticket>,
    tickets: u64,
    head_a8: A8Rows,
    sampler: Sampler,
}

impl std::fmt::Debug for CpuTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CpuTarget({:?}, {:?})", self.model, self.options)
    }
}

impl CpuTarget {
    /// A target over a loaded model.
    ///
    /// # Errors
    /// `Option` if the options do not fit the model.
    pub fn new(model: Arc<Model>, options: Options) -> Result<Self, LoadError> {
        options.check(&model.meta)?;
        made::make(&model.weights)?;
        let m = &model.meta;
        let shape = StateShape::new(m, options.n_ctx, options.verify_max, options.kv_sim);
        let info = options.info(&model);
        Ok(Self {
            ropes: Ropes::new(m),
            pool: Arc::new(Pool::new(options.threads)),
            counters: Counters::default(),
            seqs: vec![None; options.n_seq_max],
            spare: Vec::new(),
            batch: Batch::default(),
            scratch: Scratch::default(),
            rows: Rows::default(),
            in_flight: None,
            tickets: 0,
            head_a8: A8Rows::default(),
            sampler: Sampler::new(m.n_vocab),
            model,
            options,
            info,
            shape,
        })
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }

    /// Its threads, to be shared by a drafter that runs when the target does not.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// How it runs.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Bytes of weights that products have read since the start.
    #[must_use]
    pub fn weight_bytes_read(&self) -> u64 {
        self.counters.weight_bytes.load(Ordering::Relaxed)
    }

    /// Nanoseconds of passes by family since the start; all 0 without the feature `profile`.
    #[must_use]
    pub fn profile(&self) -> [(Family, u64); Family::ALL.len()] {
        let nanos = self.counters.laps.nanos();
        std::array::from_fn(|i| (Family::ALL[i], nanos[i]))
    }

    /// Fills all rows of a sequence that are not state with NaN patterns; for tests.
    ///
    /// # Errors
    /// `NoSuchSequence`, `Io`.
    pub fn poison_stale(&mut self, seq: SeqId) -> Result<(), Fault> {
        let mut saved = Vec::new();
        self.save(seq, &mut saved)?;
        let state = self.seqs[seq.index()]
            .as_mut()
            .ok_or(Fault::NoSuchSequence(seq))?;
        state.poison();
        state::load(
            state,
            &self.shape,
            &self.model.fingerprint,
            &mut saved.as_slice(),
        )
    }

    /// The digest of a sequence's saved rows: its state hash.
    ///
    /// # Errors
    /// `NoSuchSequence`.
    pub fn digest(&self, seq: SeqId) -> Result<[u8; 32], Fault> {
        let mut hash = blake3::Hasher::new();
        self.save(seq, &mut hash)?;
        Ok(*hash.finalize().as_bytes())
    }

    fn state(&self, seq: SeqId) -> Result<&SeqState, Fault> {
        self.seqs
            .get(seq.index())
            .and_then(Option::as_ref)
            .ok_or(Fault::NoSuchSequence(seq))
    }

    fn free_slot(&self) -> Result<usize, Fault> {
        self.seqs
            .iter()
            .position(Option::is_none)
            .ok_or(Fault::Exhausted {
                what: "sequences",
                wanted: self.options.n_seq_max as u64 + 1,
                limit: self.options.n_seq_max as u64,
            })
    }

    fn fresh(&mut self) -> SeqState {
        self.spare
            .pop()
            .unwrap_or_else(|| SeqState::new(&self.shape))
    }

    /// Runs the layers over the batch; leaves the streams in the scratch.
    fn run_layers(&mut self, spans: &[Span]) {
        let Self {
            model,
            pool,
            counters,
            ropes,
            seqs,
            batch,
            scratch,
            rows,
            options,
            ..
        } = self;
        let ctx = Ctx {
            pool,
            meta: &model.meta,
            counters,
            kv_sim: options.kv_sim,
            ropes,
        };
        let d = model.meta.n_embd;
        counters.laps.begin();
        scratch.begin(&ctx, &batch.pos);
        embed_streams(&ctx, &model.weights, batch, &mut scratch.x);
        ctx.lap(Family::Embedding);
        for (at, layer) in model.weights.layers.iter().enumerate() {
            let s = &mut *scratch;
            hc::pre(&ctx, &layer.hc_attn, &layer.attn.norm, s.site());
            let angles = match layer.ratio {
                Ratio::None => &s.angles_window,
                _ => &s.angles_compressed,
            };
            let (h, a8, block) = (&s.h, &mut s.a8, &mut s.block);
            let (attn, keys) = (&mut s.attn, &mut s.keys);
            attention::forward(
                &ctx, at, layer, batch, angles, seqs, h, a8, attn, keys, block,
            );
            hc::post(&ctx, &mut s.x, block, &s.mix);
            hc::pre(&ctx, &layer.hc_ffn, &layer.moe.norm, s.site());
            let (h, a8, block) = (&s.h, &mut s.a8, &mut s.block);
            let (w, tokens) = (&layer.moe, &batch.tokens);
            moe::forward(&ctx, w, tokens, h, a8, &mut s.moe, &mut s.routes, block);
            hc::post(&ctx, &mut s.x, block, &s.mix);
            tap(batch, spans, at, &s.x, d, rows);
        }
    }

    /// Final hidden states of the rows asked for, then logits or ids.
    fn run_head(&mut self, spans: &[Span]) {
        let Self {
            model,
            pool,
            counters,
            ropes,
            batch,
            scratch,
            rows,
            options,
            head_a8,
            sampler,
            ..
        } = self;
        let ctx = Ctx {
            pool,
            meta: &model.meta,
            counters,
            kv_sim: options.kv_sim,
            ropes,
        };
        let (d, n_vocab) = (model.meta.n_embd, model.meta.n_vocab);
        let n = batch.out.len();
        if n == 0 {
            return;
        }
        // `u` and `h` are free now: gather the streams of the wanted tokens beside each other.
        scratch.gathered.resize(n * 4 * d, 0.0);
        for (i, token) in batch.out.iter().enumerate() {
            let from = &scratch.x[token * 4 * d..][..4 * d];
            scratch.gathered[i * 4 * d..][..4 * d].copy_from_slice(from);
        }
        scratch.hidden.resize(n * d, 0.0);
        let w = &model.weights;
        let (x, merged) = (&scratch.gathered, &mut scratch.merged);
        merged.resize(n * d, 0.0);
        hc::merge(&ctx, &w.hc_head, x, &mut scratch.m, head_a8, merged);
        for (row, out) in merged
            .chunks_exact(d)
            .zip(scratch.hidden.chunks_exact_mut(d))
        {
            ds4_kernels::cpu::rms_norm(row, &w.output_norm, model.meta.rms_eps, out);
        }
        scratch.logits.resize(n * n_vocab, 0.0);
        let input = Input::new(pool, &scratch.hidden, n, d, head_a8, &[&w.head]);
        let out = Out::new(&mut scratch.logits, n, n_vocab);
        run(
            pool,
            counters,
            &[Job::new(pool, w.head.matrix(), &input, 0..n, out)],
        );
        let pos = |row: usize| batch.pos[batch.out[row]];
        let given = |row: usize| Given::Logits(&scratch.logits[row * n_vocab..][..n_vocab]);
        deliver(spans, pos, given, sampler, rows);
        ctx.lap(Family::Head);
    }
}

impl Target for CpuTarget {
    fn info(&self) -> &TargetInfo {
        &self.info
    }

    fn counters(&self) -> Option<engine_core::seams::Counters> {
        Some(engine_core::seams::Counters {
            weight_bytes: Some(self.weight_bytes_read()),
            launches: self.counters.products.load(Ordering::Relaxed),
            // Vector instructions are chosen at the start, and refused there: no pass chooses anew.
            fallbacks: 0,
            stalls: self.pool.stalls(),
        })
    }

    /// Weights are those of the files they were bound from, which the target does not know.
    fn residents(&self) -> Vec<Resident> {
        let made = self.spare.len() + self.seqs.iter().flatten().count();
        let bytes = made as u64 * self.shape.bytes().iter().sum::<u64>();
        let caches = Resident::new("target caches", "host", bytes);
        let scratch = Resident::uncounted("target scratch", "host");
        vec![
            caches.noted("reserved for whole contexts; pages that were never written take none"),
            scratch.noted("grows with the longest pass"),
        ]
    }

    fn open(&mut self) -> Result<SeqId, Fault> {
        let slot = self.free_slot()?;
        let mut state = self.fresh();
        state.reset();
        self.seqs[slot] = Some(state);
        Ok(SeqId(slot as u32))
    }

    fn fork(&mut self, seq: SeqId) -> Result<SeqId, Fault> {
        let copy = self.state(seq)?.clone();
        let slot = self.free_slot()?;
        self.seqs[slot] = Some(copy);
        Ok(SeqId(slot as u32))
    }

    fn close(&mut self, seq: SeqId) {
        if let Some(state) = self.seqs.get_mut(seq.index()).and_then(Option::take) {
            self.spare.push(state);
        }
    }

    fn pos(&self, seq: SeqId) -> Option<Pos> {
        self.state(seq).ok().map(|s| s.marks.pos)
    }

    fn submit(&mut self, tokens: &[TokenId], spans: &[Span]) -> Result<Ticket, Fault> {
        let seqs = &self.seqs;
        let stands = |seq: SeqId| {
            let state = seqs.get(seq.index())?.as_ref()?;
            Some((seq.index(), state.marks.pos))
        };
        self.batch.build(tokens, spans, &self.info, stands)?;
        refuse(spans, self.info.n_layer)?;
        lay_out(&mut self.rows, spans, self.info.n_vocab, self.info.n_embd);
        self.run_layers(spans);
        self.run_head(spans);
        for piece in &self.batch.pieces {
            if let Some(state) = self.seqs[piece.slot].as_mut() {
                let end = piece.pos + piece.len;
                state.marks.ran(end, self.options.verify_max);
            }
        }
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
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
        if let Some(state) = self.seqs.get_mut(seq.index()).and_then(Option::as_mut) {
            state.marks.commit(pos);
        }
    }

    fn head(&mut self, rows: &[f32], out: &mut [f32]) -> Result<(), Fault> {
        let (d, v) = (self.info.n_embd, self.info.n_vocab);
        let n = check_head(&self.info, rows, out)?;
        let w = &self.model.weights.head;
        let input = Input::new(&self.pool, rows, n, d, &mut self.head_a8, &[w]);
        let out = Out::new(out, n, v);
        run(
            &self.pool,
            &self.counters,
            &[Job::new(&self.pool, w.matrix(), &input, 0..n, out)],
        );
        Ok(())
    }

    fn embed(&mut self, tokens: &[TokenId], out: &mut [f32]) -> Result<(), Fault> {
        embed(&self.model.weights, &self.info, tokens, out)
    }

    fn save(&self, seq: SeqId, to: &mut dyn Write) -> Result<(), Fault> {
        state::save(self.state(seq)?, &self.shape, &self.model.fingerprint, to)
    }

    fn load(&mut self, from: &mut dyn Read) -> Result<SeqId, Fault> {
        let slot = self.free_slot()?;
        let mut state = self.fresh();
        match state::load(&mut state, &self.shape, &self.model.fingerprint, from) {
            Ok(()) => {
                self.seqs[slot] = Some(state);
                Ok(SeqId(slot as u32))
            }
            Err(e) => {
                self.spare.push(state);
                Err(e)
            }
        }
    }
}
