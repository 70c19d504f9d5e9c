//! Which rows of a pass are drawn on the device: those that want a token only, by a plan the kernels know. A
//! vocabulary of logits then stays where it is. And what comes back.
//!
//! Must not know: how a draw works.

use device::driver::Driver;
use ds4_kernels::KernelError;
use ds4_kernels::launch::head::{PLAN_BYTES, Plan};
use engine_core::mutant::mutant;
use engine_core::{Pos, SamplePlan, Span, TokenId, Want};
use sampling::NoiseKey;

use super::gpu::Gpu;
use super::scratch::Scratch;
use crate::target::rows::Given;

/// How the rows of a part are drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Way {
    /// All on the host.
    #[default]
    Host,
    /// Some here, none with a filter.
    Plain,
    /// Some here, some with a filter.
    Filtered,
}

/// The rows of a pass, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Draws {
    /// The plan of a row that is drawn on the device.
    plans: Vec<Option<Plan>>,
    /// Rows that were drawn on the device.
    pub(crate) drawn: u64,
    /// Rows that want a token only and are drawn on the host all the same.
    pub(crate) fallbacks: u64,
}

impl Draws {
    /// Looks at all rows of a pass. `pos`: position of each row's token.
    pub(crate) fn look(
        &mut self,
        spans: &[Span],
        rows: &[std::ops::Range<usize>],
        pos: impl Fn(usize) -> Pos,
    ) {
        self.plans.clear();
        for (span, rows) in spans.iter().zip(rows) {
            for row in rows.clone() {
                let plan = match &span.want {
                    Want::Ids(_) if mutant(371) => {
                        self.plans.push(None);
                        continue;
                    }
                    Want::Ids(plan) => plan_of(plan, pos(row) + 1),
                    Want::Logits | Want::Both(_) => None,
                };
                self.drawn += u64::from(plan.is_some());
                self.fallbacks += u64::from(plan.is_none() && matches!(span.want, Want::Ids(_)));
                self.plans.push(plan);
            }
        }
    }

    /// How `rows` are drawn.
    pub(crate) fn way(&self, rows: std::ops::Range<usize>) -> Way {
        let here = || self.plans[rows.clone()].iter().flatten();
        match (here().next(), here().any(Plan::has_filter)) {
            (None, _) => Way::Host,
            (Some(_), true) => Way::Filtered,
            (Some(_), false) => Way::Plain,
        }
    }

    /// Whether a row is drawn on the device.
    pub(crate) fn here(&self, row: usize) -> bool {
        self.plans[row].is_some()
    }

    /// A row's plan as the kernels read it; rows drawn on the host have one that costs little.
    pub(crate) fn bytes(&self, row: usize) -> [u8; PLAN_BYTES] {
        let idle = Plan {
            top_p: 1.0,
            ..Plan::default()
        };
        self.plans[row].unwrap_or(idle).bytes()
    }
}

/// The kernels' plan, if they have one: they know no bias.
pub(crate) fn plan_of(plan: &SamplePlan, pos: Pos) -> Option<Plan> {
    plan.bias.is_empty().then(|| Plan {
        noise: NoiseKey::of(plan, pos).word(),
        temperature: plan.temperature,
        top_k: plan.top_k,
        min_p: plan.min_p,
        top_p: plan.top_p,
    })
}

/// What came back of a pass.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// How its rows are drawn.
    pub(crate) draws: Draws,
    n_vocab: usize,
    /// Rows of logits that were fetched, and each row's place among them.
    logits: Vec<f32>,
    places: Vec<usize>,
    /// Tokens of all rows; those drawn on the host are not there yet.
    tokens: Vec<TokenId>,
}

impl Answers {
    pub(crate) fn new(n_vocab: usize) -> Self {
        Self {
            n_vocab,
            ..Self::default()
        }
    }

    /// Forgets the last pass.
    pub(crate) fn clear(&mut self) {
        self.logits.clear();
        self.places.clear();
        self.tokens.clear();
    }

    /// Fetches what is wanted of `n` rows from row `first` on, the rows of a slice of the head: tokens, and logits
    /// if any of the rows needs its own.
    pub(crate) fn collect<R: Driver>(
        &mut self,
        gpu: &Gpu<R>,
        scratch: &Scratch,
        first: usize,
        n: usize,
        way: Way,
    ) -> Result<(), KernelError> {
        match way {
            Way::Host => self.tokens.resize(first + n, TokenId::MAX),
            Way::Plain | Way::Filtered => gpu.fetch(scratch.drawn.rows(0, n, 4), |bytes| {
                let (words, _) = bytes.as_chunks::<4>();
                let words = words.iter().map(|w| u32::from_le_bytes(*w));
                self.tokens.extend(words);
            })?,
        }
        let place = self.logits.len() / self.n_vocab;
        self.places.extend(place..place + n);
        if (first..first + n).all(|row| self.draws.here(row)) {
            return Ok(());
        }
        let out = scratch.out.rows(0, n, 4 * self.n_vocab);
        gpu.fetch(out, |bytes| append(&mut self.logits, bytes))
    }

    /// What there is of a row.
    pub(crate) fn given(&self, row: usize) -> Given<'_> {
        match self.draws.here(row) {
            true => Given::Token(self.tokens[row]),
            false => Given::Logits(&self.logits[self.places[row] * self.n_vocab..][..self.n_vocab]),
        }
    }
}

/// Writes little-endian f32 values to the start of a row; how many there were.
pub(crate) fn put(to: &mut [f32], bytes: &[u8]) -> usize {
    let (words, _) = bytes.as_chunks::<4>();
    for (to, word) in to.iter_mut().zip(words) {
        *to = f32::from_le_bytes(*word);
    }
    words.len()
}

/// Appends little-endian f32 values.
fn append(to: &mut Vec<f32>, bytes: &[u8]) {
    let (words, _) = bytes.as_chunks::<4>();
    to.extend(words.iter().map(|w| f32::from_le_bytes(*w)));
}
