//! The parent's copy of a sequence's newest feature rows, and how far the worker's agree with it.
//!
//! A caller's calls change the copy only. What the worker must be told follows from the difference when a
//! step is sent: forget, take back, rows. So calls merge into one transfer, a rejected row that was
//! overwritten before is never sent, and a worker that knows nothing is told everything. Positions follow
//! the rules of the backbone's own rings (`dspark_draft::backbone`): a test compares the two. Must not
//! know: frames' bytes, links.

use engine_core::mutant::mutant;
use engine_core::{Fault, Pos, SeqId};

use crate::copy::copy;
use crate::frame::{Entry, Kind};

/// Rows of positions `low..end`; empty when they are equal.
#[derive(Debug)]
pub(super) struct Mirror {
    /// Rows kept, a power of two.
    ring: usize,
    /// Values of a row.
    width: usize,
    /// `[ring, width]`.
    rows: Vec<f32>,
    /// The oldest row of the context.
    low: Pos,
    /// The oldest row that is in `rows`: after a load the worker alone has those before.
    have: Pos,
    end: Pos,
    /// Below this the worker's rows are ours; `None`: it must forget what it has.
    agreed: Option<Pos>,
    /// Where the worker's rows end; `None`: it has none.
    theirs: Option<Pos>,
    /// The oldest row the worker has.
    their_low: Pos,
    /// The use of the sequence the worker knows.
    epoch: u32,
}

/// What the worker must be told of one sequence, with the rows to be sent.
#[derive(Debug, Default)]
pub(super) struct Change<'a> {
    /// The use of the sequence the worker then knows.
    pub(super) epoch: u32,
    /// What begins or takes back, then rows.
    pub(super) entries: [Option<Entry>; 2],
    /// Two runs of whole rows, in order; either may be empty.
    pub(super) rows: [&'a [f32]; 2],
}

impl Mirror {
    pub(super) fn new(ring: usize, width: usize) -> Self {
        Self {
            ring,
            width,
            rows: vec![0.0; ring * width],
            low: 0,
            have: 0,
            end: 0,
            agreed: None,
            theirs: None,
            their_low: 0,
            epoch: 0,
        }
    }

    /// Whether the sequence has no context.
    pub(super) fn is_empty(&self) -> bool {
        self.low == self.end
    }

    /// Position after the newest row.
    pub(super) fn end(&self) -> Pos {
        self.end
    }

    /// Whether neither side has anything of the sequence.
    pub(super) fn is_gone(&self) -> bool {
        self.is_empty() && self.theirs.is_none()
    }

    /// Takes rows for positions `pos..`.
    pub(super) fn observe(&mut self, seq: SeqId, pos: Pos, features: &[f32]) -> Result<(), Fault> {
        let n = features.len() / self.width;
        if features.len() != n * self.width {
            return Err(Fault::BadState {
                field: "features",
                expected: format!("rows of {}", self.width),
                got: format!("{} values", features.len()),
            });
        }
        let (wanted, limit) = (u64::from(pos) + n as u64, u64::from(Pos::MAX));
        let end = Pos::try_from(wanted).map_err(|_| Fault::ContextFull { seq, wanted, limit })?;
        if n > 0 && !self.is_empty() && self.end != pos {
            let (expected, got) = (self.end, pos);
            return Err(Fault::WrongPosition { seq, expected, got });
        }
        if n == 0 {
            return Ok(());
        }
        if self.is_empty() {
            (self.low, self.have, self.end) = (pos, pos, pos);
            self.agreed = None;
        }
        let skip = n.saturating_sub(self.ring);
        for (i, row) in features.chunks_exact(self.width).enumerate().skip(skip) {
            let at = self.at(pos + i as Pos);
            copy(row, &mut self.rows[at..at + self.width]);
        }
        self.end = end;
        self.low = self.low.max(end.saturating_sub(self.ring as Pos));
        self.have = self.have.max(self.low);
        Ok(())
    }

    fn at(&self, pos: Pos) -> usize {
        (pos as usize & (self.ring - 1)) * self.width
    }

    /// Forgets rows at and above `pos`.
    pub(super) fn truncate(&mut self, pos: Pos) {
        if pos <= self.low {
            (self.low, self.have, self.end) = (pos, pos, pos);
            self.agreed = None;
        } else if pos < self.end {
            self.end = pos;
            self.have = self.have.min(pos);
            if !mutant(351) {
                self.agreed = self.agreed.map(|agreed| agreed.min(pos));
            }
        }
    }

    /// Forgets everything.
    pub(super) fn close(&mut self) {
        self.truncate(0);
    }

    /// The worker has exactly these rows and this side none of them.
    pub(super) fn loaded(&mut self, low: Pos, end: Pos, epoch: u32) {
        (self.low, self.have, self.end) = (low, end, end);
        (self.agreed, self.theirs) = (Some(end), Some(end));
        (self.their_low, self.epoch) = (low, epoch);
    }

