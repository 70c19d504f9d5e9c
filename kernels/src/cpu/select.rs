//! Selection by (value descending, index ascending), -0 = +0, NaN below everything (ADR 0001 rule
//! 14). One rule for top-k, routing and argmax, so that every device picks the same.

use std::cmp::Ordering;

use engine_core::mutant::mutant;

/// Whether (a, i) comes before (b, j).
#[inline(always)]
pub(super) fn before(a: f32, i: u32, b: f32, j: u32) -> bool {
    let by_value = match (a.is_nan(), b.is_nan()) {
        (false, false) => a > b,
        (a_nan, b_nan) => !a_nan && b_nan,
    };
    let equal = a == b || (a.is_nan() && b.is_nan());
    by_value || (equal && if mutant(24) { i > j } else { i < j })
}

fn order(a: f32, i: u32, b: f32, j: u32) -> Ordering {
    if before(a, i, b, j) {
        Ordering::Less
    } else {
        Ordering::Greater
    }
}

/// Writes the indexes of the `k` first values by the rule, ascending by index, into `picks`
/// (cleared first). `k >= values.len()` picks all.
pub fn top_k(values: &[f32], k: usize, picks: &mut Vec<u32>) {
    picks.clear();
    picks.extend(0..values.len() as u32);
    if k < picks.len() {
        if k == 0 {
            picks.clear();
            return;
        }
        picks.select_nth_unstable_by(k - 1, |i, j| {
            order(values[*i as usize], *i, values[*j as usize], *j)
        });
        picks.truncate(k);
        picks.sort_unstable();
    }
}

/// The index of the largest value, the lowest one on ties. NaN never wins over a number.
///
/// # Panics
/// If `values` is empty.
#[must_use]
pub fn argmax(values: &[f32]) -> u32 {
    assert!(!values.is_empty());
    let mut best = (values[0], 0u32);
    for (i, v) in values.iter().enumerate().skip(1) {
        if before(*v, i as u32, best.0, best.1) {
            best = (*v, i as u32);
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ties_go_to_the_lower_index_and_zeros_are_equal() {
        let mut picks = vec![7];
        top_k(&[0.0, 5.0, -0.0, 5.0, f32::NAN, 0.0], 3, &mut picks);
        assert_eq!(picks, [0, 1, 3]);
        top_k(&[-0.0, 0.0, 0.0], 1, &mut picks);
        assert_eq!(picks, [0]);
        top_k(&[f32::NAN, f32::NEG_INFINITY, f32::NAN], 2, &mut picks);
        assert_eq!(picks, [0, 1]);
        top_k(&[1.0, 2.0], 5, &mut picks);
        assert_eq!(picks, [0, 1]);
        top_k(&[1.0, 2.0], 0, &mut picks);
        assert!(picks.is_empty());
        assert_eq!(argmax(&[f32::NAN, -1.0, 3.0, 3.0]), 2);
        assert_eq!(argmax(&[-0.0, 0.0]), 0);
    }

    #[test]
    fn top_k_equals_a_full_sort() {
        let mut state = 1u32;
        let values: Vec<f32> = (0..1000)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                ((state >> 24) as f32) - 128.0
            })
            .collect();
        let mut all: Vec<u32> = (0..1000).collect();
        all.sort_by(|i, j| {
            values[*j as usize]
                .total_cmp(&values[*i as usize])
                .then(i.cmp(j))
        });
        let mut picks = Vec::new();
        for k in [1, 2, 31, 32, 500, 999] {
            top_k(&values, k, &mut picks);
            let mut want = all[..k].to_vec();
            want.sort_unstable();
            assert_eq!(picks, want, "k = {k}");
        }
    }
}
