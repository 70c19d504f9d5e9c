//! Whose turn the payload is: two words a direction, published by one side and consumed by the other.
//!
//! Both sides use this one implementation. The order is: payload, byte count, then the number with
//! release; the reader takes the number with acquire, compares both words with the frame it received, and
//! uses its own copies from then on. Generic over the atomic word, so that the model checker runs the
//! same lines.

use std::sync::atomic::{AtomicU64, Ordering};

use engine_core::mutant::mutant;

use crate::error::LinkError;

/// An atomic word of 64 bits.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
}

impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        AtomicU64::load(self, order)
    }

    fn store(&self, value: u64, order: Ordering) {
        AtomicU64::store(self, value, order);
    }
}

/// The words of one direction.
#[derive(Debug)]
pub(crate) struct Turn<'a, W> {
    pub(crate) number: &'a W,
    pub(crate) bytes: &'a W,
}

impl<W: Word> Turn<'_, W> {
    /// Hands `bytes` of payload over under `number`. Whoever calls this has written them.
    pub(crate) fn publish(&self, number: u64, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
        let order = if mutant(341) {
            Ordering::Relaxed
        } else {
            Ordering::Release
        };
        self.number.store(number, order);
    }

    /// Takes over what a frame announced.
    ///
    /// # Errors
    /// `Corrupt` if the words say something else: the payload is another one.
    pub(crate) fn consume(&self, number: u64, bytes: u64) -> Result<(), LinkError> {
        let seen = self.number.load(Ordering::Acquire);
        if seen != number && !mutant(342) {
            return Err(LinkError::corrupt("number in the region", number, seen));
        }
        let seen = self.bytes.load(Ordering::Relaxed);
        if seen != bytes {
            return Err(LinkError::corrupt("bytes in the region", bytes, seen));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64 as LoomWord;
    use loom::thread;

    impl Word for LoomWord {
        fn load(&self, order: Ordering) -> u64 {
            LoomWord::load(self, order)
        }

        fn store(&self, value: u64, order: Ordering) {
            LoomWord::store(self, value, order);
        }
    }

    #[derive(Default)]
    struct Shared {
        words: [LoomWord; 4],
        payload: UnsafeCell<u64>,
    }

    // The checker watches every access to the cell and fails on one that is not ordered.
    #[allow(unsafe_code, reason = "the model's payload")]
    // SAFETY: the model checker reports a race instead of having one.
    unsafe impl Sync for Shared {}

    impl Shared {
        fn request(&self) -> Turn<'_, LoomWord> {
            let [number, bytes, ..] = &self.words;
            Turn { number, bytes }
        }

        fn reply(&self) -> Turn<'_, LoomWord> {
            let [_, _, number, bytes] = &self.words;
            Turn { number, bytes }
        }
    }

    #[allow(unsafe_code, reason = "the model's payload")]
    fn swap(cell: &UnsafeCell<u64>, value: u64) -> u64 {
        // SAFETY: loom panics if another thread could be at the cell.
        cell.with_mut(|p| unsafe { std::mem::replace(&mut *p, value) })
    }

    fn until<W: Word>(turn: &Turn<'_, W>, number: u64, bytes: u64) {
        while turn.consume(number, bytes).is_err() {
            thread::yield_now();
        }
    }

    /// in every interleaving of two round trips the payload has one owner at a time.
    #[test]
    fn a_28_two_parties_never_meet_in_the_payload() {
        loom::model(|| {
            let shared = Arc::new(Shared::default());
            let theirs = Arc::clone(&shared);
            let worker = thread::spawn(move || {
                for n in 1..=2 {
                    until(&theirs.request(), n, 8 * n);
                    let got = swap(&theirs.payload, 100 + n);
                    assert_eq!(got, n);
                    theirs.reply().publish(n, 16 * n);
                }
            });
            for n in 1..=2 {
                swap(&shared.payload, n);
                shared.request().publish(n, 8 * n);
                until(&shared.reply(), n, 16 * n);
                assert_eq!(swap(&shared.payload, 0), 100 + n);
            }
            worker.join().unwrap();
        });
    }

    #[test]
    fn other_words_than_the_frame_says_are_refused() {
        let (number, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        let turn = Turn {
            number: &number,
            bytes: &bytes,
        };
        turn.publish(7, 4096);
        turn.consume(7, 4096).unwrap();
        let stale = turn.consume(8, 4096).unwrap_err().to_string();
        assert_eq!(stale, "number in the region: expected 8, got 7");
        let cut = turn.consume(7, 4097).unwrap_err().to_string();
        assert_eq!(cut, "bytes in the region: expected 4097, got 4096");
    }
}
