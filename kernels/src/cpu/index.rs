//! Indexer scores: which compressed rows a query attends to (ADR 0001 rule 10,
//! spec/ds4-architecture.md 2.9).

use engine_core::math::{dot, fma};

use super::round::{INDEX_BLOCK, e2m1_twice, fp4_codes};

/// Rows that are scored side by side: a packed tile holds byte `i` of all its rows next to each
/// other, so that a lane is a row and no lane is ever summed with another.
pub const INDEX_TILE: usize = 16;

/// What is added to the codes of a tile to make them unsigned.
pub(super) const BIAS: i32 = 12;

/// One value for each row of a tile.
type Lanes<T> = [T; INDEX_TILE];

#[inline(always)]
fn quantise_heads_impl(heads: &[f32], twice: &mut [i8], scale: &mut [f32]) {
    let (heads, _) = heads.as_chunks::<INDEX_BLOCK>();
    let (twice, _) = twice.as_chunks_mut::<INDEX_BLOCK>();
    for ((block, twice), scale) in heads.iter().zip(twice).zip(scale) {
        let (codes, s) = fp4_codes(block);
        for (t, code) in twice.iter_mut().zip(codes) {
            *t = e2m1_twice(code);
        }
        *scale = s;
    }
}

dispatch! {
    /// Rounds (rotated, transformed) query heads to fp4: doubled codes, and scales of blocks of 32.
    /// `heads`, `twice`: `[n, dim]`, `scale`: `[n, dim / 32]`; dim a multiple of 32.
    pub fn quantise_index_heads(heads: &[f32], twice: &mut [i8], scale: &mut [f32])
        = quantise_heads_impl
}

/// A tile of packed rows, taken apart once for all queries.
#[derive(Clone, Debug, Default)]
pub struct IndexTile {
    /// `[dim / 4, 16, 4]`: doubled codes + 12, four elements of a row side by side.
    pub(super) quads: Vec<Lanes<[u8; 4]>>,
    /// `[dim / 32, 16]`.
    pub(super) scale: Vec<Lanes<f32>>,
}

impl IndexTile {
    pub(super) fn resize(&mut self, dim: usize) {
        self.quads.resize(dim / 4, [[0; 4]; INDEX_TILE]);
        self.scale.resize(dim / INDEX_BLOCK, [0.0; INDEX_TILE]);
    }

    pub(super) fn dim(&self) -> usize {
        4 * self.quads.len()
    }
}

fn unpack_tile_impl(packed: &[u8], dim: usize, tile: &mut IndexTile) {
    tile.resize(dim);
    let (codes, scales) = packed.as_chunks::<INDEX_TILE>().0.split_at(dim / 2);
    let biased = |code: u8| (i32::from(e2m1_twice(code)) + BIAS) as u8;
    for (quad, codes) in tile.quads.iter_mut().zip(codes.as_chunks::<2>().0) {
        for (r, row) in quad.iter_mut().enumerate() {
            let [a, b] = [codes[0][r], codes[1][r]];
            *row = [a & 15, a >> 4, b & 15, b >> 4].map(biased);
        }
    }
    for (scale, e) in tile.scale.iter_mut().zip(scales) {
        *scale = e.map(|e| f32::from_bits(u32::from(e) << 23));
    }
}

dispatch! {
    /// Takes a packed tile apart. `packed`: `[packed bytes of a row, 16]`.
    ///
    /// # Panics
    /// If `packed` is shorter than a tile.
    pub fn unpack_index_tile(packed: &[u8], dim: usize, tile: &mut IndexTile)
        = unpack_tile_impl, avx2: super::avx2::unpack_tile
}

/// Integer dot of a block of a head with row `r`.
fn block_dot(twice: &[i8; INDEX_BLOCK], quads: &[Lanes<[u8; 4]>], r: usize) -> i32 {
    let mut dot = 0;
    for (q, quad) in twice.as_chunks::<4>().0.iter().zip(quads) {
        for i in 0..4 {
            dot += i32::from(q[i]) * (i32::from(quad[r][i]) - BIAS);
        }
    }
    dot
}

fn score_tile_impl(
    twice: &[i8],
    scale: &[f32],
    weights: &[f32],
    tile: &IndexTile,
    scores: &mut Lanes<f32>,
) {
    let blocks = tile.scale.len();
    let heads = twice.as_chunks::<INDEX_BLOCK>().0;
    *scores = [0.0; INDEX_TILE];
    for (h, w) in weights.iter().enumerate() {
        for (r, score) in scores.iter_mut().enumerate() {
            let mut a = 0f32;
            for b in 0..blocks {
                let quads = &tile.quads[b * INDEX_BLOCK / 4..][..INDEX_BLOCK / 4];
                let dot = block_dot(&heads[h * blocks + b], quads, r);
                let s = (scale[h * blocks + b] * tile.scale[b][r]) * 0.25;
                a = fma(dot as f32, s, a);
            }
            *score = fma(*w, if a > 0.0 { a } else { 0.0 }, *score);
        }
    }
}

dispatch! {
    /// Scores the 16 rows of a tile for one query. `twice`: `[n_heads, dim]`, `scale`: `[n_heads,
    /// dim / 32]` (from [`quantise_index_heads`]), `weights`: `[n_heads]`.
    pub fn index_score_tile(
        twice: &[i8],
        scale: &[f32],
        weights: &[f32],
        tile: &IndexTile,
        scores: &mut Lanes<f32>,
    ) = score_tile_impl, avx2: super::avx2::score_tile
}

