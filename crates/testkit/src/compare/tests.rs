use super::{Mismatch, exact, max_abs, nmse, top_k_set, ulp, ulp_distance};
use crate::rng::Rng;

/// What every comparer of numbers must refuse, beside a right answer of the same size.
fn wrong_answers() -> Vec<(&'static str, Vec<f32>, Vec<f32>)> {
    const COLS: usize = 1000;
    let right = Rng::new(1).normals(1_000_000, 1.0);
    let with = |index: usize, value: f32| {
        let mut wrong = right.clone();
        wrong[index] = value;
        wrong
    };
    let mut swapped = right.clone();
    for i in 0..COLS {
        swapped.swap(i, COLS + i);
    }
    let mut small = right.clone();
    small[1000..2000].iter_mut().for_each(|v| *v *= 1.02);
    vec![
        ("expected zero", vec![0.0; 100], vec![1e-6; 100]),
        ("got zero", right.clone(), vec![0.0; 1_000_000]),
        (
            "sign flip",
            right.clone(),
            right.iter().map(|v| -v).collect(),
        ),
        (
            "one sign flip",
            right.clone(),
            with(999_999, -right[999_999]),
        ),
        ("swapped rows", right.clone(), swapped),
        ("NaN", right.clone(), with(500_000, f32::NAN)),
        ("infinity", right.clone(), with(3, f32::NEG_INFINITY)),
        (
            "an outlier in a million",
            right.clone(),
            with(123_456, right[123_456] + 1.0),
        ),
        ("a huge outlier", right.clone(), with(0, 1e30)),
        ("a row two per cent off", right.clone(), small),
        ("one element short", right.clone(), right[1..].to_vec()),
    ]
}

#[test]
fn every_comparer_refuses_every_wrong_answer() {
    for (name, expected, got) in wrong_answers() {
        assert!(exact(&expected, &got).is_err(), "exact: {name}");
        assert!(ulp(&expected, &got, 1000).is_err(), "ulp: {name}");
        assert!(max_abs(&expected, &got, 1e-7).is_err(), "max_abs: {name}");
        assert!(nmse(&expected, &got, 1e-7).is_err(), "nmse: {name}");
    }
}

#[test]
fn every_comparer_takes_the_right_answer() {
    let right = Rng::new(2).normals(100_000, 3.0);
    assert_eq!(exact(&right, &right), Ok(()));
    assert_eq!(ulp(&right, &right, 0), Ok(0));
    assert_eq!(max_abs(&right, &right, 0.0), Ok(0.0));
    assert_eq!(nmse(&right, &right, 0.0), Ok(0.0));
    let empty: [f32; 0] = [];
    assert_eq!(exact(&empty, &empty), Ok(()));
    assert_eq!(ulp(&empty, &empty, 0), Ok(0));
    assert_eq!(max_abs(&empty, &empty, 0.0), Ok(0.0));
    assert_eq!(nmse(&empty, &empty, 0.0), Ok(0.0));
    assert_eq!(nmse(&[0.0f32; 4], &[0.0f32, -0.0, 0.0, 0.0], 0.0), Ok(0.0));
}

/// Noise of the permitted size passes, whatever the largest element is.
#[test]
fn noise_within_the_limit_passes() {
    let mut rng = Rng::new(3);
    let right = rng.normals(1_000_000, 1.0);
    let noisy: Vec<f64> = right
        .iter()
        .map(|v| f64::from(*v) + rng.normal() * 9e-4)
        .collect();
    let got = nmse(&right, &noisy, 1e-6).unwrap();
    assert!((got / 8.1e-7 - 1.0).abs() < 0.01, "{got}");
    assert!(nmse(&right, &noisy, 8e-7).is_err());
    let worst = max_abs(&right, &noisy, 1e-2).unwrap();
    assert!((3e-3..5e-3).contains(&worst));
}

