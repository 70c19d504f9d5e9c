//! Copies of rows in pieces.
//!
//! Where source and destination lie differently within a page, some processors copy a large block many
//! times slower by the instruction that the C library chooses for it. Pieces below its threshold are copied
//! by vector loads and stores everywhere; `examples/cost.rs` shows the difference.

/// Bytes of a piece: below the threshold of any vector width.
pub(crate) const PIECE: usize = 2048;

/// Copies `from` to `to`, which is as long.
pub(crate) fn copy<T: Copy>(from: &[T], to: &mut [T]) {
    assert_eq!(from.len(), to.len(), "copies are whole");
    let piece = PIECE / size_of::<T>().max(1);
    for (from, to) in from.chunks(piece).zip(to.chunks_mut(piece)) {
        to.copy_from_slice(from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_make_a_whole() {
        for n in [0, 1, 511, 512, 513, 5000] {
            let from: Vec<f32> = (0..n).map(|v| v as f32).collect();
            let mut to = vec![f32::NAN; n];
            copy(&from, &mut to);
            assert_eq!(to, from);
        }
    }
}