#[inline(always)]
fn scores_f32_impl(heads: &[f32], weights: &[f32], rows: &[f32], scores: &mut [f32]) {
    let dim = heads.len() / weights.len();
    for (row, score) in rows.chunks_exact(dim).zip(scores) {
        let mut sum = 0f32;
        for (head, w) in heads.chunks_exact(dim).zip(weights) {
            let a = dot(head, row);
            sum = fma(*w, if a > 0.0 { a } else { 0.0 }, sum);
        }
        *score = sum;
    }
}

dispatch! {
    /// Scores F32 rows (`kv_sim` off). `heads`: `[n_heads, dim]`, `rows`: `[n, dim]`.
    pub fn index_scores_f32(heads: &[f32], weights: &[f32], rows: &[f32], scores: &mut [f32])
        = scores_f32_impl
}

#[cfg(test)]
mod tests {
    use super::super::round::{fp4_sim, index_row_bytes, pack_index_row};
    use super::*;

    fn noise(n: usize, mut state: u32) -> Vec<f32> {
        (0..n)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / 8_388_608.0 - 1.0
            })
            .collect()
    }

    /// `[bytes of a row, 16]` from rows of `dim`; rows beyond the last are poisoned.
    fn pack(keys: &[f32], dim: usize) -> Vec<u8> {
        let mut packed = vec![0xff; index_row_bytes(dim) * INDEX_TILE];
        for (r, k) in keys.chunks(dim).enumerate() {
            pack_index_row(k, INDEX_TILE, &mut packed[r..]);
        }
        packed
    }

    fn scores(q: &[f32], w: &[f32], keys: &[f32], dim: usize) -> [f32; INDEX_TILE] {
        let mut twice = vec![99i8; q.len()];
        let mut scale = vec![f32::NAN; q.len() / INDEX_BLOCK];
        quantise_index_heads(q, &mut twice, &mut scale);
        let (mut tile, mut scores) = (IndexTile::default(), [f32::NAN; INDEX_TILE]);
        unpack_index_tile(&pack(keys, dim), dim, &mut tile);
        index_score_tile(&twice, &scale, w, &tile, &mut scores);
        let (mut slow, mut want) = (IndexTile::default(), [f32::NAN; INDEX_TILE]);
        unpack_tile_impl(&pack(keys, dim), dim, &mut slow);
        score_tile_impl(&twice, &scale, w, &slow, &mut want);
        let bits = |s: &[Lanes<f32>]| {
            s.as_flattened()
                .iter()
                .map(|v| v.to_bits())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            (&tile.quads, bits(&tile.scale)),
            (&slow.quads, bits(&slow.scale))
        );
        let n = keys.len() / dim;
        assert_eq!(
            bits(&[scores])[..n],
            bits(&[want])[..n],
            "the definition's bits"
        );
        scores
    }

    fn round(x: &[f32]) -> Vec<f32> {
        let mut y = x.to_vec();
        fp4_sim(&mut y);
        y
    }

    #[test]
    fn packed_scores_equal_the_sum_over_rounded_values() {
        for (heads, dim, n) in [(3, 128, 5), (16, 32, 16), (1, 64, 1), (6, 256, 7)] {
            let (q, w) = (noise(heads * dim, 1), noise(heads, 3));
            let keys = noise(n * dim, 2);
            let got = scores(&q, &w, &keys, dim);
            for (k, score) in keys.chunks(dim).zip(got) {
                let k = round(k);
                let want: f64 = (0..heads)
                    .map(|h| {
                        let q = round(&q[h * dim..][..dim]);
                        let a: f64 = q.iter().zip(&k).map(|(x, y)| f64::from(x * y)).sum();
                        f64::from(w[h]) * a.max(0.0)
                    })
                    .sum();
                assert!((f64::from(score) - want).abs() < 1e-5 * want.abs().max(1.0));
            }
        }
    }

    /// Rule 10 word by word, one row and one head at a time: the tile must give its bits.
    #[test]
    fn tiles_have_the_bits_of_the_rule() {
        let (heads, dim) = (7, 96);
        let mut q = noise(heads * dim, 5);
        q[0] = -0.0;
        q[32..64].fill(0.0);
        let (w, mut keys) = (noise(heads, 6), noise(INDEX_TILE * dim, 7));
        keys[..32].iter_mut().for_each(|v| *v *= 1e20);
        let got = scores(&q, &w, &keys, dim);
        let blocks = |x: &[f32]| -> Vec<(Vec<i32>, f32)> {
            x.chunks(32)
                .map(|b| {
                    let (codes, s) = fp4_codes(b.try_into().unwrap_or(&[0.0; 32]));
                    (codes.map(|c| i32::from(e2m1_twice(c))).to_vec(), s)
                })
                .collect()
        };
        for (key, got) in keys.chunks(dim).zip(got) {
            let mut score = 0f32;
            for (head, w) in q.chunks(dim).zip(&w) {
                let mut a = 0f32;
                for ((q, sq), (k, sk)) in blocks(head).iter().zip(blocks(key)) {
                    let i: i32 = q.iter().zip(k).map(|(q, k)| q * k).sum();
                    a = fma(i as f32, (sq * sk) * 0.25, a);
                }
                score = fma(*w, a.max(0.0), score);
            }
            assert_eq!(got.to_bits(), score.to_bits());
        }
    }

    #[test]
    fn the_largest_dot_fits() {
        let got = scores(&[6.0; 32], &[1.0], &[-6.0; 32], 32);
        assert_eq!(got[0], 0.0);
        let got = scores(&[-6.0; 32], &[1.0], &[-6.0; 32], 32);
        assert_eq!(got[0], 32.0 * 36.0);
    }

    #[test]
    fn negative_dots_count_as_zero() {
        let mut scores = [f32::NAN; 2];
        index_scores_f32(&[1.0, 0.0], &[-2.0], &[3.0, 0.0, -3.0, 0.0], &mut scores);
        assert_eq!(scores, [-6.0, 0.0]);
    }
}
