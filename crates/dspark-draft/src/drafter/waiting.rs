//! Features that were committed and that no draft has needed yet.
//!
//! Projecting them at once would cost every step, also those of a text that is not drafted for. So they
//! wait, and a draft takes what its window reaches: many rows together where there was a pause, the
//! step's own where there was none. A row's projection does not depend on its neighbours in the call, so
//! nothing changes but the time. Must not know: how rows are projected.

use std::collections::HashMap;

use engine_core::mutant::mutant;
use engine_core::{Fault, Pos, SeqId};

/// The rows of one sequence that wait.
#[derive(Debug)]
struct Rows {
    /// Position of the first row of the whole context.
    low: Pos,
    /// Position after the newest row, waiting or not.
    end: Pos,
    /// `[n, width]` for positions `end - n .. end`.
    values: Vec<f32>,
    /// Whether older ones were dropped: what the backbone has does not reach up to these.
    gap: bool,
}

/// Rows to be projected.
#[derive(Debug, PartialEq)]
pub(super) struct Batch {
    /// Position of the first.
    pub(super) pos: Pos,
    /// `[n, width]`.
    pub(super) values: Vec<f32>,
    /// Whether what was projected before is to be forgotten.
    pub(super) fresh: bool,
}

/// The waiting rows of all sequences.
#[derive(Debug)]
pub(super) struct Waiting {
    width: usize,
    window: usize,
    of: HashMap<SeqId, Rows>,
}

impl Waiting {
    /// `width`: values of a row. `window`: rows a draft reads.
    pub(super) fn new(width: usize, window: usize) -> Self {
        Self {
            width: width.max(1),
            window: window.max(1),
            of: HashMap::new(),
        }
    }

    /// Takes rows for positions `pos..`.
    pub(super) fn push(&mut self, seq: SeqId, pos: Pos, values: &[f32]) -> Result<(), Fault> {
        let n = values.len() / self.width;
        let rows = self.of.entry(seq).or_insert_with(|| Rows {
            low: pos,
            end: pos,
            values: Vec::new(),
            gap: false,
        });
        if rows.end != pos {
            return Err(Fault::WrongPosition {
                seq,
                expected: rows.end,
                got: pos,
            });
        }
        let wanted = u64::from(pos) + n as u64;
        let limit = u64::from(Pos::MAX);
        rows.end = Pos::try_from(wanted).map_err(|_| Fault::ContextFull { seq, wanted, limit })?;
        rows.values.extend_from_slice(values);
        // Not row by row: what is kept moves.
        if rows.values.len() > 2 * self.window * self.width {
            rows.drop_old(self.window * self.width);
        }
        Ok(())
    }

    /// The rows a draft needs now; they wait no longer.
    pub(super) fn take(&mut self, seq: SeqId) -> Option<Batch> {
        let rows = self.of.get_mut(&seq).filter(|r| !r.values.is_empty())?;
        rows.drop_old(self.window * self.width);
        let n = rows.values.len() / self.width;
        Some(Batch {
            pos: rows.end - n as Pos,
            values: std::mem::take(&mut rows.values),
            fresh: std::mem::take(&mut rows.gap) && !mutant(263),
        })
    }

    /// Forgets rows at and above `pos`; whether the rest of the context is lost with them.
    pub(super) fn truncate(&mut self, seq: SeqId, pos: Pos) -> bool {
        let Some(rows) = self.of.get_mut(&seq).filter(|r| pos < r.end) else {
            return false;
        };
        let start = rows.end - (rows.values.len() / self.width) as Pos;
        let lost = rows.gap && pos <= start;
        if lost || pos <= rows.low {
            self.of.remove(&seq);
            return lost;
        }
        rows.values
            .truncate(pos.saturating_sub(start) as usize * self.width);
        rows.end = pos;
        false
    }

    /// Forgets a sequence's rows; the next ones may stand anywhere.
    pub(super) fn forget(&mut self, seq: SeqId) {
        self.of.remove(&seq);
    }
}

impl Rows {
    /// Keeps the newest `most` values.
    fn drop_old(&mut self, most: usize) {
        let old = self.values.len().saturating_sub(most);
        if old > 0 {
            self.values.drain(..old);
            self.gap = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SeqId = SeqId(0);

    fn rows(from: Pos, to: Pos) -> Vec<f32> {
        (from..to).flat_map(|p| [p as f32, -(p as f32)]).collect()
    }

    fn batch(from: Pos, to: Pos, fresh: bool) -> Option<Batch> {
        Some(Batch {
            pos: from,
            values: rows(from, to),
            fresh,
        })
    }

    #[test]
    fn rows_wait_until_they_are_taken_and_no_more_than_a_window_of_them() {
        let mut w = Waiting::new(2, 4);
        assert_eq!(w.take(A), None);
        w.push(A, 10, &rows(10, 12)).unwrap();
        w.push(A, 12, &rows(12, 13)).unwrap();
        assert_eq!(w.take(A), batch(10, 13, false));
        assert_eq!(w.take(A), None);
        for pos in 13..40 {
            w.push(A, pos, &rows(pos, pos + 1)).unwrap();
            assert!(w.of[&A].values.len() <= 2 * 4 * 2, "bounded");
        }
        assert_eq!(w.take(A), batch(36, 40, true));
        w.push(A, 40, &rows(40, 41)).unwrap();
        assert_eq!(w.take(A), batch(40, 41, false), "nothing was dropped since");
        w.push(A, 41, &rows(41, 50)).unwrap();
        assert_eq!(w.take(A), batch(46, 50, true), "a long span");
    }

    #[test]
    fn holes_are_refused_and_taking_back_is_a_length() {
        let mut w = Waiting::new(2, 4);
        w.push(A, 5, &rows(5, 9)).unwrap();
        let hole = w.push(A, 10, &rows(10, 11)).unwrap_err();
        assert!(
            matches!(
                hole,
                Fault::WrongPosition {
                    expected: 9,
                    got: 10,
                    ..
                }
            ),
            "{hole}"
        );
        assert!(!w.truncate(A, 9) && !w.truncate(A, 7));
        w.push(A, 7, &rows(7, 8)).unwrap();
        assert_eq!(w.take(A), batch(5, 8, false));
        // Into what was taken: the backbone takes that back.
        assert!(!w.truncate(A, 6));
        w.push(A, 6, &rows(6, 7)).unwrap();
        assert_eq!(w.take(A), batch(6, 7, false));
        // Below what was dropped nothing is left.
        w.push(A, 7, &rows(7, 20)).unwrap();
        assert!(w.truncate(A, 9));
        w.push(A, 30, &rows(30, 31)).unwrap();
        assert!(!w.truncate(A, 30), "nothing is left, nothing was lost");
        w.push(A, 50, &rows(50, 51)).unwrap();
        w.forget(A);
        w.push(A, 3, &rows(3, 4)).unwrap();
        assert_eq!(w.take(A), batch(3, 4, false));
    }
}
