//! Which tokens may be drawn. Tokens are ranked by (value descending, id ascending), -0 and +0 equal;
//! NaN and minus infinity are never kept. Weights are exp(value - largest); top-p sums them as
//! integers, so that no order of addition exists that could matter.

use std::cmp::Ordering;

use engine_core::TokenId;

use crate::wide;

/// A row of values, the largest of them, and their weights.
pub(crate) struct Weighed<'a> {
    pub(crate) row: &'a [f32],
    pub(crate) largest: f32,
    /// `[n]`; set for the kept tokens at least.
    pub(crate) weights: &'a mut [f32],
}

/// The order of rank: first is best. Values are not NaN.
fn rank(row: &[f32], a: TokenId, b: TokenId) -> Ordering {
    let (x, y) = (row[a as usize], row[b as usize]);
    y.partial_cmp(&x).unwrap_or(Ordering::Equal).then(a.cmp(&b))
}

/// A weight in units of 2^-40, rounded down.
fn units(weight: f32) -> u64 {
    (weight * 1_099_511_627_776.0) as u64
}

/// One unit.
const UNIT: f32 = 9.094_947e-13;

/// Steps of a quarter below the largest value; the last holds all that is further down. Weightless
/// values stand beyond: exp(-27.8) is below a unit.
const STEPS: usize = 113;

/// Fills `kept` with the `k` best tokens.
pub(crate) fn top_k(row: &[f32], k: usize, kept: &mut Vec<TokenId>) {
    kept.clear();
    let mut threshold = f32::NEG_INFINITY;
    for (id, value) in (0u32..).zip(row) {
        // Ids ascend: an equal value later is ranked lower. NaN fails the comparison.
        if *value > threshold {
            kept.push(id);
        }
        if kept.len() >= k.saturating_mul(2) {
            keep_best(row, k, kept);
            threshold = kept
                .iter()
                .map(|id| row[*id as usize])
                .fold(f32::INFINITY, f32::min);
        }
    }
    keep_best(row, k, kept);
}

fn keep_best(row: &[f32], k: usize, kept: &mut Vec<TokenId>) {
    if kept.len() > k {
        kept.select_nth_unstable_by(k, |a, b| rank(row, *a, *b));
        kept.truncate(k);
    }
}

impl Weighed<'_> {
    /// Weighs `kept`.
    pub(crate) fn weigh(&mut self, kept: &[TokenId]) {
        for id in kept {
            let value = self.row[*id as usize];
            self.weights[*id as usize] = wide::weight(value, self.largest);
        }
    }

    /// Weighs all, and fills `kept` with those that weigh at least `floor`, or one unit.
    pub(crate) fn weigh_all(&mut self, floor: f32, kept: &mut Vec<TokenId>) {
        wide::weights(self.row, self.largest, self.weights);
        let floor = if floor > 0.0 { floor } else { UNIT };
        kept.clear();
        for (id, weight) in (0u32..).zip(self.weights.iter()) {
            if *weight >= floor {
                kept.push(id);
            }
        }
    }

    /// Keeps tokens whose weight is at least `min_p` times the largest weight, which is 1.
    pub(crate) fn min_p(&self, min_p: f32, kept: &mut Vec<TokenId>) {
        kept.retain(|id| self.weights[*id as usize] >= min_p);
    }

    /// Keeps the shortest run of best tokens whose weights reach `top_p` of all kept weights.
    ///
    /// Sums by steps of value first, so that only the step in which the share is reached needs to
    /// be ranked.
    pub(crate) fn top_p(&self, top_p: f32, kept: &mut Vec<TokenId>) {
        let mut sums = [0u64; STEPS];
        for id in kept.iter() {
            sums[self.step(*id)] += units(self.weights[*id as usize]);
        }
        let target = share(sums.iter().sum(), top_p);
        let (mut reached, mut last) = (0, 0);
        while reached + sums[last] < target && last + 1 < STEPS {
            reached += sums[last];
            last += 1;
        }
        kept.retain(|id| self.step(*id) <= last);
        let mut above = 0;
        for at in 0..kept.len() {
            if self.step(kept[at]) < last {
                kept.swap(above, at);
                above += 1;
            }
        }
        let needed = self.needed(&mut kept[above..], target - reached);
        kept.truncate(above + needed);
    }

    fn step(&self, id: TokenId) -> usize {
        let value = self.row[id as usize];
        if value == self.largest {
            return 0;
        }
        (((self.largest - value) * 4.0) as usize).min(STEPS - 1)
    }

    /// Ranks tokens from the front until their weights reach `target`; returns how many it took.
    fn needed(&self, tokens: &mut [TokenId], target: u64) -> usize {
        let order = |a: &TokenId, b: &TokenId| rank(self.row, *a, *b);
        let (mut ranked, mut sum, mut chunk) = (0, 0, 64);
        while ranked < tokens.len() {
            let rest = &mut tokens[ranked..];
            let n = chunk.min(rest.len());
            if n < rest.len() {
                rest.select_nth_unstable_by(n, order);
            }
            rest[..n].sort_unstable_by(order);
            for id in &rest[..n] {
                sum += units(self.weights[*id as usize]);
                ranked += 1;
                if sum >= target {
                    return ranked;
                }
            }
            chunk *= 4;
        }
        ranked
    }
}

