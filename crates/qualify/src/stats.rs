//! Medians, spreads and a seeded bootstrap, in whole parts per million so that a report can be
//! recomputed bit for bit on any machine.

/// One in parts per million.
pub const ONE: u64 = 1_000_000;
/// Resamples of a bootstrap.
const RESAMPLES: usize = 2000;

/// `b / a` in parts per million, rounded to nearest; 0 if `a` is 0.
#[must_use]
pub fn ratio_ppm(a: u64, b: u64) -> u64 {
    if a == 0 {
        return 0;
    }
    let wide = u128::from(b) * u128::from(ONE) + u128::from(a / 2);
    u64::try_from(wide / u128::from(a)).unwrap_or(u64::MAX)
}

/// The median; of an even number the mean of the middle two, rounded down. 0 for none.
#[must_use]
pub fn median(values: &[u64]) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    let n = sorted.len();
    match n {
        0 => 0,
        _ if n % 2 == 1 => sorted[n / 2],
        _ => sorted[n / 2 - 1] + (sorted[n / 2] - sorted[n / 2 - 1]) / 2,
    }
}

/// The value at a share of the sorted list, nearest rank.
fn at_share(sorted: &[u64], per_mille: usize) -> u64 {
    let at = (sorted.len() * per_mille).div_ceil(1000).max(1) - 1;
    sorted.get(at).copied().unwrap_or(0)
}

/// Distance between the quartiles, nearest rank.
#[must_use]
pub fn iqr(values: &[u64]) -> u64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    at_share(&sorted, 750).saturating_sub(at_share(&sorted, 250))
}

/// Median distance from the median.
#[must_use]
pub fn mad(values: &[u64]) -> u64 {
    let middle = median(values);
    let distances: Vec<u64> = values.iter().map(|v| v.abs_diff(middle)).collect();
    median(&distances)
}

/// A 95 % interval of the median, by resampling with a fixed generator: the same values give the same
/// interval everywhere. `seed`: which stream.
#[must_use]
pub fn interval95(values: &[u64], seed: u64) -> (u64, u64) {
    let n = values.len();
    if n == 0 {
        return (0, 0);
    }
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        // xorshift64* (Vigna 2016).
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32
    };
    let mut medians = Vec::with_capacity(RESAMPLES);
    let mut sample = vec![0; n];
    for _ in 0..RESAMPLES {
        for slot in &mut sample {
            *slot = values[next() as usize % n];
        }
        medians.push(median(&sample));
    }
    medians.sort_unstable();
    (at_share(&medians, 25), at_share(&medians, 975))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_31_medians_and_spreads_of_known_lists() {
        assert_eq!(median(&[]), 0);
        assert_eq!(median(&[7]), 7);
        assert_eq!(median(&[9, 1, 5]), 5);
        assert_eq!(median(&[4, 1, 3, 9]), 3);
        assert_eq!(iqr(&[1, 2, 3, 4, 5, 6, 7, 8]), 4);
        assert_eq!(mad(&[1, 1, 2, 2, 4, 6, 9]), 1);
        assert_eq!(ratio_ppm(3, 2), 666_667);
        assert_eq!(ratio_ppm(0, 2), 0);
    }

    #[test]
    fn c_31_the_interval_is_seeded_and_holds_the_median() {
        let values: Vec<u64> = (0..11).map(|i| 1_000_000 + 1000 * i).collect();
        let (low, high) = interval95(&values, 1);
        assert_eq!((low, high), interval95(&values, 1));
        assert!(
            low < median(&values) && median(&values) < high,
            "{low} {high}"
        );
        assert!(low >= values[1] && high <= values[9], "{low} {high}");
        assert_eq!(interval95(&[5, 5, 5], 3), (5, 5));
        assert_eq!(interval95(&[], 3), (0, 0));
    }
}
