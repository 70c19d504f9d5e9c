//! Log-probabilities of a row as it is, before any plan.

use engine_core::TokenId;
use engine_core::math::ln;

use crate::wide::sum_weights;

/// The log-softmax of a row. NaN logits have probability 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Logprobs {
    largest: f32,
    log_sum: f32,
}

impl Logprobs {
    /// Of `row` `[n]` f32; `None` if every logit is NaN or minus infinity.
    ///
    /// Sum of exp(l - largest) in the order of the arithmetic contract's dot: segments of 512, 32
    /// partial sums over the index mod 32, folded, segments added in order; then its ln.
    #[must_use]
    pub fn of(row: &[f32]) -> Option<Self> {
        let largest = row[crate::argmax(row)? as usize];
        Some(Self {
            largest,
            log_sum: ln(sum_weights(row, largest)),
        })
    }

    /// The log-probability of a token of the row with logit `logit`: (l - largest) - ln(sum).
    #[must_use]
    pub fn at(&self, logit: f32) -> f32 {
        if logit.is_nan() {
            return f32::NEG_INFINITY;
        }
        let below = if logit == self.largest {
            0.0
        } else {
            logit - self.largest
        };
        below - self.log_sum
    }

    /// Fills `out` with the `n` most probable tokens, best first, the lowest id of equals first.
    pub fn top(&self, row: &[f32], n: usize, out: &mut Vec<(TokenId, f32)>) {
        out.clear();
        for (id, logit) in (0u32..).zip(row) {
            let worst = out.last().map_or(f32::NEG_INFINITY, |(_, l)| *l);
            let fits = out.len() < n && !logit.is_nan();
            if n == 0 || !(fits || *logit > worst) {
                continue;
            }
            let at = out.partition_point(|(_, l)| *l >= *logit);
            out.truncate(n - 1);
            out.insert(at, (id, *logit));
        }
        for (_, logit) in out {
            *logit = self.at(*logit);
        }
    }
}

/// ln of the sum of exp over a row in f64, for perplexity: index order, software exp and ln, the
/// same bits everywhere. NaN logits count as probability 0; minus infinity for an empty row.
#[must_use]
pub fn log_sum_exp(row: &[f32]) -> f64 {
    let Some(best) = crate::argmax(row) else {
        return f64::NEG_INFINITY;
    };
    let largest = f64::from(row[best as usize]);
    if largest == f64::INFINITY {
        return largest;
    }
    let numbers = row.iter().filter(|l| !l.is_nan());
    let sum: f64 = numbers.map(|l| libm::exp(f64::from(*l) - largest)).sum();
    largest + libm::log(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(n: u32) -> Vec<f32> {
        (0..n)
            .map(|i| ((i.wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0) * 12.0)
            .collect()
    }

    #[test]
    fn log_probabilities_are_close_to_f64_and_sum_to_one() {
        for n in [1, 2, 31, 33, 512, 513, 4096, 129_280] {
            let row = row(n);
            let logprobs = Logprobs::of(&row).unwrap();
            let exact = log_sum_exp(&row);
            let mut total = 0.0;
            for logit in &row {
                let got = f64::from(logprobs.at(*logit));
                assert!((got - (f64::from(*logit) - exact)).abs() < 5e-6, "n = {n}");
                total += got.exp();
            }
            assert!((total - 1.0).abs() < 5e-6, "n = {n}: {total}");
        }
    }

    #[test]
    fn odd_logits_have_defined_log_probabilities() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        let row = [0.0, nan, -inf, 0.0];
        let logprobs = Logprobs::of(&row).unwrap();
        assert_eq!(logprobs.at(0.0), -std::f32::consts::LN_2);
        assert_eq!((logprobs.at(nan), logprobs.at(-inf)), (-inf, -inf));
        assert!((log_sum_exp(&row) - std::f64::consts::LN_2).abs() < 1e-15);
        let infinite = Logprobs::of(&[1.0, inf]).unwrap();
        assert_eq!((infinite.at(inf), infinite.at(1.0)), (0.0, -inf));
        assert_eq!(log_sum_exp(&[1.0, inf]), f64::INFINITY);
        assert_eq!(Logprobs::of(&[nan, -inf]), None);
        assert_eq!(log_sum_exp(&[]), f64::NEG_INFINITY);
    }

    #[test]
    fn the_top_list_is_ranked_with_the_lowest_id_first() {
        let row = [1.0, 3.0, f32::NAN, 3.0, f32::NEG_INFINITY, 2.0];
        let logprobs = Logprobs::of(&row).unwrap();
        let ids = |n: usize| {
            let mut out = vec![(9, 0.0)];
            logprobs.top(&row, n, &mut out);
            for (id, logprob) in &out {
                assert_eq!(*logprob, logprobs.at(row[*id as usize]));
            }
            out.iter().map(|(id, _)| *id).collect::<Vec<_>>()
        };
        assert_eq!(ids(0), [0u32; 0]);
        assert_eq!(ids(1), [1]);
        assert_eq!(ids(2), [1, 3]);
        assert_eq!(ids(4), [1, 3, 5, 0]);
        assert_eq!(ids(9), [1, 3, 5, 0, 4]);
    }

    #[test]
    fn the_sum_follows_the_stated_order() {
        // Lane 0 holds 1 and then many shares too small to move it one at a time; other lanes keep
        // theirs: the result tells the order.
        let mut row = vec![f32::NEG_INFINITY; 512];
        row[0] = 0.0;
        for stripe in 1..16 {
            row[stripe * 32] = -17.5;
        }
        assert_eq!(Logprobs::of(&row).unwrap().log_sum, 0.0);
        for stripe in 1..16 {
            row[stripe * 32] = f32::NEG_INFINITY;
            row[stripe * 32 + 1] = -17.5;
        }
        assert!(Logprobs::of(&row).unwrap().log_sum > 0.0);
    }
}
