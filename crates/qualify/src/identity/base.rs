//! The base: what the plainest way gives, position by position.

use std::sync::Arc;

use engine_core::{Out, SamplePlan, SeqId, Span, Tap, TokenId, Want};
use fpx_quant::Isa;

use super::arm::{Looped, Plan, Policy, Source, with_isa};
use super::pair::Pair;
use super::subject::{Seat, Subject};
use super::{Batch, Difference, Error, What, hex, looped};

/// How much text a base has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Tokens of the long prompt.
    pub prompt: usize,
    /// Tokens generated after it.
    pub budget: usize,
    /// The neighbours: where their prompts start in the long one, and how long they are.
    pub neighbours: [(usize, usize); 5],
    /// Tokens generated for each of them.
    pub neighbour_budget: usize,
}

impl Size {
    /// Three windows of the shipped model and one of its long ratio.
    pub const FULL: Self = Self {
        prompt: PROMPT,
        budget: 40,
        neighbours: [(0, 3), (9, 40), (31, 70), (2, 131), (38, 150)],
        neighbour_budget: 16,
    };

    /// One window and a little: for tests.
    pub const SMALL: Self = Self {
        prompt: 66,
        budget: 14,
        neighbours: [(0, 3), (9, 12), (31, 21), (2, 30), (5, 60)],
        neighbour_budget: 6,
    };
}

/// Tokens of the longest prompt.
pub(crate) const PROMPT: usize = 190;

/// A prompt, its continuation, and the state that is left.
#[derive(Clone, Debug)]
pub struct Text {
    /// The prompt.
    pub prompt: Vec<TokenId>,
    /// The continuation.
    pub ids: Vec<TokenId>,
    /// Digest of the state after all but the last token.
    pub state: [u8; 32],
    /// Digest of the row of logits after the last token.
    pub row: [u8; 32],
}

impl Text {
    /// Prompt and continuation.
    #[must_use]
    pub fn whole(&self) -> Vec<TokenId> {
        [&self.prompt[..], &self.ids[..]].concat()
    }

    /// Digest of the continuation: ids as little-endian u32.
    #[must_use]
    pub fn ids_digest(&self) -> String {
        ids_digest(&self.ids)
    }
}

/// Digest of token ids: blake3 over little-endian u32.
pub(crate) fn ids_digest(ids: &[TokenId]) -> String {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    hex(blake3::hash(&bytes).as_bytes())
}

/// The base.
#[derive(Clone, Debug)]
pub struct Base {
    /// The long text, greedy.
    pub greedy: Text,
    /// The long prompt, sampled.
    pub sampled: Text,
    /// The neighbours' texts, greedy.
    pub five: Vec<Text>,
    /// Digest of the row of logits at each position of the greedy text but the last.
    pub rows: Vec<[u8; 32]>,
    /// Digest of the state before each position, and after all.
    pub states: Vec<[u8; 32]>,
    /// Where the greedy text token by token is not the one made with its prompt in one pass.
    pub first: Option<Difference>,
}

/// Digest of a row of logits, bit for bit.
pub(crate) fn row_digest(row: &[f32]) -> [u8; 32] {
    let bytes: Vec<u8> = row.iter().flat_map(|v| v.to_bits().to_le_bytes()).collect();
    *blake3::hash(&bytes).as_bytes()
}

/// The sampled plan of the matrix.
pub(crate) fn plan(kind: Plan) -> Arc<SamplePlan> {
    Arc::new(match kind {
        Plan::Greedy | Plan::InPass => SamplePlan::greedy(),
        Plan::Sampled | Plan::SampledInPass => SamplePlan {
            temperature: 0.8,
            top_p: 0.95,
            seed: 9,
            ..SamplePlan::greedy()
        },
    })
}

/// Feeds tokens to a sequence in one pass and commits them; the digest of every row.
pub(crate) fn feed(
    target: &mut dyn Subject,
    seq: SeqId,
    tokens: &[TokenId],
) -> Result<Vec<[u8; 32]>, Error> {
    feed_with(target, seq, tokens, row_digest)
}

fn feed_with<T>(
    target: &mut dyn Subject,
    seq: SeqId,
    tokens: &[TokenId],
    look: impl Fn(&[f32]) -> T,
) -> Result<Vec<T>, Error> {
    let pos = target.pos(seq).unwrap_or(0);
    let span = Span {
        seq,
        pos,
        range: 0..tokens.len(),
        out: Out::All,
        want: Want::Logits,
        tap: Tap::default(),
    };
    let ticket = target.submit(tokens, &[span])?;
    let rows = target.wait(ticket, None)?;
    let rows = rows.logits.chunks_exact(rows.n_vocab);
    let out = rows.map(look).collect();
    target.commit(seq, pos + tokens.len() as u32);
    Ok(out)
}

