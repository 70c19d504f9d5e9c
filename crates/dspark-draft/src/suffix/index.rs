//! A text with the places of its n-grams: where did the last tokens stand before, and what followed.

use std::collections::HashMap;

use engine_core::TokenId;
use engine_core::mutant::mutant;

/// Lengths of n-grams that are looked up, longest first.
const GRAMS: [usize; 3] = [8, 4, 2];

/// Longest match that is told apart.
pub(crate) const MATCH_MAX: usize = 32;

/// The text of one sequence.
#[derive(Clone, Debug, Default)]
pub(crate) struct Text {
    tokens: Vec<TokenId>,
    /// For each length: hash of an n-gram, to one past its last place. Places are checked, so that two
    /// n-grams with one hash do no harm.
    places: [HashMap<u64, u32>; GRAMS.len()],
}

/// A place where the text read as it does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Where it goes on.
    pub(crate) next: usize,
    /// Tokens that agree, at most [`MATCH_MAX`].
    pub(crate) len: usize,
}

fn hash(tokens: impl Iterator<Item = TokenId>) -> u64 {
    let step = |h: u64, t: TokenId| {
        (h ^ u64::from(t))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
    };
    tokens.fold(0x5851_f42d_4c95_7f2d, step)
}

impl Text {
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Adds a token. Keeps at most `most` of them: the older half is forgotten at once.
    pub(crate) fn push(&mut self, token: TokenId, most: usize) {
        if self.tokens.len() >= most.max(2 * GRAMS[0]) {
            let half = self.tokens.len() / 2;
            let kept = self.tokens.split_off(half);
            self.tokens.clear();
            self.places.iter_mut().for_each(HashMap::clear);
            for token in kept {
                self.index(token);
            }
        }
        self.index(token);
    }

    fn index(&mut self, token: TokenId) {
        self.tokens.push(token);
        let end = self.tokens.len();
        for (places, n) in self.places.iter_mut().zip(GRAMS) {
            if end >= n {
                let key = hash(self.tokens[end - n..].iter().copied());
                places.insert(key, end as u32);
            }
        }
    }

    /// Cuts the text to its first `len` tokens.
    pub(crate) fn truncate(&mut self, len: usize) {
        if len < self.tokens.len() {
            let kept = self.tokens[..len].to_vec();
            *self = Self::default();
            kept.into_iter().for_each(|t| self.index(t));
        }
    }

    /// The text's last tokens and `seed`, found before: the longest n-gram's last place.
    pub(crate) fn find(&self, seed: TokenId) -> Option<Found> {
        let all = self.tokens.len();
        for (places, n) in self.places.iter().zip(GRAMS) {
            if all + 1 < n {
                continue;
            }
            let last = self.tokens[all + 1 - n..].iter().copied().chain([seed]);
            let Some(next) = places.get(&hash(last)) else {
                continue;
            };
            let next = *next as usize;
            let len = self.agree(next, seed);
            if len >= n {
                return Some(Found { next, len });
            }
        }
        None
    }

    /// How many tokens before `next` agree with the text's end and `seed`.
    fn agree(&self, next: usize, seed: TokenId) -> usize {
        if next == 0 || self.tokens[next - 1] != seed {
            return 0;
        }
        let before = self.tokens[..next - 1].iter().rev();
        let pairs = before.zip(self.tokens.iter().rev());
        1 + pairs
            .take(MATCH_MAX - 1)
            .take_while(|(a, b)| a == b)
            .count()
    }

    /// What followed at `next`, `n` tokens. Past the end it goes on with the seed and then with what it
    /// has written itself, so that a loop in the text is continued.
    pub(crate) fn copy(&self, next: usize, seed: TokenId, n: usize) -> Vec<TokenId> {
        let next = if mutant(254) { next + 1 } else { next };
        let mut out: Vec<TokenId> = Vec::with_capacity(n);
        for at in next..next + n {
            let past = at.checked_sub(self.tokens.len());
            let token = match past {
                None => self.tokens[at],
                Some(0) => seed,
                Some(past) => match out.get(past - 1) {
                    Some(token) => *token,
                    None => break,
                },
            };
            out.push(token);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(tokens: &[TokenId]) -> Text {
        let mut text = Text::default();
        tokens.iter().for_each(|t| text.push(*t, 1000));
        text
    }

    #[test]
    fn the_longest_match_wins_and_of_equals_the_last() {
        let t = text(&[1, 2, 3, 4, 9, 3, 4, 8, 5, 2, 3]);
        // "2 3 4" stood at the front, "3 4" twice: only two-grams exist, the last is taken.
        assert_eq!(t.find(4), Some(Found { next: 7, len: 2 }));
        let t = text(&[1, 2, 3, 4, 9, 3, 4, 8, 5, 1, 2, 3]);
        assert_eq!(t.find(4), Some(Found { next: 4, len: 4 }));
        assert_eq!(t.copy(4, 4, 3), [9, 3, 4]);
        assert_eq!(t.find(7), None);
        assert_eq!(text(&[]).find(1), None);
    }

    #[test]
    fn a_loop_is_continued_past_the_end() {
        let t = text(&[7, 7, 7]);
        let found = t.find(7).unwrap();
        assert_eq!(t.copy(found.next, 7, 6), [7; 6]);
        let t = text(&[1, 2, 1, 2, 1]);
        let found = t.find(2).unwrap();
        assert_eq!(t.copy(found.next, 2, 5), [1, 2, 1, 2, 1]);
    }

    #[test]
    fn memory_is_bounded_and_what_is_kept_is_found() {
        let mut t = Text::default();
        for i in 0..10_000u32 {
            t.push(i % 37, 128);
            assert!(t.len() <= 128);
            assert!(t.places.iter().all(|p| p.len() <= 128));
        }
        let next = 10_000 % 37;
        let found = t.find(next).unwrap();
        assert_eq!(
            t.copy(found.next, next, 3),
            [1, 2, 3].map(|k| (next + k) % 37)
        );
        t.truncate(5);
        assert_eq!(t.len(), 5);
        assert_eq!(t.find(next), None);
    }
}
