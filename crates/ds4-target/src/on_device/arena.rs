//! One allocation an arena, cut into slots before any of it is made: what a model needs is known to the byte
//! first.
//!
//! Must not know: what stands in a slot.

use ds4_kernels::KernelError;

/// Slots start at multiples of this, as the drivers' own allocations do.
const ALIGN: u64 = 256;

/// Which allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arena {
    /// What is uploaded once.
    Weights,
    /// Rows of sequences.
    State,
    /// What a pass writes and the next one overwrites.
    Scratch,
}

/// A range of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) arena: Arena,
    pub(crate) start: u64,
    pub(crate) len: u64,
}

impl Slot {
    /// `count` rows of `row` bytes from row `first` on. What reaches outside is refused when it is used.
    pub(crate) fn rows(self, first: usize, count: usize, row: usize) -> Self {
        self.part((first * row) as u64, (count * row) as u64)
    }

    /// Bytes `start..start + len` of it.
    pub(crate) fn part(self, start: u64, len: u64) -> Self {
        Self {
            start: self.start + start,
            len,
            ..self
        }
    }

    /// Whether `self` lies within `outer`.
    #[cfg(test)]
    pub(crate) fn inside(self, outer: Self) -> bool {
        self.start >= outer.start && self.start + self.len <= outer.start + outer.len
    }
}

/// The slots of an arena so far.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    arena: Arena,
    used: u64,
}

impl Layout {
    pub(crate) fn new(arena: Arena) -> Self {
        Self { arena, used: 0 }
    }

    /// The next slot, of the product of `sizes` bytes.
    pub(crate) fn take(&mut self, sizes: &[usize]) -> Result<Slot, KernelError> {
        let overflow = || KernelError::Shape {
            kernel: "arena",
            what: "bytes",
            expected: "at most 2^63 - 1",
            got: u64::MAX,
        };
        let product = sizes
            .iter()
            .try_fold(1u64, |product, size| product.checked_mul(*size as u64));
        let len = product.ok_or_else(overflow)?;
        let start = self.used;
        let end = start.checked_add(len).filter(|e| *e <= u64::MAX >> 1);
        self.used = end.ok_or_else(overflow)?.next_multiple_of(ALIGN);
        Ok(Slot {
            arena: self.arena,
            start,
            len,
        })
    }

    /// Bytes of the whole arena.
    pub(crate) fn bytes(&self) -> u64 {
        self.used.max(ALIGN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_aligned_and_do_not_touch() {
        let mut layout = Layout::new(Arena::State);
        let a = layout.take(&[3, 100]).unwrap();
        let b = layout.take(&[1]).unwrap();
        assert_eq!((a.start, a.len, b.start, b.len), (0, 300, 512, 1));
        assert_eq!(layout.bytes(), 768);
        let row = a.rows(2, 1, 100);
        assert_eq!((row.start, row.len), (200, 100));
        assert!(row.inside(a) && !a.rows(2, 2, 100).inside(a));
    }

    #[test]
    fn sizes_that_overflow_are_refused() {
        let mut layout = Layout::new(Arena::State);
        assert!(layout.take(&[usize::MAX, 2]).is_err());
        assert!(layout.take(&[usize::MAX]).is_err());
        assert_eq!(layout.bytes(), ALIGN, "nothing was taken");
    }
}
