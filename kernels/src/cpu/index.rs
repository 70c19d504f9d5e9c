//! Indexer scores: which compressed rows a query attends to (ADR 0001 rule 10,
//! spec/ds4-architecture.md 2.9).

use engine_core::math::{dot, fma};

use super::round::{INDEX_BLOCK, index_row_bytes, pack_index_row, unpack_index_row};

/// A query quantised to fp4: integers and scales per head.
#[derive(Clone, Debug, Default)]
pub struct IndexQuery {
    /// `[heads, dim]` doubled e2m1 codes.
    twice: Vec<i8>,
    /// `[heads, dim / 32]`.
    scale: Vec<f32>,
    packed: Vec<u8>,
    key: Vec<i8>,
    key_scale: Vec<f32>,
}

/// Rounds the (rotated, transformed) query heads to fp4. `heads`: `[n_heads, dim]`.
pub fn quantise_index_query(heads: &[f32], dim: usize, query: &mut IndexQuery) {
    let n = heads.len() / dim;
    query.twice.resize(n * dim, 0);
    query.scale.resize(n * dim / INDEX_BLOCK, 0.0);
    query.packed.resize(index_row_bytes(dim), 0);
    query.key.resize(dim, 0);
    query.key_scale.resize(dim / INDEX_BLOCK, 0.0);
    let scales = query.scale.chunks_exact_mut(dim / INDEX_BLOCK);
    for ((head, twice), scale) in heads
        .chunks_exact(dim)
        .zip(query.twice.chunks_exact_mut(dim))
        .zip(scales)
    {
        pack_index_row(head, &mut query.packed);
        unpack_index_row(&query.packed, twice, scale);
    }
}

#[inline(always)]
fn dot_i8(a: &[i8], b: &[i8]) -> i32 {
    let mut sum = 0;
    for i in 0..INDEX_BLOCK {
        sum += i32::from(a[i]) * i32::from(b[i]);
    }
    sum
}

#[inline(always)]
fn scores_packed_impl(query: &mut IndexQuery, weights: &[f32], rows: &[u8], scores: &mut [f32]) {
    let dim = query.key.len();
    let blocks = dim / INDEX_BLOCK;
    for (row, score) in rows.chunks_exact(index_row_bytes(dim)).zip(scores) {
        unpack_index_row(row, &mut query.key, &mut query.key_scale);
        let mut sum = 0f32;
        for (h, w) in weights.iter().enumerate() {
            let mut a = 0f32;
            for b in 0..blocks {
                let at = h * dim + b * INDEX_BLOCK;
                let i = dot_i8(&query.twice[at..], &query.key[b * INDEX_BLOCK..]);
                let s = (query.scale[h * blocks + b] * query.key_scale[b]) * 0.25;
                a = fma(i as f32, s, a);
            }
            sum = fma(*w, if a > 0.0 { a } else { 0.0 }, sum);
        }
        *score = sum;
    }
}

dispatch! {
    /// Scores packed rows with integer dots. `weights`: `[n_heads]`, `rows`: `[n, packed bytes]`,
    /// `scores`: `[n]`.
    pub fn index_scores_packed(
        query: &mut IndexQuery,
        weights: &[f32],
        rows: &[u8],
        scores: &mut [f32],
    ) = scores_packed_impl
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
    use super::super::round::fp4_sim;
    use super::*;

    fn noise(n: usize, mut state: u32) -> Vec<f32> {
        (0..n)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / 8_388_608.0 - 1.0
            })
            .collect()
    }

    #[test]
    fn packed_scores_equal_the_sum_over_rounded_values() {
        let (heads, dim, n) = (3, 128, 5);
        let q = noise(heads * dim, 1);
        let w = [0.5f32, -0.25, 1.5];
        let keys = noise(n * dim, 2);
        let mut rows = Vec::new();
        for k in keys.chunks(dim) {
            let mut packed = vec![0; index_row_bytes(dim)];
            pack_index_row(k, &mut packed);
            rows.extend(packed);
        }
        let mut query = IndexQuery::default();
        quantise_index_query(&q, dim, &mut query);
        let mut scores = vec![f32::NAN; n];
        index_scores_packed(&mut query, &w, &rows, &mut scores);
        let round = |x: &[f32]| {
            let mut y = x.to_vec();
            fp4_sim(&mut y);
            y
        };
        for (c, score) in scores.iter().enumerate() {
            let k = round(&keys[c * dim..][..dim]);
            let want: f64 = (0..heads)
                .map(|h| {
                    let q = round(&q[h * dim..][..dim]);
                    let a: f64 = q.iter().zip(&k).map(|(x, y)| f64::from(x * y)).sum();
                    f64::from(w[h]) * a.max(0.0)
                })
                .sum();
            assert!((f64::from(*score) - want).abs() < 1e-5 * want.abs().max(1.0));
        }
    }

    #[test]
    fn negative_dots_count_as_zero() {
        let mut scores = [f32::NAN; 2];
        index_scores_f32(&[1.0, 0.0], &[-2.0], &[3.0, 0.0, -3.0, 0.0], &mut scores);
        assert_eq!(scores, [-6.0, 0.0]);
    }
}
