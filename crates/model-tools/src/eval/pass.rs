//! Runs one window through a target, a few rows of logits at a time. Must not know: statistics.

use engine_core::{Fault, Out, SeqId, Span, Tap, Target, TokenId, Want};

use super::Window;

/// Most rows of logits asked for in one pass: 64 rows of 129,280 logits are 33 MB.
const ROWS: usize = 64;

/// Rows to ask these targets for at a time, so that their rows stand side by side.
pub(crate) fn rows_at_once(targets: &[&dyn Target]) -> usize {
    let most = targets.iter().map(|t| t.info().span_max);
    most.fold(ROWS, usize::min)
}

/// A window under way. Closes its sequence when dropped.
pub(crate) struct Scorer<'a> {
    target: &'a mut dyn Target,
    window: &'a Window<'a>,
    seq: SeqId,
    at: usize,
}

/// Logits of consecutive positions and the tokens that followed.
pub(crate) struct Rows<'a> {
    logits: &'a [f32],
    n_vocab: usize,
    next: &'a [TokenId],
}

impl Rows<'_> {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[f32], TokenId)> {
        self.logits
            .chunks_exact(self.n_vocab)
            .zip(self.next.iter().copied())
    }
}

impl<'a> Scorer<'a> {
    pub(crate) fn new(target: &'a mut dyn Target, window: &'a Window<'a>) -> Result<Self, Fault> {
        let seq = target.open()?;
        Ok(Self {
            target,
            window,
            seq,
            at: 0,
        })
    }

    /// The next `rows` rows, or fewer at the end; `None` at the end of the window. The last token is never fed: nothing scores
    /// what follows it.
    pub(crate) fn advance(&mut self, rows: usize) -> Result<Option<Rows<'_>>, Fault> {
        let end = self.window.tokens.len().saturating_sub(1);
        if self.window.scored() == 0 {
            return Ok(None);
        }
        let most = self.target.info().span_max;
        while self.at < self.window.first {
            let to = self.window.first.min(self.at + most);
            self.pass(to, Out::None)?;
        }
        let (from, to) = (self.at, end.min(self.at + rows));
        if from == to {
            return Ok(None);
        }
        let ticket = self.pass(to, Out::All)?;
        let n_vocab = self.target.info().n_vocab;
        let rows = self.target.wait(ticket, None)?;
        // Rows of logits stand in order when every row asks for them.
        Ok(Some(Rows {
            logits: &rows.logits,
            n_vocab,
            next: &self.window.tokens[from + 1..to + 1],
        }))
    }

    fn pass(&mut self, to: usize, out: Out) -> Result<engine_core::Ticket, Fault> {
        let tokens = &self.window.tokens[self.at..to];
        let span = Span {
            seq: self.seq,
            pos: self.at as u32,
            range: 0..tokens.len(),
            out,
            want: Want::Logits,
            tap: Tap::default(),
        };
        let ticket = self.target.submit(tokens, &[span])?;
        if out == Out::None {
            self.target.wait(ticket, None)?;
        }
        self.target.commit(self.seq, to as u32);
        self.at = to;
        Ok(ticket)
    }
}

impl Drop for Scorer<'_> {
    fn drop(&mut self) {
        self.target.close(self.seq);
    }
}
