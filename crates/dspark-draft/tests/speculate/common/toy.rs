//! A target without a model: a row is a function of the whole text before it, so that one wrong token in
//! the state changes everything after it. Checks every call.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use dspark_draft::speculate::Clock;
use engine_core::seams::TargetInfo;
use engine_core::{
    Fault, LayerId, NumericClass, Out, Pos, Rows, SeqId, Span, Tap, Target, Ticket, TokenId, Want,
};
use sampling::Sampler;

pub(crate) const V: usize = 23;
pub(crate) const N_EMBD: usize = 2;

/// Logits after a text: numbers from its hash, and one token clearly ahead of most.
pub(crate) fn logits(text: &[TokenId]) -> Vec<f32> {
    let fold = |h: u64, t: &TokenId| (h ^ u64::from(*t + 1)).wrapping_mul(0x0000_0100_0000_01b3);
    let hash = text.iter().fold(0xcbf2_9ce4_8422_2325, fold);
    let mut rng = testkit::rng::Rng::new(hash);
    let mut row: Vec<f32> = (0..V).map(|_| rng.range(-2.0, 2.0) as f32).collect();
    row[rng.below(V)] += 2.0;
    row
}

/// The features of a token at a position.
pub(crate) fn features(pos: Pos, token: TokenId, layer: LayerId) -> [f32; N_EMBD] {
    [pos as f32 * 64.0 + token as f32, layer.0 as f32]
}

/// A clock that tests and the toy move.
#[derive(Clone, Debug, Default)]
pub(crate) struct HandClock(Arc<Mutex<f64>>);

impl HandClock {
    pub(crate) fn advance(&self, seconds: f64) {
        *self.0.lock().unwrap() += seconds;
    }
}

impl Clock for HandClock {
    fn seconds(&self) -> f64 {
        *self.0.lock().unwrap()
    }
}

#[derive(Debug, Default)]
struct Seq {
    state: Vec<TokenId>,
    /// Written beyond the state by the last pass.
    written: Vec<TokenId>,
    floor: usize,
}

/// A span as it came.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Seen {
    pub(crate) seq: SeqId,
    pub(crate) pos: Pos,
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) out: Out,
    pub(crate) tapped: bool,
}

#[derive(Debug)]
pub(crate) struct Toy {
    info: TargetInfo,
    seqs: BTreeMap<u32, Seq>,
    /// Every accepted pass.
    pub(crate) passes: Vec<Vec<Seen>>,
    /// Calls of `submit` and `wait`, from 1, that fail.
    pub(crate) submits_fail: BTreeSet<usize>,
    pub(crate) waits_fail: BTreeSet<usize>,
    pub(crate) submits: usize,
    pub(crate) waits: usize,
    pub(crate) opens: u32,
    /// The row for this position holds a NaN.
    pub(crate) nan_at: Option<Pos>,
    /// Gives one row too few.
    pub(crate) short: bool,
    pub(crate) clock: HandClock,
    /// Seconds of a pass by its rows, and of a commit by rejected rows.
    pub(crate) pass_time: fn(usize) -> f64,
    pub(crate) commit_time: fn(usize) -> f64,
    rows: Rows,
    ticket: Option<Ticket>,
}

impl Toy {
    pub(crate) fn new() -> Self {
        Self::with_context(4096)
    }

    pub(crate) fn with_context(n_ctx: u64) -> Self {
        Self {
            info: TargetInfo {
                n_vocab: V,
                n_embd: N_EMBD,
                n_layer: 4,
                n_ctx,
                n_seq_max: 8,
                verify_max: 8,
                span_max: 64,
                class: NumericClass::Equal,
                fingerprint: [3; 32],
            },
            seqs: BTreeMap::new(),
            passes: Vec::new(),
            submits_fail: BTreeSet::new(),
            waits_fail: BTreeSet::new(),
            submits: 0,
            waits: 0,
            opens: 0,
            nan_at: None,
            short: false,
            clock: HandClock::default(),
            pass_time: |_| 0.0,
            commit_time: |_| 0.0,
            rows: Rows::default(),
            ticket: None,
        }
    }

    pub(crate) fn state(&self, seq: SeqId) -> &[TokenId] {
        &self.seqs[&seq.0].state
    }

    /// Rows of all passes, prompts apart.
    pub(crate) fn verified(&self) -> impl Iterator<Item = &Seen> {
        self.passes.iter().flatten().filter(|s| s.out == Out::All)
    }

    fn check(&self, tokens: &[TokenId], spans: &[Span]) -> Result<(), Fault> {
        let mut seen = BTreeSet::new();
        for span in spans {
            let seq = self
                .seqs
                .get(&span.seq.0)
                .ok_or(Fault::NoSuchSequence(span.seq))?;
            let expected = seq.state.len() as Pos;
            if span.pos != expected {
                let (seq, got) = (span.seq, span.pos);
                return Err(Fault::WrongPosition { seq, expected, got });
            }
            if !seen.insert(span.seq) {
                return Err(Fault::DuplicateSpan(span.seq));
            }
            let wanted = u64::from(span.pos) + span.range.len() as u64;
            if wanted > self.info.n_ctx {
                let (seq, limit) = (span.seq, self.info.n_ctx);
                return Err(Fault::ContextFull { seq, wanted, limit });
            }
            assert!(!span.range.is_empty() && span.range.len() <= self.info.span_max);
            for index in span.range.clone() {
                let (token, n_vocab) = (tokens[index], V);
                if token as usize >= V {
                    return Err(Fault::BadToken {
                        token,
                        index,
                        n_vocab,
                    });
                }
            }
        }
        Ok(())
    }

