//! A target without weights: what it says is scripted, what it is asked is recorded, and it can be
//! told to fail or to wait. For tests of everything above the target: scheduler, library, server.
//!
//! It keeps the rules of the seam as strictly as a real target: positions, ranges, slots, and that a
//! commit lies within the last span.

use std::io::{Read, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use engine_core::seams::{Counters, Resident, TargetInfo};
use engine_core::{
    Fault, NumericClass, Out, Pos, Rows, SeqId, Span, Target, Ticket, TokenId, Want,
};
use sampling::Sampler;

/// Longest wait for something that a test expects to happen: far beyond any, so that a test that
/// would hang fails instead.
const PATIENCE: Duration = Duration::from_secs(60);

/// Logits after the tokens so far, the row's own included.
type Script = Box<dyn FnMut(&[TokenId]) -> Vec<f32> + Send>;

/// What a planned fault does.
enum Planned {
    Fault(Fault),
    Panic,
}

/// A scripted target.
pub struct FakeTarget {
    info: TargetInfo,
    script: Script,
    planned: Vec<(u64, Planned)>,
    seqs: Vec<Option<Sequence>>,
    rows: Rows,
    passes: u64,
    in_flight: Option<Ticket>,
    watch: Arc<Watch>,
    sampler: Sampler,
    counts: bool,
    counted: Counters,
}

impl std::fmt::Debug for FakeTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FakeTarget({} passes)", self.passes)
    }
}

#[derive(Clone, Debug, Default)]
struct Sequence {
    /// Committed tokens, then those of the last span.
    tokens: Vec<TokenId>,
    committed: usize,
}

/// A span as the target saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenSpan {
    /// The sequence.
    pub seq: SeqId,
    /// Position of the first token.
    pub pos: Pos,
    /// The tokens.
    pub tokens: Vec<TokenId>,
    /// Rows asked for.
    pub out: Out,
    /// Whether the target draws.
    pub draws: bool,
}

/// What happened to a fake target, for a test on another thread.
#[derive(Debug, Default)]
pub struct Watch {
    state: Mutex<Watched>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Watched {
    passes: Vec<Vec<SeenSpan>>,
    open: usize,
    opened: u64,
    /// Passes that may run; `None`: all.
    permits: Option<u64>,
}

impl Watch {
    fn lock(&self) -> MutexGuard<'_, Watched> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All passes so far, also refused ones and one that waits at the gate.
    #[must_use]
    pub fn passes(&self) -> Vec<Vec<SeenSpan>> {
        self.lock().passes.clone()
    }

    /// Sequences open now.
    #[must_use]
    pub fn open(&self) -> usize {
        self.lock().open
    }

    /// Sequences opened so far.
    #[must_use]
    pub fn opened(&self) -> u64 {
        self.lock().opened
    }

    /// Lets `n` more passes through the gate.
    pub fn allow(&self, n: u64) {
        let mut state = self.lock();
        state.permits = state.permits.map(|p| p + n);
        self.changed.notify_all();
    }

    /// Removes the gate.
    pub fn release(&self) {
        self.lock().permits = None;
        self.changed.notify_all();
    }

    /// Waits until `n` passes in all have been submitted.
    ///
    /// # Panics
    /// If they do not come.
    pub fn await_passes(&self, n: usize) {
        self.wait(|s| s.passes.len() >= n, "passes");
    }

    fn wait(&self, done: impl Fn(&Watched) -> bool, what: &str) {
        let end = Instant::now() + PATIENCE;
        let mut state = self.lock();
        while !done(&state) {
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "waited in vain for {what}: {state:?}");
            let woken = self.changed.wait_timeout(state, left);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn begin_pass(&self, spans: Vec<SeenSpan>) {
        self.lock().passes.push(spans);
        self.changed.notify_all();
        self.wait(|s| s.permits != Some(0), "the gate");
        let mut state = self.lock();
        state.permits = state.permits.map(|p| p - 1);
    }

    fn count(&self, opened: u64, open: usize) {
        let mut state = self.lock();
        state.opened += opened;
        state.open = open;
        self.changed.notify_all();
    }
}

impl FakeTarget {
    /// Bytes that it says it takes.
    pub const BYTES: u64 = 7;

