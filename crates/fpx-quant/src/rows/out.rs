//! The result of a product as a strided view that threads can share by disjoint rows.
//!
//! Apart from the kernels because it is the fence of an unsafe argument: a product writes f32
//! `[n_cols][n_rows]`, and a thread that owns some rows writes a piece of every column, which no
//! slice of the standard library expresses. A view only ever gives out one piece of one column.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// An exclusive view of f32 `[cols][rows]`, columns `stride` elements apart.
#[derive(Debug)]
pub struct Out<'a> {
    base: *mut f32,
    stride: usize,
    rows: usize,
    cols: usize,
    memory: PhantomData<&'a mut [f32]>,
}

// SAFETY: a view is as exclusive as the `&mut [f32]` it was made from: every constructor consumes
// or borrows its source, and pieces never overlap.
unsafe impl Send for Out<'_> {}

impl<'a> Out<'a> {
    /// A view of a whole buffer, f32 `[cols][rows]`.
    ///
    /// # Panics
    /// If the buffer has another size.
    #[must_use]
    pub fn new(buffer: &'a mut [f32], cols: usize, rows: usize) -> Self {
        let len = buffer.len();
        assert_eq!(
            cols.checked_mul(rows),
            Some(len),
            "{cols} columns of {rows} rows"
        );
        Self {
            base: buffer.as_mut_ptr(),
            stride: rows,
            rows,
            cols,
            memory: PhantomData,
        }
    }

    /// Rows of the view.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of the view.
    #[must_use]
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The rows of one column.
    ///
    /// # Panics
    /// If there is no such column.
    #[must_use]
    #[inline]
    pub fn col(&mut self, col: usize) -> &mut [f32] {
        assert!(col < self.cols, "column {col} of {}", self.cols);
        if self.rows == 0 {
            return &mut [];
        }
        // SAFETY: `col` < `cols`, so the offset stays inside the buffer of `new`, of which this
        // view covers elements `col * stride .. + rows` for each of its columns.
        let start = unsafe { self.base.add(col * self.stride) };
        // SAFETY: those `rows` elements are initialised f32 that nobody else can reach while this
        // view is borrowed (see `Send` above).
        unsafe { std::slice::from_raw_parts_mut(start, self.rows) }
    }

    /// The same view for a shorter time.
    #[must_use]
    pub fn reborrow(&mut self) -> Out<'_> {
        Out {
            memory: PhantomData,
            ..*self
        }
    }

    /// Rows before `at` and the rest.
    ///
    /// # Panics
    /// If `at` is larger than the number of rows.
    #[must_use]
    pub fn split_rows(self, at: usize) -> (Self, Self) {
        let (rows, cols) = (self.rows, self.cols);
        (self.part(0..at, 0..cols), self.part(at..rows, 0..cols))
    }

    /// Columns before `at` and the rest.
    ///
    /// # Panics
    /// If `at` is larger than the number of columns.
    #[must_use]
    pub fn split_cols(self, at: usize) -> (Self, Self) {
        let (rows, cols) = (self.rows, self.cols);
        (self.part(0..rows, 0..at), self.part(0..rows, at..cols))
    }

    /// A queue of pieces of `rows_each` rows (the last one fewer), for threads to take from.
    ///
    /// # Panics
    /// If `rows_each` is 0.
    #[must_use]
    pub fn into_queue(self, rows_each: usize) -> OutQueue<'a> {
        assert!(rows_each > 0, "no rows a piece");
        OutQueue {
            whole: self,
            rows_each,
            next: AtomicUsize::new(0),
        }
    }

    /// A view of some rows and columns. Private: the callers keep the parts disjoint.
    fn part(&self, rows: Range<usize>, cols: Range<usize>) -> Self {
        assert!(
            rows.start <= rows.end && rows.end <= self.rows,
            "{rows:?} of {}",
            self.rows
        );
        assert!(
            cols.start <= cols.end && cols.end <= self.cols,
            "{cols:?} of {}",
            self.cols
        );
        // An empty part may start past the end of the buffer, so the offset does not claim to be
        // inside; it is only followed when the part has a row and a column.
        let offset = cols.start * self.stride + rows.start;
        Self {
            base: self.base.wrapping_add(offset),
            stride: self.stride,
            rows: rows.len(),
            cols: cols.len(),
            memory: PhantomData,
        }
    }
}

/// Pieces of an [`Out`], each handed out once, in row order, to whichever thread asks.
#[derive(Debug)]
pub struct OutQueue<'a> {
    whole: Out<'a>,
    rows_each: usize,
    next: AtomicUsize,
}

// SAFETY: the shared counter gives each range of rows to one caller only, so two threads never
// hold the same element.
unsafe impl Sync for OutQueue<'_> {}

impl<'a> OutQueue<'a> {
    /// The next piece and the rows it covers; None when all are taken.
    pub fn take(&self) -> Option<(Range<usize>, Out<'a>)> {
        let end = self.whole.rows;
        let after = |start: usize| (start < end).then(|| end.min(start + self.rows_each.min(end)));
        // Relaxed is enough: the counter orders nothing but itself.
        let start = self
            .next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, after)
            .ok()?;
        let rows = start..after(start)?;
        Some((rows.clone(), self.whole.part(rows, 0..self.whole.cols)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_the_buffer_once() {
        let mut buffer = vec![f32::NAN; 5 * 7];
        let (left, right) = Out::new(&mut buffer, 5, 7).split_rows(3);
        let (top, bottom) = right.split_cols(2);
        for (part, mark) in [(left, 1.0), (top, 2.0), (bottom, 3.0)] {
            let mut part = part;
            for col in 0..part.cols() {
                part.col(col).fill(mark);
            }
        }
        for (i, value) in buffer.iter().enumerate() {
            let want = match (i / 7, i % 7) {
                (_, 0..3) => 1.0,
                (0..2, _) => 2.0,
                _ => 3.0,
            };
            assert_eq!(*value, want, "element {i}");
        }
    }

    #[test]
    fn a_queue_hands_each_row_to_one_thread() {
        let mut buffer = vec![f32::NAN; 3 * 100];
        let queue = Out::new(&mut buffer, 3, 100).into_queue(7);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    while let Some((rows, mut out)) = queue.take() {
                        for col in 0..out.cols() {
                            for (cell, row) in out.col(col).iter_mut().zip(rows.clone()) {
                                assert!(cell.is_nan(), "row {row} was taken twice");
                                *cell = (col * 100 + row) as f32;
                            }
                        }
                    }
                });
            }
        });
        assert!(queue.take().is_none());
        assert!(buffer.iter().enumerate().all(|(i, &v)| v == i as f32));
    }

    #[test]
    fn empty_views() {
        let mut none = Out::new(&mut [], 3, 0);
        assert!(none.col(2).is_empty());
        let (a, b) = none.split_cols(3);
        assert_eq!((a.cols(), b.cols()), (3, 0));
        assert!(b.into_queue(usize::MAX).take().is_none());
        let mut buffer = [0.0; 6];
        let (a, b) = Out::new(&mut buffer, 2, 3).split_rows(3);
        assert_eq!((a.rows(), b.rows()), (3, 0));
    }

    #[test]
    #[should_panic(expected = "column 2 of 2")]
    fn a_column_outside_panics() {
        let mut buffer = [0.0; 6];
        let _ = Out::new(&mut buffer, 2, 3).col(2);
    }
}