    /// Nobody knows what the worker has: it will be told to forget. `fresh`: it is a new one, which has
    /// nothing.
    pub(super) fn distrust(&mut self, fresh: bool) {
        if mutant(352) {
            return;
        }
        self.agreed = None;
        self.theirs = if fresh { None } else { Some(0) };
    }

    /// From where on rows can follow those the worker has. Rows that left the ring before they were sent
    /// would make a hole; and a context that would begin elsewhere than here is another context.
    fn joined(&self) -> Option<Pos> {
        let begins = self
            .their_low
            .max(self.end.saturating_sub(self.ring as Pos));
        self.agreed
            .filter(|agreed| *agreed >= self.have && begins == self.low)
    }

    /// What the worker must be told. `epoch`: a number above all that were used.
    pub(super) fn change(&mut self, seq: SeqId, epoch: u32) -> Change<'_> {
        let mut change = Change::default();
        let entry = |kind, epoch, pos, rows| Entry {
            kind,
            seq: seq.0,
            epoch,
            pos,
            rows,
            tag: 0,
            ahead: 0,
        };
        let agreed = self.joined();
        let from = match (agreed, self.theirs) {
            // Nothing to forget and nothing to tell.
            (None, None) if self.is_empty() => None,
            // A use of the sequence begins, whatever the worker may remember of an earlier one.
            (None, _) => {
                self.epoch = epoch;
                change.entries[0] = Some(entry(Kind::Close, epoch, 0, 0));
                None
            }
            (Some(agreed), Some(theirs)) if theirs > agreed => {
                self.epoch = epoch;
                change.entries[0] = Some(entry(Kind::Truncate, epoch, agreed, 0));
                Some(agreed)
            }
            (Some(agreed), _) => Some(agreed),
        };
        // What the worker alone had is lost with it.
        if from.is_none() {
            self.low = self.have;
        }
        self.their_low = self.low;
        let from = from.unwrap_or(self.have);
        if from < self.end {
            let rows = self.end - from;
            change.entries[1] = Some(entry(Kind::Observe, self.epoch, from, rows));
            change.rows = runs(&self.rows, self.at(from), rows as usize * self.width);
        }
        change.epoch = self.epoch;
        self.agreed = Some(self.end);
        self.theirs = (!self.is_empty()).then_some(self.end);
        change
    }

    /// At most so many rows are sent by [`Self::change`].
    pub(super) fn rows_to_send(&self) -> usize {
        let from = self.joined().unwrap_or(self.have);
        self.end.saturating_sub(from) as usize
    }

    /// The use of the sequence the worker knows, after [`Self::change`].
    pub(super) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The rows that are here, oldest first, with the first one's position.
    pub(super) fn kept(&self) -> (Pos, [&[f32]; 2]) {
        let values = (self.end - self.have) as usize * self.width;
        (self.have, runs(&self.rows, self.at(self.have), values))
    }
}