    /// A target that counts: after token t comes t + 1, modulo the vocabulary.
    #[must_use]
    pub fn new(n_vocab: usize, n_ctx: u64, n_seq_max: usize) -> Self {
        let info = TargetInfo {
            n_vocab,
            n_embd: 2,
            n_layer: 3,
            n_ctx,
            n_seq_max,
            verify_max: 8,
            span_max: 512,
            class: NumericClass::Equal,
            fingerprint: [7; 32],
        };
        let this = Self {
            info,
            script: Box::new(|_| Vec::new()),
            planned: Vec::new(),
            seqs: vec![None; n_seq_max],
            rows: Rows::default(),
            passes: 0,
            in_flight: None,
            watch: Arc::default(),
            sampler: Sampler::new(n_vocab),
            counts: true,
            counted: Counters::default(),
        };
        this.saying(move |tokens| {
            let last = tokens.last().copied().unwrap_or(0);
            (last + 1) % n_vocab as TokenId
        })
    }

    /// Says the token `next` gives for the tokens so far.
    #[must_use]
    pub fn saying(self, mut next: impl FnMut(&[TokenId]) -> TokenId + Send + 'static) -> Self {
        let n_vocab = self.info.n_vocab;
        self.with_logits(move |tokens| {
            let mut row = vec![0.0; n_vocab];
            row[next(tokens) as usize] = 100.0;
            row
        })
    }

    /// Says these tokens after any prompt that ends with `after`, then `end` for ever.
    #[must_use]
    pub fn reciting(self, after: TokenId, text: Vec<TokenId>, end: TokenId) -> Self {
        self.saying(move |tokens| {
            let from = tokens.iter().position(|t| *t == after);
            let said = from.map_or(0, |at| tokens.len() - at - 1);
            text.get(said).copied().unwrap_or(end)
        })
    }

    /// Gives these logits, `[n_vocab]`, for the tokens so far.
    #[must_use]
    pub fn with_logits(
        mut self,
        script: impl FnMut(&[TokenId]) -> Vec<f32> + Send + 'static,
    ) -> Self {
        self.script = Box::new(script);
        self
    }

    /// Other shapes.
    #[must_use]
    pub fn with_info(mut self, change: impl FnOnce(&mut TargetInfo)) -> Self {
        change(&mut self.info);
        self
    }

    /// A target that counts nothing. Otherwise a pass that ran is one launch that reads
    /// [`Self::PASS_BYTES`].
    #[must_use]
    pub fn without_counters(mut self) -> Self {
        self.counts = false;
        self
    }

    /// Bytes that a pass says it read.
    pub const PASS_BYTES: u64 = 1000;

    /// Refuses pass `nth`, counted from 1.
    #[must_use]
    pub fn failing_at(mut self, nth: u64, fault: Fault) -> Self {
        self.planned.push((nth, Planned::Fault(fault)));
        self
    }

    /// Panics in pass `nth`, counted from 1.
    #[must_use]
    pub fn panicking_at(mut self, nth: u64) -> Self {
        self.planned.push((nth, Planned::Panic));
        self
    }

    /// Lets no pass through until the watch allows it.
    #[must_use]
    pub fn gated(self) -> Self {
        self.watch.lock().permits = Some(0);
        self
    }

    /// What happens to this target.
    #[must_use]
    pub fn watch(&self) -> Arc<Watch> {
        Arc::clone(&self.watch)
    }

    fn open_count(&self) -> usize {
        self.seqs.iter().flatten().count()
    }

    fn place(&mut self, sequence: Sequence) -> Result<SeqId, Fault> {
        let free = self.seqs.iter().position(Option::is_none);
        let Some(slot) = free else {
            return Err(Fault::Exhausted {
                what: "sequences",
                wanted: self.seqs.len() as u64 + 1,
                limit: self.seqs.len() as u64,
            });
        };
        self.seqs[slot] = Some(sequence);
        self.watch.count(1, self.open_count());
        Ok(SeqId(slot as u32))
    }

    fn get(&self, seq: SeqId) -> Result<&Sequence, Fault> {
        let found = self.seqs.get(seq.index()).and_then(Option::as_ref);
        found.ok_or(Fault::NoSuchSequence(seq))
    }

    fn check(&self, tokens: &[TokenId], spans: &[Span]) -> Result<(), Fault> {
        let n_vocab = self.info.n_vocab;
        for (index, span) in spans.iter().enumerate() {
            let seq = span.seq;
            let expected = self.get(seq)?.committed as Pos;
            if spans[..index].iter().any(|s| s.seq == seq) {
                return Err(Fault::DuplicateSpan(seq));
            }
            if span.pos != expected {
                let got = span.pos;
                return Err(Fault::WrongPosition { seq, expected, got });
            }
            let (start, end, len) = (span.range.start, span.range.end, tokens.len());
            if start >= end || end > len || end - start > self.info.span_max {
                return Err(Fault::BadRange {
                    seq,
                    start,
                    end,
                    len,
                });
            }
            let wanted = u64::from(span.pos) + (end - start) as u64;
            let limit = self.info.n_ctx;
            if wanted > limit {
                return Err(Fault::ContextFull { seq, wanted, limit });
            }
            let bad = (start..end).find(|i| tokens[*i] as usize >= n_vocab);
            if let Some(index) = bad {
                let token = tokens[index];
                return Err(Fault::BadToken {
                    token,
                    index,
                    n_vocab,
                });
            }
        }
        Ok(())
    }

