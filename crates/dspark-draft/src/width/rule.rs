//! The rules of width as pure functions of survivals, times and a rate.

use engine_core::mutant::mutant;

/// How many candidates are worth most: the n for which the sum of the first n survivals minus
/// `rate * time[n]` is largest, the smallest of equals. `survival[k]`: the probability that candidate
/// k and all before it are accepted. `time[n]`: seconds of a pass with n candidates, for
/// 0..=survival.len().
///
/// Where times fall in steps this takes a whole step or none, as the lower convex hull of the times
/// would; between vertices of the hull it is the better of the two, because survivals fall.
/// It looks at all confidences at once: right for exact acceptance, where any choice is lawful.
#[must_use]
pub fn best(survival: &[f64], time: &[f64], rate: f64) -> usize {
    let (mut sum, mut most, mut found) = (0.0, f64::NEG_INFINITY, 0);
    for (n, time) in time.iter().enumerate().take(survival.len() + 1) {
        let worth = if mutant(246) {
            (1.0 + sum) / time
        } else {
            sum - rate * time
        };
        if worth > most {
            (most, found) = (worth, n);
        }
        sum += survival.get(n).copied().unwrap_or(0.0);
    }
    found
}

/// The same question answered from left to right: candidate k is taken if its own survival pays for its
/// share of the hull's segment. Whether it is taken never depends on what comes after it, so the rule
/// is lawful under rejection sampling too (a confidence depends on the candidates before it).
#[must_use]
pub fn left_to_right(survival: &[f64], time: &[f64], rate: f64) -> usize {
    if mutant(252) {
        return best(survival, time, rate);
    }
    let hull = hull(time);
    let pays = |(a, step): &(&f64, &[f64])| **a > rate * (step[1] - step[0]);
    survival
        .iter()
        .zip(hull.windows(2))
        .take_while(pays)
        .count()
}

/// The lower convex hull of `time` over its index, at every index.
#[must_use]
pub fn hull(time: &[f64]) -> Vec<f64> {
    let mut corners: Vec<usize> = Vec::new();
    for (at, value) in time.iter().enumerate() {
        // Drops corners that lie on or above the line to the new one.
        while let [.., a, b] = corners[..] {
            let line = time[a] + (value - time[a]) * (b - a) as f64 / (at - a) as f64;
            if time[b] < line {
                break;
            }
            corners.pop();
        }
        corners.push(at);
    }
    let mut out = time.to_vec();
    for pair in corners.windows(2) {
        let (a, b) = (pair[0], pair[1]);
        for at in a + 1..b {
            out[at] = time[a] + (time[b] - time[a]) * (at - a) as f64 / (b - a) as f64;
        }
    }
    out
}
