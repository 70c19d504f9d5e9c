//! One pass of the target: spans of many sequences in, rows out. Prefill, decode and verify are
//! the same call with other span lengths.

use std::ops::Range;
use std::sync::Arc;

use crate::ids::{LayerId, Pos, SeqId, TokenId};
use crate::plan::SamplePlan;

/// Which positions of a span give an output row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Out {
    /// None: state only (prefill of all but the last chunk).
    None,
    /// The last position.
    Last,
    /// Every position (verify, scoring).
    All,
}

/// What an output row carries. 64 rows of 129,280 logits must not cross to the host unasked.
#[derive(Clone, Debug)]
pub enum Want {
    /// The token the plan draws from the row. The plan must not need history (no penalties).
    Ids(Arc<SamplePlan>),
    /// The logits, `[n_vocab]` f32.
    Logits,
    /// Both.
    Both(Arc<SamplePlan>),
}

/// Which layer outputs to hand out per position, for a drafter: the mean over the residual
/// streams after the layer, `[n_embd]` f32 (spec/dspark.md 1.2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tap {
    /// Layers in the order their features are concatenated. Empty = no tap.
    pub layers: Arc<[LayerId]>,
}

/// Consecutive new tokens of one sequence.
#[derive(Clone, Debug)]
pub struct Span {
    /// The sequence.
    pub seq: SeqId,
    /// Position of the first token; must be where the sequence stands.
    pub pos: Pos,
    /// The span's tokens within the pass's token array.
    pub range: Range<usize>,
    /// Which positions give rows.
    pub out: Out,
    /// What the rows carry.
    pub want: Want,
    /// Features for a drafter, for every position of the span.
    pub tap: Tap,
}

/// Names a pass in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u64);

/// The output of a pass. Rows stand in span order, within a span in position order. The buffers
/// belong to the target and are valid until its next `submit`.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    /// For each span: its rows `rows[span]` as indexes into `ids` and `logits` rows.
    pub span_rows: Vec<Range<usize>>,
    /// `[n_rows]`: the drawn token, or `TokenId::MAX` for a row that asked for logits only and for one
    /// from which none can be drawn: it holds NaN, or every token is banned.
    pub ids: Vec<TokenId>,
    /// `[n_rows, n_vocab]` f32; a row that asked for ids only is left out: see `logit_row`.
    pub logits: Vec<f32>,
    /// For each row: its index among `logits`' rows, `None` when it asked for ids only.
    pub logit_row: Vec<Option<usize>>,
    /// Per span: where its features start in `features`; `[span positions, tap layers, n_embd]`.
    pub span_features: Vec<Range<usize>>,
    /// Features of all spans.
    pub features: Vec<f32>,
    /// Width of a logits row.
    pub n_vocab: usize,
}

impl Rows {
    /// The logits of row `row`, `[n_vocab]`, if it asked for them.
    #[must_use]
    pub fn logits(&self, row: usize) -> Option<&[f32]> {
        let at = (*self.logit_row.get(row)?)? * self.n_vocab;
        self.logits.get(at..at + self.n_vocab)
    }

    /// The logits of the last row of span `span`.
    #[must_use]
    pub fn last_logits(&self, span: usize) -> Option<&[f32]> {
        let rows = self.span_rows.get(span)?;
        self.logits(rows.end.checked_sub(1).filter(|r| rows.contains(r))?)
    }

    /// Empties the rows, keeping the buffers.
    pub fn clear(&mut self, n_vocab: usize) {
        self.span_rows.clear();
        self.ids.clear();
        self.logits.clear();
        self.logit_row.clear();
        self.span_features.clear();
        self.features.clear();
        self.n_vocab = n_vocab;
    }
}