    fn fill(&mut self, tokens: &[TokenId], span: &Span) -> Result<(), Fault> {
        let first_row = self.rows.ids.len();
        let features = self.rows.features.len();
        for (i, at) in span.range.clone().enumerate() {
            let sequence = self.seqs[span.seq.index()].as_mut();
            let sequence = sequence.ok_or(Fault::NoSuchSequence(span.seq))?;
            sequence.tokens.push(tokens[at]);
            for layer in span.tap.layers.iter() {
                let feature = [tokens[at] as f32, layer.0 as f32];
                self.rows.features.extend_from_slice(&feature);
            }
            let last = i + 1 == span.range.len();
            if span.out == Out::None || (span.out == Out::Last && !last) {
                continue;
            }
            let logits = (self.script)(&sequence.tokens);
            assert_eq!(logits.len(), self.info.n_vocab, "the script's row");
            let wants_logits = !matches!(span.want, Want::Ids(_));
            let row = self.rows.logits.len() / self.info.n_vocab;
            self.rows.logit_row.push(wants_logits.then_some(row));
            self.rows.ids.push(match &span.want {
                Want::Logits => TokenId::MAX,
                Want::Ids(plan) | Want::Both(plan) => {
                    let pos = span.pos + i as Pos + 1;
                    // As a target must: no token where a row has none, and the pass goes on.
                    let sound = !logits.iter().any(|l| l.is_nan());
                    let drawn = sound.then(|| self.sampler.draw(plan, &logits, pos, &[]));
                    drawn.and_then(Result::ok).unwrap_or(TokenId::MAX)
                }
            });
            if wants_logits {
                self.rows.logits.extend(logits);
            }
        }
        let rows = first_row..self.rows.ids.len();
        self.rows.span_rows.push(rows);
        let features = features..self.rows.features.len();
        self.rows.span_features.push(features);
        Ok(())
    }
}

impl Target for FakeTarget {
    fn info(&self) -> &TargetInfo {
        &self.info
    }

    fn counters(&self) -> Option<Counters> {
        self.counts.then_some(self.counted)
    }

    fn residents(&self) -> Vec<Resident> {
        vec![Resident::new("target caches", "fake", Self::BYTES)]
    }

    fn open(&mut self) -> Result<SeqId, Fault> {
        self.place(Sequence::default())
    }

    fn fork(&mut self, seq: SeqId) -> Result<SeqId, Fault> {
        let mut copy = self.get(seq)?.clone();
        copy.tokens.truncate(copy.committed);
        self.place(copy)
    }

    fn close(&mut self, seq: SeqId) {
        if let Some(slot) = self.seqs.get_mut(seq.index()) {
            *slot = None;
        }
        self.watch.count(0, self.open_count());
    }

    fn pos(&self, seq: SeqId) -> Option<Pos> {
        self.get(seq).ok().map(|s| s.committed as Pos)
    }

    fn submit(&mut self, tokens: &[TokenId], spans: &[Span]) -> Result<Ticket, Fault> {
        let seen = |span: &Span| SeenSpan {
            seq: span.seq,
            pos: span.pos,
            tokens: tokens[span.range.clone()].to_vec(),
            out: span.out,
            draws: !matches!(span.want, Want::Logits),
        };
        self.passes += 1;
        self.watch.begin_pass(spans.iter().map(seen).collect());
        let nth = self.passes;
        if let Some(at) = self.planned.iter().position(|(n, _)| *n == nth) {
            match self.planned.remove(at).1 {
                Planned::Fault(fault) => return Err(fault),
                Planned::Panic => panic!("planned panic in pass {nth}"),
            }
        }
        self.check(tokens, spans)?;
        self.rows.clear(self.info.n_vocab);
        for span in spans {
            self.fill(tokens, span)?;
        }
        self.counted.launches += 1;
        *self.counted.weight_bytes.get_or_insert(0) += Self::PASS_BYTES;
        let ticket = Ticket(nth);
        self.in_flight = Some(ticket);
        Ok(ticket)
    }

