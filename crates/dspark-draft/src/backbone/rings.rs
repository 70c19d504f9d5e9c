//! Context rows of one sequence: a ring of finished key rows per stage, addressed by position, so
//! that taking rows back is a length (spec/dspark.md 1.5, 7.4).
//!
//! Must not know: features, weights, how a row is made.

use std::ops::Range;

use engine_core::Pos;

/// Sizes of a sequence's rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Rings.
    pub(crate) stages: usize,
    /// Values of a row.
    pub(crate) width: usize,
    /// Rows a block sees.
    pub(crate) window: usize,
    /// Rows of a ring, a power of two.
    pub(crate) ring: usize,
}

impl Shape {
    /// Bytes of a sequence's rings.
    pub(crate) const fn bytes(self) -> u64 {
        (self.stages * self.ring * self.width * 4) as u64
    }

    /// The smallest ring that holds the window, a block and the widest verify: nothing that a
    /// truncation by less than a verify brings back has been overwritten.
    pub(crate) fn new(
        stages: usize,
        width: usize,
        window: usize,
        block: usize,
        verify: usize,
    ) -> Self {
        let ring = (window + block + verify).next_power_of_two();
        Self {
            stages,
            width,
            window,
            ring,
        }
    }

    /// A position's row of a ring. The ring is a power of two, so `ring - 1` masks.
    pub(crate) fn slot(&self, pos: Pos) -> usize {
        pos as usize & (self.ring - 1)
    }
}

/// Which rows of a sequence there are: those of positions `low..end`, none when they are equal. Where they stand is
/// their owner's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marks {
    shape: Shape,
    low: Pos,
    end: Pos,
}

impl Marks {
    pub(crate) fn new(shape: Shape) -> Self {
        let (low, end) = (0, 0);
        Self { shape, low, end }
    }

    /// Forgets everything; the next row may stand anywhere.
    pub(crate) fn reset(&mut self) {
        self.begin(0);
    }

    /// Forgets everything; the next row stands at `pos`.
    pub(crate) fn begin(&mut self, pos: Pos) {
        (self.low, self.end) = (pos, pos);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.low == self.end
    }

    /// One past the newest row.
    pub(crate) fn end(&self) -> Pos {
        self.end
    }

    /// The oldest row that is still there.
    pub(crate) fn low(&self) -> Pos {
        self.low
    }

    /// Positions a block at the end sees, which are also the live ones.
    pub(crate) fn live(&self) -> Range<Pos> {
        let from = self.end.saturating_sub(self.shape.window as Pos);
        from.max(self.low)..self.end
    }

    /// Rows below `end` are there now; older ones than a ring holds are not any more.
    pub(crate) fn advance(&mut self, end: Pos) {
        self.end = end;
        self.low = self.low.max(end.saturating_sub(self.shape.ring as Pos));
    }

    /// Forgets rows at and above `pos`.
    pub(crate) fn truncate(&mut self, pos: Pos) {
        if pos <= self.low {
            self.begin(pos);
        } else {
            self.end = self.end.min(pos);
        }
    }
}

/// A sequence's rings in this process.
#[derive(Clone, Debug)]
pub(crate) struct Rings {
    pub(crate) marks: Marks,
    /// `[stages, ring, width]`.
    rows: Vec<f32>,
}

impl Rings {
    pub(crate) fn new(shape: Shape) -> Self {
        Self {
            rows: vec![f32::NAN; shape.stages * shape.ring * shape.width],
            marks: Marks::new(shape),
        }
    }

    fn at(&self, stage: usize, pos: Pos) -> Range<usize> {
        let shape = &self.marks.shape;
        let from = (stage * shape.ring + shape.slot(pos)) * shape.width;
        from..from + shape.width
    }

    pub(crate) fn row(&self, stage: usize, pos: Pos) -> &[f32] {
        &self.rows[self.at(stage, pos)]
    }

    pub(crate) fn row_mut(&mut self, stage: usize, pos: Pos) -> &mut [f32] {
        let at = self.at(stage, pos);
        &mut self.rows[at]
    }

    /// Overwrites every row that is not live with NaN; for tests.
    pub(crate) fn poison_stale(&mut self) {
        let kept = self.clone();
        self.rows.fill(f32::NAN);
        for stage in 0..self.marks.shape.stages {
            for pos in self.marks.low..self.marks.end {
                self.row_mut(stage, pos)
                    .copy_from_slice(kept.row(stage, pos));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rings(window: usize, verify: usize) -> Rings {
        Rings::new(Shape::new(2, 1, window, 5, verify))
    }

    fn fill(r: &mut Rings, range: std::ops::Range<Pos>) {
        for pos in range.clone() {
            for stage in 0..2 {
                r.row_mut(stage, pos)[0] = (pos * 2) as f32 + stage as f32;
            }
            r.marks.advance(pos + 1);
        }
    }

    #[test]
    fn a_ring_holds_window_block_and_verify() {
        let ring = |w, b, v| Shape::new(3, 512, w, b, v).ring;
        assert_eq!(
            [ring(128, 5, 8), ring(16, 5, 8), ring(64, 5, 59)],
            [256, 32, 128]
        );
    }

    #[test]
    fn rows_are_found_by_position_after_many_turns() {
        let mut r = rings(16, 8);
        r.marks.begin(7);
        fill(&mut r, 7..1000);
        assert_eq!(r.marks.live(), 984..1000);
        for pos in r.marks.live() {
            assert_eq!(r.row(0, pos), [(pos * 2) as f32]);
            assert_eq!(r.row(1, pos), [(pos * 2 + 1) as f32]);
        }
    }

    #[test]
    fn truncation_keeps_what_the_ring_still_has() {
        let mut r = rings(16, 8);
        r.marks.begin(100);
        fill(&mut r, 100..110);
        r.marks.truncate(105);
        assert_eq!(r.marks.live(), 100..105);
        fill(&mut r, 105..200);
        r.marks.truncate(190);
        assert_eq!(r.marks.live(), 174..190);
        // Of 200 the ring of 32 kept rows from 168 on.
        r.marks.truncate(170);
        assert_eq!(r.marks.live(), 168..170);
        r.marks.truncate(168);
        assert!(r.marks.is_empty());
        r.marks.truncate(500);
        assert!(r.marks.is_empty(), "nothing is forgotten into existence");
    }
}