    fn run(&mut self, tokens: &[TokenId], span: &Span) {
        let given = &tokens[span.range.clone()];
        let seq = self.seqs.get_mut(&span.seq.0).unwrap();
        let mut text = seq.state.clone();
        let first = self.rows.ids.len();
        for (i, token) in given.iter().enumerate() {
            text.push(*token);
            let gives = match span.out {
                Out::None => false,
                Out::Last => i + 1 == given.len(),
                Out::All => true,
            };
            if gives && !(self.short && i + 1 == given.len()) {
                let mut row = logits(&text);
                if self.nan_at == Some(text.len() as Pos) {
                    row[V / 2] = f32::NAN;
                }
                let drawn = match &span.want {
                    Want::Ids(plan) => {
                        assert!(plan.penalties.is_neutral(), "a row has no history");
                        let odd = row.iter().any(|l| l.is_nan());
                        let drawn = Sampler::new(V).draw(plan, &row, text.len() as Pos, &[]);
                        drawn.ok().filter(|_| !odd)
                    }
                    _ => None,
                };
                let ids = matches!(span.want, Want::Ids(_));
                self.rows.ids.push(drawn.unwrap_or(TokenId::MAX));
                let at = self.rows.logits.len() / V;
                self.rows.logit_row.push((!ids).then_some(at));
                if !ids {
                    self.rows.logits.extend(row);
                }
            }
            let pos = (text.len() - 1) as Pos;
            for layer in span.tap.layers.iter() {
                self.rows.features.extend(features(pos, *token, *layer));
            }
        }
        self.rows.span_rows.push(first..self.rows.ids.len());
        let start = self.rows.span_features.last().map_or(0, |r| r.end);
        self.rows
            .span_features
            .push(start..self.rows.features.len());
        seq.written = given.to_vec();
        let end = seq.state.len() + given.len();
        seq.floor = seq
            .state
            .len()
            .max(end.saturating_sub(self.info.verify_max));
    }
}

pub(crate) fn tap() -> Tap {
    Tap {
        layers: Arc::from([LayerId(1), LayerId(3)]),
    }
}

fn lost(what: &str, n: usize) -> Fault {
    Fault::Lost {
        what: format!("{what} {n}"),
        why: "test".to_owned(),
    }
}

impl Target for Toy {
    fn info(&self) -> &TargetInfo {
        &self.info
    }

    fn open(&mut self) -> Result<SeqId, Fault> {
        let free = (0..self.info.n_seq_max as u32).find(|s| !self.seqs.contains_key(s));
        let seq = free.ok_or(Fault::Exhausted {
            what: "sequences",
            wanted: 9,
            limit: 8,
        })?;
        self.opens += 1;
        self.seqs.insert(seq, Seq::default());
        Ok(SeqId(seq))
    }

    fn fork(&mut self, seq: SeqId) -> Result<SeqId, Fault> {
        let state = self.state(seq).to_vec();
        let copy = self.open()?;
        self.seqs.get_mut(&copy.0).unwrap().state = state;
        Ok(copy)
    }

    fn close(&mut self, seq: SeqId) {
        self.seqs.remove(&seq.0);
    }

    fn pos(&self, seq: SeqId) -> Option<Pos> {
        Some(self.seqs.get(&seq.0)?.state.len() as Pos)
    }

    fn submit(&mut self, tokens: &[TokenId], spans: &[Span]) -> Result<Ticket, Fault> {
        assert_eq!(self.ticket, None, "one pass at a time");
        self.submits += 1;
        if self.submits_fail.contains(&self.submits) {
            return Err(lost("submit", self.submits));
        }
        self.check(tokens, spans)?;
        self.rows.clear(V);
        spans.iter().for_each(|span| self.run(tokens, span));
        let seen = spans.iter().map(|s| Seen {
            seq: s.seq,
            pos: s.pos,
            tokens: tokens[s.range.clone()].to_vec(),
            out: s.out,
            tapped: !s.tap.layers.is_empty(),
        });
        self.passes.push(seen.collect());
        self.clock.advance((self.pass_time)(tokens.len()));
        let ticket = Ticket(self.submits as u64);
        self.ticket = Some(ticket);
        Ok(ticket)
    }

    fn wait(&mut self, ticket: Ticket, _: Option<Instant>) -> Result<&Rows, Fault> {
        assert_eq!(self.ticket.take(), Some(ticket));
        self.waits += 1;
        if self.waits_fail.contains(&self.waits) {
            self.passes.pop();
            return Err(lost("wait", self.waits));
        }
        Ok(&self.rows)
    }

    fn commit(&mut self, seq: SeqId, pos: Pos) {
        let seq = self.seqs.get_mut(&seq.0).unwrap();
        let (pos, end) = (pos as usize, seq.state.len() + seq.written.len());
        assert!(
            (seq.floor..=end).contains(&pos),
            "commit {pos} of {}..={end}",
            seq.floor
        );
        let keep = pos - seq.state.len();
        self.clock
            .advance((self.commit_time)(seq.written.len() - keep));
        seq.state.extend_from_slice(&seq.written[..keep]);
        seq.written.clear();
        seq.floor = pos;
    }

    fn head(&mut self, _: &[f32], _: &mut [f32]) -> Result<(), Fault> {
        Err(Fault::Unsupported("head"))
    }

    fn embed(&mut self, _: &[TokenId], _: &mut [f32]) -> Result<(), Fault> {
        Err(Fault::Unsupported("embed"))
    }

    fn save(&self, seq: SeqId, _: &mut dyn Write) -> Result<(), Fault> {
        Err(Fault::NoSuchSequence(seq))
    }

    fn load(&mut self, _: &mut dyn Read) -> Result<SeqId, Fault> {
        Err(Fault::Unsupported("load"))
    }
}