    fn wait(&mut self, ticket: Ticket, _deadline: Option<Instant>) -> Result<&Rows, Fault> {
        match self.in_flight.take() {
            Some(t) if t == ticket => Ok(&self.rows),
            _ => Err(Fault::NoSuchTicket(ticket.0)),
        }
    }

    fn commit(&mut self, seq: SeqId, pos: Pos) {
        let found = self.seqs.get_mut(seq.index()).and_then(Option::as_mut);
        let Some(sequence) = found else { return };
        let (pos, end) = (pos as usize, sequence.tokens.len());
        let low = sequence
            .committed
            .max(end.saturating_sub(self.info.verify_max));
        assert!((low..=end).contains(&pos), "commit {pos} of {low}..={end}");
        sequence.tokens.truncate(pos);
        sequence.committed = pos;
    }

    fn head(&mut self, _rows: &[f32], _out: &mut [f32]) -> Result<(), Fault> {
        Err(Fault::Unsupported("head"))
    }

    fn embed(&mut self, _tokens: &[TokenId], _out: &mut [f32]) -> Result<(), Fault> {
        Err(Fault::Unsupported("embed"))
    }

    fn save(&self, seq: SeqId, to: &mut dyn Write) -> Result<(), Fault> {
        let sequence = self.get(seq)?;
        for token in &sequence.tokens[..sequence.committed] {
            to.write_all(&token.to_le_bytes())?;
        }
        Ok(())
    }

    fn load(&mut self, from: &mut dyn Read) -> Result<SeqId, Fault> {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes)?;
        let (words, rest) = bytes.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(Fault::BadState {
                field: "length",
                expected: "a multiple of 4".to_owned(),
                got: bytes.len().to_string(),
            });
        }
        let tokens: Vec<TokenId> = words.iter().map(|w| TokenId::from_le_bytes(*w)).collect();
        let committed = tokens.len();
        self.place(Sequence { tokens, committed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(seq: SeqId, pos: Pos, range: std::ops::Range<usize>, out: Out) -> Span {
        Span {
            seq,
            pos,
            range,
            out,
            want: Want::Logits,
            tap: engine_core::Tap::default(),
        }
    }

    #[test]
    fn it_says_what_it_was_told_and_takes_back() {
        let mut target = FakeTarget::new(10, 16, 2);
        let seq = target.open().unwrap();
        let ticket = target
            .submit(&[3, 4, 8], &[span(seq, 0, 0..3, Out::All)])
            .unwrap();
        let rows = target.wait(ticket, None).unwrap().clone();
        let best: Vec<_> = (0..3)
            .map(|r| rows.logits(r).unwrap().iter().position(|l| *l > 0.0))
            .collect();
        assert_eq!(best, [Some(4), Some(5), Some(9)]);
        target.commit(seq, 2);
        assert_eq!(target.pos(seq), Some(2));
        let mut saved = Vec::new();
        target.save(seq, &mut saved).unwrap();
        assert_eq!(saved, [3, 0, 0, 0, 4, 0, 0, 0]);
        let copy = target.load(&mut saved.as_slice()).unwrap();
        assert_eq!((target.pos(copy), target.watch().open()), (Some(2), 2));
        assert!(matches!(target.open(), Err(Fault::Exhausted { .. })));
    }

    #[test]
    fn it_is_as_strict_as_a_real_one() {
        let mut target = FakeTarget::new(10, 4, 1).failing_at(1, Fault::Deadline);
        let seq = target.open().unwrap();
        let submit = |t: &mut FakeTarget, tokens: &[TokenId], pos| {
            t.submit(tokens, &[span(seq, pos, 0..tokens.len(), Out::None)])
        };
        assert!(matches!(submit(&mut target, &[1], 0), Err(Fault::Deadline)));
        let wrong = submit(&mut target, &[1], 1);
        assert!(matches!(wrong, Err(Fault::WrongPosition { .. })));
        let bad = submit(&mut target, &[1, 10], 0);
        assert!(matches!(bad, Err(Fault::BadToken { index: 1, .. })));
        let full = submit(&mut target, &[1; 5], 0);
        assert!(matches!(full, Err(Fault::ContextFull { wanted: 5, .. })));
        assert!(matches!(
            submit(&mut target, &[], 0),
            Err(Fault::BadRange { .. })
        ));
        assert!(submit(&mut target, &[1; 4], 0).is_ok());
        assert_eq!(target.watch().passes().len(), 6);
    }
}