/// `total` times `p`, rounded up, p in units of 2^-32 rounded down but at least one.
fn share(total: u64, p: f32) -> u64 {
    let p = ((f64::from(p) * 4_294_967_296.0) as u64).max(1);
    let product = u128::from(total) * u128::from(p);
    u64::try_from(product.div_ceil(1 << 32)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAN: f32 = f32::NAN;
    const INF: f32 = f32::INFINITY;

    fn sorted(mut kept: Vec<TokenId>) -> Vec<TokenId> {
        kept.sort_unstable();
        kept
    }

    #[test]
    fn top_k_keeps_the_best_and_the_lowest_ids_of_equals() {
        let row = [1.0, 3.0, NAN, 3.0, -INF, 2.0, 3.0, -0.0, 0.0];
        let cases: [(usize, &[TokenId]); 8] = [
            (1, &[1]),
            (2, &[1, 3]),
            (3, &[1, 3, 6]),
            (4, &[1, 3, 5, 6]),
            (5, &[0, 1, 3, 5, 6]),
            (6, &[0, 1, 3, 5, 6, 7]),
            (7, &[0, 1, 3, 5, 6, 7, 8]),
            (100, &[0, 1, 3, 5, 6, 7, 8]),
        ];
        for (k, want) in cases {
            let mut kept = vec![99];
            top_k(&row, k, &mut kept);
            assert_eq!(sorted(kept), want, "k = {k}");
        }
    }

    /// ln of a weight, for rows with round weights.
    fn row_of(weights: &[f64]) -> Vec<f32> {
        weights.iter().map(|w| w.ln() as f32).collect()
    }

    fn run(row: &[f32], change: impl FnOnce(&mut Weighed<'_>, &mut Vec<TokenId>)) -> Vec<TokenId> {
        let largest = row.iter().copied().fold(-INF, f32::max);
        let mut weights = vec![NAN; row.len()];
        let mut kept = vec![99];
        let mut weighed = Weighed {
            row,
            largest,
            weights: &mut weights,
        };
        change(&mut weighed, &mut kept);
        sorted(kept)
    }

    fn run_top_p(row: &[f32], p: f32) -> Vec<TokenId> {
        run(row, |weighed, kept| {
            weighed.weigh_all(0.0, kept);
            weighed.top_p(p, kept);
        })
    }

    #[test]
    fn top_p_keeps_the_shortest_run_that_reaches_its_share() {
        let row = row_of(&[0.1, 0.4, 0.2, 0.3]);
        assert_eq!(run_top_p(&row, 0.000_001), [1]);
        assert_eq!(run_top_p(&row, 0.39), [1]);
        assert_eq!(run_top_p(&row, 0.41), [1, 3]);
        assert_eq!(run_top_p(&row, 0.69), [1, 3]);
        assert_eq!(run_top_p(&row, 0.71), [1, 2, 3]);
        assert_eq!(run_top_p(&row, 0.91), [0, 1, 2, 3]);
        assert_eq!(run_top_p(&row, 1.0), [0, 1, 2, 3]);
    }

    #[test]
    fn top_p_at_an_exact_boundary_and_among_equals() {
        // Four equal weights: the share 1/2 is reached exactly by two, the lowest ids.
        assert_eq!(run_top_p(&[5.0; 4], 0.5), [0, 1]);
        assert_eq!(run_top_p(&[5.0; 4], 0.500_001), [0, 1, 2]);
        assert_eq!(run_top_p(&[5.0; 4], 0.25), [0]);
        assert_eq!(run_top_p(&[NAN, INF, 1.0, INF], 0.9), [1, 3]);
        assert_eq!(
            run_top_p(&[-INF, 0.0, -28.0], 1.0),
            [1],
            "weightless tokens are never needed"
        );
    }

    #[test]
    fn top_p_ranks_past_its_first_step() {
        let row: Vec<f32> = (0..5000u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 20) as f32 * 1e-4)
            .collect();
        let kept = run_top_p(&row, 0.9);
        let mut order: Vec<TokenId> = (0..5000).collect();
        order.sort_by(|a, b| rank(&row, *a, *b));
        assert_eq!(kept, sorted(order[..kept.len()].to_vec()));
        assert!(kept.len() > 4000 && kept.len() < 5000, "{}", kept.len());
    }

    #[test]
    fn min_p_compares_weights() {
        let row = row_of(&[0.5, 0.25, 0.126, 0.124, 0.01]);
        let run = |p: f32| {
            let all = run(&row, |weighed, kept| weighed.weigh_all(p, kept));
            let some = run(&row, |weighed, kept| {
                *kept = (0..5).collect();
                weighed.weigh(kept);
                weighed.min_p(p, kept);
            });
            assert_eq!(all, some);
            some
        };
        assert_eq!(run(1.0), [0]);
        assert_eq!(run(0.25), [0, 1, 2]);
        assert_eq!(run(0.02), [0, 1, 2, 3, 4]);
        assert_eq!(run(1e-30), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn shares_are_rounded_up_and_never_nothing() {
        assert_eq!(share(1 << 40, 0.5), 1 << 39);
        assert_eq!(share(3, 0.5), 2);
        assert_eq!(share(1 << 57, 1.0), 1 << 57);
        assert_eq!(share(1 << 40, 1e-30), 1 << 8);
        assert_eq!(share(5, 1e-30), 1);
    }
}
