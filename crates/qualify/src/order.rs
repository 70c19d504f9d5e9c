//! The order of runs: ABBA BAAB and so on, so that a drift of the machine falls on both arms alike.

/// An arm of a comparison.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub enum Side {
    /// The base.
    A,
    /// What is compared with it.
    B,
}

/// The order of `pairs` pairs: each holds one run of either arm; pairs come as AB BA BA AB, over and
/// over.
#[must_use]
pub fn alternating(pairs: usize) -> Vec<Side> {
    let pair = |at: usize| match at % 4 {
        0 | 3 => [Side::A, Side::B],
        _ => [Side::B, Side::A],
    };
    (0..pairs).flat_map(pair).collect()
}

/// The order as letters.
#[must_use]
pub fn letters(order: &[Side]) -> String {
    order
        .iter()
        .map(|s| if *s == Side::A { 'A' } else { 'B' })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_30_the_order_is_abba_baab() {
        assert_eq!(letters(&alternating(4)), "ABBABAAB");
        assert_eq!(letters(&alternating(5)), "ABBABAABAB");
        assert_eq!(alternating(0), []);
    }
}
