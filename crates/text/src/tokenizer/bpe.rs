//! Byte-pair merging: always the pair of lowest rank, leftmost first.
//!
//! A linked list of symbols and a heap of candidate pairs: n log n for any piece, so that a piece of
//! a megabyte of one letter is no attack.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

use engine_core::TokenId;

/// What a pair of neighbours becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Merge {
    /// Lower goes first.
    pub(crate) rank: u32,
    /// The token of the joined text.
    pub(crate) joined: TokenId,
}

/// One multiplication is enough for keys that are two vocabulary indexes of our own making.
#[derive(Default)]
pub(crate) struct PairHasher(u64);

impl Hasher for PairHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for b in bytes {
            self.write_u64(u64::from(*b));
        }
    }

    fn write_u64(&mut self, value: u64) {
        // The table reads both ends of the hash: fold the product's high half down.
        let product = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ (product >> 32);
    }
}

/// Merges by pair.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Merges(HashMap<u64, Merge, BuildHasherDefault<PairHasher>>);

impl Merges {
    pub(crate) fn with_capacity(n: usize) -> Self {
        Self(HashMap::with_capacity_and_hasher(
            n,
            BuildHasherDefault::default(),
        ))
    }

    /// Adds a merge; a pair that is already there keeps its lower rank.
    pub(crate) fn add(&mut self, left: TokenId, right: TokenId, merge: Merge) {
        self.0.entry(key(left, right)).or_insert(merge);
    }

    fn get(&self, left: TokenId, right: TokenId) -> Option<Merge> {
        self.0.get(&key(left, right)).copied()
    }
}

fn key(left: TokenId, right: TokenId) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

const NONE: usize = usize::MAX;

#[derive(Clone, Copy)]
struct Symbol {
    /// `TokenId::MAX` once merged into its left neighbour.
    id: TokenId,
    prev: usize,
    next: usize,
}

/// Buffers of a call, and the work it did.
#[derive(Default)]
pub(crate) struct Scratch {
    symbols: Vec<Symbol>,
    heap: BinaryHeap<Reverse<(u32, usize, TokenId, TokenId)>>,
    /// Candidate pairs looked up so far.
    pub(crate) lookups: u64,
}

impl Scratch {
    /// Appends the tokens of a piece given as one token per byte.
    pub(crate) fn merge(
        &mut self,
        merges: &Merges,
        bytes: impl ExactSizeIterator<Item = TokenId>,
        out: &mut Vec<TokenId>,
    ) {
        self.symbols.clear();
        self.heap.clear();
        let n = bytes.len();
        self.symbols
            .extend(bytes.zip(0usize..).map(|(id, i)| Symbol {
                id,
                prev: if i > 0 { i - 1 } else { NONE },
                next: if i + 1 < n { i + 1 } else { NONE },
            }));
        for at in 0..n {
            self.offer(merges, at);
        }
        while let Some(Reverse((_, at, left, right))) = self.heap.pop() {
            self.apply(merges, at, left, right);
        }
        out.extend(
            self.symbols
                .iter()
                .map(|s| s.id)
                .filter(|id| *id != TokenId::MAX),
        );
    }

    /// Puts the pair that starts at `at` on the heap, if it is a merge.
    fn offer(&mut self, merges: &Merges, at: usize) {
        let symbol = self.symbols[at];
        if symbol.next == NONE {
            return;
        }
        self.lookups += 1;
        let right = self.symbols[symbol.next].id;
        if let Some(merge) = merges.get(symbol.id, right) {
            self.heap.push(Reverse((merge.rank, at, symbol.id, right)));
        }
    }

    /// Joins a pair unless an earlier merge changed one of its halves.
    fn apply(&mut self, merges: &Merges, at: usize, left: TokenId, right: TokenId) {
        let symbol = self.symbols[at];
        if symbol.id != left || symbol.next == NONE {
            return;
        }
        let gone = self.symbols[symbol.next];
        let Some(merge) = merges.get(left, right).filter(|_| gone.id == right) else {
            return;
        };
        self.symbols[symbol.next].id = TokenId::MAX;
        self.symbols[at] = Symbol {
            id: merge.joined,
            prev: symbol.prev,
            next: gone.next,
        };
        if gone.next != NONE {
            self.symbols[gone.next].prev = at;
        }
        if symbol.prev != NONE {
            self.offer(merges, symbol.prev);
        }
        self.offer(merges, at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens 0.. are single letters; a doubling vocabulary: a, aa, aaaa, ...
    fn doubling(levels: u32) -> Merges {
        let mut merges = Merges::default();
        for rank in 0..levels {
            let joined = rank + 1;
            merges.add(rank, rank, Merge { rank, joined });
        }
        merges
    }

    fn encode(merges: &Merges, ids: &[TokenId]) -> (Vec<TokenId>, u64) {
        let mut scratch = Scratch::default();
        let mut out = Vec::new();
        scratch.merge(merges, ids.iter().copied(), &mut out);
        (out, scratch.lookups)
    }

    #[test]
    fn the_lowest_rank_goes_first_and_the_leftmost_of_equals() {
        let mut merges = Merges::default();
        merges.add(
            1,
            2,
            Merge {
                rank: 1,
                joined: 10,
            },
        );
        merges.add(
            0,
            1,
            Merge {
                rank: 2,
                joined: 11,
            },
        );
        merges.add(
            0,
            0,
            Merge {
                rank: 0,
                joined: 12,
            },
        );
        merges.add(
            12,
            0,
            Merge {
                rank: 3,
                joined: 13,
            },
        );
        assert_eq!(encode(&merges, &[0, 1, 2]).0, [0, 10]);
        assert_eq!(encode(&merges, &[0, 0, 0]).0, [13]);
        assert_eq!(encode(&merges, &[0, 0, 0, 0]).0, [12, 12]);
        assert_eq!(encode(&merges, &[]).0, [0u32; 0]);
        assert_eq!(encode(&merges, &[2]).0, [2]);
    }

    #[test]
    fn a_repeated_pair_keeps_its_first_rank() {
        let mut merges = Merges::default();
        merges.add(0, 1, Merge { rank: 5, joined: 7 });
        merges.add(0, 1, Merge { rank: 9, joined: 8 });
        assert_eq!(encode(&merges, &[0, 1]).0, [7]);
    }

    #[test]
    fn a_megabyte_of_one_letter_costs_linear_lookups() {
        let merges = doubling(30);
        for n in [1usize << 10, 1 << 20, (1 << 20) + 1] {
            let (out, lookups) = encode(&merges, &vec![0; n]);
            // One per starting pair, at most two per merge, fewer merges than symbols.
            assert!(lookups <= 3 * n as u64, "{lookups} lookups for {n}");
            assert_eq!(out.len(), (n.count_ones()) as usize);
        }
    }
}
