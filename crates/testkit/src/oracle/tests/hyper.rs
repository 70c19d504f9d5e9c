use super::super::hyper::Hyper;
use super::super::{Mix, read_streams, split_mix, write_streams};
use super::{max_diff, random, small};

/// The numbers of spec 11.
fn golden_mix() -> Mix {
    let m: Vec<f64> = (0..24).map(|i| 2.0 * (1.7 * f64::from(i)).sin()).collect();
    let base: Vec<f64> = (0..24).map(|i| (0.9 * f64::from(i)).cos()).collect();
    split_mix(&m, &[0.7, 1.3, 0.9], &base, 4, 20, 1e-6)
}

const COMB: [f64; 16] = [
    0.4123087, 0.4981977, 0.0599351, 0.0295575, 0.1641525, 0.3373181, 0.2741149, 0.2244135,
    0.2833151, 0.0683835, 0.1482884, 0.5000120, 0.1402228, 0.0960997, 0.5176606, 0.2460159,
];

#[test]
fn coefficients_are_the_golden_ones() {
    let mix = golden_mix();
    assert!(max_diff(&mix.pre, &[0.7310596, 0.8818378, 0.3577932, 0.0997324]) < 1e-7);
    assert!(max_diff(&mix.post, &[1.1915716, 1.7318202, 0.4683155, 0.7053517]) < 1e-7);
    assert!(max_diff(&mix.comb, &COMB) < 1e-7);
}

#[test]
fn streams_after_the_golden_block() {
    let streams: Vec<f64> = (0..8)
        .map(|i: i32| (3.1 * f64::from(i) + 0.5).sin())
        .collect();
    let got = write_streams(&streams, &[1.0, -2.0], &golden_mix());
    let want = [
        1.5832305, -2.7363973, 2.1534428, -3.8473359, 0.7848799, -1.2136334, 1.0350884, -1.7009892,
    ];
    assert!(max_diff(&got, &want) < 2e-7, "{got:?}");
}

/// Trap 26: columns come last and sum to 1 (up to eps); rows only nearly, and the matrix is not
/// symmetric, so neither order nor transposition can hide.
#[test]
fn sinkhorn_ends_on_columns() {
    let mix = golden_mix();
    let column = |k: usize| (0..4).map(|j| mix.comb[4 * j + k]).sum::<f64>();
    let row = |j: usize| mix.comb[4 * j..4 * j + 4].iter().sum::<f64>();
    for i in 0..4 {
        assert!((column(i) - 1.0).abs() < 2e-6, "{}", column(i));
        assert!((row(i) - 1.0).abs() < 1e-3, "{}", row(i));
    }
    assert!((mix.comb[1] - mix.comb[4]).abs() > 0.3);
    let one = split_mix(&[1.0; 24], &[1.0; 3], &[0.0; 24], 4, 1, 1e-6);
    // One iteration is the softmax and one column pass.
    let entry = (0.25 + 1e-6) / (1.0 + 4e-6 + 1e-6);
    assert!(max_diff(&one.comb, &[entry; 16]) < 1e-15);
}

/// Spec 2.1: eps is added to `pre`, not to `post`.
#[test]
fn eps_stands_in_pre_only() {
    let mix = split_mix(&[-1000.0; 24], &[1.0; 3], &[0.0; 24], 4, 20, 1e-6);
    assert_eq!((mix.pre[0], mix.post[0]), (1e-6, 0.0));
}

/// Trap 27: one norm over all streams together.
#[test]
fn the_norm_covers_all_streams() {
    let model = small();
    let hyper = Hyper::new(&model, "blk.0.hc_attn").unwrap();
    let x = random(1, 4 * 64, 1).data;
    let scaled: Vec<f64> = x.iter().map(|v| v * 1000.0).collect();
    assert!(max_diff(&hyper.mix(&x).comb, &hyper.mix(&scaled).comb) < 1e-5);
    // A norm per stream would not notice this.
    let mut uneven = x.clone();
    uneven[..64].iter_mut().for_each(|v| *v *= 1000.0);
    assert!(max_diff(&hyper.mix(&x).comb, &hyper.mix(&uneven).comb) > 1e-2);
}

#[test]
fn reading_weighs_streams() {
    assert_eq!(
        read_streams(&[1.0, 2.0, 10.0, 20.0], &[2.0, 0.5]),
        [7.0, 14.0]
    );
}