#[test]
fn the_first_differing_bits_are_shown() {
    let got = exact(&[1.0f32, 0.0, 2.0], &[1.0, -0.0, 2.5]).unwrap_err();
    assert_eq!(
        got.to_string(),
        "2 of 3 elements differ, first at 1: expected 0x00000000 (0.0), got 0x80000000 (-0.0)"
    );
    let got = exact(&[0u8, 7], &[0, 0xa0]).unwrap_err();
    assert!(
        got.to_string()
            .ends_with("first at 1: expected 0x07 (7), got 0xa0 (160)")
    );
    let quiet = f32::from_bits(0x7fc0_0000);
    assert_eq!(exact(&[quiet], &[quiet]), Ok(()));
    assert!(exact(&[quiet], &[f32::from_bits(0x7fc0_0001)]).is_err());
    assert!(exact(&[-1i32], &[1]).is_err());
    assert!(exact(&[half::f16::ONE], &[half::f16::NEG_ONE]).is_err());
}

#[test]
fn not_finite_comes_first() {
    let got = nmse(&[1.0f64, f64::NAN], &[5.0f64, f64::NAN], 1.0).unwrap_err();
    assert!(matches!(got, Mismatch::NotFinite { index: 1, .. }));
    let got = max_abs(&[1.0f32, 2.0], &[9.0f64, f64::INFINITY], f64::INFINITY).unwrap_err();
    assert!(matches!(got, Mismatch::NotFinite { index: 1, .. }));
    let got = ulp(&[f32::NAN], &[f32::NAN], u32::MAX).unwrap_err();
    assert!(matches!(got, Mismatch::NotFinite { index: 0, .. }));
    let got = nmse(&[1.0f32], &[1.0f32, 2.0], 1.0).unwrap_err();
    assert_eq!(
        got,
        Mismatch::Length {
            expected: 1,
            got: 2
        }
    );
    // Squares that overflow give NaN, which is no pass.
    assert!(nmse(&[1e200f64], &[1e200 * (1.0 + 1e-3)], 1.0).is_err());
}

#[test]
fn ulps_are_steps() {
    assert_eq!(ulp_distance(1.0, 1.0f32.next_up()), 1);
    assert_eq!(ulp_distance(1.0, 1.0f32.next_down().next_down()), 2);
    assert_eq!(ulp_distance(0.0, -0.0), 0);
    assert_eq!(ulp_distance(f32::from_bits(1), -f32::from_bits(1)), 2);
    assert_eq!(ulp_distance(f32::MAX, f32::MIN), 2 * 0x7f7f_ffff);
    assert_eq!(ulp(&[1.0, 2.0], &[1.0f32.next_up(), 2.0], 1), Ok(1));
    let got = ulp(&[1.0, 2.0], &[1.0f32.next_up().next_up(), 2.0], 1).unwrap_err();
    assert!(matches!(
        got,
        Mismatch::Element {
            index: 0,
            distance: 2.0,
            ..
        }
    ));
}

#[test]
fn sets_are_compared_as_sets() {
    assert_eq!(top_k_set(&[3, 1, 2], &[1, 2, 3], 4), Ok(()));
    assert_eq!(top_k_set(&[], &[], 0), Ok(()));
    assert_eq!(
        top_k_set(&[1], &[u32::MAX], 4),
        Err(Mismatch::OutOfRange {
            index: u32::MAX,
            bound: 4
        })
    );
    assert_eq!(
        top_k_set(&[1, 2], &[1, 1], 4),
        Err(Mismatch::Duplicate { index: 1 })
    );
    let sets = |missing: &[u32], extra: &[u32]| {
        Err(Mismatch::Sets {
            missing: missing.to_vec(),
            extra: extra.to_vec(),
        })
    };
    assert_eq!(top_k_set(&[1, 2], &[1], 4), sets(&[2], &[]));
    assert_eq!(top_k_set(&[1], &[1, 3], 4), sets(&[], &[3]));
    assert_eq!(top_k_set(&[0, 1], &[2, 3], 4), sets(&[0, 1], &[2, 3]));
}