/// `values` of a ring from `from` on.
fn runs(ring: &[f32], from: usize, values: usize) -> [&[f32]; 2] {
    let first = values.min(ring.len() - from);
    [&ring[from..from + first], &ring[..values - first]]
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SeqId = SeqId(3);

    fn rows(from: Pos, to: Pos) -> Vec<f32> {
        (from..to).flat_map(|p| [p as f32, -(p as f32)]).collect()
    }

    type Told = (Kind, u32, Pos, u32);

    /// What begins a use of a sequence.
    fn begin(epoch: u32, pos: Pos, rows: u32) -> Vec<Told> {
        vec![
            (Kind::Close, epoch, 0, 0),
            (Kind::Observe, epoch, pos, rows),
        ]
    }

    /// Kinds with positions and rows, and the first values of the rows sent.
    fn told(m: &mut Mirror, epoch: u32) -> (Vec<Told>, Vec<Pos>) {
        let change = m.change(A, epoch);
        let entries = change.entries.iter().flatten();
        let sent: Vec<f32> = change.rows.concat();
        (
            entries.map(|e| (e.kind, e.epoch, e.pos, e.rows)).collect(),
            sent.chunks(2).map(|row| row[0] as Pos).collect(),
        )
    }

    /// what was taken back before the step is not sent, and no row is sent twice.
    #[test]
    fn a_18_only_rows_that_stand_are_sent() {
        let mut m = Mirror::new(8, 2);
        m.observe(A, 10, &rows(10, 13)).unwrap();
        assert_eq!(told(&mut m, 1), (begin(1, 10, 3), vec![10, 11, 12]));
        assert_eq!(told(&mut m, 2), (vec![], vec![]), "nothing is new");
        m.observe(A, 13, &rows(93, 97)).unwrap();
        m.truncate(14);
        m.observe(A, 14, &rows(14, 15)).unwrap();
        assert_eq!(
            told(&mut m, 2),
            (vec![(Kind::Observe, 1, 13, 2)], vec![93, 14])
        );
        m.truncate(12);
        m.observe(A, 12, &rows(12, 14)).unwrap();
        let back = vec![(Kind::Truncate, 5, 12, 0), (Kind::Observe, 5, 12, 2)];
        assert_eq!(told(&mut m, 5), (back, vec![12, 13]));
        m.close();
        assert!(!m.is_gone(), "the worker still has it");
        assert_eq!(told(&mut m, 6), (vec![(Kind::Close, 6, 0, 0)], vec![]));
        assert!(m.is_gone());
    }

    /// value d of captured layer c of the row for position t stands at ((t * captures) + c) * width + d
    /// of what is sent, for every length up to more than a ring, over the wrap.
    #[test]
    fn a_07_rows_are_token_major() {
        let (captures, width, first) = (3, 4, 37);
        let value = |pos: Pos, c: usize, d: usize| (pos as usize * 100 + c * 10 + d) as f32;
        for n in 1..=130 {
            let mut m = Mirror::new(128, captures * width);
            for pos in first..first + n {
                let row: Vec<f32> = (0..captures * width)
                    .map(|at| value(pos, at / width, at % width))
                    .collect();
                m.observe(A, pos, &row).unwrap();
            }
            let from = first + n.saturating_sub(128);
            let change = m.change(A, 1);
            assert_eq!(change.entries[1].map(|e| e.pos), Some(from));
            let sent = change.rows.concat();
            assert_eq!(sent.len(), n.min(128) as usize * captures * width);
            for (at, v) in sent.iter().enumerate() {
                let (t, c, d) = (at / (captures * width), at / width % captures, at % width);
                assert_eq!(*v, value(from + t as Pos, c, d), "{n}: {at}");
            }
        }
    }

    /// of a long prompt the newest ring is sent, whole and in order, over the wrap.
    #[test]
    fn a_19_of_a_long_prompt_only_the_ring_is_sent() {
        for n in [1, 7, 8, 9, 5000] {
            let mut m = Mirror::new(8, 2);
            m.observe(A, 3, &rows(3, 3 + n)).unwrap();
            let from = 3.max((3 + n).saturating_sub(8));
            let want: Vec<Pos> = (from..3 + n).collect();
            let entries = begin(1, from, want.len() as u32);
            assert_eq!(told(&mut m, 1), (entries, want), "{n}");
            // More than a ring later the worker's rows do not reach up to ours.
            m.observe(A, 3 + n, &rows(3 + n, 20 + n)).unwrap();
            let (entries, sent) = told(&mut m, 2);
            assert_eq!(
                entries,
                [(Kind::Close, 2, 0, 0), (Kind::Observe, 2, 12 + n, 8)]
            );
            assert_eq!(sent, (12 + n..20 + n).collect::<Vec<_>>());
        }
    }

    /// A worker that knows nothing is told everything that is kept.
    #[test]
    fn a_23_a_new_worker_gets_the_whole_mirror() {
        let mut m = Mirror::new(8, 2);
        m.observe(A, 0, &rows(0, 20)).unwrap();
        told(&mut m, 1);
        m.distrust(true);
        let want: Vec<Pos> = (12..20).collect();
        assert_eq!(told(&mut m, 2), (begin(2, 12, 8), want.clone()));
        m.distrust(false);
        let again = vec![(Kind::Close, 3, 0, 0), (Kind::Observe, 3, 12, 8)];
        assert_eq!(told(&mut m, 3), (again, want));
        let (from, kept) = m.kept();
        assert_eq!((from, kept.concat()), (12, rows(12, 20)));
    }

    #[test]
    fn loaded_rows_are_the_workers_alone() {
        let mut m = Mirror::new(8, 2);
        m.loaded(5, 9, 4);
        m.observe(A, 9, &rows(9, 11)).unwrap();
        assert_eq!(
            told(&mut m, 5),
            (vec![(Kind::Observe, 4, 9, 2)], vec![9, 10])
        );
        m.truncate(7);
        assert_eq!(told(&mut m, 6), (vec![(Kind::Truncate, 6, 7, 0)], vec![]));
        m.observe(A, 7, &rows(7, 8)).unwrap();
        // Lost with the worker: the context begins where this side has rows.
        m.distrust(true);
        assert_eq!(told(&mut m, 7), (begin(7, 7, 1), vec![7]));
        m.truncate(7);
        assert!(m.is_empty());
    }

    #[test]
    fn rows_that_skip_or_are_none_are_refused() {
        let mut m = Mirror::new(8, 2);
        m.observe(A, 5, &rows(5, 6)).unwrap();
        let hole = m.observe(A, 7, &rows(7, 8)).unwrap_err();
        assert!(
            matches!(
                hole,
                Fault::WrongPosition {
                    expected: 6,
                    got: 7,
                    ..
                }
            ),
            "{hole}"
        );
        let odd = m.observe(A, 6, &[0.0; 3]).unwrap_err();
        assert!(
            matches!(
                odd,
                Fault::BadState {
                    field: "features",
                    ..
                }
            ),
            "{odd}"
        );
        m.close();
        let far = m.observe(A, Pos::MAX, &rows(0, 1)).unwrap_err();
        assert!(matches!(far, Fault::ContextFull { .. }), "{far}");
        m.observe(A, 100, &[]).unwrap();
        assert!(m.is_empty() && m.is_gone() == m.theirs.is_none());
    }
}
