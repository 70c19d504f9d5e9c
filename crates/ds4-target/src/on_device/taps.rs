//! Features of a pass: each stage gives those of its own layers, and they are put together on the host.
//!
//! Must not know: launches, who wants features.

use std::ops::Range;

use engine_core::Span;

use super::arena::Slot;
use super::inputs::Part;
use super::layers::Tapped;
use crate::batch::Batch;

/// What a stage gives of a span's features.
#[derive(Clone, Debug)]
pub(super) struct Tap {
    /// Which span.
    pub(super) span: usize,
    /// Where each of the stage's layers stands among all that the span wants, and how many those are.
    places: Vec<usize>,
    of: usize,
}

/// The features that a stage with these layers gives of a part, into `room`: a part's tokens with all the layers a span
/// may tap have room. `d`: values of a feature.
pub(super) fn of_stage(
    batch: &Batch,
    spans: &[Span],
    part: &Part,
    layers: &Range<usize>,
    room: Slot,
    d: usize,
) -> (Vec<Tap>, Vec<Tapped>) {
    let mut at = 0;
    let mut all = (Vec::new(), Vec::new());
    for span in part.pieces.clone() {
        let (piece, wanted) = (&batch.pieces[span], &spans[span].tap.layers);
        let numbers: Vec<usize> = wanted.iter().map(|l| l.index()).collect();
        let here = |place: &usize| layers.contains(&numbers[*place]);
        let places: Vec<usize> = (0..numbers.len()).filter(here).collect();
        if places.is_empty() {
            continue;
        }
        let first = piece.at - part.tokens.start;
        let bytes = (piece.len * places.len() * d * 4) as u64;
        all.1.push(Tapped {
            tokens: first..first + piece.len,
            out: room.part(at, bytes),
            layers: places.iter().map(|place| numbers[*place]).collect(),
        });
        let of = numbers.len();
        all.0.push(Tap { span, places, of });
        at += bytes;
    }
    all
}

impl Tap {
    /// Puts values of `[tokens, layers here, d]` from value `at` on, little-endian f32, where they belong in `to`
    /// `[tokens, layers, d]`; how many there were.
    pub(super) fn put(&self, to: &mut [f32], d: usize, at: usize, bytes: &[u8]) -> usize {
        let (words, _) = bytes.as_chunks::<4>();
        let mut done = 0;
        while done < words.len() {
            let (row, off) = ((at + done) / d, (at + done) % d);
            let (token, here) = (row / self.places.len(), row % self.places.len());
            let len = (d - off).min(words.len() - done);
            let first = (token * self.of + self.places[here]) * d + off;
            let values = words[done..done + len].iter();
            for (to, word) in to[first..first + len].iter_mut().zip(values) {
                *to = f32::from_le_bytes(*word);
            }
            done += len;
        }
        words.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the pieces in which bytes come.
    #[test]
    fn features_of_two_stages_come_together() {
        let d = 3;
        let want: Vec<f32> = (0..2 * 3 * d as u32).map(|i| i as f32).collect();
        let tap = |places: &[usize]| Tap {
            span: 0,
            places: places.to_vec(),
            of: 3,
        };
        let (first, second) = (tap(&[0, 2]), tap(&[1]));
        for step in 1..=7 {
            let mut got = vec![f32::NAN; want.len()];
            for (tap, rows) in [(&first, &[0, 2, 3, 5][..]), (&second, &[1, 4])] {
                let values = rows.iter().flat_map(|row| &want[row * d..][..d]);
                let bytes: Vec<u8> = values.flat_map(|v| v.to_le_bytes()).collect();
                let mut at = 0;
                for part in bytes.chunks(4 * step) {
                    at += tap.put(&mut got, d, at, part);
                }
            }
            assert_eq!(got, want, "{step} values at a time");
        }
    }
}