/// The most probable token, the lowest of equals.
fn best(row: &[f32]) -> TokenId {
    let mut at = 0;
    for (i, v) in row.iter().enumerate() {
        if *v > row[at] {
            at = i;
        }
    }
    TokenId::try_from(at).unwrap_or(TokenId::MAX)
}

impl Base {
    /// Runs the plain way.
    pub(crate) fn make(pair: &Pair, size: &Size) -> Result<Self, Error> {
        if pair.prompt.len() < size.prompt {
            return Err(Error::Prompt {
                expected: size.prompt,
                got: pair.prompt.len(),
            });
        }
        let mut seat = pair.on_cpu(1)?;
        with_isa(Some(Isa::Baseline), || Self::plainly(pair, &mut seat, size))
    }

    fn plainly(pair: &Pair, seat: &mut Seat, size: &Size) -> Result<Self, Error> {
        let long = &pair.prompt[..size.prompt];
        let mut alone = |prompt: &[TokenId], budget, plan, chunk| {
            let way = Looped {
                source: Source::Off,
                policy: Policy::Fixed(1),
                chunk,
                plan,
                batch: Batch::One,
            };
            let text = (prompt.to_vec(), budget);
            let ran = looped::generate(pair, seat, &way, &[text], None)?;
            Ok::<Text, Error>(Text {
                prompt: prompt.to_vec(),
                ids: ran.texts[0].clone(),
                state: ran.states[0],
                row: ran.rows[0],
            })
        };
        // Prompts run in one pass here; `trace` then goes through the greedy text token by token, and
        // what it finds must be this text and this state.
        let greedy = alone(long, size.budget, Plan::Greedy, PROMPT)?;
        let sampled = alone(long, size.budget, Plan::Sampled, PROMPT)?;
        let five = size
            .neighbours
            .iter()
            .map(|(at, n)| alone(&long[*at..at + n], size.neighbour_budget, Plan::Greedy, *n))
            .collect::<Result<Vec<_>, _>>()?;
        let (rows, states, first) = trace(&mut *seat.target, &greedy)?;
        Ok(Self {
            greedy,
            sampled,
            five,
            rows,
            states,
            first,
        })
    }

    /// Digest of everything the base holds.
    #[must_use]
    pub fn digest(&self) -> String {
        let mut hash = blake3::Hasher::new();
        for text in [&self.greedy, &self.sampled].into_iter().chain(&self.five) {
            hash.update(text.ids_digest().as_bytes());
            hash.update(&text.state);
            hash.update(&text.row);
        }
        for digest in self.rows.iter().chain(&self.states) {
            hash.update(digest);
        }
        hex(hash.finalize().as_bytes())
    }
}

type Trace = (Vec<[u8; 32]>, Vec<[u8; 32]>, Option<Difference>);

/// The greedy text token by token: rows and states.
fn trace(target: &mut dyn Subject, text: &Text) -> Result<Trace, Error> {
    let whole = text.whole();
    let seq = target.open()?;
    target.poison_stale(seq)?;
    let (mut rows, mut states) = (Vec::new(), vec![target.digest(seq)?]);
    let mut first = None;
    let differs = |what, position, expected: String, got: String| Difference {
        what,
        sequence: 0,
        position: Some(position),
        expected,
        got,
    };
    for (at, token) in whole[..whole.len() - 1].iter().enumerate() {
        let look = |row: &[f32]| (row_digest(row), best(row));
        let next = at + 1;
        for (digest, best) in feed_with(target, seq, &[*token], look)? {
            rows.push(digest);
            if next >= text.prompt.len() && best != whole[next] {
                let (expected, got) = (best.to_string(), whole[next].to_string());
                first.get_or_insert_with(|| differs(What::Ids, next, expected, got));
            }
        }
        states.push(target.digest(seq)?);
    }
    target.close(seq);
    let end = states.last().copied().unwrap_or_default();
    if end != text.state {
        let (expected, got) = (hex(&end), hex(&text.state));
        first.get_or_insert_with(|| differs(What::State, whole.len() - 1, expected, got));
    }
    Ok((rows, states, first))
}
