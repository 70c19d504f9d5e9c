//! Selection by (value descending, index ascending), -0 = +0, NaN below everything (ADR 0001 rule
//! 14). One rule for top-k, routing and argmax, so that every device picks the same.

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

/// A number that is smaller the earlier (value, index) comes.
#[inline(always)]
fn rank(value: f32, index: u32) -> u64 {
    let bits = (value + 0.0).to_bits(); // -0 becomes +0
    let descending = match bits >> 31 {
        _ if value.is_nan() => u32::MAX,
        0 => !(bits | 0x8000_0000),
        _ => bits,
    };
    let index = if mutant(24) { !index } else { index };
    (u64::from(descending) << 32) | u64::from(index)
}

#[inline(always)]
fn ranks_impl(values: &[f32], ranks: &mut [u64]) {
    for (i, (rank_of, v)) in ranks.iter_mut().zip(values).enumerate() {
        *rank_of = rank(*v, i as u32);
    }
}

dispatch! {
    fn fill_ranks(values: &[f32], ranks: &mut [u64]) = ranks_impl
}

/// Writes the indexes of the `k` first values by the rule, ascending by index, into `picks`
/// (cleared first). `k >= values.len()` picks all. Linear in the values; `ranks` is scratch.
pub fn top_k(values: &[f32], k: usize, ranks: &mut Vec<u64>, picks: &mut Vec<u32>) {
    picks.clear();
    if k >= values.len() {
        picks.extend(0..values.len() as u32);
        return;
    }
    if k == 0 {
        return;
    }
    ranks.resize(values.len(), 0);
    fill_ranks(values, ranks);
    ranks.select_nth_unstable(k - 1);
    let index = |rank: &u64| {
        if mutant(24) {
            !(*rank as u32)
        } else {
            *rank as u32
        }
    };
    picks.extend(ranks[..k].iter().map(index));
    picks.sort_unstable();
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
        let (mut ranks, mut picks) = (vec![9], vec![7]);
        top_k(
            &[0.0, 5.0, -0.0, 5.0, f32::NAN, 0.0],
            3,
            &mut ranks,
            &mut picks,
        );
        assert_eq!(picks, [0, 1, 3]);
        top_k(&[-0.0, 0.0, 0.0], 1, &mut ranks, &mut picks);
        assert_eq!(picks, [0]);
        top_k(
            &[f32::NAN, f32::NEG_INFINITY, f32::NAN],
            2,
            &mut ranks,
            &mut picks,
        );
        assert_eq!(picks, [0, 1]);
        top_k(&[1.0, 2.0], 5, &mut ranks, &mut picks);
        assert_eq!(picks, [0, 1]);
        top_k(&[1.0, 2.0], 0, &mut ranks, &mut picks);
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
        let (mut ranks, mut picks) = (Vec::new(), Vec::new());
        for k in [1, 2, 31, 32, 500, 999] {
            top_k(&values, k, &mut ranks, &mut picks);
            let mut want = all[..k].to_vec();
            want.sort_unstable();
            assert_eq!(picks, want, "k = {k}");
        }
    }
}
